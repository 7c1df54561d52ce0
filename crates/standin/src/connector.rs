//! How does a connector reach its peer, and what does it claim meanwhile?
//!
//! A link is three connections, as with the real router: one that makes neighbours and two that
//! would carry data. All three are real, each is dialled again by itself, and each set of three
//! belongs to one ordinal of the profile.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, Secured};
use crate::link::Keeper;
use crate::router::{DATA_ROLE, Router, lock};
use crate::schema::{Attributes, text};
use crate::tls::{Config, Slot};
use crate::wire::{self, Mechanism, Opened, Stream};
use crate::wording::{is_unknown_name, transport_text};

/// After a connection that had been open.
const RETRY_LOST: Duration = Duration::from_secs(2);
/// After one that never was.
const RETRY_FAILED: Duration = Duration::from_secs(5);
/// Data connections of a link, with the real router's four worker threads.
const DATA_CONNECTIONS: usize = 2;

/// A connector entity's connector. It is deleted with its entity.
pub(crate) struct Connector {
    router: Arc<Router>,
    role: String,
    host: String,
    port: String,
    slot: Option<Arc<Slot>>,
    status: Mutex<Status>,
    closed: CancellationToken,
}

struct Status {
    state: &'static str,
    message: String,
}

/// Ends the connector when its entity goes.
pub(crate) struct Handle(Arc<Connector>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.closed.cancel();
    }
}

impl Handle {
    /// `connectionStatus` and `connectionMsg`, as misleading as the real ones.
    pub(crate) fn status(&self) -> (&'static str, String) {
        let status = lock(&self.0.status);
        (status.state, status.message.clone())
    }

    /// What stands in `failoverUrls`, TLS or not.
    pub(crate) fn url(&self) -> String {
        format!("amqp://{}", self.0.address())
    }
}

/// Starts to dial.
pub(crate) fn start(
    router: &Arc<Router>,
    attributes: &Attributes,
    slot: Option<Arc<Slot>>,
) -> Handle {
    let get = |name: &str| attributes.get(name).map(text).unwrap_or_default();
    let connector = Arc::new(Connector {
        router: Arc::clone(router),
        role: get("role"),
        host: get("host"),
        port: get("port"),
        slot,
        status: Mutex::new(Status {
            state: "INITIALIZING",
            message: String::new(),
        }),
        closed: router.stop.child_token(),
    });
    router.tasks.spawn(Arc::clone(&connector).supervise());
    Handle(connector)
}

impl Connector {
    fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Dials one set of connections for each new ordinal; an older set is not dialled again.
    async fn supervise(self: Arc<Self>) {
        let Some(slot) = &self.slot else {
            let set = Set {
                ordinal: 0,
                retired: self.closed.child_token(),
            };
            return self.dial_set(&set);
        };
        let mut news = slot.subscribe();
        loop {
            let ordinal = news.borrow_and_update().ordinal;
            let set = Set {
                ordinal,
                retired: self.closed.child_token(),
            };
            self.dial_set(&set);
            let newer = news.wait_for(|current| current.ordinal > ordinal);
            let is_newer = self.closed.run_until_cancelled(newer).await;
            if !matches!(is_newer, Some(Ok(_))) {
                return;
            }
            set.retired.cancel();
        }
    }

    fn dial_set(self: &Arc<Self>, set: &Set) {
        let data = if self.role == "inter-router" {
            DATA_CONNECTIONS
        } else {
            0
        };
        let roles = std::iter::once(self.role.as_str()).chain(std::iter::repeat_n(DATA_ROLE, data));
        for role in roles {
            let (connector, role, set) = (Arc::clone(self), role.to_owned(), set.clone());
            self.router.tasks.spawn(async move {
                let closed = connector.closed.clone();
                let dial = Box::pin(connector.dial_for_ever(&role, &set));
                closed.run_until_cancelled(dial).await;
            });
        }
    }

