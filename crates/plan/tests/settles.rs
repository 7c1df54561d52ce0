//! Does every World come to rest, wherever it starts and wherever the operator dies on the way?

#[path = "support/cluster.rs"]
mod cluster;

use cluster::{Cluster, assert_same};
use serde_json::json;
use spanwire_plan::facts::ConfigMapFacts;
use spanwire_plan::plan::ObjectKind::{ConfigMap, Link, RouterAccess, Secret, Site};
use spanwire_plan::{World, names};

/// Something that a user does.
type Step = fn(&mut Cluster);

fn site(spec: serde_json::Value) -> impl Fn(&mut Cluster) {
    move |cluster| cluster.apply(Site, "west", &spec)
}

fn plain(cluster: &mut Cluster) {
    site(json!({}))(cluster);
}

fn reachable(cluster: &mut Cluster) {
    site(json!({"linkAccess": "default"}))(cluster);
}

fn twofold(cluster: &mut Cluster) {
    site(json!({"linkAccess": "nodeport", "ha": true}))(cluster);
}

fn edge(cluster: &mut Cluster) {
    site(json!({"edge": true}))(cluster);
}

fn access(cluster: &mut Cluster) {
    cluster.apply(RouterAccess, "west-peer", &json!({
        "generateTlsCredentials": true, "issuer": "skupper-site-ca",
        "roles": [{"name": "inter-router", "port": 55671}], "tlsCredentials": "skupper-site-server",
    }));
}

fn link(cluster: &mut Cluster) {
    cluster.bring_credential("east");
    cluster.apply(
        Link,
        "east",
        &json!({
            "endpoints": [
                {"name": "inter-router", "host": "east.example", "port": "55671"},
                {"name": "edge", "host": "east.example", "port": "45671"},
            ],
            "tlsCredentials": "east",
        }),
    );
}

fn unlink(cluster: &mut Cluster) {
    cluster.delete(Link, "east");
}

fn spoil(cluster: &mut Cluster) {
    cluster.spoil("east");
}

fn lose_credentials(cluster: &mut Cluster) {
    cluster.delete(Secret, "east");
}

fn drop_config(cluster: &mut Cluster) {
    cluster.delete(ConfigMap, names::ROUTER);
}

fn put_a_strangers_config(cluster: &mut Cluster) {
    cluster.delete(ConfigMap, names::ROUTER);
    let mut config = ConfigMapFacts::default();
    config.metadata.name = Some(names::ROUTER.to_owned());
    config.metadata.uid = Some("of-a-stranger".to_owned());
    config.metadata.resource_version = Some("1".to_owned());
    cluster.world.config_maps.insert(config);
}

fn drop_access(cluster: &mut Cluster) {
    cluster.delete(RouterAccess, "west-peer");
}

/// What users do, by name.
const STORIES: [(&str, &[Step]); 10] = [
    ("a site", &[plain]),
    ("a site that others can link to", &[reachable, plain]),
    ("an access of the user's own", &[plain, access, drop_access]),
    ("a link that comes and goes", &[plain, link, unlink]),
    ("a link whose secret turns bad", &[plain, link, spoil]),
    ("a link whose secret goes", &[plain, link, lose_credentials]),
    (
        "two routers and back",
        &[reachable, link, twofold, reachable],
    ),
    ("an edge site and back", &[plain, link, edge, plain]),
    ("config deleted by hand", &[plain, link, drop_config]),
    (
        "a stranger's config",
        &[plain, link, put_a_strangers_config],
    ),
];

fn told(steps: &[Step]) -> Cluster {
    let mut cluster = Cluster::default();
    for step in steps {
        step(&mut cluster);
        cluster.settle();
    }
    cluster
}

#[test]
fn a_settled_world_plans_nothing() {
    for (story, steps) in STORIES {
        let mut cluster = told(steps);
        let (acts, world) = (cluster.acts, serde_json::to_value(&cluster.world).unwrap());
        for _ in 0..3 {
            cluster.wait(3600);
            cluster.pass();
        }
        assert_eq!(
            cluster.acts,
            acts,
            "{story}: {:?}",
            cluster.log.split_off(acts)
        );
        assert_eq!(
            serde_json::to_value(&cluster.world).unwrap(),
            world,
            "{story}"
        );
    }
}

#[test]
fn settles_from_anywhere_with_the_plan_cut_short_after_any_act() {
    for (story, steps) in STORIES {
        let mut before = Cluster::default();
        for step in steps {
            step(&mut before);
            let mut whole = before.clone();
            whole.settle();
            for cut in before.acts..whole.acts {
                let mut cluster = before.clone();
                cluster.cut = Some(cut);
                assert!(!cluster.settle(), "{story}: it was not cut after {cut}");
                cluster.cut = None;
                cluster.settle();
                assert_same(
                    &cluster.world,
                    &whole.world,
                    &format!("{story}, cut after {cut}"),
                );
            }
            before = whole;
        }
    }
}

/// The watches of different kinds are not in step: a plan may be of a World in which one kind is of long ago. (The law
/// itself is checked after each act.)
#[test]
fn a_world_that_is_behind_costs_no_credential_that_is_named() {
    let behind: [fn(&mut World, &World); 3] = [
        |world, old| world.config_maps = old.config_maps.clone(),
        |world, old| world.secrets = old.secrets.clone(),
        |world, old| world.links = old.links.clone(),
    ];
    for (story, steps) in STORIES {
        let mut cluster = Cluster::default();
        let mut past = vec![cluster.world.clone()];
        for step in steps {
            step(&mut cluster);
            for _ in 0..4 {
                for age in behind {
                    for old in &past {
                        let mut view = cluster.world.clone();
                        age(&mut view, old);
                        cluster.pass_of(&view);
                    }
                }
                past.push(cluster.world.clone());
                cluster.pass();
            }
            assert!(cluster.settle(), "{story}");
        }
    }
}

#[test]
fn toggling_ends_where_a_fresh_install_ends() {
    let fresh = told(&[reachable, link]);
    let ways: [(&str, Step); 3] = [("ha", twofold), ("edge", edge), ("plain", plain)];
    for (way, there) in ways {
        let toggled = told(&[reachable, link, there, reachable]);
        assert_same(&toggled.world, &fresh.world, way);
    }
}
