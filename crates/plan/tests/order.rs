//! Do credentials come before configuration, and does each object cost only itself?

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/cluster.rs"]
mod cluster;

use cluster::Cluster;
use serde_json::{Value, json};
use spanwire_plan::labels;
use spanwire_plan::names;
use spanwire_plan::plan::ObjectKind::{
    ConfigMap, Deployment, Link, Pod, RouterAccess, Secret, ServiceAccount, Site,
};

fn site(spec: &Value) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.apply(Site, "west", spec);
    cluster.settle();
    cluster
}

/// A Link with a good credential, each to a host of its own.
fn link(cluster: &mut Cluster, name: &str) {
    cluster.bring_credential(name);
    dial(cluster, name);
}

fn dial(cluster: &mut Cluster, name: &str) {
    let host = format!("{name}.example");
    cluster.apply(
        Link,
        name,
        &json!({
            "endpoints": [
                {"name": "inter-router", "host": host, "port": "55671"},
                {"name": "edge", "host": host, "port": "45671"},
            ],
            "tlsCredentials": name,
        }),
    );
}

/// What the router of the first group is told, as text.
fn config(cluster: &Cluster) -> String {
    cluster.text(ConfigMap, names::ROUTER, "skrouterd.json")
}

fn position(cluster: &Cluster, from: usize, word: &str) -> usize {
    let position = cluster
        .log
        .iter()
        .skip(from)
        .position(|entry| entry == word);
    position.unwrap_or_else(|| panic!("no {word:?} in {:#?}", &cluster.log[from..]))
}

/// Its token is good for the account that it was started with, not for another one of that name.
#[test]
fn a_pod_whose_account_was_made_anew_is_made_anew_and_no_other() {
    let template = |cluster: &Cluster| {
        let deployment = cluster.world.deployments.get(names::ROUTER).unwrap();
        let spec = deployment.spec.as_ref().unwrap();
        serde_json::to_value(&spec.template).unwrap()
    };
    let mut cluster = site(&json!({}));
    let before = template(&cluster);
    cluster.wait(60);
    cluster.settle();
    assert_eq!(template(&cluster), before);
    cluster.delete(ServiceAccount, names::ROUTER);
    cluster.settle();
    let after = template(&cluster);
    assert_ne!(after, before);
    cluster.wait(60);
    cluster.apply(Site, "west", &json!({"linkAccess": "none"}));
    cluster.settle();
    assert_eq!(template(&cluster), after);
}

#[test]
fn a_link_is_configured_in_four_writes_and_no_pod_is_made_anew() {
    let mut cluster = site(&json!({}));
    for number in 0..100 {
        link(&mut cluster, &format!("link-{number:03}"));
    }
    cluster.settle();
    let deployment = cluster.resource_version(Deployment, names::ROUTER);
    let before = cluster.log.len();
    link(&mut cluster, "one-more");
    cluster.settle();
    let writes: Vec<&String> = cluster.log[before..].iter().collect();
    assert_eq!(writes[0], "apply Secret skupper-router-credentials");
    assert_eq!(writes[1], "apply ConfigMap skupper-router");
    assert!(
        writes[2].starts_with("nudge skupper-router-"),
        "{}",
        writes[2]
    );
    // The status may be told in two steps, where the first pass over the Link finds it unconfigured.
    assert!(
        writes[3..]
            .iter()
            .all(|write| write.starts_with("publish Link one-more")),
        "{writes:#?}"
    );
    assert_eq!(
        cluster.resource_version(Deployment, names::ROUTER),
        deployment
    );
}

#[test]
fn credentials_grow_before_and_shrink_after_the_configuration() {
    let mut cluster = site(&json!({}));
    let start = cluster.log.len();
    link(&mut cluster, "east");
    cluster.settle();
    let secret = "apply Secret skupper-router-credentials";
    let config = "apply ConfigMap skupper-router";
    assert!(position(&cluster, start, secret) < position(&cluster, start, config));

    let start = cluster.log.len();
    cluster.delete(Link, "east");
    cluster.settle();
    let of_both: Vec<&String> = cluster.log[start..]
        .iter()
        .filter(|entry| *entry == secret || *entry == config)
        .collect();
    // The second write of the configuration is the fence.
    assert_eq!(of_both, [config, config, secret]);
    let stored = cluster.world.secrets.get(names::CREDENTIALS).unwrap();
    assert_eq!(stored.files.len(), 4, "profiles.json and one profile");
}

