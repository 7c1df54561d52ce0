//! What if somebody else changes the router, or the folder never rests?

use crate::bed::{Pod, eventually, free_port, never};
use crate::client;
use crate::gate::{Gate, Mood};
use crate::site::{Sites, connector, is_up};
use serde_json::json;
use std::time::Duration;

/// Two linked sites of which the eastern adaptor reaches its router by a gate.
fn gated() -> (Sites, Gate) {
    let (sites, gate) = Sites::behind(Mood::Open);
    eventually("the link is up", || is_up(&sites.east.api.report()));
    (sites, gate)
}

#[test]
fn credentials_that_are_renewed_without_end_are_no_circle() {
    const PROFILES: usize = 40;
    let mut sites = Sites::linked();
    let names: Vec<String> = (0..PROFILES).map(|n| format!("x{n}-profile")).collect();
    for (number, profile) in names.iter().enumerate() {
        let connector = connector(&format!("x{number}"), sites.port, profile);
        sites.east.folder.entity("connector", &connector);
    }
    let mut revision = String::new();
    for _ in 0..40 {
        let renewed = sites.authority.issue("east");
        for profile in &names {
            sites.east.folder.credential(profile, &renewed);
        }
        revision = sites.east.folder.swap();
        std::thread::sleep(Duration::from_millis(30));
    }
    let version = sites.east.folder.version(&names[0]);
    sites
        .east
        .reported("the last is in force", &revision, |report| {
            report.settled
                && report.refused.is_empty()
                && names
                    .iter()
                    .all(|name| report.credentials.get(name) == Some(&version))
        });
    let shelved = sites.east.log().matches("Left an entity alone").count();
    assert_eq!(shelved, 0, "{}", sites.east.log());
}

#[test]
fn an_adaptor_that_waits_for_its_router_is_alive() {
    let (mut sites, gate) = gated();
    gate.turn(Mood::Slow(Duration::from_millis(2_200)));
    for number in 0..14 {
        let plain = json!({"name": format!("n{number}"), "host": "127.0.0.1", "port": "1", "role": "normal"});
        sites.east.folder.entity("connector", &plain);
    }
    sites.east.folder.swap();
    never("it is given up for dead", Duration::from_secs(75), || {
        !sites.east.is_alive()
    });
}

#[test]
fn a_profile_that_others_use_by_now_stays() {
    let mut sites = Sites::linked();
    let router = sites.east.router.management.clone();
    let port = sites.port.to_string();
    let body = [
        ("host", "127.0.0.1"),
        ("port", port.as_str()),
        ("role", "inter-router"),
        ("sslProfile", "west-profile"),
    ];
    // Its name says that it is not ours to delete.
    assert_eq!(
        client::create(&router, "connector", "auto-mesh-east", &body),
        201
    );
    let revision = sites.unlink();
    sites
        .east
        .reported("the link is gone", &revision, |report| {
            report.links.is_empty()
        });
    assert!(client::find(&router, "sslProfile", "west-profile").is_some());
}

#[test]
fn an_attribute_that_is_wanted_in_the_middle_of_a_pass_is_no_difference() {
    let (mut sites, gate) = gated();
    let router = sites.east.router.management.clone();
    let west = client::find(&router, "connector", "west").unwrap();
    let before = client::dialled(&router, sites.port);
    // From now on it knows of the router what it asked for, and no more.
    sites.east.kill();
    sites.east.start();
    eventually("it is ready again", || sites.east.is_ready());
    gate.turn(Mood::Slow(Duration::from_millis(300)));
    for name in ["l1", "l2"] {
        let plain = json!({"name": name, "host": "127.0.0.1", "port": free_port()});
        sites.east.folder.entity("listener", &plain);
    }
    sites.east.folder.swap();
    std::thread::sleep(Duration::from_millis(100));
    let mut spelled_out = connector("west", sites.port, "west-profile");
    spelled_out["maxFrameSize"] = json!(west["maxFrameSize"]);
    let revision = sites.east.folder.entity("connector", &spelled_out).swap();
    gate.turn(Mood::Open);
    sites
        .east
        .reported("it is settled", &revision, |report| report.settled);
    assert_eq!(client::dialled(&router, sites.port), before);
}

