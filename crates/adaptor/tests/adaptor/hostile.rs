//! Does an adaptor outlive a router that misbehaves?

use crate::bed::{Pod, eventually, never};
use crate::client;
use crate::gate::Mood;
use crate::liar::{Liar, Lie};
use crate::site::{Sites, is_up};
use std::time::Duration;

/// What the report says of the router.
fn complaint(sites: &Sites) -> String {
    let report = sites.east.api.report();
    let about = report
        .refused
        .iter()
        .find(|refused| refused.entity == "router");
    about
        .map(|refused| format!("{}: {}", refused.reason, refused.message))
        .unwrap_or_default()
}

#[test]
fn a_router_that_never_answers_is_told_and_tried_until_it_does() {
    let (sites, gate) = Sites::behind(Mood::Silent);
    eventually("it is told", || {
        complaint(&sites).starts_with("RouterUnreachable: the router did not answer")
    });
    assert!(sites.east.is_alive() && !sites.east.is_ready());
    gate.set(Mood::Open);
    eventually("the link is up", || is_up(&sites.east.api.report()));
    assert_eq!(complaint(&sites), "");
    assert_eq!(sites.east.api.report().router.exits, 0);
}

#[test]
fn a_router_that_babbles_slams_or_stops_in_the_middle_is_tried_again() {
    let (sites, gate) = Sites::behind(Mood::Slam);
    // The handshake takes some 500 bytes: one of these ends in it, the others in replies.
    for mood in [
        Mood::Babble,
        Mood::Cut(100),
        Mood::Cut(1_000),
        Mood::Cut(2_000),
    ] {
        let visits = gate.visits();
        gate.set(mood);
        eventually("it was tried again", || gate.visits() > visits + 2);
        assert!(sites.east.is_alive());
    }
    eventually("it is told", || {
        complaint(&sites).starts_with("RouterUnreachable")
    });
    gate.set(Mood::Open);
    eventually("the link is up", || is_up(&sites.east.api.report()));
    // Each kind of failure is logged once, not each failure.
    assert!(
        sites.east.descriptors() < 40,
        "{} for {} visits",
        sites.east.descriptors(),
        gate.visits()
    );
    let lost = sites.east.log().matches("Lost the router").count();
    assert!(
        lost < gate.visits() / 2 + 5,
        "{lost} lines for {} visits",
        gate.visits()
    );
}

#[test]
fn a_router_that_is_slow_gets_there() {
    let (sites, _gate) = Sites::behind(Mood::Slow(Duration::from_millis(100)));
    eventually("the link is up", || is_up(&sites.east.api.report()));
    assert_eq!(sites.east.api.report().router.exits, 0);
}

#[test]
fn an_answer_that_comes_too_late_is_not_taken_for_another() {
    let (mut sites, gate) = Sites::behind(Mood::Open);
    eventually("the link is up", || is_up(&sites.east.api.report()));
    let router = sites.east.router.management.clone();
    let before = client::dialled(&router, sites.port);
    gate.turn(Mood::Slow(Duration::from_secs(6)));
    let visits = gate.visits();
    eventually("the connection was given up", || gate.visits() > visits);
    gate.set(Mood::Open);
    sites.rotate_east();
    let report = sites.east.api.report();
    assert_eq!(
        (report.router.starts, report.router.exits),
        (1, 0),
        "it was the same router"
    );
    assert!(is_up(&report));
    eventually("both sets are open", || {
        client::dialled(&router, sites.port).len() == 2
    });
    assert!(
        before
            .keys()
            .all(|it| client::dialled(&router, sites.port).contains_key(it))
    );
}

#[test]
fn a_silent_router_is_noticed_while_nothing_is_asked_of_it() {
    let (sites, gate) = Sites::behind(Mood::Open);
    eventually("the link is up", || is_up(&sites.east.api.report()));
    gate.turn(Mood::Silent);
    eventually("it is told", || {
        complaint(&sites).starts_with("RouterUnreachable")
    });
    eventually("the link is not claimed to be up", || {
        !is_up(&sites.east.api.report())
    });
    // A connection that was given up is closed, though nobody answers the farewell.
    let visits = gate.visits();
    eventually("it was tried again", || gate.visits() > visits + 1);
    let descriptors = sites.east.descriptors();
    assert!(descriptors < 30, "{descriptors}");
    gate.set(Mood::Open);
    eventually("the link is up", || is_up(&sites.east.api.report()));
    let link = sites.east.api.report().links["west"].clone();
    never("the report moved", Duration::from_secs(1), || {
        sites.east.api.report().links["west"] != link
    });
}

#[test]
fn an_answer_that_is_none_is_refused_and_bounded() {
    let lies = [
        // Refused for their size, or given up because they take too long to arrive.
        (Lie::Map(1_000_000), "the router"),
        (Lie::Rows(1_000_000), "the router"),
        (Lie::Shape, "a row does not fit its columns"),
        (Lie::NoStatus, "it has no status code"),
        (Lie::Refusal, "no reason was given (500)"),
    ];
    for (lie, complaint) in lies {
        let liar = Liar::start(lie);
        let mut pod = Pod::new("east", "interior");
        pod.management.clone_from(&liar.address);
        pod.folder.swap();
        pod.start();
        eventually(complaint, || {
            let report = pod.api.report();
            report
                .refused
                .iter()
                .any(|refused| refused.message.contains(complaint))
        });
        assert!(pod.is_alive() && !pod.is_ready());
        assert!(pod.memory() < 64 * 1024, "{} kB", pod.memory());
    }
}
