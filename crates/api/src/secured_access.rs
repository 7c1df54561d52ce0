//! What is a secured access: ports of some pods, offered to other clusters under TLS?

use std::collections::BTreeMap;

use kube_core::Rule;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{check, condition, condition::Condition, endpoint::Endpoint};

/// Which ports of which pods are offered, and how.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "skupper.io",
    version = "v2alpha1",
    kind = "SecuredAccess",
    plural = "securedaccesses",
    doc = "Ports of some pods that are offered to other clusters, with a certificate for the addresses at which they \
           are reached. Made for each RouterAccess; rarely written by hand.",
    namespaced,
    status = "SecuredAccessStatus",
    category = "skupper",
    derive = "Default",
    derive = "PartialEq",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.status"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["selector", "ports"]))]
pub struct SecuredAccessSpec {
    /// The labels of the pods behind the ports.
    pub selector: BTreeMap<String, String>,

    /// The ports that are offered.
    #[schemars(extend("minItems" = 1, "maxItems" = 32, "x-kubernetes-validations" = ports_are_unlike()))]
    pub ports: Vec<SecuredAccessPort>,

    /// How the ports are offered to other clusters: `loadbalancer`, `nodeport`, `route`, `ingress`, `ingress-nginx`,
    /// `contour-http-proxy`, `gateway`, or `local` for this cluster only. Empty means the operator's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::access_type")]
    pub access_type: Option<String>,

    /// The Secret of the CA that signs the certificate. Without it none is issued.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::object_name")]
    pub issuer: Option<String>,

    /// The name of the certificate that is issued, and of its Secret. That of this object if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::object_name")]
    pub certificate: Option<String>,

    /// Finer settings of the access type by name: `domain` for routes, `ingressClassName` for ingresses.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,

    /// Deprecated, the spelling of v1alpha1 for `settings`. Where both name a setting, `settings` wins.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// A port that is offered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name", "port"]))]
pub struct SecuredAccessPort {
    /// The name of the port in the Service, and of its endpoint.
    #[schemars(schema_with = "check::port_name")]
    pub name: String,

    /// The port of the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,

    /// The port of the pods. The same one if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub target_port: Option<i32>,

    /// `TCP` (also if left out), `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["", "TCP", "UDP", "SCTP"]))]
    pub protocol: Option<String>,
}

fn ports_are_unlike() -> serde_json::Value {
    let names = Rule::new("self.all(port, self.exists_one(other, other.name == port.name))")
        .message("each port needs a name of its own: rename one of them");
    let numbers = Rule::new(
        "self.all(port, self.exists_one(other, other.port == port.port && \
         (!has(other.protocol) || other.protocol == '' ? 'TCP' : other.protocol) == \
         (!has(port.protocol) || port.protocol == '' ? 'TCP' : port.protocol)))",
    )
    .message("each port may be offered once: remove the second one, or give it another number");
    check::rules(&[names, numbers])
}

/// What is true of the access now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecuredAccessStatus {
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

    /// Where the ports are reached from other clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,

    /// The certificate of the CA, as PEM, with which those that connect can know the pods again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

/// The reasons of a SecuredAccess' conditions.
pub mod reason {
    pub use crate::condition::reason::{
        AWAITING_ADDRESS, CA_NOT_FOUND, CLUSTER_HOST_MISSING, CREDENTIALS_EXPIRED,
        CREDENTIALS_INVALID, CREDENTIALS_NOT_FOUND, INTERNAL_ERROR, INVALID_OBJECT, NAME_TAKEN,
        PENDING, READY, TIMED_OUT, TOO_LARGE, UNSUPPORTED_ACCESS_TYPE, WRITE_FAILED,
    };

    /// An older SecuredAccess has the same certificate signed by another issuer. The message names it; name the same
    /// issuer, or another certificate.
    pub const CLAIMS_CONFLICT: &str = "ClaimsConflict";
}
