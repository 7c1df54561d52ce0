//! How fast is it, and how large? Measured, never asserted: a test does not time.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use spanwire_e2e::bed::Bed;
use spanwire_e2e::images::Profile;
use spanwire_e2e::namespace::Namespaces;
use spanwire_e2e::stopwatch::{Times, time_site};
use spanwire_e2e::{command, wait, workspace};

use crate::progress::Steps;
use crate::raise;

const WITHIN: Duration = Duration::from_hours(1);
const GONE_WITHIN: Duration = Duration::from_mins(2);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure: order.
    #[arg(value_parser = ["order"], default_value = "order")]
    which: String,
    /// How many sites are made, one after the other.
    #[arg(long, default_value_t = 50)]
    sites: u32,
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
        command::watched(&mut cargo, WITHIN, |line| println!("{line}"))?;
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
    Ok(())
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
    println!("{:<10}{:>10}{:>10}{:>10}", "ms", "p50", "p99", "max");
    for (name, part) in rooms {
        let mut parts: Vec<Duration> = all.iter().map(part).collect();
        parts.sort_unstable();
        let at = |percent: usize| {
            // Nearest rank: of 50, the 99th percentile is the largest.
            let rank = (parts.len() * percent).div_ceil(100).max(1);
            parts.get(rank - 1).map_or(0, Duration::as_millis)
        };
        println!("{name:<10}{:>10}{:>10}{:>10}", at(50), at(99), at(100));
    }
}
