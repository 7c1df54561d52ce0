//! How does a person get a cluster to play with?

use std::time::Duration;

use anyhow::Result;
use spanwire_e2e::images::Profile;
use spanwire_e2e::{cluster, interrupt, wait};

use crate::progress::Steps;
use crate::raise;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Install no Debian packages; say which are missing.
    #[arg(long)]
    no_install: bool,
    /// Return at once; `cargo xtask down` ends the cluster.
    #[arg(long)]
    keep: bool,
}

#[derive(clap::Args)]
pub(crate) struct DownArgs {
    /// Which one: its folder below `target`.
    #[arg(default_value = NAME)]
    name: String,
}

const NAME: &str = "up";
/// What is said once it is so.
pub(crate) const ENDED: &str = "nothing is left running";
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Starts the cluster, says how to reach it, and waits for Ctrl-C.
pub(crate) fn run(args: &Args) -> Result<()> {
    let steps = Steps::default();
    let built = raise::build(&steps, args.no_install, Profile::Bed)?;
    let mut cluster = raise::raise(&steps, &built, NAME)?;
    println!(
        "\n   export KUBECONFIG={} PATH={}:$PATH",
        cluster.kubeconfig().display(),
        cluster.bin().display()
    );
    if args.keep {
        println!("   cargo xtask down   ends it");
        return cluster.keep();
    }
    println!("   Ctrl-C ends it");
    while !interrupt::is_asked() {
        cluster.check().or_else(|error| {
            if interrupt::is_asked() {
                Ok(())
            } else {
                Err(error)
            }
        })?;
        // Its only error is the interrupt that ends the loop.
        let _ = wait::for_period(LOOK_EVERY);
    }
    steps.run("end", |_| cluster.end().map(|()| ((), ENDED.to_owned())))
}

/// Ends a cluster that was kept.
pub(crate) fn down(args: &DownArgs) -> Result<()> {
    Steps::default().run("end", |_| {
        cluster::end_kept(&args.name).map(|()| ((), ENDED.to_owned()))
    })
}
