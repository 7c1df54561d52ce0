//! Where is a router reached, and in which role?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An address at which a site accepts one kind of connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// The role that the listener behind it plays: `inter-router` for interior sites, `edge` for edge sites.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// A DNS name or an IP address (IPv6 without brackets).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The TCP port, a number from 1 to 65535 written as a string.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port: String,
    /// The router that answers there. A site with `ha` has two: a remote site makes one link to each.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
}
