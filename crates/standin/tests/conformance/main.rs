//! Does the stand-in do what the real router was seen to do?
//!
//! Every fact runs against the stand-in, and against a real router too where `SPANWIRE_SKROUTERD`
//! names its binary. Each fact starts processes of its own on ports of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::large_futures,
    reason = "all of this is a test, helpers included"
)]

mod client;
mod link;
mod management;
mod pki;
mod program;
mod rotation;
mod start;

use std::io::Write;

use program::programs;

#[test]
fn the_real_router_is_asked_too() {
    let sources = [
        include_str!("start.rs"),
        include_str!("management.rs"),
        include_str!("link.rs"),
        include_str!("rotation.rs"),
    ];
    let count = |what: &str| -> usize { sources.iter().map(|s| s.matches(what).count()).sum() };
    let own = count("async fn the_launcher") + count("async fn the_stand_in");
    let facts = count("#[tokio::test") - own;
    assert!(facts > 0);
    let note = match programs().len() {
        1 => format!(
            "note: {facts} facts ran against the stand-in; {facts} skipped for the real router, \
             as SPANWIRE_SKROUTERD is not set"
        ),
        _ => format!("note: {facts} facts ran against the stand-in and the real router"),
    };
    // Written past the test harness, which would swallow it.
    let _ = writeln!(std::io::stderr(), "{note}");
}
