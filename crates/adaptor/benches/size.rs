//! What does a large router cost the adaptor: memory, and management for one change?
//!
//! The router is the stand-in, in this process, or a real one where `SPANWIRE_SKROUTERD` names a binary.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    dead_code,
    reason = "a benchmark may fail by panicking, and uses a part of what the tests have"
)]

#[path = "../tests/adaptor/api.rs"]
mod api;
#[path = "../tests/adaptor/bed.rs"]
mod bed;
#[path = "../tests/adaptor/folder.rs"]
mod folder;
#[path = "../tests/adaptor/pki.rs"]
mod pki;
#[path = "../tests/adaptor/router.rs"]
mod router;

use std::time::{Duration, Instant};

use serde_json::json;

use crate::bed::{Pod, free_port};
use crate::pki::Authority;

/// Listeners, and as many connectors.
const SIZE: u16 = 1500;
/// Nothing here takes longer.
const DEADLINE: Duration = Duration::from_mins(10);

fn main() {
    let mut pod = Pod::new("west", "interior");
    let authority = Authority::new("site-ca");
    pod.folder.credential("p", &authority.issue("west"));
    for number in 0..SIZE {
        pod.folder
            .entity("listener", &listener(number, free_port()))
            .entity("connector", &connector(number));
    }
    let revision = pod.folder.swap();
    pod.start();
    let took = applied(&pod, &revision);
    let first = pod.memory();
    println!(
        "{SIZE} listeners and {SIZE} connectors: applied in {:.1} s, adaptor {:.1} MiB resident",
        took.as_secs_f64(),
        mebibytes(first)
    );

    let before = created(&pod);
    let start = Instant::now();
    let revision = pod.folder.entity("connector", &connector(SIZE)).swap();
    wait(|| created(&pod) > before);
    let took = start.elapsed();
    applied(&pod, &revision);
    println!(
        "one more connector: {} CREATE, in the router after {:.0} ms, adaptor {:.1} MiB resident",
        created(&pod) - before,
        took.as_secs_f64() * 1000.0,
        mebibytes(pod.memory())
    );
}

/// Waits until the adaptor reports that a revision is in force.
fn applied(pod: &Pod, revision: &str) -> Duration {
    let start = Instant::now();
    wait(|| {
        let report = pod.api.report();
        report.revision == revision && report.settled
    });
    start.elapsed()
}

fn wait(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How many entities the adaptor says that it has created.
fn created(pod: &Pod) -> usize {
    pod.log().matches("Created a").count()
}

fn listener(number: u16, port: u16) -> serde_json::Value {
    json!({
        "name": format!("listener-{number}"), "role": "normal", "host": "127.0.0.1", "port": port,
        "sslProfile": "p", "saslMechanisms": "EXTERNAL", "authenticatePeer": true
    })
}

/// To a port that nobody listens on.
fn connector(number: u16) -> serde_json::Value {
    json!({
        "name": format!("connector-{number}"), "role": "inter-router", "host": "127.0.0.1",
        "port": (1 + number).to_string(), "cost": 1, "sslProfile": "p"
    })
}

fn mebibytes(kilobytes: u64) -> f64 {
    f64::from(u32::try_from(kilobytes).unwrap()) / 1024.0
}
