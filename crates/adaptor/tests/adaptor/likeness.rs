//! Does the router show what it was given? One false difference would cut a link at every pass.

use crate::bed::{Pod, eventually, free_port, never};
use crate::client;
use crate::pki::Authority;
use crate::site::{Sites, connector, is_up, listener};
use serde_json::json;
use std::time::Duration;

/// Entities that use every attribute in every spelling.
fn variety(pod: &mut Pod, authority: &Authority) -> usize {
    pod.folder
        .credential("p", &authority.issue("west"))
        .authority("q", &authority.issue("west").ca)
        .entity(
            "sslProfile",
            &json!({ "name": "q", "protocols": "TLSv1.2 TLSv1.3", "caCertFile": "/upstream" }),
        );
    let connectors = [
        json!({ "role": "inter-router", "port": 1, "cost": "7", "sslProfile": "p", "verifyHostname": false }),
        json!({ "role": "inter-router", "port": "2", "sslProfile": "q", "verifyHostname": "yes" }),
        json!({ "role": "normal", "port": "3", "verifyHostname": true, "linkCapacity": 10 }),
        json!({ "role": "normal", "port": "4", "maxFrameSize": "32768" }),
    ];
    for (index, attributes) in connectors.iter().enumerate() {
        let mut attributes = attributes.clone();
        attributes["name"] = format!("c{index}").into();
        attributes["host"] = "127.0.0.1".into();
        pod.folder.entity("connector", &attributes);
    }
    let listeners = [
        json!({ "host": "127.0.0.1", "cost": 3, "role": "inter-router", "authenticatePeer": false }),
        json!({ "host": "" }),
        json!({ "host": "0.0.0.0", "authenticatePeer": "no", "saslMechanisms": "ANONYMOUS" }),
        json!({ "role": "normal", "sslProfile": "p", "saslMechanisms": "EXTERNAL", "authenticatePeer": true }),
        json!({ "role": "edge", "linkCapacity": 100, "idleTimeoutSeconds": 20 }),
    ];
    for (index, attributes) in listeners.iter().enumerate() {
        let mut attributes = attributes.clone();
        attributes["name"] = format!("l{index}").into();
        attributes["port"] = free_port().into();
        pod.folder.entity("listener", &attributes);
    }
    connectors.len() + listeners.len()
}

