//! What is one running router, and how is it started and stopped?

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fe2o3_amqp::types::performatives::Open;
use fe2o3_amqp::types::primitives::{OrderedMap, Symbol, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::Agent;
use crate::config::Config;
use crate::connection::{Connection, Links};
use crate::wire::MAX_FRAME_SIZE;

/// Where log lines go, one at a time, in the router's format without a time.
pub type Log = fn(fmt::Arguments<'_>);

/// What connections say this program is.
pub(crate) const VERSION: &str = concat!("stand-in-", env!("CARGO_PKG_VERSION"));
/// Half of the real idle time-out, as AMQP asks for.
const IDLE_TIME_OUT_MS: u32 = 8000;

/// Everything that the parts of one router share.
pub(crate) struct Router {
    pub(crate) id: String,
    pub(crate) mode: String,
    pub(crate) links: Arc<Links>,
    pub(crate) agent: Mutex<Agent>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) operational: watch::Sender<bool>,
    crashed: CancellationToken,
    log: Log,
}

impl Router {
    pub(crate) fn log(&self, module: &str, level: &str, text: fmt::Arguments<'_>) {
        (self.log)(format_args!("{module} ({level}) {text}"));
    }

    /// The real router dies of this: a CREATE of a listener or connector while a listener stands
    /// whose port was taken (it starts that one again, after its memory was given back). About every
    /// second time there, every time here.
    pub(crate) fn crash(&self) {
        self.log("SERVER", "critical", format_args!("Segmentation fault"));
        self.crashed.cancel();
        self.stop.cancel();
    }

    /// What this router says at the beginning of a connection of `role`.
    ///
    /// `access` is the listener that it came in by; `hostname` the host that is dialled.
    pub(crate) fn open(
        &self,
        id: u64,
        role: &str,
        access: Option<&str>,
        hostname: Option<&str>,
    ) -> Open {
        let mut properties = OrderedMap::new();
        let mut say = |key: &str, value: Value| {
            properties.insert(Symbol::from(key), value);
        };
        say("product", Value::String("skupper-router".to_owned()));
        say("version", Value::String(VERSION.to_owned()));
        say(
            "qd.conn-id",
            Value::Int(i32::try_from(id).unwrap_or_default()),
        );
        if let Some(access) = access.filter(|_| role != "normal") {
            say(
                "qd.access-id",
                Value::String(format!("{}:{access}", self.id)),
            );
        }
        if role == DATA_ROLE {
            say(ROLE_PROPERTY, Value::Int(DATA_ROLE_NUMBER));
        }
        Open {
            container_id: self.id.clone(),
            hostname: hostname.map(str::to_owned),
            max_frame_size: MAX_FRAME_SIZE.into(),
            channel_max: 32767.into(),
            idle_time_out: Some(IDLE_TIME_OUT_MS),
            outgoing_locales: None,
            incoming_locales: None,
            offered_capabilities: None,
            desired_capabilities: None,
            properties: Some(properties),
        }
    }

    /// Logs that a connection is open, and returns what a connector shows of it.
    pub(crate) fn opened(&self, id: u64, connection: &Connection) -> String {
        let Connection {
            direction,
            host,
            container,
            sasl,
            secured,
            ..
        } = connection;
        let encrypted = secured.as_ref().map_or("no", |tls| tls.protocol.as_str());
        let user = secured
            .as_ref()
            .and_then(|tls| tls.user.as_deref())
            .unwrap_or("(null)");
        let text = format!(
            "[C{id}] Connection Opened: dir={direction} host={host} encrypted={encrypted} \
             auth={} user={user} container_id={container}",
            sasl.unwrap_or("no")
        );
        self.log("SERVER", "info", format_args!("{text}"));
        text
    }

    /// Does a connection of this role make this router a neighbour?
    pub(crate) fn is_neighbour(&self, role: &str, container: &str) -> bool {
        if role != "inter-router" {
            return false;
        }
        if container == self.id {
            self.log(
                "ROUTER_HELLO",
                "critical",
                format_args!("Detected Neighbor Router with a Duplicate ID - {container}"),
            );
            return false;
        }
        true
    }
}

/// A poisoned lock is a lock: what it guards is replaced whole or not at all.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The property by which a connection says that it is one of a link's data connections.
pub(crate) const ROLE_PROPERTY: &str = "qd.inter-router-role";
/// The role of the connections of a link that carry data only.
pub(crate) const DATA_ROLE: &str = "inter-router-data";
/// The same as that property has it.
pub(crate) const DATA_ROLE_NUMBER: i32 = 4;

/// Why a router did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartError {
    /// Exit code 1, and this line in the log.
    Refused(String),
    /// The port of the HTTP listener is taken: the real router crashes there.
    Crashed,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(line) => f.write_str(line),
            Self::Crashed => f.write_str("the HTTP port is taken: segmentation fault"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running router. Dropping it stops it without waiting.
pub struct Standin {
    router: Arc<Router>,
}

impl Standin {
    /// Applies the whole configuration; afterwards the router is operational.
    ///
    /// Must be called within a tokio runtime with time and I/O.
    pub fn start(config: Config, log: Log) -> Result<Self, StartError> {
        let router = Arc::new(Router {
            id: config.router_text("id").unwrap_or_default(),
            mode: config
                .router_text("mode")
                .unwrap_or_else(|| "standalone".to_owned()),
            links: Arc::default(),
            agent: Mutex::new(Agent::default()),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            operational: watch::Sender::new(false),
            crashed: CancellationToken::new(),
            log,
        });
        let standin = Self { router };
        let router = &standin.router;
        config.apply(router)?;
        router.operational.send_replace(true);
        router.log(
            "SERVER",
            "info",
            format_args!(
                "Operational, 4 Threads Running (process ID {})",
                std::process::id()
            ),
        );
        Ok(standin)
    }

    /// The port that the listener of this name is bound to: for tests that ask for port 0.
    pub fn port(&self, listener: &str) -> Option<u16> {
        lock(&self.router.agent).port(listener)
    }

    /// Ready once something has been done that the real router dies of, with signal 11.
    pub async fn crashed(&self) {
        self.router.crashed.cancelled().await;
    }

    /// Stops at once, as the real router does: nothing is drained.
    pub async fn stop(self) {
        self.router.stop.cancel();
        self.router.tasks.close();
        let _ =
            tokio::time::timeout(std::time::Duration::from_secs(1), self.router.tasks.wait()).await;
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.router.stop.cancel();
    }
}
