//! From a Site to its router's listener, and from a change to the router: how long, and in which room?

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use spanwire_e2e::bed::{self, Bed};
use spanwire_e2e::images::Profile;
use spanwire_e2e::namespace::Namespaces;
use spanwire_e2e::stopwatch::{Mounted, Times, time_change, time_site};
use spanwire_e2e::{command, wait, workspace};

use super::percentile;
use crate::progress::Steps;
use crate::raise;

const WITHIN: Duration = Duration::from_hours(1);
/// The kubelet looks by itself every minute or so.
const UNNUDGED: u16 = 5;
const GONE_WITHIN: Duration = Duration::from_mins(2);

/// From `kubectl apply` of a Site to its router's TLS listener, and what a router of 3,000 entities costs.
pub(super) fn run(sites: u32, count: u16) -> Result<()> {
    let steps = Steps::default();
    for package in ["spanwire-router", "spanwire-adaptor"] {
        let bench = if package == "spanwire-router" {
            "diff"
        } else {
            "size"
        };
        println!("\n── cargo bench --package {package} --bench {bench}");
        let mut cargo = Command::new("cargo");
        cargo.current_dir(workspace::root()).args([
            "bench",
            "--package",
            package,
            "--bench",
            bench,
        ]);
        let child = cargo.spawn().context("start cargo")?;
        ensure!(
            command::wait(child, "cargo bench", WITHIN)?.success(),
            "cargo bench failed"
        );
    }

    println!("\n── {sites} sites, one after the other");
    let built = raise::build(&steps, false, Profile::Release)?;
    let cluster = raise::raise(&steps, &built, "bench")?;
    let bed = Bed::of(&cluster);
    let mut all = Vec::new();
    for number in 0..sites {
        let name = format!("bench-{number}");
        let namespaces = Namespaces::make(&bed, &[&name])?;
        all.push(time_site(&bed, &name)?);
        namespaces.passed()?;
        let pods = ["pods", "--namespace", &name];
        wait::until("its pods to be gone", GONE_WITHIN, || {
            Ok(bed.kubectl().items(&pods)?.is_empty().then_some(()))
        })?;
    }
    report(&all);

    println!("\n── {count} changes of one site");
    let namespaces = Namespaces::make(&bed, &["bench-changes"])?;
    time_site(&bed, "bench-changes")?;
    let mut changes = Vec::new();
    for number in 0..count {
        changes.push(time_change(&bed, "bench-changes", 56_000 + number)?);
    }
    line("to the router", changes);

    println!("\n── a mounted file, {count} changes with a nudge and {UNNUDGED} without");
    bed::equip(&cluster)?;
    let mut mounted = Mounted::start(&bed, "bench-changes")?;
    let mut time = |is_nudged, count| {
        let times = (0..count).map(|_| mounted.time(is_nudged));
        times.collect::<Result<Vec<_>>>()
    };
    line("with a nudge", time(true, count)?);
    line("without", time(false, UNNUDGED)?);
    namespaces.passed()
}

/// A room, and its part of the time.
type Room = (&'static str, fn(&Times) -> Duration);

fn report(all: &[Times]) {
    let rooms: [Room; 5] = [
        ("operator", |times| times.operator),
        ("kubelet", |times| times.kubelet),
        ("router", |times| times.router),
        ("adaptor", |times| times.adaptor),
        ("in all", Times::total),
    ];
    for (name, part) in rooms {
        line(name, all.iter().map(part).collect());
    }
}

fn line(name: &str, mut times: Vec<Duration>) {
    let mut at = |percent| percentile(&mut times, percent).as_millis();
    let (half, most) = (at(50), at(99));
    println!("{name:<14} p50 {half:>6} ms   p99 {most:>6} ms");
}
