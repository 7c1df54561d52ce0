//! Does what others suffered from stay away? One test for each report that no other test holds; `docs/field-reports.md`
//! says which test holds which.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/cluster.rs"]
mod cluster;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cluster::{Cluster, NAMESPACE, Peer, assert_same};
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};
use spanwire_plan::names;
use spanwire_plan::offer::{Allowance, Refusal, grant_server_address, offer};
use spanwire_plan::plan::ObjectKind::{
    self, AccessGrant, AccessToken, Certificate, ConfigMap, Deployment, Link, RouterAccess, Secret,
    SecuredAccess, Service, Site,
};
use spanwire_plan::world::{GrantServer, Outcome};
use spanwire_router::config::Document;
use spanwire_router::entity::Entity;

fn site(spec: &Value) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.apply(Site, "west", spec);
    cluster.settle();
    cluster
}

fn link(host: &str, credentials: &str) -> Value {
    let end = |role: &str| json!({"name": role, "host": host, "port": "55671"});
    json!({"endpoints": [end("inter-router"), end("edge")], "tlsCredentials": credentials})
}

fn access(credentials: &str, port: u32, is_generated: bool) -> Value {
    json!({
        "accessType": "nodeport",
        "generateTlsCredentials": is_generated,
        "tlsCredentials": credentials,
        "roles": [{"name": "inter-router", "port": port}],
    })
}

fn config(cluster: &Cluster, group: &str) -> Document {
    let text = cluster.text(ConfigMap, group, "skrouterd.json");
    Document::parse(text.as_bytes()).unwrap()
}

fn status(cluster: &Cluster, kind: ObjectKind, name: &str) -> Value {
    let world = serde_json::to_value(&cluster.world).unwrap();
    let field = match kind {
        Site => "sites",
        RouterAccess => "routerAccesses",
        AccessGrant => "accessGrants",
        other => panic!("{other:?}"),
    };
    let objects = world[field].as_array().unwrap();
    let object = objects.iter().find(|held| held["metadata"]["name"] == name);
    object.unwrap()["status"].clone()
}

/// What a load balancer says of a Service.
fn balance(cluster: &mut Cluster, service: &str, ingress: &Value) {
    let mut live = serde_json::to_value(cluster.world.services.get(service).unwrap()).unwrap();
    live["status"] = json!({"loadBalancer": {"ingress": ingress}});
    let live = serde_json::from_value(live).unwrap();
    cluster.world.services.insert(live);
}

/// The grant server has come up elsewhere in the cluster.
fn serve_grants(cluster: &mut Cluster) {
    cluster.world.grant_server = GrantServer {
        address: Some("10.0.0.1:30090".to_owned()),
        ca: Some("the PEM of a CA".to_owned()),
    };
}

/// The operator's own Deployment, with a template that says this.
fn controller(revision: &str) -> Value {
    let selector = json!({"app.kubernetes.io/name": "spanwire-controller"});
    let mut labels = selector.clone();
    labels["pod-template-hash"] = json!(revision);
    json!({
        "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": labels}},
    })
}

/// Each test that the table names is in the file that it is said to be in, and each report has a test.
#[test]
fn every_report_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = fs::read_to_string(root.join("docs/field-reports.md")).unwrap();
    let mut reports = 0;
    for row in table.lines().filter(|line| line.starts_with("| B")) {
        // The last column: `file`: `test`, `test`; `file`: …
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let mut named = 0;
        for of_file in tests.split("; ") {
            let mut quoted = of_file.split('`').skip(1).step_by(2);
            let file = quoted.next().unwrap_or_else(|| panic!("no file: {row}"));
            let path = root.join(file);
            if path.is_dir() {
                // A case: the World, and the plan that it gives.
                assert!(path.join("plan.yaml").is_file(), "no case {file}");
                named += 1;
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
            for test in quoted {
                let start = format!("fn {test}()");
                assert!(text.contains(&start), "{file} has no test {test}");
                named += 1;
            }
        }
        assert!(named > 0, "no test is named: {row}");
        reports += 1;
    }
    assert_eq!(reports, 26, "reports in the table");
}

