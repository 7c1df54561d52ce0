//! What does a router's configuration document say?
//!
//! Both `bootstrap.json` and `skrouterd.json` are such documents, in upstream's format: a JSON list
//! of `[type, attributes]` (`facts/skupper-v2.md` §3.1).

use crate::entity::{Entity, EntityType};
use serde_json::value::RawValue;
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
        // One after the other: as JSON values, thousands of entries take several times their room.
        let entries: Vec<&RawValue> =
            serde_json::from_slice(json).map_err(ParseDocument::ReadJson)?;
        let mut names = BTreeSet::new();
        let mut entities = Vec::with_capacity(entries.len());
        for (index, entry) in entries.into_iter().enumerate() {
            let (type_name, attributes): (String, Map<String, Value>) =
                serde_json::from_str(entry.get()).map_err(ParseDocument::ReadJson)?;
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
            // Sorted by hand: how a `Map` is ordered depends on a cargo feature that any crate may
            // turn on.
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

/// What must not occur twice in a document: the name where there is one, else what the router tells
/// entities of that type apart by (`facts/router.md` §1).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::{Connector, Listener, Mode, Role};

    /// The example of `facts/skupper-v2.md` §3.5, without the type that follows later.
    const EXAMPLE: &str = r#"[
        ["router", {"id": "west-${HOSTNAME}", "mode": "interior", "helloMaxAgeSeconds": "3", "metadata": "{\"id\":\"u\"}"}],
        ["sslProfile", {"name": "skupper-local-server", "certFile": "/c/tls.crt", "privateKeyFile": "/c/tls.key", "caCertFile": "/c/ca.crt"}],
        ["listener", {"name": "amqp", "host": "localhost", "port": 5672}],
        ["listener", {"name": "amqps", "port": 5671, "sslProfile": "skupper-local-server", "saslMechanisms": "EXTERNAL", "authenticatePeer": true}],
        ["listener", {"name": "@9090", "role": "normal", "port": 9090, "http": true, "httpRootDir": "disabled", "healthz": true, "metrics": true}],
        ["connector", {"name": "east", "role": "inter-router", "host": "east.example.com", "port": "55671", "cost": 1, "sslProfile": "east-profile"}],
        ["address", {"prefix": "mc", "distribution": "multicast"}],
        ["log", {"module": "ROUTER_CORE", "enable": "error+"}]
    ]"#;

    fn parse(json: &str) -> Result<Document, ParseDocument> {
        Document::parse(json.as_bytes())
    }

    fn refusal(json: &str) -> String {
        parse(json).unwrap_err().to_string()
    }

    #[test]
    fn the_format_of_upstream_is_read() {
        let document = parse(EXAMPLE).unwrap();
        let Entity::Router(router) = &document.entities[0] else {
            panic!("{document:?}")
        };
        assert_eq!(
            (router.mode, router.hello_max_age_seconds.as_deref()),
            (Mode::Interior, Some("3"))
        );
        let Entity::Connector(connector) = &document.entities[5] else {
            panic!("{document:?}")
        };
        let expected = Connector {
            name: "east".to_owned(),
            role: Role::InterRouter,
            host: "east.example.com".to_owned(),
            port: 55671,
            cost: Some(1),
            ssl_profile: Some("east-profile".to_owned()),
            ..Connector::default()
        };
        assert_eq!(*connector, expected);
        assert_eq!(
            document.profile_names().into_iter().collect::<Vec<_>>(),
            ["east-profile", "skupper-local-server"]
        );
    }

    #[test]
    fn what_was_written_is_read_back_and_written_the_same() {
        let mut document = parse(EXAMPLE).unwrap();
        let json = document.to_json();
        document.entities.reverse();
        assert_eq!(
            document.to_json(),
            json,
            "the order of entities does not matter"
        );
        let again = parse(&json).unwrap();
        assert_eq!(again.to_json(), json);
        assert_eq!(again.entities.len(), document.entities.len());
        assert!(
            document
                .entities
                .iter()
                .all(|entity| again.entities.contains(entity))
        );
    }

    #[test]
    fn entities_are_written_in_the_order_of_upstream_and_by_name() {
        let listener = |name: &str, port| {
            Entity::Listener(Listener {
                name: name.to_owned(),
                port,
                ..Listener::default()
            })
        };
        let connector = Connector {
            name: "c".to_owned(),
            port: 1,
            ..Connector::default()
        };
        let entities = vec![
            listener("b", 2),
            listener("a", 1),
            Entity::Connector(connector),
        ];
        assert_eq!(
            Document { entities }.to_json(),
            r#"[["connector",{"host":"","name":"c","port":"1","role":"normal"}],["listener",{"name":"a","port":1,"role":"normal"}],["listener",{"name":"b","port":2,"role":"normal"}]]"#
        );
    }

    #[test]
    fn an_attribute_that_nobody_knows_is_kept() {
        let json = r#"[["connector",{"host":"h","linkCapacity":10,"name":"c","port":"1","role":"normal"}]]"#;
        assert_eq!(parse(json).unwrap().to_json(), json);
    }

    #[test]
    fn an_unknown_type_is_named() {
        assert_eq!(
            refusal(r#"[["httpListener", {"name": "a"}]]"#),
            r#"entry 0 has the unknown type "httpListener""#
        );
    }

    #[test]
    fn a_name_may_not_occur_twice_over_all_types() {
        let json = r#"[["sslProfile", {"name": "a"}], ["connector", {"name": "a", "host": "h", "port": 1}]]"#;
        assert_eq!(refusal(json), r#"two entities are called "a""#);
        let json = r#"[["log", {"module": "M", "enable": "info+"}], ["log", {"module": "M", "enable": "debug+"}]]"#;
        assert_eq!(refusal(json), r#"two entities are called "log/M""#);
    }

    #[test]
    fn a_path_that_leaves_its_folder_is_refused() {
        for path in ["../ca.crt", "/certs/../../etc/passwd", "/certs/.."] {
            let json = format!(r#"[["sslProfile", {{"name": "a", "caCertFile": "{path}"}}]]"#);
            assert_eq!(
                refusal(&json),
                r#"caCertFile of sslProfile/a is a path with "..""#
            );
        }
        assert!(
            parse(r#"[["sslProfile", {"name": "a..b", "caCertFile": "/certs/a..b/ca.crt"}]]"#)
                .is_ok()
        );
        assert!(parse(r#"[["sslProfile", {"name": "a", "password": "file:/p/../q"}]]"#).is_err());
    }

    #[test]
    fn what_is_no_document_is_refused_with_a_reason() {
        assert!(refusal("").contains("no JSON list"));
        assert!(refusal("{}").contains("no JSON list"));
        assert!(refusal(r#"[["connector"]]"#).contains("no JSON list"));
        assert!(
            refusal(r#"[["connector", {"host": "h", "port": 1}]]"#)
                .contains("missing field `name`")
        );
        assert!(
            refusal(r#"[["connector", {"name": "", "host": "h", "port": 1}]]"#)
                .contains("empty name")
        );
        assert!(
            refusal(r#"[["connector", {"name": "a", "host": "h", "port": 70000}]]"#)
                .contains("out of range")
        );
        assert!(
            refusal(r#"[["listener", {"name": "a", "role": "king", "port": 1}]]"#).contains("king")
        );
        assert_eq!(
            refusal(&" ".repeat(MAX_DOCUMENT + 1)),
            "the document has 1048577 bytes, more than 1048576"
        );
    }

    #[test]
    fn numbers_and_booleans_are_read_in_every_spelling() {
        let spellings = [
            r#"[["listener", {"name": "a", "port": 1, "cost": 2, "authenticatePeer": true}]]"#,
            r#"[["listener", {"name": "a", "port": "1", "cost": "2", "authenticatePeer": "yes"}]]"#,
        ];
        let [number, text] = spellings.map(|json| parse(json).unwrap());
        assert_eq!(number, text);
    }
}
