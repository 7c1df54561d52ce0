//! Does a TCP stream through a link last, whatever happens to the link's credentials and adaptors?

use crate::bed::{Pod, eventually, free_port};
use crate::client;
use crate::echo::{self, Stream};
use crate::pki::{Authority, Credential};
use crate::site::{Sites, connector, listener, rotate};
use std::io::Write;
use std::time::Duration;

/// A link that is lost is not back so soon: the other side dials again after 2 s.
const NO_GAP: Duration = Duration::from_secs(2);

/// Whether routers are real ones, which carry streams; if not, the test says that it did not run (`e2e/src/skip.rs`).
fn is_real(test: &str) -> bool {
    let is_real = std::env::var_os("SPANWIRE_SKROUTERD").is_some();
    if !is_real {
        // Whole, as other tests write too, and past the test harness, which would swallow it.
        let line = format!("{test}: SPANWIRE_SKROUTERD names no real router\n");
        let _ = match std::env::var_os("SPANWIRE_SKIPS") {
            Some(path) => std::fs::File::options()
                .create(true)
                .append(true)
                .open(path)
                .and_then(|mut file| file.write_all(line.as_bytes())),
            None => write!(std::io::stderr(), "skipped: {line}"),
        };
    }
    is_real
}

/// Linked sites, and the port in `east` of a service that `west` has.
fn served() -> (Sites, u16) {
    let sites = Sites::linked();
    let (server, door) = (echo::serve().to_string(), free_port());
    let create = |pod: &Pod, entity_type: &str, port: &str| {
        let body = [
            ("host", "127.0.0.1"),
            ("port", port),
            ("address", "service"),
        ];
        let status = client::create(&pod.router.management, entity_type, entity_type, &body);
        assert_eq!(status, 201);
    };
    create(&sites.west, "tcpConnector", &server);
    create(&sites.east, "tcpListener", &door.to_string());
    (sites, door)
}

/// Ends a stream that nothing happened to.
fn assert_whole(stream: Stream) {
    stream.goes_on();
    let echoes = stream.end();
    assert!(
        echoes.is_whole && echoes.count == echoes.sent && echoes.gap < NO_GAP,
        "{echoes:?}"
    );
}

/// Waits until connections of `east` that are older than this ordinal have been closed.
fn retired(sites: &Sites, oldest: &str) {
    let router = &sites.east.router.management;
    eventually("the older connections are closed", || {
        let profile = client::find(router, "sslProfile", "west-profile").unwrap();
        profile
            .get("oldestValidOrdinal")
            .is_some_and(|shown| shown == oldest)
    });
}

#[test]
fn a_new_link_cuts_no_stream() {
    if !is_real("a_new_link_cuts_no_stream") {
        return;
    }
    let (mut sites, door) = served();
    let stream = Stream::open(door);
    let before = client::dialled(&sites.east.router.management, sites.port);

    let (authority, port) = (Authority::new("north-ca"), free_port());
    let mut north = Pod::new("north", "interior");
    north
        .folder
        .credential("skupper-site-server", &authority.issue("north"))
        .entity(
            "listener",
            &listener("skupper-router-inter-router", port, "skupper-site-server"),
        )
        .swap();
    north.start();
    let revision = sites
        .east
        .folder
        .credential("north-profile", &authority.issue("east"))
        .entity("connector", &connector("north", port, "north-profile"))
        .swap();
    sites
        .east
        .reported("the new link is up", &revision, |report| {
            report.links.get("north").is_some_and(|link| link.up)
        });
    stream.goes_on();
    let after = client::dialled(&sites.east.router.management, sites.port);
    assert_eq!(before, after, "the link has other connections");
    assert_whole(stream);
}

#[test]
fn one_renewal_on_both_sides_cuts_no_stream() {
    if !is_real("one_renewal_on_both_sides_cuts_no_stream") {
        return;
    }
    let (mut sites, door) = served();
    let stream = Stream::open(door);
    sites.rotate_west();
    sites.rotate_east();
    retired(&sites, "1");
    assert_whole(stream);
}

/// `facts/order.md` C5: sets of connections may not pile up, and a stream lives on the one that it began on.
#[test]
fn a_second_renewal_cuts_only_streams_from_before_the_first() {
    if !is_real("a_second_renewal_cuts_only_streams_from_before_the_first") {
        return;
    }
    let (mut sites, door) = served();
    let oldest = Stream::open(door);
    sites.rotate_west();
    sites.rotate_east();
    let router = sites.east.router.management.clone();
    eventually("both sets are open", || {
        client::dialled(&router, sites.port).len() == 2
    });
    let old = Stream::open(door);
    sites.rotate_west();
    sites.rotate_east();
    retired(&sites, "2");
    let new = Stream::open(door);
    eventually("the oldest is cut", || oldest.is_cut());
    assert_whole(old);
    assert_whole(new);
}

#[test]
fn killed_adaptors_cut_no_stream_with_the_api_server_away() {
    if !is_real("killed_adaptors_cut_no_stream_with_the_api_server_away") {
        return;
    }
    let (mut sites, door) = served();
    let stream = Stream::open(door);
    for pod in [&mut sites.west, &mut sites.east] {
        pod.api.leave();
        pod.kill();
        eventually("nobody answers", || !pod.is_alive());
    }
    stream.goes_on();
    for pod in [&mut sites.west, &mut sites.east] {
        pod.start();
        eventually("the pod is ready", || pod.is_ready());
    }
    assert_whole(stream);
}

#[test]
fn a_ca_that_is_rolled_over_cuts_no_stream_of_who_trusts_only_the_old_one() {
    if !is_real("a_ca_that_is_rolled_over_cuts_no_stream_of_who_trusts_only_the_old_one") {
        return;
    }
    let (mut sites, door) = served();
    let stream = Stream::open(door);
    let next = Authority::new("next-ca");
    let bridge = sites.authority.cross_certificate("next-ca", &next);
    let leaf = next.issue("west");
    let followed = Credential {
        ca: leaf.ca + &sites.authority.issue("west").ca,
        crt: leaf.crt + &bridge,
        ..leaf
    };
    rotate(&mut sites.west, "skupper-site-server", &followed);
    stream.goes_on();

    // It dials anew, with a certificate and trust of the old CA.
    sites.rotate_east();
    let router = sites.east.router.management.clone();
    eventually("the new connections are open", || {
        let ordinals = client::dialled(&router, sites.port);
        ordinals.values().any(|ordinal| ordinal == "2")
    });
    retired(&sites, "1");
    assert_whole(Stream::open(door));
    assert_whole(stream);
}