/// skupper#2195.
#[test]
fn a_rendered_configuration_refers_to_nothing_that_it_lacks() {
    // Any numbers will do that are in no order.
    let mut random = 1_u64;
    let mut draw = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % below
    };
    let mut seen = 0;
    for _ in 0..4 {
        let mut cluster = site(&json!({"ha": draw(2) == 0}));
        cluster.bring_credential("good");
        cluster.bring_credential("junk");
        cluster.spoil("junk");
        for _ in 0..10 {
            let name = ["one", "two", "three", "four"][draw(4)];
            let credentials = ["", "good", "junk", "missing", "generated"][draw(5)];
            match draw(4) {
                0 => cluster.delete(Link, name),
                1 => cluster.delete(RouterAccess, name),
                2 => cluster.apply(Link, name, &link(name, credentials)),
                _ => {
                    let port = [50_000, 50_001, 50_002][draw(3)];
                    let spec = access(credentials, port, credentials == "generated");
                    cluster.apply(RouterAccess, name, &spec);
                }
            }
            // What is told and read back takes some passes.
            for _ in 0..5 {
                cluster.pass();
                seen += closed_references(&cluster);
            }
        }
    }
    assert!(seen > 300, "{seen} references were seen");
}

/// How many names of profiles stand in the stored configurations, each of which has to be defined there.
fn closed_references(cluster: &Cluster) -> usize {
    let has_two = cluster.world.config_maps.get(names::ROUTER_2).is_some();
    let mut seen = 0;
    for group in names::groups(has_two) {
        let config = config(cluster, group);
        let profiles = config.entities.iter().filter_map(|entity| match entity {
            Entity::SslProfile(profile) => Some(profile.name.as_str()),
            _ => None,
        });
        let defined: BTreeSet<&str> = profiles.collect();
        let used = config.profile_names();
        assert!(used.is_subset(&defined), "{used:?} of {defined:?}");
        seen += used.len();
    }
    seen
}

/// skupper#1638, skupper#578, skupper#807, skupper#808.
#[test]
fn a_router_runs_long_before_its_load_balancer_has_an_address() {
    let mut cluster = Cluster::default();
    cluster.apply(Site, "west", &json!({"linkAccess": "loadbalancer"}));
    // No deadline after which work stops.
    for hours in [0, 0, 0, 0, 0, 0, 1, 10, 100] {
        cluster.wait(hours * 3600);
        cluster.pass();
        if cluster.world.services.get(names::ROUTER).is_some() {
            balance(&mut cluster, names::ROUTER, &json!([]));
        }
    }
    assert!(cluster.world.deployments.get(names::ROUTER).is_some());
    assert_eq!(cluster.condition(Site, "west", "Running")["status"], "True");
    let told = cluster.condition(RouterAccess, names::ROUTER, "Resolved");
    assert_eq!(told["reason"], "AwaitingAddress", "{told}");
    assert_eq!(
        cluster.condition(Site, "west", "Resolved")["status"],
        "False"
    );

    balance(&mut cluster, names::ROUTER, &json!([{"ip": "192.0.2.7"}]));
    cluster.settle();
    assert_eq!(cluster.condition(Site, "west", "Ready")["status"], "True");
    let endpoints = status(&cluster, Site, "west")["endpoints"].clone();
    assert_eq!(endpoints[0]["host"], "192.0.2.7", "{endpoints}");
}

/// skupper#2123, and cilium#42841: what nobody makes is not waited for.
#[test]
fn a_users_own_credential_is_waited_for_and_never_written() {
    let mut cluster = site(&json!({}));
    let deployment = cluster.resource_version(Deployment, names::ROUTER);
    cluster.apply(RouterAccess, "outside", &access("mine", 55_680, false));
    cluster.settle();
    let told = cluster.condition(RouterAccess, "outside", "Configured");
    assert_eq!(told["reason"], "CredentialsNotFound", "{told}");
    assert!(told["message"].as_str().unwrap().contains("\"mine\""));
    assert_eq!(cluster.condition(Site, "west", "Running")["status"], "True");

    cluster.bring_credential("mine");
    let brought = cluster.resource_version(Secret, "mine");
    cluster.settle();
    for _ in 0..5 {
        cluster.wait(60);
        cluster.settle();
    }
    assert_eq!(cluster.resource_version(Secret, "mine"), brought);
    assert!(cluster.world.certificates.get("mine").is_none());
    assert!(!cluster.log.iter().any(|act| act == "issue mine"));
    assert_eq!(
        cluster.condition(RouterAccess, "outside", "Configured")["status"],
        "True"
    );
    assert!(
        config(&cluster, names::ROUTER)
            .profile_names()
            .contains("mine")
    );
    // The pods mount nothing for it, and nothing that only the other mode makes.
    assert_eq!(
        cluster.resource_version(Deployment, names::ROUTER),
        deployment
    );
    let live = serde_json::to_value(cluster.world.deployments.get(names::ROUTER).unwrap()).unwrap();
    let volumes = live["spec"]["template"]["spec"]["volumes"].to_string();
    let secrets: Vec<&str> = volumes.split("\"secret\":").skip(1).collect();
    assert_eq!(secrets.len(), 1, "{volumes}");
    assert!(secrets[0].contains(names::CREDENTIALS), "{volumes}");
}

