//! Do two sites find each other, and does everything rest then?

use crate::bed::{Pod, eventually, free_port, never};
use crate::client;
use crate::pki::Authority;
use crate::site::{Sites, connector, is_up};
use serde_json::json;
use std::time::Duration;

#[test]
fn two_routers_link_with_credentials_that_their_adaptors_laid_out() {
    let Sites { west, east, .. } = Sites::linked();
    let report = east.api.report();
    assert_eq!(report.refused, []);
    assert_eq!(report.links["west"].remote.as_deref(), Some("west-0"));
    assert_eq!(report.links["west"].tls.as_deref(), Some("TLSv1.3"));
    assert_eq!(report.links["west"].message, None);
    assert_eq!((report.router.starts, report.router.exits), (1, 0));
    assert_eq!(report.router.id.as_deref(), Some("east-0"));
    assert_eq!(
        report.credentials["west-profile"],
        east.folder.version("west-profile")
    );
    eventually("both are ready", || west.is_ready() && east.is_ready());
    assert!(west.is_alive());
    assert!(
        east.metrics().contains("spanwire_adaptor_links_up 1"),
        "{}",
        east.metrics()
    );
    let (paths, keys) = east.api.written();
    assert_eq!(
        paths,
        ["/api/v1/namespaces/west/configmaps/skupper-router-report"]
    );
    assert_eq!(keys, ["pod-1.uid-1"]);
}

#[test]
fn nothing_is_written_or_changed_once_all_is_as_wanted() {
    let sites = Sites::linked();
    let (west, east) = (&sites.west, &sites.east);
    eventually("both said all they had to say", || {
        west.api.report().settled
    });
    let count = || west.api.reports().len() + east.api.reports().len();
    let (reports, log) = (count(), east.log());
    never("a report was written", Duration::from_secs(4), || {
        count() > reports
    });
    let changes = east.log()[log.len()..]
        .lines()
        .filter(|line| line.contains("\"INFO\""))
        .count();
    assert_eq!(changes, 0, "{}", east.log());
}

#[test]
fn an_edge_router_links_by_its_connection_alone() {
    let authority = Authority::new("site-ca");
    let port = free_port();
    let mut west = Pod::new("west", "interior");
    west.folder
        .credential("skupper-site-server", &authority.issue("west"))
        .entity("listener", &json!({
            "name": "skupper-router-edge", "role": "edge", "host": "127.0.0.1", "port": port,
            "sslProfile": "skupper-site-server", "saslMechanisms": "EXTERNAL", "authenticatePeer": true
        }))
        .swap();
    let mut east = Pod::new("east", "edge");
    let mut uplink = connector("west", port, "west-profile");
    uplink["role"] = json!("edge");
    let revision = east
        .folder
        .credential("west-profile", &authority.issue("east"))
        .entity("connector", &uplink)
        .swap();
    west.start();
    east.start();
    let report = east.reported("the link is up", &revision, is_up);
    assert_eq!(report.links["west"].remote.as_deref(), Some("west-0"));
}

#[test]
fn a_link_whose_peer_is_away_says_why_and_comes_up_by_itself() {
    let mut sites = Sites::unlinked();
    let revision = sites.east.folder.swap();
    sites.east.start();
    let report = sites
        .east
        .reported("the link says why", &revision, |report| {
            report
                .links
                .get("west")
                .is_some_and(|link| link.message.is_some())
        });
    let link = &report.links["west"];
    assert!(
        !link.up
            && link
                .message
                .as_ref()
                .is_some_and(|message| message.contains("refused")),
        "{link:?}"
    );
    assert!(
        !report.settled || report.refused.is_empty(),
        "a peer that is away is no refusal"
    );
    sites.west.folder.swap();
    sites.west.start();
    sites.east.reported("the link is up", &revision, is_up);
}

#[test]
fn what_belongs_to_others_is_not_touched() {
    let mut sites = Sites::linked();
    let router = sites.east.router.management.clone();
    let body = [("host", "127.0.0.1"), ("port", "1"), ("role", "normal")];
    assert_eq!(
        client::create(&router, "connector", "auto-mesh-east", &body),
        201
    );
    let revision = sites.east.folder.without_entity("west").swap();
    sites
        .east
        .reported("the connector is gone", &revision, |report| {
            report.links.is_empty()
        });
    eventually("the router lost it", || {
        client::find(&router, "connector", "west").is_none()
    });
    assert!(client::find(&router, "connector", "auto-mesh-east").is_some());
    assert!(client::find(&router, "listener", "amqp").is_some());
    assert!(client::find(&router, "listener", "@9090").is_some());
}
