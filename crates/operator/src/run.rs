//! How does the operator's process live?
//!
//! It starts whether or not there is an API server, it exits only when it is told to, and it says of itself that it is
//! ready when every store has been filled once and what the objects name has been asked for.

use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper::{Response, Uri};
use kube::Client;
use kube::client::ClientBuilder;
use spanwire_plan::Config;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::util::MapResponseLayer;

use crate::act::Workshop;
use crate::args::OperatorArgs;
use crate::clock::Clock;
use crate::controllers;
use crate::door::Door;
use crate::driver::Shell;
use crate::dying::Dying;
use crate::lease::Lease;
use crate::patience::Patience;
use crate::publish::Publisher;
use crate::redeem::{self, Pool};
use crate::stores::{Bells, Reader, Stores, Watches};
use crate::telemetry::{self, Health, Metrics};

/// How long a stopping operator goes on serving, so that a Service has time to send its clients elsewhere.
const DRAIN: Duration = Duration::from_secs(5);
/// How long what has begun may take to end after that.
const LAST: Duration = Duration::from_secs(10);
/// The Lease that replicas agree by, in the operator's own namespace.
const LEASE: &str = "spanwire-controller";
/// How often the event loop says that it turns.
const BEAT: Duration = Duration::from_secs(5);

/// Runs the operator until it is told to stop.
pub fn operator(args: OperatorArgs) -> anyhow::Result<()> {
    let config = args.config()?;
    telemetry::start_logs(args.log_format.parse()?, &args.log_filter)?;
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(live(args, config))
}

async fn live(args: OperatorArgs, config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    let health = Health::new();
    let metrics = Arc::new(Metrics::new(&config.version));
    let unfilled = health.hold("the stores are being filled");
    let listener = TcpListener::bind(args.metrics_address)
        .await
        .with_context(|| format!("could not listen on {}", args.metrics_address))?;
    let mut tasks = JoinSet::new();
    tasks.spawn(telemetry::serve(
        listener,
        health.clone(),
        metrics.clone(),
        stop.clone(),
    ));
    tasks.spawn(beat(health.clone()));

    let clock = Clock::shifted(args.clock_offset);
    let (client, api_server) = client(clock.clone()).await?;
    let (bells, queues) = Bells::new(&controllers::KINDS);
    let stores = Arc::new(Stores::new(&config.namespace, bells));
    stores.hold(health.hold("what the objects name is being read"));
    let lease = Lease::new(
        client.clone(),
        clock.clone(),
        &config.namespace,
        LEASE,
        &args.identity,
    );
    let (leads, leading) = (lease.changes(), lease.leading());
    let dying = Dying::default();
    let pool = {
        let policy = redeem::Policy {
            allow_loopback: args.allow_loopback_tokens,
            api_server: Some(api_server),
        };
        let stores = stores.clone();
        let report = Arc::new(move |token, attempt| stores.record(token, attempt));
        let leading = leading.clone();
        Pool::new(
            client.clone(),
            clock.clone(),
            policy,
            leading,
            metrics.clone(),
            report,
            dying.clone(),
        )
    };
    let redemptions = pool.clone();
    let mut serving = JoinSet::new();
    let publisher = Arc::new(Publisher::new(
        client.clone(),
        &config.name,
        &args.identity,
        dying.clone(),
    ));
    if config.grants {
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, args.grant_server_port));
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("could not listen on {address} for grants"))?;
        let door = Door {
            client: client.clone(),
            stores: stores.clone(),
            health: health.clone(),
            config: config.clone(),
            clock: clock.clone(),
            publisher: publisher.clone(),
            metrics: metrics.clone(),
        };
        door.open(listener, stop.clone(), &mut serving, &mut tasks)?;
    }
    let shell = Arc::new(Shell::new(
        stores.clone(),
        Workshop {
            client: client.clone(),
            pool,
            metrics: metrics.clone(),
            dying,
        },
        publisher,
        config,
        clock,
        leading,
        metrics,
    ));
    let mut watches = Watches::new(client.clone(), args.scope(), stores.clone());
    controllers::start(&shell, leads, &mut watches, queues, &mut tasks);
    let resign = CancellationToken::new();
    let mut election = JoinSet::new();
    election.spawn({
        let (filled, resign) = (watches.filled(), resign.clone());
        async move {
            // Who has not seen everything must not lead: a pass over half a World would take the other half for gone.
            tokio::select! {
                () = filled.complete() => lease.run(resign).await,
                () = resign.cancelled() => {}
            }
        }
    });
    let reader = Reader {
        client,
        stores: stores.clone(),
    };
    tasks.spawn(reader.run());
    let filled = watches.filled();
    tasks.spawn(async move {
        filled.complete().await;
        stores.let_go();
        drop(unfilled);
    });

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("Began to stop");
    health.stop();
    // The next leader begins at once, while this one goes on serving.
    resign.cancel();
    election.join_next().await;
    tokio::select! {
        () = tokio::time::sleep(DRAIN) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop.cancel();
    // Who has been counted gets an answer, and an answer in hand is stored.
    let ended = async {
        while serving.join_next().await.is_some() {}
        redemptions.drain().await;
    };
    if tokio::time::timeout(LAST, ended).await.is_err() {
        tracing::warn!("Stopped with redemptions under way");
    }
    tracing::info!("Stopped");
    Ok(())
}

async fn beat(health: Health) {
    let mut interval = tokio::time::interval(BEAT);
    loop {
        interval.tick().await;
        health.beat();
    }
}

/// A client for the API server that the environment names, whose answers the clock hears, and where that is. Nothing is sent
/// yet.
async fn client(clock: Clock) -> anyhow::Result<(Client, Uri)> {
    let mut config = kube::Config::infer()
        .await
        .context("found no API server to talk to")?;
    // It would repeat a POST or a PATCH whose fate is unclear, for minutes, inside one call.
    config.default_retry = false;
    let agent = HeaderValue::from_static(concat!("spanwire/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));
    let api_server = config.cluster_url.clone();
    let hear = MapResponseLayer::new(move |answer: Response<_>| {
        clock.hear(answer.headers());
        answer
    });
    let client = ClientBuilder::try_from(config)?
        .with_layer(&hear)
        .with_layer(&Patience::default())
        .build();
    Ok((client, api_server))
}

/// Prints the CustomResourceDefinitions, a YAML document each.
pub fn print_crds() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for crd in spanwire_api::crds() {
        writeln!(out, "---\n{}", serde_saphyr::to_string(&crd)?)?;
    }
    Ok(())
}

/// Prints the version.
pub fn print_version() -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{}", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}

/// Says what went wrong, in one line.
pub fn complain(error: &anyhow::Error) {
    // Without a place to say it there is nothing left to do about it.
    let _ = writeln!(std::io::stderr(), "spanwire: {error:#}");
}
