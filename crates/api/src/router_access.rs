//! What is a router access: a place where this site's routers accept links?

use std::collections::BTreeMap;

use kube_core::Rule;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{check, condition, condition::Condition, endpoint::Endpoint};

/// Which connections the routers accept, with which credentials, and how they are reached.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "skupper.io",
    version = "v2alpha1",
    kind = "RouterAccess",
    plural = "routeraccesses",
    doc = "A place where the routers of this site accept links from other sites. `linkAccess` of the Site makes one; \
           write your own for more control.",
    namespaced,
    status = "RouterAccessStatus",
    category = "skupper",
    derive = "Default",
    derive = "PartialEq",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.status"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["roles", "tlsCredentials"]))]
pub struct RouterAccessSpec {
    /// The kinds of connection that are accepted, each on a port of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("minItems" = 1, "maxItems" = 8, "x-kubernetes-validations" = roles_are_unlike()))]
    pub roles: Vec<RouterAccessRole>,

    /// The Secret (`tls.crt`, `tls.key`, `ca.crt`) with which the routers show themselves to those that connect. With
    /// `generateTlsCredentials` the operator makes it.
    #[schemars(schema_with = "check::required_object_name")]
    pub tls_credentials: String,

    /// Let the operator issue the credentials, for exactly the addresses at which the routers are reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_tls_credentials: Option<bool>,

    /// The Secret of the CA that signs generated credentials. Without it the site's default issuer does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::object_name")]
    pub issuer: Option<String>,

    /// How the ports are offered to other clusters: `loadbalancer`, `nodeport`, `route`, `ingress`, `ingress-nginx`,
    /// `contour-http-proxy`, `gateway`, or `local` for this cluster only. Empty means the operator's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::access_type")]
    pub access_type: Option<String>,

    /// The address of the router pod to listen on. All of them if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::host")]
    pub bind_host: Option<String>,

    /// Further names and addresses that generated credentials are good for, such as a DNS name of your own that
    /// points at the load balancer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "check::hosts")]
    pub subject_alternative_names: Vec<String>,

    /// Finer settings of the access type by name: `domain` for routes, `ingressClassName` for ingresses.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,

    /// Deprecated, the spelling of v1alpha1 for `settings`. Where both name a setting, `settings` wins.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// A kind of connection that the routers accept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name"]))]
pub struct RouterAccessRole {
    /// Who may connect: `inter-router` for interior sites, `edge` for edge sites, `normal` for programs.
    #[schemars(extend("enum" = ["inter-router", "edge", "normal"]))]
    pub name: String,

    /// The port to listen on. If left out, 55671 for `inter-router` and 45671 for `edge`; `normal` needs one. Not 5671,
    /// 5672, 9000, 9090 or 9191, which the router pod uses itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
}

fn roles_are_unlike() -> serde_json::Value {
    let names = Rule::new("self.all(role, self.exists_one(other, other.name == role.name))")
        .message("each role may be given once: remove the second one, or put it into a RouterAccess of its own");
    let ports = Rule::new(
        "self.all(role, !has(role.port) || \
         self.exists_one(other, has(other.port) && other.port == role.port))",
    )
    .message("each role needs a port of its own: change one of them, or leave both out");
    check::rules(&[names, ports])
}

/// What is true of the access now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RouterAccessStatus {
    /// Configured, Resolved and Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::conditions")]
    pub conditions: Vec<Condition>,

    /// `Ready`, `Pending` or `Error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,

    /// `OK`, or what is missing and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Where remote sites reach the routers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
}

/// The reasons of a RouterAccess' conditions.
pub mod reason {
    pub use crate::condition::reason::{
        AWAITING_ADDRESS, CA_NOT_FOUND, CLUSTER_HOST_MISSING, CREDENTIALS_EXPIRED,
        CREDENTIALS_INVALID, CREDENTIALS_NOT_FOUND, EDGE_SITE, INTERNAL_ERROR, INVALID_OBJECT,
        NAME_TAKEN, NO_ACTIVE_SITE, PENDING, READY, ROUTER_REFUSED, TIMED_OUT, TOO_LARGE,
        UNSUPPORTED_ACCESS_TYPE, WRITE_FAILED,
    };

    /// A role asks for a port that the router pod uses itself: 5671, 5672, 9000, 9090 or 9191. Give it another one.
    pub const PORT_RESERVED: &str = "PortReserved";
    /// A role asks for a port that another RouterAccess of this namespace already has. The message names it; change
    /// either.
    pub const DUPLICATE_PORT: &str = "DuplicatePort";
    /// Another RouterAccess wants the same credentials from another issuer. Name another Secret in
    /// `tlsCredentials`, or the same issuer.
    pub const CREDENTIALS_CONFLICT: &str = "CredentialsConflict";
    /// A role is not one that a router knows: `inter-router`, `edge` or `normal`.
    pub const UNKNOWN_ROLE: &str = "UnknownRole";
}