    /// Until the connector goes, or until the set is retired and its connection is lost.
    async fn dial_for_ever(&self, role: &str, set: &Set) {
        let tells = role != DATA_ROLE;
        while !set.retired.is_cancelled() {
            if tells {
                self.tell("SUCCESS", None, set);
            }
            let mut was_open = false;
            let outcome = self.dial(role, set, &mut was_open).await;
            if tells {
                let address = self.address();
                let message = outcome.err().map(|fault| {
                    format!("Connection to {address} failed: {}", self.explain(&fault))
                });
                self.tell("CONNECTING", message, set);
            }
            let pause = if was_open { RETRY_LOST } else { RETRY_FAILED };
            set.retired
                .run_until_cancelled(tokio::time::sleep(pause))
                .await;
        }
    }

    /// Only the newest set tells; a fault is logged when it differs from the last.
    fn tell(&self, state: &'static str, message: Option<String>, set: &Set) {
        if set.retired.is_cancelled() {
            return;
        }
        let mut status = lock(&self.status);
        status.state = state;
        if let Some(message) = message
            && status.message != message
        {
            self.router
                .log("SERVER", "error", format_args!("{message}"));
            status.message = message;
        }
    }

    /// One connection from its first packet to its last.
    async fn dial(&self, role: &str, set: &Set, was_open: &mut bool) -> io::Result<()> {
        let router = &self.router;
        let news = self.slot.as_ref().map(|slot| slot.subscribe());
        // The files may have been changed by an update since the set was begun.
        let credentials = news.as_ref().map(|news| news.borrow().config.clone());
        let (stream, secured, mechanism) = self.connect(credentials, set).await?;
        let id = router.links.next_id();
        let own = router.open(id, role, None, Some(&self.host));
        let Opened {
            mut frames,
            peer,
            sasl,
        } = wire::connect(stream, mechanism, &own).await?;
        *was_open = true;
        let mut connection = Connection::new(role.to_owned(), "out", self.address(), &peer);
        connection.sasl = sasl;
        connection.secured = secured;
        let opened = router.opened(id, &connection);
        if role != DATA_ROLE && !set.retired.is_cancelled() {
            lock(&self.status).message = opened;
        }
        let row = &router.links.add(id, connection);
        let is_neighbour = router.is_neighbour(role, &peer.container_id);
        let (ordinal, stop) = (set.ordinal, &self.closed);
        Keeper {
            router,
            row,
            is_neighbour,
            ordinal,
            news,
            stop,
        }
        .keep(&mut frames)
        .await
    }

    /// The transport: TCP, and TLS where there are credentials.
    ///
    /// Without a deadline: a peer that accepts and says nothing is waited for, for ever.
    async fn connect(
        &self,
        credentials: Option<Config>,
        set: &Set,
    ) -> io::Result<(Stream, Option<Secured>, Mechanism)> {
        let port = match self.port.as_str() {
            "amqp" => "5672",
            "amqps" => "5671",
            number => number,
        };
        let port: u16 = port.parse().map_err(io::Error::other)?;
        let stream = TcpStream::connect((self.host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        let Some(Config::Client(config)) = credentials else {
            return Ok((Box::new(stream), None, Mechanism::Anonymous));
        };
        let mechanism = if config.client_auth_cert_resolver.has_certs() {
            Mechanism::External
        } else {
            Mechanism::Anonymous
        };
        let host = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(host, stream).await?;
        let secured = Secured::of(stream.get_ref().1, set.ordinal);
        Ok((Box::new(stream), Some(secured), mechanism))
    }

    /// The router's words for a fault.
    fn explain(&self, fault: &io::Error) -> String {
        let address = self.address();
        match fault.kind() {
            io::ErrorKind::ConnectionRefused => {
                format!("proton:io Connection refused - disconnected {address}")
            }
            _ if is_unknown_name(fault) => {
                format!("proton:io Name or service not known - connect to  {address}")
            }
            _ => transport_text(fault),
        }
    }
}

/// The connections of one ordinal.
#[derive(Clone)]
struct Set {
    ordinal: u64,
    /// A newer set has been begun: what is lost now is not dialled again.
    retired: CancellationToken,
}
