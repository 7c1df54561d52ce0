//! What does a decision depend on besides the World?

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Time, chance and configuration: what a plan depends on besides the World.
#[derive(Clone, Copy, Debug)]
pub struct Env<'a> {
    /// The operator's clock at the start of the pass.
    pub now: Timestamp,
    /// A number that nobody can foretell, for jitter.
    pub nonce: u64,
    /// What the operator was started with.
    pub config: &'a Config,
}

/// What the operator was started with, as far as a decision depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Config {
    /// The operator's own namespace.
    pub namespace: String,
    /// The operator's own name: with the namespace the controller id `<namespace>/<name>`.
    pub name: String,
    /// The operator's version, for `Site.status.controller` and the router's metadata.
    pub version: String,
    /// Whether only namespaces are controlled whose ConfigMap `skupper` names this controller.
    pub explicit_control: bool,
    /// Access types that may be asked for, in order of preference.
    pub enabled_access_types: Vec<String>,
    /// What `default` or an absent access type means; absent: see `facts/skupper-v2.md` §6.4.
    pub default_access_type: Option<String>,
    /// Under which host the cluster's node ports are reached.
    pub cluster_host: Option<String>,
    /// Image of the container `router`.
    pub router_image: String,
    /// Image of the container `kube-adaptor`.
    pub adaptor_image: String,
    /// Pull policy of both.
    pub pull_policy: String,
    /// Lifetime of a CA that we make, in seconds.
    pub ca_seconds: i64,
    /// Lifetime of a certificate that we issue, in seconds.
    pub leaf_seconds: i64,
    /// Whether keys are RSA-2048 rather than P-256.
    pub rsa: bool,
    /// Whether grants are served.
    pub grants: bool,
    /// The port that the grant server listens on.
    pub grant_port: i32,
}

/// Five years, as the incumbent's certificates live (`facts/skupper-v2.md` §5.1): longer than any outage that
/// promise P3 speaks of.
const FIVE_YEARS: i64 = 5 * 365 * 24 * 3600;

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: "spanwire".to_owned(),
            name: "spanwire-controller".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            explicit_control: false,
            enabled_access_types: ["local", "loadbalancer", "nodeport"]
                .map(str::to_owned)
                .to_vec(),
            default_access_type: None,
            cluster_host: None,
            router_image: "quay.io/skupper/skupper-router:3.5.1".to_owned(),
            adaptor_image: "spanwire:dev".to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
            ca_seconds: 2 * FIVE_YEARS,
            leaf_seconds: FIVE_YEARS,
            rsa: false,
            grants: true,
            grant_port: 9090,
        }
    }
}
