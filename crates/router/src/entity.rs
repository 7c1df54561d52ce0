//! What may stand in a router's configuration, and how is it told apart?

use serde_json::{Map, Value};
use std::fmt;

mod types;

pub use types::{Address, Connector, Listener, Log, Mode, Role, Router, Site, SslProfile};

/// The types of entities, in the order in which upstream writes them and in which one may depend on
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntityType {
    /// `router`: fixed when the process starts.
    Router,
    /// `sslProfile`.
    SslProfile,
    /// `connector`.
    Connector,
    /// `listener`.
    Listener,
    /// `address`: fixed when the process starts.
    Address,
    /// `log`: fixed when the process starts, as far as we are concerned.
    Log,
    /// `site`: fixed when the process starts.
    Site,
}

impl EntityType {
    /// All of them, in order.
    pub const ALL: [Self; 7] = [
        Self::Router,
        Self::SslProfile,
        Self::Connector,
        Self::Listener,
        Self::Address,
        Self::Log,
        Self::Site,
    ];

    /// The name used in a configuration document.
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::SslProfile => "sslProfile",
            Self::Connector => "connector",
            Self::Listener => "listener",
            Self::Address => "address",
            Self::Log => "log",
            Self::Site => "site",
        }
    }

    /// The name used in management requests. An address has another one there (`facts/router.md`
    /// §3).
    pub const fn management_name(self) -> &'static str {
        match self {
            Self::Router => "io.skupper.router.router",
            Self::SslProfile => "io.skupper.router.sslProfile",
            Self::Connector => "io.skupper.router.connector",
            Self::Listener => "io.skupper.router.listener",
            Self::Address => "io.skupper.router.router.config.address",
            Self::Log => "io.skupper.router.log",
            Self::Site => "io.skupper.router.site",
        }
    }

    /// The attributes that the type here has a field for: what there is to compare with a router,
    /// unless the configuration names others.
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Router => &[
                "id",
                "mode",
                "helloMaxAgeSeconds",
                "dataConnectionCount",
                "metadata",
            ],
            Self::SslProfile => &[
                "name",
                "caCertFile",
                "certFile",
                "privateKeyFile",
                "ordinal",
                "oldestValidOrdinal",
                "protocols",
                "ciphers",
            ],
            Self::Connector => &[
                "name",
                "role",
                "host",
                "port",
                "cost",
                "sslProfile",
                "verifyHostname",
            ],
            Self::Listener => &[
                "name",
                "role",
                "host",
                "port",
                "cost",
                "sslProfile",
                "saslMechanisms",
                "authenticatePeer",
                "http",
                "httpRootDir",
                "websockets",
                "healthz",
                "metrics",
            ],
            Self::Address => &["prefix", "distribution"],
            Self::Log => &["module", "enable"],
            Self::Site => &["name"],
        }
    }

    /// The type with this short name.
    pub fn from_short_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|entity_type| entity_type.short_name() == name)
    }
}

/// Names one entity: `connector/west`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId {
    /// Its type.
    pub entity_type: EntityType,
    /// Its name, unique in a router over all types.
    pub name: String,
}

impl EntityId {
    /// Names the entity of this type and name.
    pub fn new(entity_type: EntityType, name: impl Into<String>) -> Self {
        Self {
            entity_type,
            name: name.into(),
        }
    }
}

impl fmt::Display for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.entity_type.short_name(), self.name)
    }
}

/// One entity of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each variant is documented by the type it holds"
)]
pub enum Entity {
    Router(Router),
    SslProfile(SslProfile),
    Connector(Connector),
    Listener(Listener),
    Address(Address),
    Log(Log),
    Site(Site),
}

impl Entity {
    /// Reads an entity of this type from its attributes; null attributes count as absent.
    ///
    /// # Errors
    /// An attribute that must be there is not, or one has a value of the wrong shape.
    pub fn from_attributes(
        entity_type: EntityType,
        mut attributes: Map<String, Value>,
    ) -> Result<Self, serde_json::Error> {
        attributes.retain(|_, value| !value.is_null());
        let value = Value::Object(attributes);
        Ok(match entity_type {
            EntityType::Router => Self::Router(serde_json::from_value(value)?),
            EntityType::SslProfile => Self::SslProfile(serde_json::from_value(value)?),
            EntityType::Connector => Self::Connector(serde_json::from_value(value)?),
            EntityType::Listener => Self::Listener(serde_json::from_value(value)?),
            EntityType::Address => Self::Address(serde_json::from_value(value)?),
            EntityType::Log => Self::Log(serde_json::from_value(value)?),
            EntityType::Site => Self::Site(serde_json::from_value(value)?),
        })
    }

