//! Does the proxy do to an answer what was decided, and nothing else?

use std::convert::Infallible;
use std::time::Instant;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use http_body_util::{Empty, StreamBody};
use hyper::body::Frame;

use super::*;

const SOON: Duration = Duration::from_secs(5);
/// Longer than an answer takes.
const HELD: Duration = Duration::from_secs(1);

type Event = Result<Frame<Bytes>, Infallible>;

/// A client's watch by way of a proxy, and the API server's end of it.
struct Watch {
    events: UnboundedSender<Event>,
    /// How many requests the API server heard of.
    heard: Arc<AtomicUsize>,
    proxy: FaultProxy,
    client: Runtime,
    /// The client's connection ends with it.
    connection: JoinSet<()>,
    sender: SendRequest<Empty<Bytes>>,
}

impl Watch {
    fn open(fate: Fate) -> Result<Watch> {
        let dir = tempfile::tempdir()?;
        let pki = Pki::create(dir.path(), Ipv4Addr::LOCALHOST, "node")?;
        let client = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = client.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let road = Road {
            pki: &pki,
            api_server: listener.local_addr()?,
            listen: Ipv4Addr::LOCALHOST,
            caller: None,
        };
        let (events, sent) = unbounded();
        let heard = Arc::new(AtomicUsize::new(0));
        client.spawn(api_server(
            tls::acceptor(&pki)?,
            listener,
            sent,
            heard.clone(),
        ));
        let proxy = FaultProxy::start(road, move |asked| {
            assert_eq!(asked.verb, "watch");
            fate
        })?;
        let connector = tls::connector(&pki, None)?;
        let mut connection = JoinSet::new();
        let sender = client.block_on(async {
            let stream = TcpStream::connect(proxy.address()).await?;
            let name = ServerName::from(proxy.address().ip());
            let stream = connector.connect(name, stream).await?;
            let stream = TokioIo::new(stream);
            let (sender, held) = hyper::client::conn::http1::handshake(stream).await?;
            connection.spawn(async { drop(held.await) });
            anyhow::Ok(sender)
        })?;
        Ok(Watch {
            events,
            heard,
            proxy,
            client,
            connection,
            sender,
        })
    }

    fn say(&self, event: &'static str) -> Result<()> {
        let frame = Frame::data(Bytes::from_static(event.as_bytes()));
        Ok(self.events.unbounded_send(Ok(frame))?)
    }

    fn answer(&mut self) -> Result<Incoming> {
        let request = Request::get("/api/v1/configmaps?watch=1").body(Empty::new())?;
        let answer = self.client.block_on(self.sender.send_request(request))?;
        Ok(answer.into_body())
    }

    fn next(&self, body: &mut Incoming) -> Result<Bytes> {
        let frame = self
            .client
            .block_on(async { timeout(SOON, body.frame()).await })?;
        let frame = frame.context("the end of the watch")??;
        frame.into_data().ok().context("data")
    }
}

/// Answers one request with `events`, for as long as it is listened to.
async fn api_server(
    acceptor: TlsAcceptor,
    listener: TcpListener,
    events: UnboundedReceiver<Event>,
    heard: Arc<AtomicUsize>,
) -> Result<()> {
    let (stream, _) = listener.accept().await?;
    let stream = acceptor.accept(stream).await?;
    let events = Mutex::new(Some(events));
    let answer = service_fn(async |_| {
        heard.fetch_add(1, Ordering::Relaxed);
        let events = events.lock().await.take();
        let events = events.context("a second request")?;
        anyhow::Ok(Response::new(StreamBody::new(events)))
    });
    let serving =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
    Ok(serving.await?)
}

#[test]
fn a_watch_that_passes_streams_until_its_client_is_gone() -> Result<()> {
    let mut watch = Watch::open(Fate::Pass)?;
    let mut body = watch.answer()?;
    for event in ["one", "two"] {
        watch.say(event)?;
        assert_eq!(watch.next(&mut body)?, event);
    }
    assert_eq!(watch.proxy.late_frames(), 0);
    drop(body);
    watch.connection = JoinSet::new();
    assert!(crate::wait::quietly(SOON, || watch.events.is_closed()));
    Ok(())
}

#[test]
fn what_is_late_comes_in_its_order_and_each_part_as_much_later() -> Result<()> {
    let delay = Duration::from_secs(1);
    let mut watch = Watch::open(Fate::Late(delay))?;
    let start = Instant::now();
    watch.say("one")?;
    let mut body = watch.answer()?;
    assert!(start.elapsed() >= delay);
    assert_eq!(watch.next(&mut body)?, "one");
    // The frame waited beside its head, not behind it.
    assert!(start.elapsed() < delay * 2);

    let start = Instant::now();
    for event in ["two", "three"] {
        watch.say(event)?;
        std::thread::sleep(delay / 4);
    }
    assert_eq!(watch.next(&mut body)?, "two");
    assert!(start.elapsed() >= delay);
    assert_eq!(watch.next(&mut body)?, "three");
    // By as much as they were said apart, and by no more than once.
    assert!(start.elapsed() >= delay * 5 / 4 && start.elapsed() < delay * 2);
    assert_eq!(watch.proxy.late_frames(), 3);

    watch.events.close_channel();
    let end = watch.client.block_on(body.frame());
    assert!(end.is_none(), "{end:?}");
    Ok(())
}

#[test]
fn what_is_refused_is_not_passed_on_and_what_is_lost_ends_the_connection() -> Result<()> {
    for (fate, code, heard) in [
        (Fate::Refuse(409), 409, 0),
        (Fate::DoAndRefuse(504), 504, 1),
    ] {
        let mut watch = Watch::open(fate)?;
        watch.events.close_channel();
        let request = Request::get("/api/v1/configmaps?watch=1").body(Empty::new())?;
        let answer = watch.client.block_on(watch.sender.send_request(request))?;
        assert_eq!(answer.status(), code);
        assert_eq!(watch.heard.load(Ordering::Relaxed), heard, "{fate:?}");
    }
    for (fate, heard) in [(Fate::LoseRequest, 0), (Fate::LoseAnswer, 1)] {
        let mut watch = Watch::open(fate)?;
        watch.events.close_channel();
        assert!(watch.answer().is_err(), "{fate:?}");
        assert_eq!(watch.heard.load(Ordering::Relaxed), heard, "{fate:?}");
    }
    Ok(())
}

#[test]
fn what_is_held_is_answered_by_nothing_until_its_client_is_gone() -> Result<()> {
    for (fate, heard) in [(Fate::HoldRequest, 0), (Fate::HoldAnswer, 1)] {
        let mut watch = Watch::open(fate)?;
        watch.events.close_channel();
        let request = Request::get("/api/v1/configmaps?watch=1").body(Empty::new())?;
        let answer = watch.sender.send_request(request);
        let answer = watch.client.block_on(async { timeout(HELD, answer).await });
        assert!(answer.is_err(), "{fate:?}");
        assert_eq!(watch.proxy.held(None), 1, "{fate:?}");
        assert_eq!(watch.heard.load(Ordering::Relaxed), heard, "{fate:?}");
    }
    Ok(())
}
