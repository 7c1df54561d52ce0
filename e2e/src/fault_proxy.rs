//! What if an answer of the API server goes wrong? A proxy in front of it that decides what becomes of each request.
//!
//! TLS and HTTP/1.1 on both sides, and for each connection one of its own to the API server: the end of either ends the
//! other, once what is on its way has arrived.

mod asked;
mod cut;
mod late;
mod tls;

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream as Upstream;
use tokio_rustls::server::TlsStream as Downstream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use asked::Asked;
use cut::Until;
use late::Late;

use crate::pki::Pki;

const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait when no connection can be accepted: nearly always for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// As if there were no proxy.
    Pass,
    /// All of the answer comes that much later: its head, and each frame of its body, in their order.
    Late(Duration),
    /// The API server never hears of it, and this status is answered.
    Refuse(u16),
    /// The API server never hears of it, and the caller is told to come back after that many seconds (429).
    TellToWait(u32),
    /// The API server does it, and this status is answered.
    DoAndRefuse(u16),
    /// The connection ends, and the API server never hears of it.
    LoseRequest,
    /// The API server does it, and the connection ends.
    LoseAnswer,
    /// The API server never hears of it, and nothing comes until the caller is gone.
    HoldRequest,
    /// The API server does it, and nothing comes until the caller is gone.
    HoldAnswer,
    /// The connection ends that much later, wherever the answer is then.
    Cut(Duration),
}

/// Who is asked, where, and as whom.
#[derive(Clone, Copy, Debug)]
pub struct Road<'a> {
    pub pki: &'a Pki,
    pub api_server: SocketAddr,
    pub listen: Ipv4Addr,
    /// The caller whose certificate the API server is shown, a name in [`Pki`]; without one, it knows callers by the
    /// header `Authorization` alone.
    pub caller: Option<&'a str>,
}

/// A running proxy; it ends, and cuts off who is connected, when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    late_frames: Arc<AtomicUsize>,
    held: Arc<Held>,
    _threads: Runtime,
}

