//! What is a site: one namespace's place in the network?

use std::collections::BTreeMap;

use kube_core::Rule;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{check, condition, condition::Condition, endpoint::Endpoint};

/// How this namespace takes part in the network. Everything has a default: an empty spec is an interior site with one
/// router that accepts no links.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "skupper.io",
    version = "v2alpha1",
    kind = "Site",
    doc = "A place in an application network: a router in this namespace, and its links to others. A namespace has one \
           active Site.",
    namespaced,
    status = "SiteStatus",
    category = "skupper",
    shortname = "st",
    derive = "Default",
    derive = "PartialEq",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.status"),
    printcolumn(
        name = "Sites In Network",
        type_ = "integer",
        json_path = ".status.sitesInNetwork"
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = edge_has_no_ha()))]
pub struct SiteSpec {
    /// The ServiceAccount of the router pods. Without it the operator makes `skupper-router`, with no more rights than
    /// to report its own state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::object_name")]
    pub service_account: Option<String>,

    /// How remote sites reach this one to link to it: `none` (or empty) if they do not, `default` for the operator's
    /// default, or one of `loadbalancer`, `nodeport`, `route`, `ingress`, `ingress-nginx`, `contour-http-proxy`,
    /// `gateway`, `local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::link_access")]
    pub link_access: Option<String>,

    /// The Secret of the CA that signs what the site issues where nothing else is named. Without it the operator makes
    /// `skupper-site-ca`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::object_name")]
    pub default_issuer: Option<String>,

    /// Run two routers instead of one, so that links and services outlive the loss of either. Not for edge sites.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ha: Option<bool>,

    /// Be a leaf of the network: link to others, but accept no links and pass nothing on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<bool>,

    /// Deprecated, the spelling of v1alpha1: `edge` instead of `edge: true`, `interior` instead of `edge: false`.
    /// Where both are set, `edge` wins.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["", "interior", "edge"]))]
    pub router_mode: Option<String>,

    /// Finer settings by name: `router-logging`, `router-data-connection-count`, `disable-anti-affinity`, `size`,
    /// `tls-prior-valid-revisions`, `ingressClassName`. One that is not known is ignored, and a condition says so.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

fn edge_has_no_ha() -> serde_json::Value {
    let rule = Rule::new(
        "!(has(self.ha) && self.ha && (has(self.edge) ? self.edge : \
         (has(self.routerMode) && self.routerMode == 'edge')))",
    )
    .message("Edge sites cannot have HA enabled: set either edge or ha to false");
    check::rules(&[rule])
}

/// What is true of the site now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SiteStatus {
    /// Configured, Running, Resolved (where links are accepted) and Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::conditions")]
    pub conditions: Vec<Condition>,

    /// `Ready`, `Pending` or `Error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,

    /// `OK`, or what is missing and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Where remote sites reach this one: the endpoints of all RouterAccesses of the namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,

    /// The Secret of the CA that signs what the site issues where nothing else is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_issuer: Option<String>,

    /// The operator that looks after the site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,

    /// How many sites the network has, as this site sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sites_in_network: Option<i32>,

    /// The sites of the network, as this site sees it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<NetworkSite>,
}

/// An instance of the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Controller {
    /// The name of its Deployment.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The namespace in which it runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
}

/// A site of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSite {
    /// The uid of its Site.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// The name of its Site.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its namespace, in its own cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// What it runs on, such as `kubernetes` or `podman`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub platform: String,
    /// The version of its software.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The links that it has made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<NetworkLink>,
    /// The services that it offers or uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<NetworkService>,
}

/// A link between two sites of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkLink {
    /// The name of the Link.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The uid of the Site at its other end.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_site_id: String,
    /// The name of the Site at its other end.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_site_name: String,
    /// Whether it carries traffic.
    pub operational: bool,
}

/// A service of a site of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkService {
    /// The key that brings listeners and connectors together.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub routing_key: String,
    /// The names of the connectors that offer it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connectors: Vec<String>,
    /// The names of the listeners that use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<String>,
}

/// The reasons of a Site's conditions.
pub mod reason {
    pub use crate::condition::reason::{
        AWAITING_ADDRESS, CREDENTIALS_EXPIRED, CREDENTIALS_INVALID, CREDENTIALS_NOT_FOUND,
        INTERNAL_ERROR, INVALID_OBJECT, NAME_TAKEN, READY, ROUTER_REFUSED, TIMED_OUT, TOO_LARGE,
        UNSUPPORTED_ACCESS_TYPE, WRITE_FAILED,
    };

    /// Another Site of this namespace is the active one, and a namespace has one router only. Delete either; this
    /// one becomes active when the other is gone.
    pub const ANOTHER_SITE_ACTIVE: &str = "AnotherSiteActive";
    /// The spec asks for `edge` and `ha` together, which no router can do. Set either to false.
    pub const EDGE_WITH_HA: &str = "EdgeWithHa";
    /// No router pod is ready; the message is what the pod says of itself.
    pub const POD_NOT_READY: &str = "PodNotReady";
    /// Of `Ready`: there is no router pod. If it stays, look at the Deployment `skupper-router`: quota, image and
    /// admission policies say there what they mind.
    pub const NOT_RUNNING: &str = "NotRunning";
}
