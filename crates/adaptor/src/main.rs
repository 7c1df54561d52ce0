//! The process beside the router: what does it do from start to end?
//!
//! It reads the mounted credentials and configuration, lays the credentials on the router's disk, brings the router to what
//! is wanted over its management, and reports. It decides nothing about objects and stops only when it is told to.

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
use sync::Sync;
use telemetry::Health;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    telemetry::log();
    // Fails if there is one already, which is as good.
    let _ = aws_lc_rs::default_provider().install_default();
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;

    let health = Arc::new(Health::new());
    let (reports, seen) = watch::channel(Report::default());
    // Dropped with everything in it at the end. A task that panics is not replaced: the probes tell.
    let mut tasks = JoinSet::new();
    tasks.spawn(telemetry::serve(
        args.health,
        Arc::clone(&health),
        seen.clone(),
    ));
    if let Some(reporter) = Reporter::new(&args) {
        tasks.spawn(reporter.run(seen));
    } else {
        warn!("Was told of no API server; reporting to nobody");
    }
    tasks.spawn(Sync::new(&args, reports, health).run());
    info!(
        pod = args.pod_name,
        version = env!("CARGO_PKG_VERSION"),
        "Started"
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!("Stopped");
    Ok(())
}