    /// The attributes, as they stand in a document and in the body of a CREATE.
    pub fn attributes(&self) -> Map<String, Value> {
        let value = match self {
            Self::Router(entity) => serde_json::to_value(entity),
            Self::SslProfile(entity) => serde_json::to_value(entity),
            Self::Connector(entity) => serde_json::to_value(entity),
            Self::Listener(entity) => serde_json::to_value(entity),
            Self::Address(entity) => serde_json::to_value(entity),
            Self::Log(entity) => serde_json::to_value(entity),
            Self::Site(entity) => serde_json::to_value(entity),
        };
        match value {
            Ok(Value::Object(attributes)) => attributes,
            // Structs with text keys always become objects.
            _ => Map::new(),
        }
    }

    /// Its type.
    pub const fn entity_type(&self) -> EntityType {
        match self {
            Self::Router(_) => EntityType::Router,
            Self::SslProfile(_) => EntityType::SslProfile,
            Self::Connector(_) => EntityType::Connector,
            Self::Listener(_) => EntityType::Listener,
            Self::Address(_) => EntityType::Address,
            Self::Log(_) => EntityType::Log,
            Self::Site(_) => EntityType::Site,
        }
    }

    /// The short name of its type.
    pub const fn type_name(&self) -> &'static str {
        self.entity_type().short_name()
    }

    /// Its name, if its type has one and it is set. An address goes by its prefix and a log by its
    /// module, which are no names: they do not clash with those of other types.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::SslProfile(entity) => Some(&entity.name),
            Self::Connector(entity) => Some(&entity.name),
            Self::Listener(entity) => Some(&entity.name),
            Self::Site(entity) => entity.name.as_deref(),
            Self::Router(_) | Self::Address(_) | Self::Log(_) => None,
        }
    }

    /// Its type and name, if it has one.
    pub fn id(&self) -> Option<EntityId> {
        self.name()
            .map(|name| EntityId::new(self.entity_type(), name))
    }

    /// Its attributes that no field here knows.
    pub const fn other(&self) -> &Map<String, Value> {
        match self {
            Self::Router(entity) => &entity.other,
            Self::SslProfile(entity) => &entity.other,
            Self::Connector(entity) => &entity.other,
            Self::Listener(entity) => &entity.other,
            Self::Address(entity) => &entity.other,
            Self::Log(entity) => &entity.other,
            Self::Site(entity) => &entity.other,
        }
    }

    /// The TLS profile that it uses.
    pub fn ssl_profile(&self) -> Option<&str> {
        match self {
            Self::Connector(entity) => entity.ssl_profile.as_deref(),
            Self::Listener(entity) => entity.ssl_profile.as_deref(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_listed_and_nothing_else_is() {
        for entity_type in EntityType::ALL {
            let attribute = |name: &&str| {
                let value = match *name {
                    "mode" => Value::from("edge"),
                    "role" => Value::from("inter-router"),
                    _ => Value::from("1"),
                };
                ((*name).to_owned(), value)
            };
            let attributes: Map<String, Value> = entity_type
                .fields()
                .iter()
                .map(attribute)
                .chain([("colour".to_owned(), "red".into())])
                .collect();
            let entity = Entity::from_attributes(entity_type, attributes).unwrap();
            assert_eq!(
                entity.other().keys().collect::<Vec<_>>(),
                ["colour"],
                "{entity:?}"
            );
            assert_eq!(
                entity.attributes().len(),
                entity_type.fields().len() + 1,
                "{entity:?}"
            );
            assert_eq!(
                EntityType::from_short_name(entity.type_name()),
                Some(entity_type)
            );
        }
    }

    #[test]
    fn null_attributes_are_absent() {
        let attributes = serde_json::json!({ "name": "a", "port": 1, "cost": null, "host": null });
        let Value::Object(attributes) = attributes else {
            panic!()
        };
        let entity = Entity::from_attributes(EntityType::Listener, attributes).unwrap();
        assert_eq!(entity.attributes().len(), 3);
    }
}