#[test]
fn a_link_whose_profile_somebody_deleted_follows_its_credential_again() {
    let mut sites = Sites::linked();
    let router = sites.east.router.management.clone();
    let before = client::dialled(&router, sites.port);
    assert_eq!(client::delete(&router, "sslProfile", "west-profile"), 204);
    sites.rotate_east();
    eventually("the link is dialled anew", || {
        let now = client::dialled(&router, sites.port);
        !now.is_empty() && now.keys().all(|identity| !before.contains_key(identity))
    });
}

#[test]
fn what_somebody_else_changed_is_repaired_soon_after_the_next_change() {
    let mut sites = Sites::linked();
    let router = sites.west.router.management.clone();
    let listens = |name| client::find(&router, "listener", name).is_some();
    let ours = client::query(&router, "listener");
    let role = |row: &&client::Row| row.get("role").is_some_and(|role| role == "inter-router");
    let name = ours.iter().find(role).unwrap()["name"].clone();
    assert_eq!(client::delete(&router, "listener", &name), 204);
    let plain = json!({"name": "more", "host": "127.0.0.1", "port": free_port()});
    sites.west.folder.entity("listener", &plain).swap();
    eventually("it is back", || listens(&name));
    eventually("the link is up", || is_up(&sites.east.api.report()));
}

#[test]
fn what_is_gone_before_it_is_read_back_is_made_again() {
    let (mut sites, gate) = gated();
    let router = sites.east.router.management.clone();
    gate.turn(Mood::Slow(Duration::from_secs(1)));
    let plain = json!({"name": "n", "host": "127.0.0.1", "port": "1", "role": "normal"});
    sites.east.folder.entity("connector", &plain).swap();
    eventually("it is made", || {
        client::find(&router, "connector", "n").is_some()
    });
    assert_eq!(client::delete(&router, "connector", "n"), 204);
    gate.turn(Mood::Open);
    eventually("it is back", || {
        client::find(&router, "connector", "n").is_some()
    });
}

#[test]
fn a_lost_connection_is_no_exit_of_a_router_that_has_nothing_of_ours() {
    let mut pod = Pod::new("east", "interior");
    let gate = Gate::new(&pod.router.management, Mood::Open);
    pod.management.clone_from(&gate.address);
    let revision = pod.folder.swap();
    pod.start();
    pod.reported("it is ready", &revision, |report| report.settled);
    let visits = gate.visits();
    gate.set(Mood::Open);
    eventually("it is connected again", || {
        gate.visits() > visits && pod.is_ready()
    });
    let router = pod.api.report().router;
    assert_eq!((router.starts, router.exits), (1, 0));
}

#[test]
fn a_credential_whose_profile_somebody_deleted_is_forgotten_with_its_link() {
    let mut sites = Sites::linked();
    let router = sites.east.router.management.clone();
    assert_eq!(client::delete(&router, "sslProfile", "west-profile"), 204);
    let revision = sites.unlink();
    sites
        .east
        .reported("nothing is in force", &revision, |report| {
            report.links.is_empty() && report.credentials.is_empty()
        });
}

/// A router loads a profile's files for each of its users, one after the other.
#[test]
fn a_credential_of_many_links_is_renewed_however_long_that_takes() {
    const USERS: usize = 200;
    let mut sites = Sites::linked();
    let shared = sites.authority.issue("east");
    sites.east.folder.credential("shared", &shared);
    for number in 0..USERS {
        let plain = json!({
            "name": format!("s{number}"), "host": "127.0.0.1", "port": "1", "role": "normal", "sslProfile": "shared"
        });
        sites.east.folder.entity("connector", &plain);
    }
    let revision = sites.east.folder.swap();
    sites.east.reported("all are made", &revision, |report| {
        report.settled && report.refused.is_empty()
    });
    let renewed = sites.authority.issue("east");
    let revision = sites.east.folder.credential("shared", &renewed).swap();
    let version = sites.east.folder.version("shared");
    sites.east.reported("it is in force", &revision, |report| {
        report.settled && report.credentials.get("shared") == Some(&version)
    });
    assert_eq!(sites.east.log().matches("Lost the router").count(), 0);
}
