//! Who comes in through a listener, and what becomes of them?

use std::io;
use std::net::{Ipv4Addr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fe2o3_amqp::types::primitives::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, Secured};
use crate::http;
use crate::link::{IDLE, Keeper};
use crate::management;
use crate::router::{DATA_ROLE, DATA_ROLE_NUMBER, ROLE_PROPERTY, Router};
use crate::schema::{Attributes, text};
use crate::tls::{Config, Credentials, Slot};
use crate::verify::subject;
use crate::wire::{self, Mechanism, Opened, Stream};
use crate::wording::{UNAUTHORIZED, transport_text};

/// A listener entity's listener. Dropping it closes the port; who is in stays in.
pub(crate) struct Listener {
    /// None if the port was taken.
    pub(crate) port: Option<u16>,
    pub(crate) is_http: bool,
    /// `HOST:PORT` as in the log.
    pub(crate) address: String,
    /// Held here alone: who is in must not make a user of the profile of a listener that is gone.
    _slot: Option<Arc<Slot>>,
    closed: CancellationToken,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// What every accepted connection of one listener has in common.
struct Door {
    router: Arc<Router>,
    name: String,
    role: String,
    mechanism: Mechanism,
    slot: Option<Weak<Slot>>,
}

/// Binds the port. That it is taken is told by the log alone.
pub(crate) fn start(
    router: &Arc<Router>,
    attributes: &Attributes,
    slot: Option<Arc<Slot>>,
) -> Listener {
    let get = |name: &str| attributes.get(name).map(text).unwrap_or_default();
    let is_set = |name: &str| attributes.get(name) == Some(&Value::Bool(true));
    let (host, port) = (get("host"), get("port"));
    let address = format!("{host}:{port}");
    let closed = router.stop.child_token();
    let is_http = is_set("http");
    let slot_of_guests = slot.as_ref().map(Arc::downgrade);
    let mut listener = Listener {
        port: None,
        is_http,
        address,
        _slot: slot,
        closed: closed.clone(),
    };
    let bound = bind(&host, &port).and_then(TcpListener::from_std);
    let socket = match bound {
        Ok(socket) => socket,
        Err(fault) => {
            let text = match fault.kind() {
                io::ErrorKind::AddrInUse => "Address already in use".to_owned(),
                _ => fault.to_string(),
            };
            let address = &listener.address;
            router.log(
                "SERVER",
                "error",
                format_args!("Listener error on {address}: {text} (proton:io)"),
            );
            return listener;
        }
    };
    listener.port = socket.local_addr().ok().map(|address| address.port());
    router.log(
        "SERVER",
        "info",
        format_args!("Listening on {}", listener.address),
    );
    if is_http {
        let pages = http::Pages {
            healthz: is_set("healthz"),
            metrics: is_set("metrics"),
        };
        router
            .tasks
            .spawn(http::serve(Arc::clone(router), socket, pages, closed));
        return listener;
    }
    let is_external = get("saslMechanisms").contains("EXTERNAL");
    let door = Door {
        router: Arc::clone(router),
        name: get("name"),
        role: get("role"),
        mechanism: if is_external {
            Mechanism::External
        } else {
            Mechanism::Anonymous
        },
        slot: slot_of_guests,
    };
    router.tasks.spawn(admit(Arc::new(door), socket, closed));
    listener
}

/// No host is every address; a port beyond the last wraps, as the resolver has it.
fn bind(host: &str, port: &str) -> io::Result<StdListener> {
    let port = match port {
        "amqp" => 5672,
        "amqps" => 5671,
        number => number.parse::<u32>().map_err(io::Error::other)?,
    };
    let port = u16::try_from(port & 0xffff).unwrap_or_default();
    let socket = if host.is_empty() {
        StdListener::bind(("::", port)).or_else(|fault| match fault.kind() {
            io::ErrorKind::AddrInUse => Err(fault),
            _ => StdListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        })?
    } else {
        let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
        StdListener::bind(addresses.as_slice())?
    };
    socket.set_nonblocking(true)?;
    Ok(socket)
}

async fn admit(door: Arc<Door>, socket: TcpListener, closed: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = closed.cancelled() => return,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let door = Arc::clone(&door);
                let tasks = door.router.tasks.clone();
                tasks.spawn(async move {
                    let stop = door.router.stop.clone();
                    let receive = Box::pin(door.receive(stream, peer.to_string()));
                    stop.run_until_cancelled(receive).await;
                });
            }
            // Out of descriptors, most likely: let some be closed.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

impl Door {
    async fn receive(&self, stream: TcpStream, peer: String) {
        let id = self.router.links.next_id();
        if let Err(fault) = self.serve(stream, &peer, id).await {
            let reason = transport_text(&fault);
            self.router.log(
                "SERVER",
                "error",
                format_args!("[C{id}] Connection from {peer} failed: {reason}"),
            );
        }
    }

    async fn serve(&self, stream: TcpStream, peer: &str, id: u64) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let Some(slot) = &self.slot else {
            return self.welcome(Box::new(stream), peer, id, None).await;
        };
        // The listener may have gone since this one knocked.
        let Some(slot) = slot.upgrade() else {
            return Ok(());
        };
        let Credentials {
            config: Config::Server(config),
            ordinal,
            ..
        } = slot.current()
        else {
            return Err(io::Error::other(
                "a listener without a server's credentials",
            ));
        };
        let news = slot.subscribe();
        drop(slot);
        let stream = limited(TlsAcceptor::from(config).accept(stream)).await?;
        let (_, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        let secured = Secured {
            user: certificate.and_then(subject),
            ..Secured::of(session, ordinal)
        };
        self.welcome(Box::new(stream), peer, id, Some((secured, news)))
            .await
    }

    async fn welcome(
        &self,
        stream: Stream,
        peer: &str,
        id: u64,
        secured: Option<(Secured, watch::Receiver<Credentials>)>,
    ) -> io::Result<()> {
        let router = &self.router;
        let (secured, news) = secured.unzip();
        let has_certificate = secured.as_ref().is_some_and(|tls| tls.user.is_some());
        if self.mechanism == Mechanism::External && !has_certificate {
            return Err(io::Error::other(UNAUTHORIZED));
        }
        let own = router.open(id, &self.role, Some(&self.name), None);
        let accepted = limited(wire::accept(stream, self.mechanism, &own)).await?;
        let Opened {
            mut frames,
            peer: open,
            sasl,
        } = accepted;
        let said = open
            .properties
            .as_ref()
            .and_then(|said| said.get(ROLE_PROPERTY));
        let is_data = said == Some(&Value::Int(DATA_ROLE_NUMBER));
        let role = if is_data { DATA_ROLE } else { &self.role };
        let mut connection = Connection::new(role.to_owned(), "in", peer.to_owned(), &open);
        let ordinal = secured.as_ref().map_or(0, |tls| tls.ordinal);
        connection.sasl = sasl;
        connection.secured = secured;
        router.opened(id, &connection);
        let row = &router.links.add(id, connection);
        if role == "normal" {
            return management::serve(router, frames, open).await;
        }
        let is_neighbour = router.is_neighbour(role, &open.container_id);
        let stop = &router.stop;
        let keeper = Keeper {
            router,
            row,
            is_neighbour,
            ordinal,
            news,
            stop,
        };
        keeper.keep(&mut frames).await
    }
}

/// A handshake that takes longer than a silent peer is given up.
async fn limited<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(IDLE, step).await.unwrap_or_else(|_| {
        Err(io::Error::other(
            "amqp:resource-limit-exceeded local-idle-timeout expired",
        ))
    })
}