impl FaultProxy {
    /// Starts on a free port. `decide` is called on the proxy's threads, so it must not block.
    pub fn start(
        road: Road<'_>,
        decide: impl Fn(&Asked) -> Fate + Send + Sync + 'static,
    ) -> Result<FaultProxy> {
        let late_frames = Arc::new(AtomicUsize::new(0));
        let held = Arc::new(Held::default());
        let gate = Gate {
            acceptor: tls::acceptor(road.pki)?,
            connector: tls::connector(road.pki, road.caller)?,
            api_server: road.api_server,
            decide: Box::new(decide),
            writes: AtomicUsize::new(0),
            late_frames: late_frames.clone(),
            held: held.clone(),
        };
        let threads = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fault-proxy")
            .enable_all()
            .build()
            .context("start the fault proxy's threads")?;
        let listener = threads.block_on(TcpListener::bind((road.listen, 0)));
        let listener = listener.with_context(|| format!("listen on {}", road.listen))?;
        let address = listener.local_addr()?;
        threads.spawn(accept(Arc::new(gate), listener));
        Ok(FaultProxy {
            address,
            late_frames,
            held,
            _threads: threads,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many frames have arrived late by [`Fate::Late`].
    pub fn late_frames(&self) -> usize {
        self.late_frames.load(Ordering::Relaxed)
    }

    /// How many requests, in this namespace if one is named, have come to where [`Fate::HoldRequest`] or
    /// [`Fate::HoldAnswer`] holds them.
    pub fn held(&self, namespace: Option<&str>) -> usize {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let here = held
            .iter()
            .filter(|held| namespace.is_none_or(|namespace| namespace == held.as_str()));
        here.count()
    }
}

/// The namespaces of the requests that are held, or were until their callers had gone.
type Held = std::sync::Mutex<Vec<String>>;
/// Why an answer ends before its end.
type Broken = Box<dyn Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Broken>;

/// What all connections share.
struct Gate {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    api_server: SocketAddr,
    decide: Box<dyn Fn(&Asked) -> Fate + Send + Sync>,
    writes: AtomicUsize,
    late_frames: Arc<AtomicUsize>,
    held: Arc<Held>,
}

async fn accept(gate: Arc<Gate>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let gate = gate.clone();
                    // What fails is a connection that ends, which both ends know how to live with.
                    connections.spawn(async move { gate.hold(stream).await });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}

impl Gate {
    async fn hold(&self, stream: TcpStream) -> Result<()> {
        let (down, up) = timeout(HANDSHAKE_WITHIN, self.connect(stream)).await??;
        let (sender, up) = hyper::client::conn::http1::handshake(TokioIo::new(up)).await?;
        let sender = Mutex::new(sender);
        let answer = service_fn(|request| self.answer(&sender, request));
        let down =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(down), answer);
        let mut down = pin!(down);
        tokio::select! {
            ended = down.as_mut() => return Ok(ended?),
            _ = up => down.as_mut().graceful_shutdown(),
        }
        Ok(down.await?)
    }

    async fn connect(
        &self,
        stream: TcpStream,
    ) -> Result<(Downstream<TcpStream>, Upstream<TcpStream>)> {
        stream.set_nodelay(true)?;
        let down = self.acceptor.accept(stream).await?;
        let up = TcpStream::connect(self.api_server).await?;
        up.set_nodelay(true)?;
        let name = ServerName::from(self.api_server.ip());
        Ok((down, self.connector.connect(name, up).await?))
    }

    async fn answer(
        &self,
        sender: &Mutex<SendRequest<Incoming>>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>> {
        let asked = Asked::new(&request, &self.writes);
        let fate = (self.decide)(&asked);
        match fate {
            Fate::Refuse(code) => return refusal(code),
            Fate::TellToWait(seconds) => {
                let mut answer = refusal(429)?;
                answer.headers_mut().insert(RETRY_AFTER, seconds.into());
                return Ok(answer);
            }
            Fate::LoseRequest => bail!("lost on its way there"),
            Fate::HoldRequest => return self.hold_back(asked).await,
            Fate::Pass
            | Fate::Late(_)
            | Fate::DoAndRefuse(_)
            | Fate::LoseAnswer
            | Fate::HoldAnswer
            | Fate::Cut(_) => {}
        }
        let mut sender = sender.lock().await;
        sender.ready().await?;
        let answer = sender.send_request(request).await?;
        match fate {
            Fate::DoAndRefuse(code) => {
                // Done is what was answered in full.
                answer.into_body().collect().await?;
                refusal(code)
            }
            Fate::LoseAnswer => {
                answer.into_body().collect().await?;
                bail!("lost on its way back")
            }
            Fate::HoldAnswer => {
                answer.into_body().collect().await?;
                self.hold_back(asked).await
            }
            Fate::Cut(after) => Ok(answer.map(|body| Until::new(body, after).boxed_unsync())),
            Fate::Late(delay) => {
                let (head, body) = answer.into_parts();
                let mut late = Late::new(body, delay, self.late_frames.clone());
                late.head().await;
                Ok(Response::from_parts(
                    head,
                    late.map_err(Broken::from).boxed_unsync(),
                ))
            }
            _ => Ok(answer.map(|body| body.map_err(Broken::from).boxed_unsync())),
        }
    }

    /// Does nothing any more; the end of the caller's connection ends this too.
    async fn hold_back<T>(&self, asked: Asked) -> T {
        let held = self.held.lock();
        held.unwrap_or_else(PoisonError::into_inner)
            .push(asked.namespace);
        std::future::pending().await
    }
}

/// A refusal as the API server writes one.
fn refusal(code: u16) -> Result<Response<Body>> {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason,
        "message": "the fault proxy says so",
    });
    let body = Full::new(Bytes::from(status.to_string()));
    let body = body.map_err(|never| match never {}).boxed_unsync();
    let answer = Response::builder()
        .status(code)
        .header(CONTENT_TYPE, "application/json");
    Ok(answer.body(body)?)
}

#[cfg(test)]
mod tests;
