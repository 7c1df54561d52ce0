//! What does a router's configuration document say?
//!
//! Both `bootstrap.json` and `skrouterd.json` are such documents, in upstream's format: a JSON list of
//! `[type, attributes]` (`facts/skupper-v2.md` §3.1).

use crate::entity::{Entity, EntityType};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// The key of the document that the router process reads at its start. It names no TLS file.
pub const BOOTSTRAP_FILE: &str = "bootstrap.json";

/// The key of the whole wanted configuration.
pub const CONFIG_FILE: &str = "skrouterd.json";

/// The largest document that is read, in bytes: what a ConfigMap can hold.
pub const MAX_DOCUMENT: usize = 1024 * 1024;

/// Attributes that hold paths.
const PATHS: [&str; 5] = [
    "caCertFile",
    "certFile",
    "privateKeyFile",
    "httpRootDir",
    "outputFile",
];

/// A configuration, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// What it holds. No two have the same name.
    pub entities: Vec<Entity>,
}

/// Why a document was refused.
#[derive(Debug, Error)]
pub enum ParseDocument {
    /// Over [`MAX_DOCUMENT`].
    #[error("the document has {size} bytes, more than {MAX_DOCUMENT}")]
    LimitSize {
        /// In bytes.
        size: usize,
    },
    /// No JSON list of pairs.
    #[error("the document is no JSON list of [type, attributes]: {0}")]
    ReadJson(#[source] serde_json::Error),
    /// A type that this version does not know.
    #[error("entry {index} has the unknown type {entity_type:?}")]
    KnowType {
        /// As written.
        entity_type: String,
        /// Counted from 0.
        index: usize,
    },
    /// An attribute is missing or has the wrong shape.
    #[error("entry {index}, a {entity_type}, is not right: {source}")]
    ReadEntity {
        /// The short name.
        entity_type: &'static str,
        /// Counted from 0.
        index: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Two entities with one name, of whatever types; two routers; two logs of one module.
    #[error("two entities are called {name:?}")]
    TellApart {
        /// The name.
        name: String,
    },
    /// An entity whose name is empty.
    #[error("entry {index}, a {entity_type}, has an empty name")]
    NameEntity {
        /// The short name.
        entity_type: &'static str,
        /// Counted from 0.
        index: usize,
    },
    /// A path that leaves its folder.
    #[error("{attribute} of {entity} is a path with \"..\"")]
    FollowPath {
        /// Type and name.
        entity: String,
        /// The attribute.
        attribute: String,
    },
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    /// See [`ParseDocument`]: a document is taken whole or not at all.
    pub fn parse(json: &[u8]) -> Result<Self, ParseDocument> {
        if json.len() > MAX_DOCUMENT {
            return Err(ParseDocument::LimitSize { size: json.len() });
        }
        let entries: Vec<(String, Map<String, Value>)> =
            serde_json::from_slice(json).map_err(ParseDocument::ReadJson)?;
        let mut names = BTreeSet::new();
        let mut entities = Vec::with_capacity(entries.len());
        for (index, (type_name, attributes)) in entries.into_iter().enumerate() {
            let Some(entity_type) = EntityType::from_short_name(&type_name) else {
                return Err(ParseDocument::KnowType {
                    entity_type: type_name,
                    index,
                });
            };
            let entity = Entity::from_attributes(entity_type, attributes).map_err(|source| {
                ParseDocument::ReadEntity {
                    entity_type: entity_type.short_name(),
                    index,
                    source,
                }
            })?;
            if entity.name() == Some("") {
                let entity_type = entity_type.short_name();
                return Err(ParseDocument::NameEntity { entity_type, index });
            }
            check_paths(&entity)?;
            let name = unique_name(&entity);
            if !names.insert(name.clone()) {
                return Err(ParseDocument::TellApart { name });
            }
            entities.push(entity);
        }
        Ok(Self { entities })
    }

    /// Writes the document: compact, and the same text for the same entities in whatever order.
    pub fn to_json(&self) -> String {
        let mut entities: Vec<&Entity> = self.entities.iter().collect();
        entities.sort_by_cached_key(|entity| (entity.entity_type(), unique_name(entity)));
        let entries = entities
            .into_iter()
            // Sorted by hand: how a `Map` is ordered depends on a cargo feature that any crate may turn on.
            .map(|entity| (entity.type_name(), BTreeMap::from_iter(entity.attributes())))
            .collect::<Vec<_>>();
        // Lists of text and JSON values cannot fail to be written.
        serde_json::to_string(&entries).unwrap_or_default()
    }

    /// The profiles that listeners and connectors name.
    pub fn profile_names(&self) -> BTreeSet<&str> {
        self.entities
            .iter()
            .filter_map(Entity::ssl_profile)
            .collect()
    }
}

/// What must not occur twice in a document: the name where there is one, else what the router tells entities of that
/// type apart by (`facts/router.md` §1).
fn unique_name(entity: &Entity) -> String {
    match entity {
        Entity::Router(_) => "router/".to_owned(),
        Entity::Address(address) => format!("address/{}", address.prefix),
        Entity::Log(log) => format!("log/{}", log.module),
        Entity::Site(_) => "site/".to_owned(),
        Entity::SslProfile(profile) => profile.name.clone(),
        Entity::Connector(connector) => connector.name.clone(),
        Entity::Listener(listener) => listener.name.clone(),
    }
}

fn check_paths(entity: &Entity) -> Result<(), ParseDocument> {
    for (attribute, value) in entity.attributes() {
        let Some(text) = value.as_str() else { continue };
        let is_path = PATHS.contains(&attribute.as_str()) || text.starts_with("file:");
        if is_path
            && text
                .trim_start_matches("file:")
                .split('/')
                .any(|part| part == "..")
        {
            let entity = entity
                .id()
                .map_or_else(|| unique_name(entity), |id| id.to_string());
            return Err(ParseDocument::FollowPath { entity, attribute });
        }
    }
    Ok(())
}
