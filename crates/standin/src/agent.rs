//! What does the management node answer?

use std::collections::BTreeMap;
use std::sync::Arc;

use fe2o3_amqp::types::primitives::{OrderedMap, Value};

use crate::connector::{self, Handle};
use crate::fault::Fault;
use crate::link::COLUMNS;
use crate::listener::{self, Listener};
use crate::router::Router;
use crate::schema::{Attributes, EntityType, entity_type, text};
use crate::tls::{Profile, Slot, Usage, Users};

/// One request, as far as it is looked at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) operation: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) identity: Option<String>,
    pub(crate) entity_type: Option<String>,
    pub(crate) offset: usize,
    pub(crate) count: Option<usize>,
    pub(crate) body: Value,
}

/// Status code, status description, body.
pub(crate) struct Reply {
    pub(crate) status: i32,
    pub(crate) description: String,
    pub(crate) body: Value,
}

/// All entities, in the order in which they were made.
#[derive(Default)]
pub(crate) struct Agent {
    entities: Vec<Entity>,
    counters: BTreeMap<&'static str, usize>,
}

struct Entity {
    kind: &'static EntityType,
    attributes: Attributes,
    live: Live,
}

/// What stands behind an entity.
enum Live {
    Record,
    Profile(Users),
    Listener(Listener),
    Connector(Handle),
    /// Held for the profile's sake only.
    TlsUser(#[allow(dead_code, reason = "its life is what counts")] Option<Arc<Slot>>),
}

impl Agent {
    /// Carries a request out.
    pub(crate) fn respond(&mut self, router: &Arc<Router>, request: &Request) -> Reply {
        match self.perform(router, request) {
            Ok((status, body)) => {
                let description = match status {
                    201 => "Created",
                    204 => "No Content",
                    _ => "OK",
                };
                Reply {
                    status,
                    description: description.to_owned(),
                    body,
                }
            }
            Err(fault) => {
                let operation = request.operation.as_deref().unwrap_or_default();
                let description = fault.description();
                router.log(
                    "AGENT",
                    "error",
                    format_args!("Error performing {operation}: {description}"),
                );
                Reply {
                    status: fault.status,
                    description,
                    body: Value::Map(OrderedMap::new()),
                }
            }
        }
    }

    fn perform(&mut self, router: &Arc<Router>, request: &Request) -> Result<(i32, Value), Fault> {
        let operation = request
            .operation
            .as_deref()
            .ok_or_else(|| Fault::bad_request("No 'operation' property"))?
            .to_uppercase();
        let wants_connection = request
            .kind
            .as_deref()
            .is_some_and(|kind| is_connection(kind) && operation != "QUERY");
        match operation.as_str() {
            "QUERY" if request.entity_type.as_deref().is_some_and(is_connection) => {
                Ok((200, query_connections(router, request)))
            }
            "QUERY" => self.query(router, request).map(|body| (200, body)),
            "GET-MGMT-NODES" => {
                let nodes = std::iter::once(router.id.clone()).chain(router.links.nodes());
                let address = |id: String| Value::String(format!("amqp:/_topo/0/{id}/$management"));
                Ok((200, Value::List(nodes.map(address).collect())))
            }
            "UPDATE" | "DELETE" | "CREATE" if wants_connection => Err(Fault::forbidden(
                "You are not allowed to perform this operation.",
            )),
            "CREATE" => self
                .create_requested(router, request)
                .map(|body| (201, body)),
            "READ" | "UPDATE" | "DELETE" => self.perform_on_one(router, &operation, request),
            _ => Err(Fault::not_implemented(format!(
                "Operation '{operation}' not implemented for 'org.amqp.management'"
            ))),
        }
    }

    fn query(&self, router: &Router, request: &Request) -> Result<Value, Fault> {
        let name = request
            .entity_type
            .as_deref()
            .ok_or_else(|| Fault::bad_request("No 'entityType' property"))?;
        let kind = entity_type(name)?;
        let wanted = body_map(&request.body, "get")?.remove("attributeNames");
        let mut names: Vec<String> = match wanted {
            Some(Value::List(names)) => names.iter().map(text).collect(),
            Some(Value::Array(names)) => names.0.iter().map(text).collect(),
            _ => Vec::new(),
        };
        let known: Vec<&str> = kind.attribute_names().collect();
        let unknown: Vec<&String> = names
            .iter()
            .filter(|name| !known.contains(&name.as_str()))
            .collect();
        if !unknown.is_empty() {
            return Err(Fault::not_found(format!(
                "Unknown attributes {unknown:?} for type {}.",
                kind.long_name()
            )));
        }
        if names.is_empty() {
            names = known.iter().map(|name| (*name).to_owned()).collect();
        }
        let rows: Vec<Attributes> = if kind.name == "router.node" {
            nodes(router)
        } else {
            self.entities
                .iter()
                .filter(|e| e.kind.name == kind.name)
                .map(Entity::shown)
                .collect()
        };
        let rows = rows
            .iter()
            .map(|row| columns(row, &names))
            .filter(|row| has_content(row));
        Ok(table(&names, rows))
    }

