//! The process beside the router: what does it do from start to end?
//!
//! It reads the mounted credentials and configuration, lays the credentials on the router's disk,
//! brings the router to what is wanted over its management, and reports. It decides nothing about
//! objects and stops only when it is told to.

mod args;
mod clock;
mod credentials;
mod error;
mod management;
mod mount;
mod report;
mod sync;
mod telemetry;

use anyhow::Context;
use args::Args;
use clap::Parser;
use report::Reporter;
use rustls::crypto::aws_lc_rs;
use spanwire_router::report::Report;
use std::sync::Arc;
use std::time::Duration;
use sync::Sync;
use telemetry::Health;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{error, info, warn};

/// The pause before a task that panicked starts anew.
const RESTART: Duration = Duration::from_secs(1);

// One thread: there is little to do, and what each thread has to itself of the heap costs more.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    telemetry::log(&args.log);
    // Fails if there is one already, which is as good.
    let _ = aws_lc_rs::default_provider().install_default();
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    info!(
        pod = args.pod_name,
        version = env!("CARGO_PKG_VERSION"),
        "Started"
    );

    let health = Arc::new(Health::new());
    let (reports, seen) = watch::channel(Report::default());
    // Dropped with everything in it at the end: whatever is cut short starts over next time.
    let mut tasks = JoinSet::new();
    if let Some(reporter) = Reporter::new(&args) {
        let seen = seen.clone();
        tasks.spawn(keep("reporter", move || reporter.clone().run(seen.clone())));
    } else {
        warn!("Was told of no API server; reporting to nobody");
    }
    let probed = Arc::clone(&health);
    let address = args.health;
    tasks.spawn(keep("probes", move || {
        telemetry::serve(address, Arc::clone(&probed), seen.clone())
    }));
    tasks.spawn(keep("loop", move || {
        Sync::new(&args, reports.clone(), Arc::clone(&health)).run()
    }));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!("Stopped");
    Ok(())
}

/// Runs a task that never ends. One that panics all the same is started anew, as if the process had
/// been, and costs no other.
async fn keep<Task>(name: &'static str, start: impl Fn() -> Task)
where
    Task: Future<Output = ()> + Send + 'static,
{
    loop {
        let mut task = JoinSet::new();
        task.spawn(start());
        if let Some(Err(failure)) = task.join_next().await {
            error!(task = name, %failure, "A task failed; starting it anew");
        }
        sleep(RESTART).await;
    }
}
