//! Which connections are open, and which routers are neighbours?

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fe2o3_amqp::types::performatives::Open;
use fe2o3_amqp::types::primitives::{OrderedMap, Value};
use rustls::{CommonState, ProtocolVersion};
use tokio::time::Instant;

use crate::router::lock;
use crate::schema::Attributes;

/// A neighbour that has not said hello for this long is no neighbour (measured on the real one).
const HELLO_AGE: Duration = Duration::from_millis(2800);
/// A dead peer's node is listed for this long.
const NODE_AGE: Duration = Duration::from_mins(1);

/// What TLS agreed on, as a `connection` row shows it.
#[derive(Debug, Clone)]
pub(crate) struct Secured {
    pub(crate) protocol: String,
    pub(crate) cipher: String,
    pub(crate) ordinal: u64,
    /// The subject of the peer's certificate, on the listener's side.
    pub(crate) user: Option<String>,
}

impl Secured {
    pub(crate) fn of(session: &CommonState, ordinal: u64) -> Self {
        let protocol = match session.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLSv1.3",
        };
        let cipher = session
            .negotiated_cipher_suite()
            .and_then(|suite| {
                suite
                    .suite()
                    .as_str()
                    .map(|name| name.replace("TLS13_", "TLS_"))
            })
            .unwrap_or_default();
        Self {
            protocol: protocol.to_owned(),
            cipher,
            ordinal,
            user: None,
        }
    }
}

/// One open connection.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) role: String,
    pub(crate) direction: &'static str,
    protocol: &'static str,
    /// The connector's `HOST:PORT`, or the peer's socket.
    pub(crate) host: String,
    pub(crate) container: String,
    pub(crate) sasl: Option<&'static str>,
    pub(crate) secured: Option<Secured>,
    pub(crate) properties: OrderedMap<Value, Value>,
    opened: Instant,
    hello: Option<Instant>,
}

/// All open connections of one router, and the neighbours that they make.
#[derive(Default)]
pub(crate) struct Links {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Connection>>,
    nodes: Mutex<BTreeMap<String, Instant>>,
}

/// A row that lives as long as this does.
pub(crate) struct Row {
    pub(crate) id: u64,
    links: Arc<Links>,
}

impl Drop for Row {
    fn drop(&mut self) {
        lock(&self.links.open).remove(&self.id);
    }
}

impl Connection {
    pub(crate) fn new(role: String, direction: &'static str, host: String, peer: &Open) -> Self {
        let properties = peer.properties.clone().unwrap_or_default();
        Self {
            role,
            direction,
            protocol: "amqp",
            host,
            container: peer.container_id.clone(),
            sasl: None,
            secured: None,
            properties: properties
                .into_iter()
                .map(|(key, value)| (Value::String(key.0), value))
                .collect(),
            opened: Instant::now(),
            hello: None,
        }
    }

    /// What stands for a tcpConnector, with no socket behind it.
    pub(crate) fn egress() -> Self {
        Self {
            role: "normal".to_owned(),
            direction: "out",
            protocol: "tcp",
            host: "egress-dispatch".to_owned(),
            container: "TcpAdaptor".to_owned(),
            sasl: None,
            secured: None,
            properties: OrderedMap::new(),
            opened: Instant::now(),
            hello: None,
        }
    }

    /// Who came in: the subject of a certificate, or somebody.
    fn user(&self) -> Option<String> {
        match &self.secured {
            Some(secured) => secured.user.clone(),
            None => (self.direction == "in").then(|| "anonymous".to_owned()),
        }
    }

    fn attributes(&self, id: u64) -> Attributes {
        let text = |text: &str| Value::String(text.to_owned());
        let secured = self.secured.as_ref();
        let optional = |value: Option<String>| value.map_or(Value::Null, Value::String);
        let strength = secured.map_or(0, |tls| if tls.cipher.contains("128") { 128 } else { 256 });
        [
            ("name", Value::String(format!("connection/{}", self.host))),
            ("identity", Value::String(id.to_string())),
            ("host", text(&self.host)),
            ("role", text(&self.role)),
            ("protocol", text(self.protocol)),
            ("dir", text(self.direction)),
            ("container", text(&self.container)),
            ("sasl", optional(self.sasl.map(str::to_owned))),
            ("isAuthenticated", Value::Bool(self.sasl.is_some())),
            ("user", optional(self.user())),
            ("isEncrypted", Value::Bool(secured.is_some())),
            (
                "sslProto",
                optional(secured.map(|tls| tls.protocol.clone())),
            ),
            ("sslCipher", optional(secured.map(|tls| tls.cipher.clone()))),
            ("properties", Value::Map(self.properties.clone())),
            ("sslSsf", Value::Long(strength)),
            ("type", text("io.skupper.router.connection")),
            ("ssl", Value::Bool(secured.is_some())),
            ("opened", Value::Bool(true)),
            ("active", Value::Bool(true)),
            ("adminStatus", text("enabled")),
            ("operStatus", text("up")),
            ("uptimeSeconds", Value::Uint(seconds(self.opened))),
            ("enableProtocolTrace", Value::Bool(false)),
            (
                "tlsOrdinal",
                secured.map_or(Value::Null, |tls| Value::Ulong(tls.ordinal)),
            ),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

impl Links {
    /// The number of the next connection, `[C3]` in the log.
    pub(crate) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn add(self: &Arc<Self>, id: u64, connection: Connection) -> Row {
        lock(&self.open).insert(id, connection);
        Row {
            id,
            links: Arc::clone(self),
        }
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.open).len()
    }

    /// Neighbours that have said hello of late.
    pub(crate) fn neighbours(&self) -> Vec<String> {
        let mut found: Vec<String> = lock(&self.open)
            .values()
            .filter(|c| c.hello.is_some_and(|hello| hello.elapsed() < HELLO_AGE))
            .map(|c| c.container.clone())
            .collect();
        found.sort();
        found.dedup();
        found
    }

    /// Every router heard of within the last minute, whether it is there or not.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let mut nodes = lock(&self.nodes);
        nodes.retain(|_, seen| seen.elapsed() < NODE_AGE);
        nodes.keys().cloned().collect()
    }

    /// A neighbour has said hello on this connection.
    pub(crate) fn hello(&self, id: u64) {
        let now = Instant::now();
        let mut open = lock(&self.open);
        if let Some(connection) = open.get_mut(&id) {
            connection.hello = Some(now);
            lock(&self.nodes).insert(connection.container.clone(), now);
        }
    }

    /// The rows of entity type `connection`, oldest first.
    pub(crate) fn rows(&self) -> Vec<Attributes> {
        lock(&self.open)
            .iter()
            .map(|(id, connection)| connection.attributes(*id))
            .collect()
    }
}

/// Columns of entity type `connection`, in the order of a QUERY that names none.
pub(crate) const COLUMNS: &str = "name identity host localSocket role protocol dir container sasl \
    isAuthenticated user isEncrypted sslProto sslCipher properties sslSsf type ssl opened active \
    adminStatus operStatus uptimeSeconds lastDlvSeconds enableProtocolTrace meshId tlsOrdinal \
    groupCorrelationId groupOrdinal";

fn seconds(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_secs()).unwrap_or(u32::MAX)
}
