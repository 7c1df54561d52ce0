//! How long may a client hold a connection, and how many are there?
//!
//! Each has a few seconds for its headers and a few more for a whole request, and when there is no room left, the
//! client that has been idle longest makes room: so whoever opens connections to do nothing with them holds up nobody
//! but himself.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper::{Response, StatusCode, http};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Answer, Refusal, Request, Server};
use crate::telemetry::Redemption;

/// The most connections at once.
const CONNECTIONS: usize = 256;
/// Connections that are on their way out, above that.
const LEAVING: usize = 32;
/// How long a client may take for the handshake, then for its headers, and then for its body.
const HEADERS: Duration = Duration::from_secs(5);
/// How long a request may take in all, from its headers.
const REQUEST: Duration = Duration::from_secs(10);
/// How long those that are being served have when the server stops.
const DRAIN: Duration = Duration::from_secs(10);
/// How long to wait when no connection can be accepted: nearly always for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// The longest headers.
const MAX_HEADERS: u32 = 8 * 1024;
/// Requests at once on one connection of HTTP/2.
const STREAMS: u32 = 8;
/// How much of a body a client of HTTP/2 may send unasked: it need not be more than a code.
const WINDOW: u32 = 4 * 1024;

/// Accepts connections until `stop`.
pub(super) async fn accept(
    server: Arc<Server>,
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    stop: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let places = Places::default();
    let streams = TaskTracker::new();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS + LEAVING => match accepted {
                Ok((stream, peer)) => {
                    // Nobody to make room: the client is turned away.
                    let Some(place) = places.take(peer.ip().to_canonical()) else { continue };
                    let conversation = Conversation {
                        server: server.clone(),
                        streams: streams.clone(),
                        stop: stop.clone(),
                        place,
                    };
                    connections.spawn(conversation.hold(acceptor.clone(), stream));
                }
                Err(error) => {
                    tracing::warn!(%error, "Could not accept a connection for a redemption");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    streams.close();
    let _ = timeout(DRAIN, async {
        while connections.join_next().await.is_some() {}
        streams.wait().await;
    })
    .await;
}

/// One connection.
struct Conversation {
    server: Arc<Server>,
    streams: TaskTracker,
    stop: CancellationToken,
    place: Place,
}

impl Conversation {
    async fn hold(self, acceptor: TlsAcceptor, stream: TcpStream) {
        let connections = &self.server.metrics.grant_connections;
        connections.inc();
        self.seated(self.greet(&acceptor, stream)).await;
        connections.dec();
    }

    /// Until the client has taken too long, or has to make room.
    async fn seated(&self, conversation: impl Future<Output = ()>) {
        let seat = &self.place.seat;
        tokio::select! {
            () = conversation => {}
            () = seat.left.cancelled() => {}
            () = seat.overdue() => {}
        }
    }

    async fn greet(&self, acceptor: &TlsAcceptor, stream: TcpStream) {
        // Answers are small and come whole.
        let _ = stream.set_nodelay(true);
        if let Ok(Ok(stream)) = timeout(HEADERS, acceptor.accept(stream)).await {
            self.place.seat.moved();
            self.converse(stream, respond).await;
        }
    }

    /// Speaks HTTP; `respond` is how each request is answered.
    async fn converse<S, R, F>(&self, stream: S, respond: R)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
        R: Fn(Arc<Server>, Arc<Seat>, http::Request<Incoming>) -> F,
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let answer = service_fn(|request| {
            let answer = respond(self.server.clone(), self.place.seat.clone(), request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let mut builder = Builder::new(Tracked(self.streams.clone()));
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS)
            .max_buf_size(MAX_HEADERS as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEADERS)
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW * STREAMS);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), answer));
        tokio::select! {
            _ = connection.as_mut() => return,
            () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

async fn respond(
    server: Arc<Server>,
    seat: Arc<Seat>,
    request: http::Request<Incoming>,
) -> Response<Full<Bytes>> {
    seat.moved();
    match Request::read(request).await {
        Ok(request) => {
            // Not before the body is here: until then the client may still have to make room.
            let _busy = seat.begin();
            response(server.redeem(seat.source, request).await)
        }
        Err(refusal) => {
            let is_excessive = server.limits.is_excessive(seat.source);
            let refusal = if is_excessive {
                Refusal::TooMany
            } else {
                refusal
            };
            let result = Redemption {
                result: refusal.result(),
            };
            server.metrics.redemptions.get_or_create(&result).inc();
            response(Err(refusal))
        }
    }
}

fn response(answer: Result<Answer, Refusal>) -> Response<Full<Bytes>> {
    let (status, retry_after, body) = match answer {
        // The key is wiped once it has been sent.
        Ok(answer) => (StatusCode::OK, None, Bytes::from_owner(answer.body)),
        Err(refusal) => (
            refusal.status(),
            refusal.retry_after(),
            Bytes::from(refusal.text()),
        ),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    // As upstream's server has it sniffed.
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("POST"));
    }
    response
}

/// Talks with one client from `source` who is past TLS, as [`accept`] does with each; `seen` is shown every answer.
#[cfg(any(test, fuzzing))]
pub(crate) async fn talk<S>(
    server: Arc<Server>,
    source: IpAddr,
    stream: S,
    seen: impl Fn(&Response<Full<Bytes>>) + Clone + Send + 'static,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let Some(place) = Places::default().take(source) else {
        return;
    };
    let conversation = Conversation {
        server,
        streams: TaskTracker::new(),
        stop: CancellationToken::new(),
        place,
    };
    let answers = conversation.converse(stream, |server, seat, request| {
        let seen = seen.clone();
        async move {
            let answer = respond(server, seat, request).await;
            seen(&answer);
            answer
        }
    });
    conversation.seated(answers).await;
    conversation.streams.close();
    conversation.streams.wait().await;
}

