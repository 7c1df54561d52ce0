//! What does the configuration file say, and in which order does it come true?

use std::collections::BTreeSet;
use std::sync::Arc;

use fe2o3_amqp::types::primitives::{OrderedMap, Value};

use crate::entity::check_roles;
use crate::fault::Fault;
use crate::router::{Router, StartError, lock};
use crate::schema::{Attributes, EntityType, LOG_MODULES, PREFIX, entity_type};

/// A configuration file that has been read and fits the schema.
#[derive(Debug, Clone, Default)]
pub struct Config(Vec<Section>);

#[derive(Debug, Clone)]
struct Section {
    kind: &'static EntityType,
    attributes: Attributes,
}

/// Types that wait until everything else is there, in this order.
const LAST: [&str; 5] = [
    "connector",
    "listener",
    "tcpListener",
    "tcpConnector",
    "listenerAddress",
];

impl Config {
    /// Reads the JSON form: a list of `[type, attributes]`. `path` is for the error text only.
    pub fn parse(text: &str, path: &str) -> Result<Self, StartError> {
        if text.trim().is_empty() {
            return Err(refused("Configuration: Configuration file was empty"));
        }
        // Lines that begin with a hash are comments to the real reader, which also counts each line
        // twice when it says where a fault is.
        let lines: Vec<&str> = text
            .lines()
            .map(|line| {
                if line.trim_start().starts_with('#') {
                    ""
                } else {
                    line
                }
            })
            .collect();
        Self::sections(&lines.join("\n\n")).map_err(|fault| {
            refused(&format!(
                "Python: Exception: Cannot load configuration file {path}: {fault}"
            ))
        })
    }

    fn sections(text: &str) -> Result<Self, String> {
        let sections: Vec<(String, serde_json::Map<String, serde_json::Value>)> =
            serde_json::from_str(text).map_err(|fault| fault.to_string())?;
        let sections: Vec<Section> = sections
            .into_iter()
            .map(|(name, attributes)| section(&name, attributes))
            .collect::<Result<_, _>>()
            .map_err(|fault| fault.description())?;
        let config = Self(sections);
        config.check().map_err(|fault| fault.description())?;
        Ok(config)
    }

    /// What the real reader checks before anything is made.
    fn check(&self) -> Result<(), Fault> {
        let mut names = BTreeSet::new();
        let mode = self.router_text("mode");
        for Section { kind, attributes } in &self.0 {
            if let Some(Value::String(name)) = attributes.get("name")
                && !names.insert(name)
            {
                return Err(Fault::validation(format!(
                    "adding {} '{name}' duplicates unique attribute 'name' from existing entity",
                    kind.long_name()
                )));
            }
            check_roles(mode.as_deref(), kind, attributes)?;
        }
        if let Some(id) = self.router_text("id").filter(|id| id.contains(['|', '$'])) {
            return Err(Fault::validation(format!(
                "Router ID \"{id}\" containes at least one illegal character (\"|$\")."
            )));
        }
        Ok(())
    }

    /// An attribute of the router entity.
    pub(crate) fn router_text(&self, name: &str) -> Option<String> {
        let router = self
            .0
            .iter()
            .find(|section| section.kind.name == "router")?;
        match router.attributes.get(name) {
            Some(Value::String(text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// Makes every entity, connectors and listeners last.
    pub(crate) fn apply(mut self, router: &Arc<Router>) -> Result<(), StartError> {
        self.add_defaults();
        let rank = |section: &Section| {
            let name = section.kind.name;
            let last = LAST.iter().position(|kind| *kind == name).map(|at| at + 2);
            last.unwrap_or(usize::from(name != "sslProfile"))
        };
        self.0.sort_by_key(rank);
        let has_connector = self
            .0
            .iter()
            .any(|section| section.kind.name == "connector");
        let mut required = !has_connector;
        for Section { kind, attributes } in self.0 {
            let mut agent = lock(&router.agent);
            agent
                .create(router, kind, attributes)
                .map_err(|fault| refused(&fault.start_up()))?;
            if kind.name != "listener" {
                continue;
            }
            let Some(listener) = agent.newest_listener() else {
                continue;
            };
            if listener.port.is_none() && listener.is_http {
                return Err(StartError::Crashed);
            }
            if listener.port.is_none() && required {
                return Err(StartError::Refused(format!(
                    "SERVER (critical) Shutting down, required listener failed {}",
                    listener.address
                )));
            }
            // Only the very first in the file, of whatever kind.
            required = false;
        }
        Ok(())
    }

    /// A router entity, and a log entity for each module, are there whether named or not.
    fn add_defaults(&mut self) {
        let named: BTreeSet<String> = self
            .0
            .iter()
            .filter_map(|section| section.attributes.get("module"))
            .map(crate::schema::text)
            .collect();
        let mut add = |name: &str, attributes: Attributes| {
            if let Ok(kind) = entity_type(name) {
                self.0.push(Section { kind, attributes });
            }
        };
        for module in LOG_MODULES
            .iter()
            .filter(|module| !named.contains(**module))
        {
            let module = ("module".to_owned(), Value::String((*module).to_owned()));
            add("log", Attributes::from([module]));
        }
        for name in ["router", "network"] {
            if !self.0.iter().any(|section| section.kind.name == name)
                && let Ok(kind) = entity_type(name)
            {
                self.0.push(Section {
                    kind,
                    attributes: Attributes::new(),
                });
            }
        }
    }
}

fn section(
    name: &str,
    attributes: serde_json::Map<String, serde_json::Value>,
) -> Result<Section, Fault> {
    let name = if name == "address" {
        "router.config.address"
    } else {
        name
    };
    let kind = entity_type(&format!("{PREFIX}{name}"))?;
    let mut attributes: Attributes = attributes
        .into_iter()
        .map(|(name, value)| (name, amqp_value(value)))
        .collect();
    kind.normalise(&mut attributes)?;
    Ok(Section { kind, attributes })
}

/// JSON as AMQP, for the values that a configuration holds.
fn amqp_value(value: serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(is_set) => Value::Bool(is_set),
        serde_json::Value::Number(number) => number
            .as_i64()
            .map_or_else(|| Value::String(number.to_string()), Value::Long),
        serde_json::Value::String(text) => Value::String(text),
        serde_json::Value::Array(items) => Value::List(items.into_iter().map(amqp_value).collect()),
        serde_json::Value::Object(map) => {
            let map: OrderedMap<Value, Value> = map
                .into_iter()
                .map(|(key, value)| (Value::String(key), amqp_value(value)))
                .collect();
            Value::Map(map)
        }
    }
}

fn refused(reason: &str) -> StartError {
    StartError::Refused(format!(
        "ROUTER (critical) Router start-up failed: {reason}"
    ))
}

/// The file could not be read at all.
pub(crate) fn unreadable() -> StartError {
    refused("Not found: Configuration file could not be opened")
}
