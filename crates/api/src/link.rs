//! What is a link: a connection that this site makes to another one?

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{check, condition, condition::Condition, endpoint::Endpoint};

/// Where the remote site is, and with which credentials this one shows itself there.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "skupper.io",
    version = "v2alpha1",
    kind = "Link",
    doc = "A connection from this site to another one. Usually made by redeeming an AccessToken.",
    namespaced,
    status = "LinkStatus",
    category = "skupper",
    shortname = "ln",
    derive = "Default",
    derive = "PartialEq",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.status"),
    printcolumn(
        name = "Remote Site",
        type_ = "string",
        json_path = ".status.remoteSiteName"
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["endpoints"]))]
pub struct LinkSpec {
    /// The addresses of the remote site. An edge site dials the one named `edge`, others the one named `inter-router`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "check::endpoints")]
    pub endpoints: Vec<Endpoint>,

    /// The Secret (`tls.crt`, `tls.key`, `ca.crt`) with which this site shows itself to the remote one and knows it
    /// again. The link waits until it is complete, and nothing else waits with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::object_name")]
    pub tls_credentials: Option<String>,

    /// The price of sending by this link, where there is a choice: the cheapest way is taken first. 1 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub cost: Option<i32>,

    /// Deprecated, of v1alpha1: make the connection without a client certificate, and use only `ca.crt` of the Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_client_auth: Option<bool>,

    /// Finer settings by name: `proxy-configuration` names a Secret with `host`, `port`, `username` and `password` of
    /// an HTTP proxy to dial through.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// What is true of the link now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LinkStatus {
    /// Configured, Operational and Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::conditions")]
    pub conditions: Vec<Condition>,

    /// `Ready`, `Pending` or `Error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,

    /// `OK`, or what is missing and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// The uid of the Site at the other end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_site_id: Option<String>,

    /// The name of the Site at the other end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_site_name: Option<String>,
}

/// The reasons of a Link's conditions.
pub mod reason {
    pub use crate::condition::reason::{
        CREDENTIALS_EXPIRED, CREDENTIALS_INVALID, CREDENTIALS_NOT_FOUND, INTERNAL_ERROR,
        INVALID_OBJECT, NAME_TAKEN, NO_ACTIVE_SITE, PENDING, READY, ROUTER_REFUSED, TIMED_OUT,
        TOO_LARGE,
    };

    /// No endpoint has the role that this site needs: `edge` for an edge site, `inter-router` for any other. Add it,
    /// or redeem a new token.
    pub const NO_ENDPOINT: &str = "NoEndpoint";
    /// Another Link already goes to the same host and port, and the router keeps only one. Delete either.
    pub const DUPLICATE_TARGET: &str = "DuplicateTarget";
    /// The router has tried and is not connected; the message is what it saw. Look at the address, at what lies
    /// between, and at the remote site.
    pub const NOT_CONNECTED: &str = "NotConnected";
    /// The remote site's certificate is not vouched for by `ca.crt` of the credentials, or it does not take ours: one
    /// of the two CAs was replaced. Redeem a new token.
    pub const REMOTE_TRUST_BROKEN: &str = "RemoteTrustBroken";
}