/// skupper#2118.
#[test]
fn a_bad_ca_costs_only_what_it_should_sign() {
    let mut cluster = site(&json!({"linkAccess": "nodeport"}));
    cluster.bring_ca("theirs", "their CA", Some(1));
    cluster.spoil("theirs");
    let leaf = json!({"ca": "theirs", "subject": "leaf", "hosts": ["leaf"], "server": true});
    cluster.apply(Certificate, "leaf", &leaf);
    let neighbour = json!({"ca": names::SITE_CA, "subject": "neighbour", "client": true});
    cluster.apply(Certificate, "neighbour", &neighbour);
    cluster.settle();
    let told = cluster.condition(Certificate, "leaf", "Ready");
    assert_eq!(told["status"], "False");
    assert!(
        told["message"].as_str().unwrap().contains("\"theirs\""),
        "{told}"
    );
    assert!(cluster.world.secrets.get("leaf").is_none());
    assert_eq!(
        cluster.condition(Certificate, "neighbour", "Ready")["status"],
        "True"
    );
    assert_eq!(cluster.condition(Site, "west", "Ready")["status"], "True");

    cluster.bring_ca("theirs", "their CA", Some(1));
    cluster.settle();
    assert_eq!(
        cluster.condition(Certificate, "leaf", "Ready")["status"],
        "True"
    );
}

/// skupper#2253.
#[test]
fn a_server_certificate_of_two_routers_is_issued_once() {
    let mut cluster = site(&json!({"linkAccess": "nodeport", "ha": true}));
    let leaf = cluster.world.secrets.get(names::SITE_SERVER).unwrap();
    let hosts = &leaf.certificate().unwrap().dns;
    for group in names::groups(true) {
        assert!(hosts.contains(*group), "{hosts:?}");
    }
    for _ in 0..10 {
        cluster.wait(60);
        cluster.settle();
    }
    let issued = format!("issue {}", names::SITE_SERVER);
    let issued = cluster.log.iter().filter(|act| **act == issued).count();
    assert_eq!(issued, 1, "{:#?}", cluster.log);
}

/// skupper#456, istio PR 32176, dapr#3058, linkerd2#3980.
#[test]
fn a_certificate_is_good_for_a_peer_whose_clock_is_slow() {
    let cluster = site(&json!({"linkAccess": "nodeport", "ha": true}));
    let now = cluster.env().now;
    let end = |ca: &str| {
        let ca = cluster.world.secrets.get(ca).unwrap();
        ca.certificate().unwrap().not_after
    };
    let mut seen = 0;
    for certificate in cluster.world.certificates.fitting() {
        let name = certificate.metadata.name.as_deref().unwrap();
        let secret = cluster.world.secrets.get(name).unwrap();
        let held = secret.certificate().unwrap();
        let early = now.duration_since(held.not_before);
        assert!(early >= SignedDuration::from_mins(5), "{name}: {early}");
        if !certificate.spec.ca.is_empty() {
            assert!(held.not_after <= end(&certificate.spec.ca), "{name}");
            seen += 1;
        }
    }
    assert!(seen > 1, "{seen} leaves were seen");
}

/// cert-manager#2941, cert-manager#6992, cert-manager#6714.
#[test]
fn somebody_who_writes_our_secret_as_often_as_we_do_is_outwaited() {
    let mut cluster = site(&json!({"linkAccess": "nodeport"}));
    let issue = format!("issue {}", names::SITE_SERVER);
    let issued = |cluster: &Cluster| cluster.log.iter().filter(|act| **act == issue).count();
    let before = issued(&cluster);
    cluster.spoil(names::SITE_SERVER);
    cluster.pass();
    assert_eq!(issued(&cluster), before + 1, "the first time at once");
    for _ in 0..100 {
        cluster.spoil(names::SITE_SERVER);
        cluster.pass();
    }
    assert!(issued(&cluster) <= before + 4, "{:#?}", cluster.log);
    let told = cluster.condition(Certificate, names::SITE_SERVER, "Ready");
    assert_eq!(told["reason"], "Contested", "{told}");
    // What the router has got stays, and the strife ends with the other's last write.
    let config = config(&cluster, names::ROUTER);
    assert!(config.profile_names().contains(names::SITE_SERVER));
    cluster.wait(30);
    cluster.settle();
    let told = cluster.condition(Certificate, names::SITE_SERVER, "Ready");
    assert_eq!(told["status"], "True", "{told}");
}

