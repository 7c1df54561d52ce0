//! How fast is it, and how large? Measured, never asserted: a test does not time.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use spanwire_e2e::bed::{self, Bed};
use spanwire_e2e::images::Profile;
use spanwire_e2e::namespace::Namespaces;
use spanwire_e2e::stopwatch::{Mounted, Times, time_change, time_site};
use spanwire_e2e::{command, wait, workspace};

use crate::progress::Steps;
use crate::raise;

const WITHIN: Duration = Duration::from_hours(1);
/// The kubelet looks by itself every minute or so.
const UNNUDGED: u16 = 5;
const GONE_WITHIN: Duration = Duration::from_mins(2);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure: order.
    #[arg(value_parser = ["order"], default_value = "order")]
    which: String,
    /// How many sites are made, one after the other.
    #[arg(long, default_value_t = 50)]
    sites: u32,
    /// How many changes one site is given then.
    #[arg(long, default_value_t = 20)]
    changes: u16,
}

/// From `kubectl apply` of a Site to its router's TLS listener, and what a router of 3,000 entities costs.
pub(crate) fn run(args: &Args) -> Result<()> {
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

    println!("\n── {} sites, one after the other", args.sites);
    let built = raise::build(&steps, false, Profile::Release)?;
    let cluster = raise::raise(&steps, &built, "bench")?;
    let bed = Bed::of(&cluster);
    let mut all = Vec::new();
    for number in 0..args.sites {
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

    println!("\n── {} changes of one site", args.changes);
    let namespaces = Namespaces::make(&bed, &["bench-changes"])?;
    time_site(&bed, "bench-changes")?;
    let mut changes = Vec::new();
    for number in 0..args.changes {
        changes.push(time_change(&bed, "bench-changes", 56_000 + number)?);
    }
    line("to the router", changes);

    println!(
        "\n── a mounted file, {} changes with a nudge and {UNNUDGED} without",
        args.changes
    );
    bed::equip(&cluster)?;
    let mut mounted = Mounted::start(&bed, "bench-changes")?;
    let mut time = |is_nudged, count| {
        let times = (0..count).map(|_| mounted.time(is_nudged));
        times.collect::<Result<Vec<_>>>()
    };
    line("with a nudge", time(true, args.changes)?);
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
    times.sort_unstable();
    let at = |percent: usize| {
        // Nearest rank: of 50, the 99th percentile is the largest.
        let rank = (times.len() * percent).div_ceil(100).max(1);
        times.get(rank - 1).map_or(0, Duration::as_millis)
    };
    println!("{name:<14} p50 {:>6} ms   p99 {:>6} ms", at(50), at(99));
}
