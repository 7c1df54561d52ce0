//! How fast is it, and how large? Measured, never asserted: a test does not time.

mod grants;
mod order;

use std::time::Duration;

use anyhow::Result;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure: order, or grants.
    #[arg(value_parser = ["order", "grants"], default_value = "order")]
    which: String,
    /// How many sites are made, one after the other.
    #[arg(long, default_value_t = 50)]
    sites: u32,
    /// How many changes one site is given then.
    #[arg(long, default_value_t = 20)]
    changes: u16,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match args.which.as_str() {
        "grants" => grants::run(),
        _ => order::run(args.sites, args.changes),
    }
}

/// A percentile, by nearest rank: of 50, the 99th is the largest.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).copied().unwrap_or_default()
}
