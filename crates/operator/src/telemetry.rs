//! How does a person see what the operator does?
//!
//! Logs on standard error, and one small HTTP server with health (`/healthz`, `/readyz`) and metrics (`/metrics`).
//! Nothing of either ever holds a key or a code.

mod health;
mod metrics;

use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

pub use health::{Health, Hold};
pub use metrics::{Buckets, Done, Metrics, OfKind, Pass, Redeemed, Redemption, Write};

/// The most connections at once: a kubelet, a few scrapers and a person.
const CONNECTIONS: usize = 64;
/// How long a client may take over its headers.
const HEADERS: Duration = Duration::from_secs(5);
/// How long a connection may last: scrapers come back.
const CONNECTION: Duration = Duration::from_mins(2);
/// How long to wait when no connection can be accepted: nearly always for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For a person.
    #[default]
    Text,
    /// One JSON object a line, for machines.
    Json,
}

/// Why there are no logs.
#[derive(Debug, Error)]
pub enum StartLogs {
    /// The filter does not parse.
    #[error("log filter {filter:?} is not like info or spanwire_operator=debug,info: {source}")]
    ParseFilter {
        /// As given.
        filter: String,
        /// What is wrong.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Something else has begun to log already.
    #[error("logging has been started before: {0}")]
    StartTwice(#[from] TryInitError),
    /// Neither of the two that are known.
    #[error("log format {0:?} is neither text nor json")]
    KnowFormat(String),
}

impl std::str::FromStr for LogFormat {
    type Err = StartLogs;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(StartLogs::KnowFormat(text.to_owned())),
        }
    }
}

/// Starts logging, for the whole process and once: `filter` is `info`, or finer: `info,spanwire_operator::driver=debug`.
pub fn start_logs(format: LogFormat, filter: &str) -> Result<(), StartLogs> {
    let filter = discreet(filter)?;
    let logs = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.finish().with(filter).try_init()?,
        LogFormat::Json => {
            let logs = logs.json().flatten_event(true);
            logs.finish().with(filter).try_init()?;
        }
    }
    Ok(())
}

/// The filter, but for what no filter may let through: the client library logs the whole body of an answer that it does
/// not understand, and that may be a Secret or a token.
pub(crate) fn discreet(filter: &str) -> Result<Targets, StartLogs> {
    let refused = |source| StartLogs::ParseFilter {
        filter: filter.to_owned(),
        source,
    };
    let filter: Targets = filter.parse().map_err(refused)?;
    Ok(filter.with_target("kube_client::client", LevelFilter::OFF))
}

/// Serves health and metrics until `stop`.
pub async fn serve(
    listener: TcpListener,
    health: Health,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, health.clone(), metrics.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "Could not accept a connection for health or metrics");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn converse(stream: TcpStream, health: Health, metrics: Arc<Metrics>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let answer = answer(request.method(), request.uri().path(), &health, &metrics);
        async { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .serve_connection(TokioIo::new(stream), answer);
    // How a scraper hangs up is its own affair.
    let _ = tokio::time::timeout(CONNECTION, connection).await;
}

fn answer(
    method: &Method,
    path: &str,
    health: &Health,
    metrics: &Metrics,
) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    let (status, kind, body) = if method != Method::GET && method != Method::HEAD {
        (
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "only GET is supported\n".to_owned(),
        )
    } else {
        let judged = |judgement: Result<(), String>| match judgement {
            Ok(()) => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n")),
        };
        match path {
            "/healthz" => judged(health.liveness()),
            "/readyz" => judged(health.readiness()),
            "/metrics" => (StatusCode::OK, OPEN_METRICS, metrics.text()),
            _ => (
                StatusCode::NOT_FOUND,
                TEXT,
                "there are /healthz, /readyz and /metrics\n".to_owned(),
            ),
        }
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response
            .headers_mut()
            .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn asked(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    fn get(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    }

    #[tokio::test]
    async fn health_and_metrics_are_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (health, metrics) = (Health::new(), Arc::new(Metrics::new("1.2.3")));
        let stop = CancellationToken::new();
        let mut server = JoinSet::new();
        server.spawn(serve(
            listener,
            health.clone(),
            metrics.clone(),
            stop.clone(),
        ));

        let stores = health.hold("stores are being filled");
        assert!(
            asked(address, &get("/healthz"))
                .await
                .starts_with("HTTP/1.1 200")
        );
        let answer = asked(address, &get("/readyz")).await;
        assert!(answer.starts_with("HTTP/1.1 503"));
        assert!(answer.ends_with("stores are being filled\n"));
        drop(stores);
        assert!(
            asked(address, &get("/readyz"))
                .await
                .starts_with("HTTP/1.1 200")
        );

        let answer = asked(address, &get("/metrics")).await;
        assert!(
            answer.contains("spanwire_build_info{version=\"1.2.3\"} 1"),
            "{answer}"
        );
        assert!(asked(address, &get("/")).await.starts_with("HTTP/1.1 404"));
        let post = get("/healthz").replace("GET", "POST");
        assert!(asked(address, &post).await.starts_with("HTTP/1.1 405"));

        stop.cancel();
        server.join_next().await.unwrap().unwrap();
    }

    #[test]
    fn a_format_is_text_or_json() {
        assert_eq!("json".parse::<LogFormat>().unwrap(), LogFormat::Json);
        let error = "xml".parse::<LogFormat>().unwrap_err().to_string();
        assert_eq!(error, "log format \"xml\" is neither text nor json");
    }
}