/// Gives the tasks of HTTP/2 an owner.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        self.0.spawn(stream);
    }
}

/// Who is connected, in the order of arrival.
#[derive(Clone, Default)]
struct Places(Arc<Mutex<Seats>>);

#[derive(Default)]
struct Seats {
    taken: BTreeMap<u64, Arc<Seat>>,
    next: u64,
}

/// A place in the room, given back when it is dropped.
struct Place {
    places: Places,
    number: u64,
    seat: Arc<Seat>,
}

/// One connection, as others see it.
struct Seat {
    source: IpAddr,
    left: CancellationToken,
    activity: Mutex<Activity>,
}

struct Activity {
    requests: usize,
    since: Instant,
}

impl Places {
    /// A place for a client from this address; where all are taken, an idle client's.
    fn take(&self, source: IpAddr) -> Option<Place> {
        let mut seats = self.lock();
        if seats.taken.len() >= CONNECTIONS {
            let idlest = seats.idlest()?;
            if let Some(seat) = seats.taken.remove(&idlest) {
                seat.left.cancel();
            }
        }
        let number = seats.next;
        seats.next += 1;
        let seat = Arc::new(Seat {
            source,
            left: CancellationToken::new(),
            activity: Mutex::new(Activity {
                requests: 0,
                since: Instant::now(),
            }),
        });
        seats.taken.insert(number, seat.clone());
        Some(Place {
            places: self.clone(),
            number,
            seat,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        // Single inserts and removals: a panic elsewhere leaves none half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    /// Of the address that has the most idle connections, the one that has been there longest.
    fn idlest(&self) -> Option<u64> {
        let idle = || self.taken.iter().filter(|(_, seat)| seat.is_idle());
        let mut by_source: HashMap<IpAddr, usize> = HashMap::new();
        for (_, seat) in idle() {
            *by_source.entry(seat.source).or_default() += 1;
        }
        let most = by_source.values().copied().max()?;
        idle()
            .find(|(_, seat)| by_source.get(&seat.source) == Some(&most))
            .map(|(number, _)| *number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().taken.remove(&self.number);
    }
}

/// While a request is being answered.
struct Busy(Arc<Seat>);

impl Seat {
    /// A request is here. Its time began with its headers.
    fn begin(self: &Arc<Self>) -> Busy {
        let mut activity = self.activity();
        activity.requests += 1;
        drop(activity);
        Busy(self.clone())
    }

    fn moved(&self) {
        self.activity().since = Instant::now();
    }

    fn is_idle(&self) -> bool {
        self.activity().requests == 0
    }

    /// When nothing has moved for longer than may be.
    async fn overdue(&self) {
        loop {
            let until = {
                let activity = self.activity();
                activity.since
                    + if activity.requests == 0 {
                        HEADERS
                    } else {
                        REQUEST
                    }
            };
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut activity = self.0.activity();
        activity.requests -= 1;
        activity.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn the_idlest_of_the_greediest_source_makes_room() {
        let places = Places::default();
        let first = places.take(ip("10.0.0.1")).unwrap();
        let busy = places.take(ip("10.0.0.2")).unwrap();
        let _request = busy.seat.begin();
        let crowd: Vec<Place> = (2..CONNECTIONS)
            .map(|_| places.take(ip("10.0.0.2")).unwrap())
            .collect();
        let late = places.take(ip("10.0.0.3")).unwrap();
        assert!(crowd[0].seat.left.is_cancelled());
        for stays in [&first, &busy, &crowd[1], &late] {
            assert!(!stays.seat.left.is_cancelled());
        }
        drop(crowd);
        assert_eq!(places.lock().taken.len(), 3);
    }

    #[tokio::test]
    async fn nobody_who_is_being_served_makes_room() {
        let places = Places::default();
        let all: Vec<Place> = (0..CONNECTIONS)
            .map(|_| places.take(ip("10.0.0.1")).unwrap())
            .collect();
        let requests: Vec<Busy> = all.iter().map(|place| place.seat.begin()).collect();
        assert!(places.take(ip("10.0.0.2")).is_none());
        drop(requests);
        assert!(places.take(ip("10.0.0.2")).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_overdue_sooner_than_a_busy_one() {
        let places = Places::default();
        let place = places.take(ip("10.0.0.1")).unwrap();
        let start = Instant::now();
        place.seat.overdue().await;
        assert_eq!(start.elapsed().as_secs(), 5);
        place.seat.moved();
        let request = place.seat.begin();
        let start = Instant::now();
        place.seat.overdue().await;
        assert_eq!(start.elapsed().as_secs(), 10);
        drop(request);
        assert!(
            timeout(Duration::from_secs(4), place.seat.overdue())
                .await
                .is_err()
        );
    }
}
