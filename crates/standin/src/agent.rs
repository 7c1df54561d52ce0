//! What does the management node answer?

use std::collections::BTreeMap;
use std::sync::Arc;

use fe2o3_amqp::types::primitives::Value;

use crate::entity::{Entity, Live, bring_up, check_roles, identify};
use crate::fault::Fault;
use crate::listener::Listener;
use crate::router::Router;
use crate::schema::{Attributes, EntityType, PREFIX, entity_type, text};
use crate::table::{self, body_map, map};

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

/// A status and a body, or what was wrong.
type Outcome = Result<(i32, Value), Fault>;

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
                let text = format_args!("Error performing {operation}: {description}");
                router.log("AGENT", "error", text);
                Reply {
                    status: fault.status,
                    description,
                    body: table::empty(),
                }
            }
        }
    }

    fn perform(&mut self, router: &Arc<Router>, request: &Request) -> Outcome {
        let operation = request
            .operation
            .as_deref()
            .ok_or_else(|| Fault::bad_request("No 'operation' property"))?
            .to_uppercase();
        let is_query = operation == "QUERY";
        let kind = if is_query {
            &request.entity_type
        } else {
            &request.kind
        };
        if kind.as_deref().is_some_and(is_connection) {
            return connections(router, &operation, request);
        }
        match operation.as_str() {
            "QUERY" => self.query(router, request),
            "GET-MGMT-NODES" => {
                let nodes = std::iter::once(router.id.clone()).chain(router.links.nodes());
                let address = |id: String| Value::String(format!("amqp:/_topo/0/{id}/$management"));
                Ok((200, Value::List(nodes.map(address).collect())))
            }
            "CREATE" => self.create_requested(router, request),
            "READ" | "UPDATE" | "DELETE" => self.perform_on_one(router, &operation, request),
            _ => Err(Fault::not_implemented(format!(
                "Operation '{operation}' not implemented for 'io.skupper.router.management'"
            ))),
        }
    }

    fn query(&self, router: &Router, request: &Request) -> Outcome {
        // The real agent answers with everything that it has.
        let name = request
            .entity_type
            .as_deref()
            .ok_or_else(|| Fault::bad_request("No 'entityType' property"))?;
        let kind = entity_type(name)?;
        let rows: Vec<Attributes> = if kind.name == "router.node" {
            table::nodes(router)
        } else {
            self.entities
                .iter()
                .filter(|e| e.kind.name == kind.name)
                .map(Entity::shown)
                .collect()
        };
        table::entities(kind, &rows, request).map(|body| (200, body))
    }

    fn create_requested(&mut self, router: &Arc<Router>, request: &Request) -> Outcome {
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
        let starts_listeners = matches!(kind.name, "listener" | "connector");
        if starts_listeners && self.entities.iter().any(Entity::is_failed_listener) {
            router.crash();
        }
        self.create(router, kind, attributes)
            .map(|attributes| (201, map(attributes)))
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
        identify(&mut self.counters, kind, &mut attributes);
        self.check_unique(kind, &attributes)?;
        let live = bring_up(router, &mut self.entities, kind, &attributes)?;
        let entity = Entity {
            kind,
            attributes,
            live,
        };
        let shown = entity.shown();
        self.entities.push(entity);
        Ok(shown)
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

    fn perform_on_one(&mut self, router: &Router, operation: &str, request: &Request) -> Outcome {
        let index = self.find(request)?;
        let entity = &mut self.entities[index];
        entity.kind.check_operation(operation)?;
        match operation {
            "UPDATE" => {
                entity.update(router, &request.body)?;
                Ok((200, map(entity.shown())))
            }
            "DELETE" => {
                // Whatever it held is let go; users of a profile keep what they have.
                self.entities.remove(index);
                Ok((204, table::empty()))
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

/// Is this the type that the core serves rather than the agent?
pub(crate) fn is_connection(name: &str) -> bool {
    name.strip_prefix(PREFIX).unwrap_or(name) == "connection"
}

fn connections(router: &Router, operation: &str, request: &Request) -> Outcome {
    match operation {
        "QUERY" => Ok((200, table::connections(router, request))),
        "READ" => table::connection(router, request).map(|body| (200, body)),
        "UPDATE" => Err(Fault::forbidden(
            "You are not allowed to perform this operation.",
        )),
        _ => Err(Fault::forbidden("Forbidden")),
    }
}
