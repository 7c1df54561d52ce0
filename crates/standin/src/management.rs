//! How do requests reach the management node over AMQP, and replies their sender?

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fe2o3_amqp::acceptor::{
    ConnectionAcceptor, LinkAcceptor, LinkEndpoint, ListenerSessionHandle, SessionAcceptor,
};
use fe2o3_amqp::link::delivery::Delivery;
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, MessageId, Properties, Source,
};
use fe2o3_amqp::types::performatives::{Attach, Open};
use fe2o3_amqp::types::primitives::{SimpleValue, Value};
use fe2o3_amqp::{Receiver, Sendable, Sender};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use crate::agent::{Request, is_connection};
use crate::link::IDLE;
use crate::router::{Router, lock};
use crate::wire::{self, Frames, MAX_FRAME_SIZE, Stream};
use crate::wording::idle_error;

/// Replies that may wait for credit; more are dropped.
const WAITING_REPLIES: usize = 64;
const BUFFER: usize = 16 * 1024;

/// What one management connection shares among its links.
#[derive(Clone)]
struct Client {
    router: Arc<Router>,
    replies: Arc<Mutex<HashMap<String, mpsc::Sender<Message<Reply>>>>>,
}

type Reply = AmqpValue<Value>;

static NEXT_ADDRESS: AtomicU64 = AtomicU64::new(1);

/// Serves one connection until it ends or falls silent.
pub(crate) async fn serve(router: &Arc<Router>, frames: Frames, peer: Open) -> io::Result<()> {
    let (inner, outer) = tokio::io::duplex(BUFFER);
    let client = Client {
        router: Arc::clone(router),
        replies: Arc::default(),
    };
    tokio::select! {
        result = carry(frames, outer, peer) => result,
        result = client.accept(inner) => result,
    }
}

/// Carries bytes between the socket and an acceptor that is made to believe that it has taken the
/// connection from its very beginning.
///
/// So the idle time-outs are ours: half of the real one is announced, and heartbeats are sent twice
/// as often as the client asks for, where the acceptor would take both at their word.
async fn carry(frames: Frames, mut acceptor: DuplexStream, mut peer: Open) -> io::Result<()> {
    peer.idle_time_out = peer.idle_time_out.map(|millis| (millis / 2).max(1));
    let (socket, rest) = frames.into_parts();
    acceptor.write_all(&wire::beginning(&peer)?).await?;
    acceptor.write_all(&rest).await?;
    wire::skip_beginning(&mut acceptor).await?;
    let (mut from_socket, mut to_socket) = tokio::io::split(socket);
    let (mut from_acceptor, mut to_acceptor) = tokio::io::split(acceptor);
    let is_idle = tokio::select! {
        is_idle = requests(&mut from_socket, &mut to_acceptor) => is_idle?,
        done = tokio::io::copy(&mut from_acceptor, &mut to_socket) => {
            done?;
            false
        }
    };
    if is_idle {
        to_socket.write_all(&wire::ending(idle_error())?).await?;
    }
    // What the acceptor still has to say, a `close` above all.
    drop(to_acceptor);
    let farewell = tokio::io::copy(&mut from_acceptor, &mut to_socket);
    let _ = tokio::time::timeout(Duration::from_millis(200), farewell).await;
    to_socket.shutdown().await
}

/// True when it ended because the client had been silent for too long.
async fn requests(
    from: &mut ReadHalf<Stream>,
    to: &mut WriteHalf<DuplexStream>,
) -> io::Result<bool> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let Ok(count) = tokio::time::timeout(IDLE, from.read(&mut buffer)).await else {
            return Ok(true);
        };
        match count? {
            0 => return Ok(false),
            count => to.write_all(&buffer[..count]).await?,
        }
    }
}

impl Client {
    async fn accept(&self, stream: DuplexStream) -> io::Result<()> {
        let acceptor = ConnectionAcceptor::builder()
            .container_id(self.router.id.clone())
            .max_frame_size(MAX_FRAME_SIZE)
            .build();
        let mut connection = acceptor.accept(stream).await.map_err(io::Error::other)?;
        while let Some(incoming) = connection.next_incoming_session().await {
            let session = SessionAcceptor::new()
                .accept_incoming_session(incoming, &mut connection)
                .await
                .map_err(io::Error::other)?;
            self.router.tasks.spawn(self.clone().session(session));
        }
        let _ = connection.on_close().await;
        // `carry` has the last word to send.
        std::future::pending().await
    }

    async fn session(self, mut session: ListenerSessionHandle) {
        while let Some(attach) = session.next_incoming_attach().await {
            match self.attach(attach, &mut session).await {
                Some(LinkEndpoint::Sender(sender)) => self.send_replies(sender),
                Some(LinkEndpoint::Receiver(receiver)) => {
                    self.router
                        .tasks
                        .spawn(self.clone().receive_requests(receiver));
                }
                None => {}
            }
        }
    }

