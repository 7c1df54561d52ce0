//! Does a grant become a token, and a token a link, whatever happens on the way?

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/cluster.rs"]
mod cluster;

use cluster::{Cluster, NAMESPACE, Peer, assert_same};
use serde_json::{Value, json};
use spanwire_api::Endpoint;
use spanwire_plan::plan::ObjectKind::{
    AccessGrant, AccessToken, Deployment, Link, RouterAccess, Secret, SecuredAccess, Service, Site,
};
use spanwire_plan::plan::StoredLink;
use spanwire_plan::world::{GrantServer, Outcome};
use spanwire_plan::{Seen, names, offer};

/// The token of the stories.
const TOKEN: &str = "east";

/// A namespace with a site and a token for another one, which grants two links.
fn holder() -> Cluster {
    let link = |name: &str, port: &str| StoredLink {
        name: name.to_owned(),
        endpoints: vec![Endpoint {
            name: "inter-router".to_owned(),
            host: "east.example".to_owned(),
            port: port.to_owned(),
            group: String::new(),
        }],
    };
    let mut cluster = Cluster::default();
    cluster.peer = Peer::Grants(vec![link("east-1", "55671"), link("east-2", "55672")]);
    cluster.apply(Site, "west", &json!({}));
    cluster.apply(AccessToken, TOKEN, &token());
    cluster
}

fn token() -> Value {
    json!({
        "url": "https://east.example:9090/uid", "code": "present",
        "ca": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    })
}

/// A namespace with a site that accepts links, and a grant.
fn granter() -> Cluster {
    let mut cluster = Cluster::default();
    cluster.world.grant_server = GrantServer {
        address: Some("10.0.0.1:30090".to_owned()),
        ca: Some("the PEM of a CA".to_owned()),
    };
    cluster.apply(Site, "west", &json!({"linkAccess": "nodeport"}));
    cluster.apply(AccessGrant, "west", &json!({"expirationWindow": "1h"}));
    cluster
}

fn assert_resting(cluster: &mut Cluster) {
    let (acts, log) = (cluster.acts, cluster.log.len());
    cluster.pass();
    assert_eq!(cluster.acts, acts, "{:?}", &cluster.log[log..]);
    assert_eq!(cluster.log.len(), log, "{:?}", &cluster.log[log..]);
}

#[test]
fn a_token_becomes_links_that_then_are_the_users() {
    let mut cluster = holder();
    cluster.settle();
    assert_eq!(
        cluster.condition(AccessToken, TOKEN, "Redeemed")["status"],
        "True"
    );
    assert_eq!(cluster.redemptions, 1);
    assert_resting(&mut cluster);

    cluster.delete(Link, "east-1");
    cluster.settle();
    assert!(
        cluster.world.links.get("east-1").is_none(),
        "a deleted link came back"
    );
    assert!(cluster.world.links.get("east-2").is_some());
    assert_eq!(cluster.redemptions, 1);
}

#[test]
fn deleting_the_token_never_removes_a_link() {
    let mut cluster = holder();
    cluster.settle();
    cluster.delete(AccessToken, TOKEN);
    cluster.settle();
    assert!(cluster.world.links.get("east-1").is_some());
    assert!(cluster.world.secrets.get(TOKEN).is_some());
}

#[test]
fn deleting_the_site_removes_what_the_token_became() {
    let mut cluster = holder();
    cluster.settle();
    cluster.delete(Site, "west");
    cluster.settle();
    assert!(cluster.world.links.get("east-1").is_none());
    assert!(cluster.world.secrets.get(TOKEN).is_none());
}

#[test]
fn a_redemption_ends_the_same_wherever_the_operator_dies() {
    let mut whole = holder();
    whole.settle();
    whole.world.attempts.clear();
    for cut in 0..whole.acts {
        let mut cluster = holder();
        cluster.cut = Some(cut);
        assert!(!cluster.settle(), "it was to die after {cut} acts");
        // A new life has forgotten what came of the last try.
        cluster.world.attempts.clear();
        cluster.cut = None;
        assert!(cluster.settle());
        cluster.world.attempts.clear();
        assert_same(
            &cluster.world,
            &whole.world,
            &format!("cut after {cut} acts"),
        );
        assert_eq!(cluster.redemptions, 1, "cut after {cut} acts");
    }
}

#[test]
fn a_refusal_is_final_until_the_spec_changes() {
    let mut cluster = holder();
    cluster.peer = Peer::Refuses(Outcome::UsedUp);
    cluster.settle();
    assert_eq!(
        cluster.condition(AccessToken, TOKEN, "Redeemed")["reason"],
        "UsedUp"
    );
    // Neither time nor a restart is a reason to knock again.
    cluster.wait(24 * 3600);
    cluster.world.attempts.clear();
    cluster.settle();
    assert_eq!(cluster.redemptions, 1);

    let mut changed = token();
    changed["linkCost"] = json!(7);
    cluster.apply(AccessToken, TOKEN, &changed);
    cluster.settle();
    assert_eq!(cluster.redemptions, 2);
}