    fn create_requested(
        &mut self,
        router: &Arc<Router>,
        request: &Request,
    ) -> Result<Value, Fault> {
        let mut attributes = body_map(&request.body, "setdefault")?;
        for (attribute, property) in [("type", &request.kind), ("name", &request.name)] {
            // What stands in the body only is thrown away.
            let in_body = attributes.remove(attribute).map(|value| text(&value));
            let Some(property) = property else { continue };
            if in_body.is_some_and(|value| value != *property) {
                return Err(Fault::bad_request(format!(
                    "Conflicting values for '{attribute}'"
                )));
            }
            attributes.insert(attribute.to_owned(), Value::String(property.clone()));
        }
        let kind = match &request.kind {
            Some(kind) => entity_type(kind)?,
            None => return Err(Fault::bad_request("No 'type' attribute")),
        };
        kind.check_operation("CREATE")?;
        kind.check_create(&attributes)?;
        let made = self.create(router, kind, attributes)?;
        Ok(map(made))
    }

    /// Makes an entity, on request or from the configuration file.
    pub(crate) fn create(
        &mut self,
        router: &Arc<Router>,
        kind: &'static EntityType,
        mut attributes: Attributes,
    ) -> Result<Attributes, Fault> {
        kind.normalise(&mut attributes)?;
        check_roles(Some(&router.mode), kind, &attributes)?;
        self.identify(kind, &mut attributes);
        self.check_unique(kind, &attributes)?;
        let live = self.bring_up(router, kind, &attributes)?;
        let entity = Entity {
            kind,
            attributes,
            live,
        };
        let shown = entity.shown();
        self.entities.push(entity);
        Ok(shown)
    }