/// skupper#2257, skupper#2278, skupper#1697.
#[test]
fn a_second_router_that_is_switched_off_is_named_nowhere() {
    let one = json!({"linkAccess": "nodeport"});
    let two = json!({"linkAccess": "nodeport", "ha": true});
    let mut cluster = site(&one);
    for _ in 0..3 {
        cluster.apply(Site, "west", &two);
        cluster.settle();
        let both = status(&cluster, Site, "west").to_string();
        assert!(both.contains(names::ROUTER_2), "{both}");
        cluster.apply(Site, "west", &one);
        cluster.settle();
        for kind in [Site, RouterAccess] {
            let name = if kind == Site { "west" } else { names::ROUTER };
            let told = status(&cluster, kind, name)["endpoints"].to_string();
            assert!(
                told.contains(names::ROUTER) && !told.contains(names::ROUTER_2),
                "{told}"
            );
        }
        let leaf = cluster.world.secrets.get(names::SITE_SERVER).unwrap();
        let hosts = &leaf.certificate().unwrap().dns;
        assert!(
            !hosts.iter().any(|host| host.contains(names::ROUTER_2)),
            "{hosts:?}"
        );
        assert!(cluster.world.services.get(names::ROUTER_2).is_none());
    }
    cluster.apply(Site, "west", &two);
    cluster.settle();
    assert_same(&cluster.world, &site(&two).world, "on again");
}

/// skupper#2087.
#[test]
fn a_grant_with_an_empty_spec_is_good_for_one_redemption() {
    let mut cluster = site(&json!({"linkAccess": "nodeport"}));
    serve_grants(&mut cluster);
    cluster.apply(AccessGrant, "grant", &json!({}));
    let begun = cluster.env().now;
    cluster.settle();
    let told = cluster.condition(AccessGrant, "grant", "Ready");
    assert_eq!(told["status"], "True", "{told}");
    let stored = cluster.world.access_grants.get("grant").unwrap();
    let grant = stored.fits().unwrap();
    assert_eq!(grant.metadata.generation, Some(1), "its spec was written");
    let once = Allowance::of(grant);
    assert_eq!((once.allowed, once.made), (1, 0));
    let lifetime = once.end.unwrap().duration_since(begun);
    assert!((900..=902).contains(&lifetime.as_secs()), "{lifetime}");
}

/// skupper PR 1823.
#[test]
fn a_grant_is_not_ready_while_no_link_could_be_made_of_it() {
    let mut cluster = Cluster::default();
    serve_grants(&mut cluster);
    cluster.apply(Site, "west", &json!({"linkAccess": "loadbalancer"}));
    cluster.apply(AccessGrant, "grant", &json!({"expirationWindow": "24h"}));
    for minutes in [0, 0, 0, 0, 0, 0, 1, 10, 100] {
        cluster.wait(minutes * 60);
        cluster.pass();
        if cluster.world.services.get(names::ROUTER).is_some() {
            balance(&mut cluster, names::ROUTER, &json!([]));
        }
        let told = cluster.condition(AccessGrant, "grant", "Ready");
        assert_eq!(told["status"], "False", "{told}");
        // The grant server asks the same.
        let offer = offer(&cluster.world).unwrap();
        assert_eq!(offer.links("token"), Err(Refusal::NoEndpoint));
    }
    let told = cluster.condition(AccessGrant, "grant", "Resolved");
    assert_eq!(told["reason"], "AwaitingAddress", "{told}");

    balance(&mut cluster, names::ROUTER, &json!([{"ip": "192.0.2.7"}]));
    for _ in 0..10 {
        cluster.pass();
        let is_ready = cluster.condition(AccessGrant, "grant", "Ready")["status"] == "True";
        let links = offer(&cluster.world).unwrap().links("token");
        assert!(!is_ready || links.is_ok(), "{links:?}");
    }
    let told = cluster.condition(AccessGrant, "grant", "Ready");
    assert_eq!(told["status"], "True", "{told}");
}