#[test]
fn a_peer_that_is_away_is_asked_again_with_growing_pauses() {
    let mut cluster = holder();
    cluster.peer = Peer::default();
    let mut asked = Vec::new();
    for second in 0..2000 {
        let before = cluster.redemptions;
        cluster.pass();
        if cluster.redemptions > before {
            asked.push(second);
        }
    }
    let pauses: Vec<i32> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses[..9], [1, 2, 4, 8, 16, 32, 64, 128, 256], "{asked:?}");
    assert!(pauses[9..].iter().all(|pause| *pause == 300), "{pauses:?}");
    assert_eq!(
        cluster.condition(AccessToken, TOKEN, "Redeemed")["reason"],
        "PeerUnreachable"
    );
}

#[test]
fn a_grant_is_ready_once_its_site_can_be_linked_to() {
    let mut cluster = granter();
    cluster.pass();
    assert_eq!(
        cluster.condition(AccessGrant, "west", "Ready")["status"],
        "False"
    );
    cluster.settle();
    let ready = cluster.condition(AccessGrant, "west", "Ready");
    assert_eq!(ready["status"], "True", "{ready}");
    assert_resting(&mut cluster);

    cluster.delete(RouterAccess, names::ROUTER);
    cluster.apply(Site, "west", &json!({}));
    cluster.settle();
    let ready = cluster.condition(AccessGrant, "west", "Ready");
    assert_eq!(ready["reason"], "NoEndpoint", "{ready}");
}

/// The server counts and tells in one write: what the pass after it would have written.
#[test]
fn a_redemption_leaves_nothing_to_tell() {
    let mut cluster = granter();
    cluster.apply(AccessGrant, "west", &json!({"redemptionsAllowed": 2}));
    cluster.settle();
    for made in 1..=2 {
        let Some(Seen::Fits(live)) = cluster.world.access_grants.get("west").cloned() else {
            panic!("no grant");
        };
        let mut counted = live.clone();
        let status = counted.status.get_or_insert_default();
        status.redemptions = Some(made);
        let told = offer::told(&live, &counted, &cluster.world, &cluster.env());
        assert_eq!(told.is_empty(), made == 1, "{told:?}");

        let mut written = serde_json::to_value(counted).unwrap();
        for (field, value) in told {
            written["status"][field] = value;
        }
        let written = serde_json::from_value(written).unwrap();
        cluster.world.access_grants.insert(written);
        assert_resting(&mut cluster);
    }
    let ready = cluster.condition(AccessGrant, "west", "Ready");
    assert_eq!(ready["reason"], "UsedUp");
}

#[test]
fn a_grant_expires_once_and_stays_expired() {
    let mut cluster = granter();
    cluster.settle();
    cluster.wait(3600);
    cluster.settle();
    assert_eq!(
        cluster.condition(AccessGrant, "west", "Ready")["reason"],
        "Expired"
    );
    cluster.apply(AccessGrant, "west", &json!({"expirationWindow": "100h"}));
    cluster.settle();
    assert_eq!(
        cluster.condition(AccessGrant, "west", "Ready")["reason"],
        "Expired"
    );
    assert_resting(&mut cluster);
}

#[test]
fn the_grant_server_gets_an_address_that_its_certificate_covers() {
    let mut cluster = Cluster::default();
    cluster.config.namespace = NAMESPACE.to_owned();
    cluster.config.default_access_type = Some("nodeport".to_owned());
    let labels = json!({"app.kubernetes.io/name": "spanwire-controller"});
    cluster.apply(
        Deployment,
        "spanwire-controller",
        &json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}),
    );
    cluster.settle();
    let ready = cluster.condition(SecuredAccess, names::GRANT_SERVER, "Ready");
    assert_eq!(ready["status"], "True", "{ready}");
    let access = cluster
        .world
        .secured_accesses
        .get(names::GRANT_SERVER)
        .unwrap();
    let endpoints = &access.fits().unwrap().status.as_ref().unwrap().endpoints;
    let secret = cluster.world.secrets.get(names::GRANT_SERVER).unwrap();
    assert!(secret.certificate().unwrap().covers(&endpoints[0].host));
    assert!(cluster.world.services.get(names::GRANT_SERVER).is_some());
    assert_resting(&mut cluster);

    for (kind, name) in [
        (Service, names::GRANT_SERVER),
        (Secret, names::GRANT_SERVER),
        (SecuredAccess, names::GRANT_SERVER),
    ] {
        cluster.delete(kind, name);
        cluster.settle();
        let ready = cluster.condition(SecuredAccess, names::GRANT_SERVER, "Ready");
        assert_eq!(ready["status"], "True", "{kind:?} {name}: {ready}");
    }
}
