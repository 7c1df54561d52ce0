//! Does everything come back, whatever dies?

use crate::bed::{Pod, eventually, never};
use crate::client;
use crate::site::{Sites, is_up};
use std::fs;
use std::time::Duration;

#[test]
fn a_router_that_restarts_gets_everything_back_at_once() {
    let mut sites = Sites::linked();
    sites.east.router.kill();
    eventually("the pod is not ready", || !sites.east.is_ready());
    assert!(sites.east.is_alive());
    sites.east.router.run();
    eventually("the router's return is told", || {
        sites.east.api.report().router.starts == 2
    });
    eventually("the link is up", || is_up(&sites.east.api.report()));
    let report = sites.east.api.report();
    assert_eq!((report.router.starts, report.router.exits), (2, 1));
    assert_eq!(report.refused, []);
    eventually("the pod is ready", || sites.east.is_ready());

    // The side that listens.
    sites.west.router.kill();
    eventually("the link is down", || !is_up(&sites.east.api.report()));
    sites.west.router.run();
    eventually("the link is up again", || is_up(&sites.east.api.report()));
}

#[test]
fn an_adaptor_that_restarts_changes_nothing() {
    let mut sites = Sites::linked();
    let router = sites.east.router.management.clone();
    sites.rotate_east();
    eventually("both sets are open", || {
        client::dialled(&router, sites.port).len() == 2
    });
    // The rotation is over when connections older than the last set may be no more.
    eventually("the rotation is over", || {
        let profile = client::find(&router, "sslProfile", "west-profile").unwrap();
        profile
            .get("oldestValidOrdinal")
            .is_some_and(|oldest| oldest == "1")
    });
    let state = || {
        let profile = client::find(&router, "sslProfile", "west-profile");
        let connector =
            client::find(&router, "connector", "west").map(|row| row["identity"].clone());
        (client::dialled(&router, sites.port), profile, connector)
    };
    let before = state();
    sites.east.kill();
    let reports = sites.east.api.reports().len();
    sites.east.start();
    eventually("it reports again", || {
        sites.east.api.reports().len() > reports && is_up(&sites.east.api.report())
    });
    let report = sites.east.api.report();
    assert_eq!((report.router.starts, report.router.exits), (1, 0));
    assert_eq!(
        report.credentials["west-profile"],
        sites.east.folder.version("west-profile")
    );
    never("something was changed", Duration::from_secs(1), || {
        state() != before
    });
}

#[test]
fn an_adaptor_that_missed_a_rotation_makes_it() {
    let mut sites = Sites::linked();
    let router = sites.east.router.management.clone();
    sites.east.kill();
    let renewed = sites.authority.issue("east");
    let revision = sites
        .east
        .folder
        .credential("west-profile", &renewed)
        .swap();
    sites.east.start();
    sites.east.reported("it is made", &revision, is_up);
    let profile = client::find(&router, "sslProfile", "west-profile").unwrap();
    assert_eq!(profile["ordinal"], "2");
    eventually("both sets are open", || {
        client::dialled(&router, sites.port).len() == 2
    });
}

#[test]
fn both_come_back_from_disk_when_the_newest_version_is_bad() {
    let mut sites = Sites::linked();
    let good = sites.east.folder.version("west-profile");
    let mut bad = sites.authority.issue("east");
    bad.key = sites.authority.issue("east").key;
    let revision = sites.east.folder.credential("west-profile", &bad).swap();
    sites
        .east
        .reported("it is told", &revision, |report| !report.refused.is_empty());
    sites.east.kill();
    sites.east.router.kill();
    sites.east.router.run();
    let reports = sites.east.api.reports().len();
    sites.east.start();
    eventually("the link is up", || {
        sites.east.api.reports().len() > reports && is_up(&sites.east.api.report())
    });
    let report = sites.east.api.report();
    assert_eq!(report.credentials["west-profile"], good);
    assert_eq!(report.refused.len(), 1);
}

#[test]
fn an_adaptor_that_cannot_read_what_is_wanted_leaves_the_router_alone() {
    let mut sites = Sites::linked();
    let router = sites.east.router.management.clone();
    let before = client::dialled(&router, sites.port);
    let profiles = sites.east.folder.files["profiles.json"].clone();
    sites.east.kill();
    let revision = sites.east.folder.swap_documents(&profiles, b"junk");
    sites.east.start();
    eventually("it is told", || {
        let report = sites.east.api.report();
        report.revision == revision && !report.settled && !report.refused.is_empty()
    });
    never("something was changed", Duration::from_secs(1), || {
        client::dialled(&router, sites.port) != before || sites.east.is_ready()
    });
}

#[test]
fn what_somebody_else_deletes_comes_back() {
    let sites = Sites::linked();
    let router = sites.east.router.management.clone();
    assert_eq!(client::delete(&router, "connector", "west"), 204);
    eventually("it is back", || {
        client::find(&router, "connector", "west").is_some()
    });
}

#[test]
fn nothing_waits_for_the_api_server() {
    let mut sites = Sites::unlinked();
    sites.east.api.set_missing(true);
    sites.west.folder.swap();
    sites.east.folder.swap();
    sites.west.start();
    sites.east.start();
    let router = sites.east.router.management.clone();
    eventually("the link is up", || {
        !client::dialled(&router, sites.port).is_empty()
    });
    eventually("the pod is ready", || sites.east.is_ready());
    assert_eq!(sites.east.api.reports(), []);
    sites.east.api.set_missing(false);
    eventually("it is reported", || is_up(&sites.east.api.report()));
}

#[test]
fn credentials_lie_ready_before_the_router_runs() {
    let mut sites = Sites::unlinked();
    sites.east.router.kill();
    sites.east.folder.swap();
    sites.east.start();
    let version = sites.east.folder.version("west-profile");
    eventually("the files are there", || {
        sites
            .east
            .certs
            .join("west-profile")
            .join(&version)
            .join("tls.key")
            .exists()
    });
    assert!(!sites.east.is_ready() && sites.east.is_alive());
    sites.east.router.run();
    eventually("the pod is ready", || sites.east.is_ready());
    assert_eq!(sites.east.api.report().router.exits, 0);
}

#[test]
fn it_stops_at_once_when_told() {
    let mut pod = Pod::new("west", "interior");
    pod.folder.swap();
    pod.start();
    eventually("the pod is ready", || pod.is_ready());
    let (code, length) = pod.terminate();
    assert_eq!(code, Some(0));
    assert!(length < Duration::from_secs(2), "{length:?}");
}

#[test]
fn no_key_is_ever_logged() {
    let mut sites = Sites::linked();
    sites.rotate_east();
    let mut bad = sites.authority.issue("east");
    bad.key = bad.key.replace("MIG", "AAA");
    let revision = sites.east.folder.credential("west-profile", &bad).swap();
    sites
        .east
        .reported("it is told", &revision, |report| !report.refused.is_empty());
    let log = fs::read_to_string(sites.east.home().join("adaptor.log")).unwrap();
    let report = sites.east.api.report().to_json();
    for line in bad
        .key
        .lines()
        .filter(|line| line.len() > 10 && !line.starts_with("---"))
    {
        assert!(!log.contains(line) && !report.contains(line));
    }
    assert!(!log.contains("PRIVATE KEY"));
}