#[test]
fn one_bad_credential_costs_one_entity() {
    let mut cluster = site(&json!({}));
    for name in ["bad", "good", "missing"] {
        link(&mut cluster, name);
    }
    cluster.spoil("bad");
    cluster.delete(Secret, "missing");
    cluster.settle();
    let config = config(&cluster);
    assert!(config.contains("good-profile"));
    assert!(
        !config.contains("bad-profile") && !config.contains("missing-profile"),
        "{config}"
    );
    assert_eq!(
        cluster.condition(Link, "good", "Configured")["status"],
        "True"
    );
    assert_eq!(
        cluster.condition(Link, "bad", "Configured")["reason"],
        "CredentialsInvalid"
    );
    assert_eq!(
        cluster.condition(Link, "missing", "Configured")["reason"],
        "CredentialsNotFound"
    );
    assert_eq!(
        cluster.condition(Site, "west", "Configured")["message"],
        "OK"
    );

    cluster.bring_credential("bad");
    cluster.settle();
    assert_eq!(
        cluster.condition(Link, "bad", "Configured")["status"],
        "True"
    );
}

#[test]
fn a_good_version_outlives_its_secret() {
    let mut cluster = site(&json!({}));
    link(&mut cluster, "east");
    cluster.settle();
    let (before, stored) = (
        config(&cluster),
        cluster.resource_version(Secret, names::CREDENTIALS),
    );
    cluster.delete(Secret, "east");
    cluster.settle();
    assert_eq!(config(&cluster), before);
    assert_eq!(cluster.resource_version(Secret, names::CREDENTIALS), stored);
    let told = cluster.condition(Link, "east", "Configured");
    assert_eq!(told["status"], "False");
    let message = told["message"].as_str().unwrap();
    assert!(
        message.ends_with("the last good version stays in force"),
        "{message}"
    );

    // Also when the credentials have to be written meanwhile.
    link(&mut cluster, "south");
    cluster.settle();
    assert!(config(&cluster).contains("east-profile"));
}

#[test]
fn what_does_not_fit_is_left_out_and_told() {
    let mut cluster = site(&json!({}));
    link(&mut cluster, "first");
    cluster.settle();
    for number in 0..20 {
        let name = format!("large-{number:02}");
        link(&mut cluster, &name);
        cluster.enlarge(&name, 60_000);
    }
    cluster.settle();
    let told = cluster.condition(Site, "west", "Configured");
    assert_eq!(told["reason"], "TooLarge");
    let message = told["message"].as_str().unwrap();
    assert!(
        message.contains("large-19-profile") && !message.contains("first"),
        "{message}"
    );
    assert_eq!(
        cluster.condition(Link, "first", "Configured")["status"],
        "True"
    );
    assert_eq!(
        cluster.condition(Link, "large-00", "Configured")["status"],
        "True"
    );
    assert_eq!(
        cluster.condition(Link, "large-19", "Configured")["reason"],
        "TooLarge"
    );
    let stored = cluster.world.secrets.get(names::CREDENTIALS).unwrap();
    let size: usize = stored
        .files
        .iter()
        .map(|(key, file)| key.len() + file.size)
        .sum();
    assert!(size <= 900 * 1024, "{size}");

    cluster.delete(Link, "large-00");
    cluster.delete(Link, "large-01");
    cluster.settle();
    assert_eq!(
        cluster.condition(Link, "large-15", "Configured")["status"],
        "True"
    );
}

