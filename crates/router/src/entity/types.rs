//! Which attributes does an entity of each type have?
//!
//! The names are upstream's (`facts/skupper-v2.md` §3.1). An attribute that no field here knows is
//! kept in `other` and handed to the router as it stands: the router judges it, and a wrong one
//! costs that entity only.

use crate::attribute;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The router itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Router {
    /// Unique in the network; `${HOSTNAME}` in it is expanded by the image's start script, never by
    /// the router.
    pub id: String,
    /// Interior or edge.
    pub mode: Mode,
    /// Seconds without a hello after which a neighbour counts as gone. Upstream writes it as text.
    #[serde(
        default,
        deserialize_with = "attribute::text",
        skip_serializing_if = "Option::is_none"
    )]
    pub hello_max_age_seconds: Option<String>,
    /// Number of data connections a link, or `auto`. Upstream writes it as text.
    #[serde(
        default,
        deserialize_with = "attribute::text",
        skip_serializing_if = "Option::is_none"
    )]
    pub data_connection_count: Option<String>,
    /// Text that holds JSON: the site's id, the version and the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// Attributes that are none of the above.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// What part a router plays in the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Takes part in routing.
    #[default]
    Interior,
    /// Hangs on one interior router at a time.
    Edge,
    /// Takes no links at all.
    Standalone,
}

/// What a listener or connector is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Clients.
    #[default]
    Normal,
    /// Another interior router.
    InterRouter,
    /// The data connections of a link between interior routers.
    InterRouterData,
    /// An edge router.
    Edge,
    /// A link between two edge routers.
    InterEdge,
    /// A broker.
    RouteContainer,
}

/// The TLS files of listeners and connectors, under a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SslProfile {
    /// Unique over all types.
    pub name: String,
    /// Whom to trust; PEM, one certificate or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_cert_file: Option<String>,
    /// What to show: the leaf first; PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<String>,
    /// The leaf's key; PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_key_file: Option<String>,
    /// Raised when the files change, so that connectors dial anew; absent counts as 0
    /// (`facts/router.md` §6).
    #[serde(
        default,
        deserialize_with = "attribute::number",
        skip_serializing_if = "Option::is_none"
    )]
    pub ordinal: Option<u64>,
    /// Connections with a lower ordinal are closed; absent counts as 0.
    #[serde(
        default,
        deserialize_with = "attribute::number",
        skip_serializing_if = "Option::is_none"
    )]
    pub oldest_valid_ordinal: Option<u64>,
    /// TLS versions allowed, as in `TLSv1.2 TLSv1.3`. Unset, the router takes TLS 1.0 too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocols: Option<String>,
    /// Ciphers allowed, in OpenSSL's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ciphers: Option<String>,
    /// Attributes that are none of the above.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Something that the router dials, and dials again for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connector {
    /// Unique over all types.
    pub name: String,
    /// What for.
    #[serde(default)]
    pub role: Role,
    /// Name or address to dial. Only a DNS name in the certificate matches it, an IP too
    /// (`facts/router.md` §5).
    pub host: String,
    /// Port to dial. Upstream writes it as text.
    #[serde(
        deserialize_with = "attribute::port",
        serialize_with = "attribute::port_as_text"
    )]
    pub port: u16,
    /// Weight of the link; absent counts as 1.
    #[serde(
        default,
        deserialize_with = "attribute::number",
        skip_serializing_if = "Option::is_none"
    )]
    pub cost: Option<u32>,
    /// TLS with this profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssl_profile: Option<String>,
    /// Whether the certificate must name `host`; absent counts as true.
    #[serde(
        default,
        deserialize_with = "attribute::flag",
        skip_serializing_if = "Option::is_none"
    )]
    pub verify_hostname: Option<bool>,
    /// Attributes that are none of the above.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A port that the router opens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// Unique over all types.
    pub name: String,
    /// What for.
    #[serde(default)]
    pub role: Role,
    /// Address to bind; absent or empty is every address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Port to bind. Upstream writes it as a number.
    #[serde(deserialize_with = "attribute::port")]
    pub port: u16,
    /// Weight of links that come in here; absent counts as 1.
    #[serde(
        default,
        deserialize_with = "attribute::number",
        skip_serializing_if = "Option::is_none"
    )]
    pub cost: Option<u32>,
    /// TLS with this profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssl_profile: Option<String>,
    /// Mechanisms offered, as in `EXTERNAL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sasl_mechanisms: Option<String>,
    /// Whether a peer must say who it is; absent counts as false.
    #[serde(
        default,
        deserialize_with = "attribute::flag",
        skip_serializing_if = "Option::is_none"
    )]
    pub authenticate_peer: Option<bool>,
    /// Whether it speaks HTTP; absent counts as false.
    #[serde(
        default,
        deserialize_with = "attribute::flag",
        skip_serializing_if = "Option::is_none"
    )]
    pub http: Option<bool>,
    /// Folder served over HTTP, or `disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_root_dir: Option<String>,
    /// Whether HTTP carries AMQP over web sockets.
    #[serde(
        default,
        deserialize_with = "attribute::flag",
        skip_serializing_if = "Option::is_none"
    )]
    pub websockets: Option<bool>,
    /// Whether `/healthz` is served.
    #[serde(
        default,
        deserialize_with = "attribute::flag",
        skip_serializing_if = "Option::is_none"
    )]
    pub healthz: Option<bool>,
    /// Whether `/metrics` is served.
    #[serde(
        default,
        deserialize_with = "attribute::flag",
        skip_serializing_if = "Option::is_none"
    )]
    pub metrics: Option<bool>,
    /// Attributes that are none of the above.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// How messages to addresses with a prefix are spread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The prefix, as in `mc`.
    pub prefix: String,
    /// As in `multicast`.
    pub distribution: String,
    /// Attributes that are none of the above.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// What a module of the router logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Log {
    /// As in `ROUTER_CORE` or `DEFAULT`.
    pub module: String,
    /// As in `info+`.
    pub enable: String,
    /// Attributes that are none of the above.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The site that the router belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Site {
    /// The site's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Attributes that are none of the above.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}