#[test]
fn what_the_router_accepted_is_what_it_shows() {
    let mut pod = Pod::new("west", "interior");
    let count = variety(&mut pod, &Authority::new("site-ca"));
    let revision = pod.folder.swap();
    pod.start();
    let report = pod.reported("the pass is done", &revision, |_| true);
    assert_eq!(report.refused, []);
    let identities = |pod: &Pod| {
        let of_type = |it| client::query(&pod.router.management, it);
        let rows = ["connector", "listener"].into_iter().flat_map(of_type);
        rows.map(|row| row["identity"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(identities(&pod).len(), count + 2);
    let changes = |pod: &Pod| {
        let log = pod.log();
        log.lines()
            .filter(|line| line.contains("\"Created") || line.contains("\"Deleted"))
            .count()
    };
    let (made, shown) = (changes(&pod), identities(&pod));
    // Another pass, from a router read anew, finds nothing to do.
    pod.folder
        .credential("unused", &Authority::new("other").issue("x"));
    let revision = pod.folder.swap();
    pod.reported("another pass is done", &revision, |report| {
        report.refused.is_empty()
    });
    assert_eq!(
        (changes(&pod), identities(&pod)),
        (made, shown),
        "{}",
        pod.log()
    );
}

#[test]
fn an_entity_that_is_wanted_otherwise_is_replaced_and_no_other_is() {
    let mut sites = Sites::linked();
    let port = sites.port;
    let mut other = connector("other", 1, "west-profile");
    let revision = sites.east.folder.entity("connector", &other).swap();
    sites.east.reported("both are there", &revision, |report| {
        report.refused.is_empty()
    });
    let before = client::dialled(&sites.east.router.management, port);
    other["cost"] = 9.into();
    let revision = sites.east.folder.entity("connector", &other).swap();
    sites.east.reported("it is replaced", &revision, |report| {
        report.refused.is_empty()
    });
    let shown = client::find(&sites.east.router.management, "connector", "other").unwrap();
    assert_eq!(shown["cost"], "9");
    assert_eq!(client::dialled(&sites.east.router.management, port), before);

    // A listener that keeps its port is closed and opened, and the link through it stays.
    let mut door = listener("skupper-router-inter-router", port, "skupper-site-server");
    door["cost"] = 4.into();
    let revision = sites.west.folder.entity("listener", &door).swap();
    sites.west.reported("it is replaced", &revision, |report| {
        report.refused.is_empty()
    });
    let shown = client::find(
        &sites.west.router.management,
        "listener",
        "skupper-router-inter-router",
    )
    .unwrap();
    assert_eq!(shown["cost"], "4");
    assert_eq!(client::dialled(&sites.east.router.management, port), before);

    // A connector to somewhere else is another link.
    let moved = connector("west", free_port(), "west-profile");
    let revision = sites.east.folder.entity("connector", &moved).swap();
    sites
        .east
        .reported("the link is down", &revision, |report| !is_up(report));
    let revision = sites
        .east
        .folder
        .entity("connector", &connector("west", port, "west-profile"))
        .swap();
    sites.east.reported("the link is up", &revision, is_up);
}

#[test]
fn listeners_may_swap_ports_and_names_change_type() {
    let mut pod = Pod::new("west", "interior");
    let authority = Authority::new("site-ca");
    let (one, two) = (free_port(), free_port());
    pod.folder
        .credential("p", &authority.issue("west"))
        .entity("listener", &listener("a", one, "p"))
        .entity("listener", &listener("b", two, "p"))
        .entity("connector", &connector("c", one, "p"));
    let revision = pod.folder.swap();
    pod.start();
    pod.reported("all are there", &revision, |report| {
        report.refused.is_empty()
    });
    pod.folder
        .without_entity("c")
        .entity("listener", &listener("a", two, "p"))
        .entity("listener", &listener("b", one, "p"))
        .credential("c", &authority.issue("west"))
        .entity("connector", &connector("p2", one, "c"));
    let revision = pod.folder.swap();
    let report = pod.reported("all are there", &revision, |report| {
        report.credentials.len() == 2
    });
    assert_eq!(report.refused, []);
    let shown = |name: &str| {
        client::find(&pod.router.management, "listener", name).unwrap()["port"].clone()
    };
    assert_eq!((shown("a"), shown("b")), (two.to_string(), one.to_string()));
}

#[test]
fn what_the_router_will_not_give_up_is_told_and_costs_nothing_else() {
    let mut pod = Pod::new("west", "interior");
    let page = json!({
        "name": "page", "host": "127.0.0.1", "port": free_port(), "http": true, "httpRootDir": "disabled",
        "healthz": true, "metrics": false, "websockets": false
    });
    let revision = pod.folder.entity("listener", &page).swap();
    pod.start();
    let report = pod.reported("it is there", &revision, |_| true);
    assert_eq!(report.refused, []);
    // Some versions of the router cannot delete a listener for HTTP.
    let plain = json!({ "name": "plain", "host": "127.0.0.1", "port": free_port() });
    let revision = pod
        .folder
        .without_entity("page")
        .entity("listener", &plain)
        .swap();
    let report = pod.reported("the other is there", &revision, |_| {
        client::find(&pod.router.management, "listener", "plain").is_some()
    });
    let is_there = client::find(&pod.router.management, "listener", "page").is_some();
    assert_eq!(
        report
            .refused
            .iter()
            .any(|refused| refused.entity == "listener/page"),
        is_there,
        "{report:?}"
    );
    eventually("the pod is ready", || pod.is_ready());
    never("the pod is not ready", Duration::from_secs(1), || {
        !pod.is_ready()
    });
}
