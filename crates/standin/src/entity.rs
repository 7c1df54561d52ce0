//! What stands behind an entity, and what does it take to bring that up?

use std::collections::BTreeMap;
use std::sync::Arc;

use fe2o3_amqp::types::primitives::Value;

use crate::connection::{Connection, Row};
use crate::connector::{self, Handle};
use crate::fault::Fault;
use crate::listener::{self, Listener};
use crate::router::Router;
use crate::schema::{Attributes, EntityType, text};
use crate::table::body_map;
use crate::tls::{Profile, Slot, Usage, Users};

/// One entity of the management agent.
pub(crate) struct Entity {
    pub(crate) kind: &'static EntityType,
    pub(crate) attributes: Attributes,
    pub(crate) live: Live,
}

/// What an entity holds; it is let go with the entity.
pub(crate) enum Live {
    Record,
    Profile(Users),
    Listener(Listener),
    Connector(Handle),
    TcpListener {
        _slot: Option<Arc<Slot>>,
    },
    TcpConnector {
        _slot: Option<Arc<Slot>>,
        /// The standing connection row that every tcpConnector has.
        _row: Row,
    },
}

impl Entity {
    /// Its attributes, the moving ones refreshed.
    pub(crate) fn shown(&self) -> Attributes {
        let mut attributes = self.attributes.clone();
        let mut set = |name: &str, value: Value| attributes.insert(name.to_owned(), value);
        let mut counted = |opened: i32| {
            set("connectionsOpened", Value::Int(opened));
            for counter in ["connectionsClosed", "bytesIn", "bytesOut"] {
                set(counter, Value::Int(0));
            }
        };
        match &self.live {
            Live::Connector(connector) => {
                let (status, message) = connector.status();
                set("connectionStatus", Value::String(status.to_owned()));
                set("connectionMsg", Value::String(message));
                set("failoverUrls", Value::String(connector.url()));
            }
            Live::TcpListener { .. } => {
                counted(0);
                set("operStatus", Value::String("down".to_owned()));
                set("connectionMsg", Value::String(String::new()));
            }
            Live::TcpConnector { .. } => counted(1),
            Live::Record | Live::Profile(_) | Live::Listener(_) => {}
        }
        attributes
    }

    /// A refused update of a profile still shows in its attributes, as in the real router.
    pub(crate) fn update(&mut self, router: &Router, body: &Value) -> Result<(), Fault> {
        let changes = body_map(body, "items")?;
        self.kind.check_update(&changes, &self.attributes)?;
        let mut attributes = self.attributes.clone();
        attributes.extend(changes);
        self.kind.normalise(&mut attributes)?;
        self.attributes = attributes;
        check_log(&self.attributes)?;
        if let Live::Profile(users) = &mut self.live {
            users.reload(&Profile::parse(&self.attributes)?)?;
            let name = self.attributes.get("name").map(text).unwrap_or_default();
            router.log("AGENT", "info", format_args!("Updated sslProfile {name} "));
        }
        Ok(())
    }

    /// A listener that could not have its port.
    pub(crate) fn is_failed_listener(&self) -> bool {
        matches!(&self.live, Live::Listener(listener) if listener.port.is_none())
    }
}

/// Makes what an entity of this type needs, with the profiles among `entities`.
pub(crate) fn bring_up(
    router: &Arc<Router>,
    entities: &mut [Entity],
    kind: &EntityType,
    attributes: &Attributes,
) -> Result<Live, Fault> {
    let is_set = |name: &str| attributes.get(name) == Some(&Value::Bool(true));
    match kind.name {
        "sslProfile" => Profile::parse(attributes).map(|_| Live::Profile(Users::default())),
        "listener" => {
            // The real router goes by the mechanism alone here.
            let mechanisms = attributes
                .get("saslMechanisms")
                .map(text)
                .unwrap_or_default();
            let authenticate_peer = mechanisms.contains("EXTERNAL");
            let slot = slot(entities, attributes, Usage::Listener { authenticate_peer })?;
            Ok(Live::Listener(listener::start(router, attributes, slot)))
        }
        "connector" => {
            let verify_hostname = is_set("verifyHostname");
            let slot = slot(entities, attributes, Usage::Connector { verify_hostname })?;
            Ok(Live::Connector(connector::start(router, attributes, slot)))
        }
        "tcpListener" => {
            let strategy = attributes.get("multiAddressStrategy").map(text);
            let has_strategy = strategy.is_some_and(|strategy| strategy != "none");
            if attributes.contains_key("address") == has_strategy {
                return Err(Fault::configuration(
                    "Exactly one of the 'address' or 'multiAddressStrategy' field must be set",
                ));
            }
            let authenticate_peer = is_set("authenticatePeer");
            let slot = slot(
                entities,
                attributes,
                Usage::TcpListener { authenticate_peer },
            )?;
            Ok(Live::TcpListener { _slot: slot })
        }
        "tcpConnector" => {
            let slot = slot(entities, attributes, Usage::TcpConnector)?;
            let row = router
                .links
                .add(router.links.next_id(), Connection::egress());
            Ok(Live::TcpConnector {
                _slot: slot,
                _row: row,
            })
        }
        "log" => check_log(attributes).map(|()| Live::Record),
        _ => Ok(Live::Record),
    }
}

