//! How can the adaptor be watched: logs, health, metrics?

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use spanwire_router::report::Report;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The loop turns each second, and waits no longer than five for an answer.
const STUCK: Duration = Duration::from_secs(30);

/// How often that is said while something is waited for.
const BEAT: Duration = Duration::from_secs(1);

/// The pause before the port for probes is tried again.
const REBIND: Duration = Duration::from_secs(1);

/// Logs as JSON lines what this filter lets through: `info`, or finer. One that cannot be read means `info`.
pub(crate) fn log(filter: &str) {
    let info = |_| Targets::new().with_default(LevelFilter::INFO);
    let filter: Targets = filter.parse().unwrap_or_else(info);
    // The AMQP library warns of each connection that ends, which we tell ourselves, once.
    let library = "fe2o3_amqp";
    let is_named = filter.iter().any(|(target, _)| target.starts_with(library));
    let filter = if is_named {
        filter
    } else {
        filter.with_target(library, LevelFilter::OFF)
    };
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .json()
        .flatten_event(true)
        .finish()
        .with(filter)
        .init();
}

/// What the probes ask about.
pub(crate) struct Health {
    started: Instant,
    /// Milliseconds from `started` to the last beat.
    beat: AtomicU64,
    ready: AtomicBool,
}

impl Health {
    /// Alive and not ready.
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            beat: AtomicU64::new(0),
            ready: AtomicBool::new(false),
        }
    }

    /// The loop has turned.
    pub(crate) fn beat(&self) {
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat.store(millis, Ordering::Relaxed);
    }

    /// Waits for something that ends by itself, however long that takes: who waits is alive.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            self.beat();
            if let Ok(done) = timeout(BEAT, work.as_mut()).await {
                return done;
            }
        }
    }

    /// The first full pass since the router started is done, or there is no router.
    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    fn is_alive(&self) -> bool {
        let beat = Duration::from_millis(self.beat.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(beat) < STUCK
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
}

/// Serves `/healthz`, `/livez` and `/metrics`, for ever. A port that cannot be had yet is tried
/// again: the probes say it.
pub(crate) async fn serve(
    address: SocketAddr,
    health: Arc<Health>,
    reports: watch::Receiver<Report>,
) {
    let mut registry = Registry::with_prefix("spanwire_adaptor");
    registry.register_collector(Box::new(Reported(reports)));
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(livez))
        .with_state(health)
        .route("/metrics", get(metrics))
        .with_state(Arc::new(registry));
    loop {
        let error = match bind(address).await {
            Ok(listener) => axum::serve(listener, router.clone()).await.err(),
            Err(error) => Some(error),
        };
        warn!(%address, error = error.map(|error| error.to_string()), "Could not serve the probes; trying again");
        sleep(REBIND).await;
    }
}

/// Opens the port for probes. Where the machine has no IPv6, every address means every IPv4
/// address.
async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            TcpListener::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port())).await
        }
        listener => listener,
    }
}

async fn healthz(State(health): State<Arc<Health>>) -> (StatusCode, &'static str) {
    if health.is_ready() {
        return (StatusCode::OK, "ok\n");
    }
    (
        StatusCode::SERVICE_UNAVAILABLE,
        "the first pass over this router is not done\n",
    )
}

async fn livez(State(health): State<Arc<Health>>) -> (StatusCode, &'static str) {
    if health.is_alive() {
        return (StatusCode::OK, "ok\n");
    }
    (StatusCode::SERVICE_UNAVAILABLE, "the loop does not turn\n")
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Result<String, StatusCode> {
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(text)
}

/// The last report, as metrics.
#[derive(Debug)]
struct Reported(watch::Receiver<Report>);

impl Collector for Reported {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let report = self.0.borrow();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let up = report.links.values().filter(|link| link.up).count();
        let gauges = [
            (
                "settled",
                "Whether the full pass for the mounted revision is done",
                i64::from(report.settled),
            ),
            (
                "refused",
                "Entities that are not as they are wanted",
                count(report.refused.len()),
            ),
            ("links", "Links that are wanted", count(report.links.len())),
            ("links_up", "Links that are up", count(up)),
            (
                "credentials",
                "Profiles that the router has a version of",
                count(report.credentials.len()),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let counters = [
            (
                "router_starts",
                "Routers that were met",
                report.router.starts,
            ),
            (
                "router_exits",
                "Routers that went away",
                report.router.exits,
            ),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(u64::from(value));
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        Ok(())
    }
}