#[test]
fn edge_site_gets_no_router_access() {
    let mut cluster = site(&json!({"routerMode": "edge", "linkAccess": "default"}));
    link(&mut cluster, "east");
    cluster.settle();
    assert!(cluster.world.router_accesses.is_empty());
    let message = cluster.condition(Site, "west", "Configured")["message"].clone();
    assert_eq!(
        message,
        "OK; spec.linkAccess is ignored, as an edge site accepts no links"
    );
    assert_eq!(cluster.condition(Site, "west", "Ready")["status"], "True");
    assert!(
        config(&cluster).contains(r#""port":"45671","role":"edge""#),
        "{}",
        config(&cluster)
    );
}

#[test]
fn settings_that_cannot_be_done_are_told_and_the_rest_holds() {
    let mut cluster = site(&json!({"settings": {
        "router-logging": "info+,ROUTER_CORE:trace",
        "router-data-connection-count": "many",
        "size": "big",
    }}));
    cluster.settle();
    let message = cluster.condition(Site, "west", "Configured")["message"].clone();
    let message = message.as_str().unwrap();
    assert!(
        message.starts_with("OK; setting router-data-connection-count is ignored"),
        "{message}"
    );
    assert!(message.ends_with("setting size is ignored"), "{message}");
    assert!(config(&cluster).contains(r#"["log",{"enable":"debug","module":"ROUTER_CORE"}]"#));
}

#[test]
fn an_access_that_is_not_asked_for_any_more_is_closed() {
    let mut cluster = site(&json!({"linkAccess": "nodeport"}));
    assert!(cluster.world.router_accesses.get(names::ROUTER).is_some());
    assert!(config(&cluster).contains("skupper-router-inter-router"));
    cluster.apply(Site, "west", &json!({"linkAccess": "none"}));
    cluster.settle();
    assert!(cluster.world.router_accesses.is_empty());
    assert!(!config(&cluster).contains("skupper-site-server"));

    // One that a user made under the same name is not ours to close.
    cluster.apply(
        RouterAccess,
        names::ROUTER,
        &json!({
            "roles": [{"name": "inter-router"}], "tlsCredentials": "mine",
        }),
    );
    cluster.settle();
    assert!(cluster.world.router_accesses.get(names::ROUTER).is_some());
}

#[test]
fn a_second_router_comes_and_goes_without_touching_the_first() {
    let mut cluster = site(&json!({"linkAccess": "nodeport"}));
    let first: Vec<String> = cluster.world.pods.0.keys().cloned().collect();
    cluster.apply(Site, "west", &json!({"linkAccess": "nodeport", "ha": true}));
    cluster.settle();
    assert_eq!(cluster.world.pods.0.len(), 2);
    let peer = cluster.text(ConfigMap, names::ROUTER_2, "skrouterd.json");
    assert!(
        peer.contains(r#"["connector",{"cost":1,"host":"skupper-router","name":"skupper-router""#)
    );
    assert!(!config(&cluster).contains("connector"));
    cluster.apply(Site, "west", &json!({"linkAccess": "nodeport"}));
    cluster.settle();
    assert_eq!(
        cluster.world.pods.0.keys().cloned().collect::<Vec<_>>(),
        first
    );
}

#[test]
fn running_means_every_router() {
    let mut cluster = site(&json!({"ha": true}));
    assert_eq!(cluster.condition(Site, "west", "Running")["message"], "OK");
    let second = cluster
        .world
        .pods
        .0
        .keys()
        .find(|pod| pod.starts_with(names::ROUTER_2))
        .cloned();
    cluster.unready(&second.unwrap(), "containers with unready status: [router]");
    cluster.settle();
    let told = cluster.condition(Site, "west", "Running");
    assert_eq!(told["status"], "False");
    assert_eq!(
        told["message"],
        "1 of 2 routers: containers with unready status: [router]"
    );
}

#[test]
fn a_pod_that_does_not_see_the_news_is_asked_again() {
    let mut cluster = site(&json!({}));
    cluster.deaf = true;
    link(&mut cluster, "east");
    let start = cluster.log.len();
    for _ in 0..30 {
        cluster.pass();
    }
    let nudges: Vec<&str> = cluster.log[start..]
        .iter()
        .filter_map(|entry| entry.strip_prefix("nudge ")?.split('.').nth(1))
        .collect();
    assert_eq!(
        nudges,
        ["1", "2", "3", "4", "5"],
        "after 0, 1, 3, 7 and 15 s"
    );
    let pod = cluster.world.pods.iter().next().unwrap();
    assert!(
        pod.metadata
            .annotations
            .as_ref()
            .unwrap()
            .contains_key(labels::NUDGE)
    );

    cluster.deaf = false;
    cluster.wait(60);
    cluster.settle();
    let rest = cluster.log.len();
    cluster.wait(3600);
    cluster.pass();
    assert_eq!(cluster.log.len(), rest, "at rest none is nudged");
}

#[test]
fn a_pod_that_is_not_ours_is_left_alone() {
    let mut cluster = site(&json!({}));
    let mut stranger = cluster.world.pods.iter().next().unwrap().clone();
    stranger.metadata.name = Some("stranger".to_owned());
    stranger.metadata.owner_references = None;
    cluster.world.pods.insert(stranger);
    link(&mut cluster, "east");
    cluster.settle();
    assert!(
        !cluster
            .log
            .iter()
            .any(|entry| entry.starts_with("nudge stranger"))
    );
    cluster.delete(Pod, "stranger");
}

#[test]
fn two_links_of_one_name_space_in_the_router_cost_the_younger_only() {
    let mut cluster = site(&json!({}));
    link(&mut cluster, "east");
    cluster.wait(10);
    // A Link that is called as the profile of another.
    link(&mut cluster, "east-profile");
    cluster.settle();
    assert_eq!(
        cluster.condition(Link, "east", "Configured")["status"],
        "True"
    );
    let told = cluster.condition(Link, "east-profile", "Configured");
    assert_eq!(told["reason"], "NameTaken");
    assert!(config(&cluster).contains("east.example"));
}