    async fn attach(
        &self,
        attach: Attach,
        session: &mut ListenerSessionHandle,
    ) -> Option<LinkEndpoint> {
        let acceptor = LinkAcceptor::builder()
            .on_dynamic_source(|mut source: Source| {
                let number = NEXT_ADDRESS.fetch_add(1, Ordering::Relaxed);
                let id = &self.router.id;
                source.address = Some(format!("amqp:/_topo/0/{id}/temp.{number:015}"));
                Some(source)
            })
            .build();
        acceptor.accept_incoming_attach(attach, session).await.ok()
    }

    /// Replies for the address that this sender serves.
    fn send_replies(&self, mut sender: Sender) {
        let Some(address) = sender
            .source()
            .as_ref()
            .and_then(|source| source.address.clone())
        else {
            return;
        };
        let (queue, mut replies) = mpsc::channel(WAITING_REPLIES);
        lock(&self.replies).insert(address.clone(), queue);
        let senders = Arc::clone(&self.replies);
        self.router.tasks.spawn(async move {
            loop {
                let reply = tokio::select! {
                    _ = sender.on_detach() => break,
                    reply = replies.recv() => reply,
                };
                let Some(reply) = reply else { break };
                let reply = Sendable::builder().message(reply).settled(true).build();
                if sender.send(reply).await.is_err() {
                    break;
                }
            }
            lock(&senders).remove(&address);
            let _ = sender.close().await;
        });
    }

    async fn receive_requests(self, mut receiver: Receiver) {
        let address = receiver
            .target()
            .as_ref()
            .and_then(|target| target.address.clone());
        if address
            .as_deref()
            .is_none_or(|address| !self.is_served(address))
        {
            // Nobody serves it. The real router gives no credit; here what is sent is never settled:
            // a sender waits for ever either way.
            while receiver.recv::<Body<Value>>().await.is_ok() {}
            let _ = receiver.close().await;
            return;
        }
        while let Ok(delivery) = receiver.recv::<Body<Value>>().await {
            if receiver.accept(&delivery).await.is_err() {
                break;
            }
            self.answer(delivery);
        }
        let _ = receiver.close().await;
    }

    fn is_served(&self, address: &str) -> bool {
        let own = format!("_topo/0/{}/$management", self.router.id);
        address == "$management" || address.trim_start_matches("amqp:/") == own
    }

    /// Without a reply-to nothing is done at all.
    fn answer(&self, delivery: Delivery<Body<Value>>) {
        let message = delivery.into_message();
        let properties = message.properties.unwrap_or_default();
        let Some(reply_to) = properties.reply_to else {
            return;
        };
        let request = request(message.application_properties, message.body);
        let reply = lock(&self.router.agent).respond(&self.router, &request);
        let is_alive = !self.router.stop.is_cancelled();
        if !is_alive || !is_readable(properties.correlation_id.as_ref(), &request) {
            return;
        }
        let message = Message::builder()
            .properties(Properties {
                to: Some(reply_to.clone()),
                correlation_id: properties.correlation_id,
                ..Properties::default()
            })
            .application_properties(
                ApplicationProperties::builder()
                    .insert("statusCode", reply.status)
                    .insert("statusDescription", reply.description)
                    .build(),
            )
            .value(reply.body)
            .build();
        let queue = lock(&self.replies).get(&reply_to).cloned();
        if let Some(queue) = queue {
            let _ = queue.try_send(message);
        }
    }
}

/// Could a client read the reply to this?
///
/// The real agent turns an unsigned number into a signed one, which is no legal id: the request is
/// carried out and the reply cannot be decoded. Only `connection`, served elsewhere, is spared.
fn is_readable(id: Option<&MessageId>, request: &Request) -> bool {
    let kind = request.entity_type.as_deref().unwrap_or_default();
    !matches!(id, Some(MessageId::Ulong(_))) || is_connection(kind)
}

fn request(properties: Option<ApplicationProperties>, body: Body<Value>) -> Request {
    let mut request = Request {
        body: match body {
            Body::Value(AmqpValue(value)) => value,
            _ => Value::Null,
        },
        ..Request::default()
    };
    for (name, value) in properties
        .map(|properties| properties.0)
        .unwrap_or_default()
    {
        match name.as_str() {
            "operation" => request.operation = text(value),
            "type" => request.kind = text(value),
            "name" => request.name = text(value),
            "identity" => request.identity = text(value),
            "entityType" => request.entity_type = text(value),
            "offset" => request.offset = number(&value).unwrap_or_default(),
            "count" => request.count = number(&value),
            _ => {}
        }
    }
    request
}

fn text(value: SimpleValue) -> Option<String> {
    match value {
        SimpleValue::String(text) => Some(text),
        SimpleValue::Symbol(symbol) => Some(symbol.0),
        _ => None,
    }
}

fn number(value: &SimpleValue) -> Option<usize> {
    match value {
        SimpleValue::Ubyte(n) => Some((*n).into()),
        SimpleValue::Ushort(n) => Some((*n).into()),
        SimpleValue::Uint(n) => usize::try_from(*n).ok(),
        SimpleValue::Ulong(n) => usize::try_from(*n).ok(),
        SimpleValue::Int(n) => usize::try_from(*n).ok(),
        SimpleValue::Long(n) => usize::try_from(*n).ok(),
        _ => None,
    }
}