    /// Gives it an identity, and a name if it has none.
    fn identify(&mut self, kind: &'static EntityType, attributes: &mut Attributes) {
        let get = |name: &str| attributes.get(name).map(text);
        let place = || {
            format!(
                "{}:{}",
                get("host").unwrap_or_default(),
                get("port").unwrap_or_default()
            )
        };
        let named = |place: String| match get("name") {
            Some(name) => format!("{place}:{name}"),
            None => place,
        };
        let identifier = match kind.name {
            "sslProfile" => get("name").unwrap_or_else(|| "None".to_owned()),
            "router" => get("id").unwrap_or_else(|| "None".to_owned()),
            "site" => "None".to_owned(),
            "log" => get("module").unwrap_or_default(),
            "listener" | "connector" | "tcpListener" | "tcpConnector" => named(place()),
            "listenerAddress" => {
                let listener = get("listener").unwrap_or_default();
                named(format!("{listener}:{}", get("address").unwrap_or_default()))
            }
            _ => {
                let counter = self.counters.entry(kind.name).or_default();
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

    /// Names and identities are unique over all types.
    fn check_unique(&self, kind: &EntityType, attributes: &Attributes) -> Result<(), Fault> {
        for unique in ["name", "identity"] {
            let same = |e: &&Entity| e.attributes.get(unique) == attributes.get(unique);
            if let Some(existing) = self.entities.iter().find(same) {
                return Err(Fault::validation(format!(
                    "adding {} {attributes:?} duplicates unique attribute '{unique}' from existing {}",
                    kind.long_name(),
                    existing
                        .attributes
                        .get("identity")
                        .map(text)
                        .unwrap_or_default(),
                )));
            }
        }
        Ok(())
    }

    fn bring_up(
        &mut self,
        router: &Arc<Router>,
        kind: &EntityType,
        attributes: &Attributes,
    ) -> Result<Live, Fault> {
        let is_set = |name: &str| attributes.get(name) == Some(&Value::Bool(true));
        let authenticate_peer = is_set("authenticatePeer");
        let verify_hostname = is_set("verifyHostname");
        Ok(match kind.name {
            "sslProfile" => {
                Profile::parse(attributes)?;
                Live::Profile(Users::default())
            }
            "listener" => {
                // The real router goes by the mechanism alone here.
                let mechanisms = attributes
                    .get("saslMechanisms")
                    .map(text)
                    .unwrap_or_default();
                let authenticate_peer = mechanisms.contains("EXTERNAL");
                let slot = self.slot(attributes, Usage::Listener { authenticate_peer })?;
                Live::Listener(listener::start(router, attributes, slot))
            }
            "connector" => {
                let slot = self.slot(attributes, Usage::Connector { verify_hostname })?;
                Live::Connector(connector::start(router, attributes, slot))
            }
            "tcpListener" => {
                let strategy = attributes.get("multiAddressStrategy").map(text);
                let has_strategy = strategy.is_some_and(|strategy| strategy != "none");
                if attributes.contains_key("address") == has_strategy {
                    return Err(Fault::configuration(
                        "Exactly one of the 'address' or 'multiAddressStrategy' field must be set",
                    ));
                }
                Live::TlsUser(self.slot(attributes, Usage::TcpListener { authenticate_peer })?)
            }
            "tcpConnector" => Live::TlsUser(self.slot(attributes, Usage::TcpConnector)?),
            "log" => {
                check_log(attributes)?;
                Live::Record
            }
            _ => Live::Record,
        })
    }

    /// Opens the files of the profile that is named, if one is.
    fn slot(&mut self, attributes: &Attributes, usage: Usage) -> Result<Option<Arc<Slot>>, Fault> {
        let Some(name) = attributes.get("sslProfile") else {
            return Ok(None);
        };
        let profile = self
            .entities
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

    fn perform_on_one(
        &mut self,
        router: &Router,
        operation: &str,
        request: &Request,
    ) -> Result<(i32, Value), Fault> {
        let index = self.find(request)?;
        let entity = &mut self.entities[index];
        entity.kind.check_operation(operation)?;
        match operation {
            "UPDATE" => entity.update(router, &request.body).map(|body| (200, body)),
            "DELETE" => {
                // Whatever it held is let go; users of a profile keep what they have.
                self.entities.remove(index);
                Ok((204, Value::Map(OrderedMap::new())))
            }
            _ => Ok((200, map(entity.shown()))),
        }
    }

    /// By name over all types; only then is the type compared.
    fn find(&self, request: &Request) -> Result<usize, Fault> {
        let kind = request.kind.as_deref().map(entity_type).transpose()?;
        let (key, value) = match (&request.name, &request.identity) {
            (Some(name), _) => ("name", name),
            (None, Some(identity)) => ("identity", identity),
            (None, None) => {
                let kind = request.kind.as_deref().unwrap_or_default();
                return Err(Fault::bad_request(format!(
                    "{kind}: No name or identity provided"
                )));
            }
        };
        let wanted = Value::String(value.clone());
        let index = self
            .entities
            .iter()
            .position(|e| e.attributes.get(key) == Some(&wanted))
            .ok_or_else(|| Fault::not_found(format!("No entity with {key}={value}")))?;
        let found = self.entities[index].kind;
        match kind {
            Some(kind) if kind.name != found.name => Err(Fault::bad_request(format!(
                "Entity type '{}' does not extend requested type '{}'",
                found.long_name(),
                kind.long_name()
            ))),
            _ => Ok(index),
        }
    }

    /// The listener that was made last.
    pub(crate) fn newest_listener(&self) -> Option<&Listener> {
        match self.entities.last().map(|e| &e.live) {
            Some(Live::Listener(listener)) => Some(listener),
            _ => None,
        }
    }

    /// Where the listener of this name listens.
    pub(crate) fn port(&self, name: &str) -> Option<u16> {
        self.entities.iter().find_map(|e| match &e.live {
            Live::Listener(listener) if e.attributes.get("name").map(text)? == name => {
                listener.port
            }
            _ => None,
        })
    }
}

impl Entity {
    /// Its attributes, the moving ones refreshed.
    fn shown(&self) -> Attributes {
        let mut attributes = self.attributes.clone();
        let mut set = |name: &str, value: Value| attributes.insert(name.to_owned(), value);
        match &self.live {
            Live::Connector(connector) => {
                let (status, message) = connector.status();
                set("connectionStatus", Value::String(status.to_owned()));
                set("connectionMsg", Value::String(message));
                set("failoverUrls", Value::String(connector.url()));
            }
            Live::TlsUser(_) => {
                for counter in [
                    "connectionsOpened",
                    "connectionsClosed",
                    "bytesIn",
                    "bytesOut",
                ] {
                    set(counter, Value::Int(0));
                }
                if self.kind.name == "tcpListener" {
                    set("operStatus", Value::String("down".to_owned()));
                }
            }
            _ => {}
        }
        attributes
    }

    /// A refused update of a profile still shows in its attributes, as in the real router.
    fn update(&mut self, router: &Router, body: &Value) -> Result<Value, Fault> {
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
        Ok(map(self.shown()))
    }
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
        ("edge", "inter-router", _) => Err(Fault::validation(format!(
            "role='inter-router' only allowed with router mode='interior' for {name}"
        ))),
        ("edge", "edge", "listener") => Err(Fault::validation(format!(
            "role='edge' only allowed with router mode='interior' for {name}"
        ))),
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
            "'{word}' is not a valid log level. Should be one of {{none, debug, info, warning, error, critical}}."
        ))),
        None => Ok(()),
    }
}

pub(crate) fn is_connection(name: &str) -> bool {
    name.strip_prefix(crate::schema::PREFIX).unwrap_or(name) == "connection"
}

/// Served by another part of the real router: any body will do, and pages are honoured.
fn query_connections(router: &Router, request: &Request) -> Value {
    let asked = match body_map(&request.body, "get")
        .ok()
        .and_then(|mut b| b.remove("attributeNames"))
    {
        Some(Value::List(names)) => names.iter().map(text).collect(),
        _ => Vec::new(),
    };
    let names: Vec<String> = if asked.is_empty() {
        COLUMNS.iter().map(|name| (*name).to_owned()).collect()
    } else {
        asked
    };
    let rows = router.links.rows();
    let page = rows
        .iter()
        .skip(request.offset)
        .take(request.count.unwrap_or(usize::MAX));
    table(&names, page.map(|(_, row)| columns(row, &names)))
}

/// Our own row, with the neighbours that are there now; and a row for each router heard of lately.
fn nodes(router: &Router) -> Vec<Attributes> {
    if router.mode == "edge" {
        return Vec::new();
    }
    let neighbours = router.links.neighbours();
    let row = |id: &str, next_hop: Value, link_state: Vec<String>, cost: i32, link: Value| {
        let identity = format!("router.node/{id}");
        Attributes::from(
            [
                ("id", Value::String(id.to_owned())),
                ("protocolVersion", Value::Int(1)),
                ("instance", Value::Int(0)),
                (
                    "linkState",
                    Value::List(link_state.into_iter().map(Value::String).collect()),
                ),
                ("nextHop", next_hop),
                ("validOrigins", Value::List(Vec::new())),
                ("address", Value::String(format!("amqp:/_topo/0/{id}"))),
                ("routerLink", link),
                ("cost", Value::Int(cost)),
                ("lastTopoChange", Value::Int(0)),
                ("index", Value::Int(0)),
                ("name", Value::String(identity.clone())),
                ("identity", Value::String(identity)),
                (
                    "type",
                    Value::String("io.skupper.router.router.node".to_owned()),
                ),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        )
    };
    let own = row(
        &router.id,
        Value::String("(self)".to_owned()),
        neighbours.clone(),
        0,
        Value::Null,
    );
    let others = router.links.nodes().into_iter().map(|id| {
        let is_there = neighbours.contains(&id);
        let link = if is_there { Value::Int(0) } else { Value::Null };
        row(&id, Value::Null, vec![router.id.clone()], 1, link)
    });
    std::iter::once(own).chain(others).collect()
}

/// The body as a map. What is not a map ends in the exception that the real agent runs into.
fn body_map(body: &Value, method: &str) -> Result<Attributes, Fault> {
    let wrong = |what: &str| {
        Fault::internal(
            "AttributeError",
            format!("'{what}' object has no attribute '{method}'"),
        )
    };
    match body {
        Value::Map(map) => Ok(map
            .iter()
            .map(|(key, value)| (text(key), value.clone()))
            .collect()),
        Value::Null => Err(wrong("NoneType")),
        Value::List(_) => Err(wrong("list")),
        _ => Err(wrong("str")),
    }
}

fn columns(row: &Attributes, names: &[String]) -> Vec<Value> {
    names
        .iter()
        .map(|name| row.get(name).cloned().unwrap_or_default())
        .collect()
}

fn has_content(row: &[Value]) -> bool {
    row.iter().any(|value| *value != Value::Null)
}

fn table(names: &[String], rows: impl Iterator<Item = Vec<Value>>) -> Value {
    let names = names.iter().cloned().map(Value::String).collect();
    map(Attributes::from([
        ("attributeNames".to_owned(), Value::List(names)),
        (
            "results".to_owned(),
            Value::List(rows.map(Value::List).collect()),
        ),
    ]))
}

fn map(attributes: Attributes) -> Value {
    Value::Map(
        attributes
            .into_iter()
            .map(|(name, value)| (Value::String(name), value))
            .collect(),
    )
}