/// Opens the files of the profile that is named, if one is.
fn slot(
    entities: &mut [Entity],
    attributes: &Attributes,
    usage: Usage,
) -> Result<Option<Arc<Slot>>, Fault> {
    let Some(name) = attributes.get("sslProfile") else {
        return Ok(None);
    };
    let profile = entities
        .iter_mut()
        .find(|e| e.kind.name == "sslProfile" && e.attributes.get("name") == Some(name));
    let Some(Entity {
        attributes,
        live: Live::Profile(users),
        ..
    }) = profile
    else {
        let name = text(name);
        return Err(Fault::core_not_found(format_args!(
            "sslProfile '{name}' not found"
        )));
    };
    let slot = Slot::open(&Profile::parse(attributes)?, usage)?;
    users.add(&slot);
    Ok(Some(slot))
}

/// Gives attributes an identity, and a name if they have none.
pub(crate) fn identify(
    counters: &mut BTreeMap<&'static str, usize>,
    kind: &'static EntityType,
    attributes: &mut Attributes,
) {
    let get = |name: &str| attributes.get(name).map(text);
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "None".to_owned());
    let place = |one: &str, other: &str| {
        let place = format!(
            "{}:{}",
            get(one).unwrap_or_default(),
            get(other).unwrap_or_default()
        );
        get("name").map_or(place.clone(), |name| format!("{place}:{name}"))
    };
    let identifier = match kind.name {
        "sslProfile" => or_none(get("name")),
        "router" => or_none(get("id")),
        "site" => "None".to_owned(),
        "log" => get("module").unwrap_or_default(),
        "listener" | "connector" | "tcpListener" | "tcpConnector" => place("host", "port"),
        "listenerAddress" => place("listener", "address"),
        _ => {
            let counter = counters.entry(kind.name).or_default();
            *counter += 1;
            (*counter - 1).to_string()
        }
    };
    let identity = Value::String(format!("{}/{identifier}", kind.identity_prefix()));
    attributes
        .entry("name".to_owned())
        .or_insert_with(|| identity.clone());
    attributes.insert("identity".to_owned(), identity);
}

/// Which roles a router of this mode may have.
pub(crate) fn check_roles(
    mode: Option<&str>,
    kind: &EntityType,
    attributes: &Attributes,
) -> Result<(), Fault> {
    if !matches!(kind.name, "listener" | "connector") {
        return Ok(());
    }
    let role = attributes.get("role").map(text).unwrap_or_default();
    let name = attributes.get("name").map(text).unwrap_or_default();
    match (mode.unwrap_or("standalone"), role.as_str(), kind.name) {
        ("standalone", "inter-router" | "edge", _) => Err(Fault::validation(
            "role='standalone' not allowed to connect to or accept connections from other routers.",
        )),
        ("edge", "inter-router", _) | ("edge", "edge", "listener") => Err(Fault::validation(
            format!("role='{role}' only allowed with router mode='interior' for {name}"),
        )),
        _ => Ok(()),
    }
}

/// Levels are words with commas between them, each with a plus sign or without.
fn check_log(attributes: &Attributes) -> Result<(), Fault> {
    const LEVELS: [&str; 7] = [
        "none", "debug", "info", "warning", "error", "critical", "default",
    ];
    let enable = attributes.get("enable").map(text).unwrap_or_default();
    let mut words = enable
        .split(',')
        .map(|word| word.trim().trim_end_matches('+'));
    match words.find(|word| !word.is_empty() && !LEVELS.contains(word)) {
        Some(word) => Err(Fault::configuration(format_args!(
            "'{word}' is not a valid log level. Should be one of {{none, debug, info, warning, \
             error, critical}}."
        ))),
        None => Ok(()),
    }
}