/// skupper#863, skupper#806, skupper#1415.
#[test]
fn a_final_refusal_is_told_apart_and_costs_one_request() {
    const YEAR: i64 = 365 * 24 * 3600;
    let text = String::new;
    let mut reasons = BTreeSet::new();
    for (outcome, is_final) in [
        (Outcome::Expired, true),
        (Outcome::UsedUp, true),
        (Outcome::CodeRefused, true),
        (Outcome::Untrusted(text()), true),
        (Outcome::Invalid(text()), true),
        (Outcome::AnswerRefused(text()), true),
        (Outcome::Unreachable(text()), false),
    ] {
        let mut cluster = site(&json!({}));
        cluster.peer = Peer::Refuses(outcome.clone());
        let token = json!({
            "url": "https://east.example:9090/uid", "code": "present",
            "ca": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        });
        cluster.apply(AccessToken, "token", &token);
        // Ten minutes, a new life, and a clock that jumps.
        for pass in 0..60 {
            if pass == 30 {
                cluster.world.attempts.clear();
            }
            cluster.wait(9);
            cluster.pass();
        }
        for jump in [YEAR, -2 * YEAR] {
            cluster.wait(jump);
            cluster.pass();
        }
        let asked = cluster.redemptions;
        assert_eq!(asked == 1, is_final, "{outcome:?}: asked {asked} times");
        assert!(asked < 25, "{outcome:?}: asked {asked} times");
        let told = cluster.condition(AccessToken, "token", "Redeemed");
        assert_eq!(told["status"], "False", "{told}");
        reasons.insert(told["reason"].to_string());
    }
    assert_eq!(reasons.len(), 7, "{reasons:?}");
}

/// skupper#2425.
#[test]
fn the_grant_server_is_found_by_labels_that_no_rollout_changes() {
    let mut cluster = Cluster::default();
    cluster.config.namespace = NAMESPACE.to_owned();
    cluster.config.default_access_type = Some("nodeport".to_owned());
    cluster.apply(Deployment, "spanwire-controller", &controller("5d9f8b6c7"));
    cluster.settle();
    let selector = |cluster: &Cluster| {
        let service = cluster.world.services.get(names::GRANT_SERVER).unwrap();
        let selector = service.spec.as_ref().unwrap().selector.clone().unwrap();
        serde_json::to_value(selector).unwrap()
    };
    let stable = controller("")["selector"]["matchLabels"].clone();
    assert_eq!(selector(&cluster), stable);
    let written = cluster.resource_version(Service, names::GRANT_SERVER);
    cluster.apply(Deployment, "spanwire-controller", &controller("7c6b8f9d5"));
    cluster.settle();
    assert_eq!(
        cluster.resource_version(Service, names::GRANT_SERVER),
        written
    );
}

/// skupper#1906.
#[test]
fn the_grant_server_is_set_up_however_late_and_wherever_it_failed_before() {
    let mut early = site(&json!({"linkAccess": "nodeport"}));
    early.config.namespace = NAMESPACE.to_owned();
    early.config.default_access_type = Some("nodeport".to_owned());
    early.apply(AccessGrant, "grant", &json!({"expirationWindow": "1h"}));
    early.wait(60);
    early.settle();
    let told = early.condition(AccessGrant, "grant", "Resolved");
    assert_eq!(told["reason"], "AwaitingAddress", "{told}");

    early.apply(Deployment, "spanwire-controller", &controller(""));
    let mut whole = early.clone();
    whole.settle();
    assert!(whole.acts > early.acts + 3, "{:#?}", whole.log);
    for cut in early.acts..whole.acts {
        let mut cluster = early.clone();
        cluster.cut = Some(cut);
        assert!(!cluster.settle(), "it was to die after {cut} acts");
        cluster.cut = None;
        cluster.settle();
        assert_same(
            &cluster.world,
            &whole.world,
            &format!("cut after {cut} acts"),
        );
    }
    let told = whole.condition(SecuredAccess, names::GRANT_SERVER, "Ready");
    assert_eq!(told["status"], "True", "{told}");
    serve_grants(&mut whole);
    whole.world.grant_server.address = grant_server_address(&whole.world);
    whole.settle();
    let told = whole.condition(AccessGrant, "grant", "Ready");
    assert_eq!(told["status"], "True", "{told}");
    let url = status(&whole, AccessGrant, "grant")["url"].clone();
    assert!(
        url.as_str().unwrap().starts_with("https://10.0.0.1:"),
        "{url}"
    );
}
