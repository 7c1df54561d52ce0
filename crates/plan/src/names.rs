//! What is each derived object called?
//!
//! Upstream's names where upstream has the object (`facts/skupper-v2.md` §2.3, §7.4), so that its command line
//! and its users find it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::Resource;

/// The router: first group's Deployment and ConfigMap, the default RouterAccess, ServiceAccount, Role.
pub const ROUTER: &str = "skupper-router";
/// The second group of a site with `ha`.
pub const ROUTER_2: &str = "skupper-router-2";
/// Service for clients inside the namespace.
pub const ROUTER_LOCAL: &str = "skupper-router-local";
/// The site's CA for everything that crosses its border.
pub const SITE_CA: &str = "skupper-site-ca";
/// The site's CA for clients inside its namespace.
pub const LOCAL_CA: &str = "skupper-local-ca";
/// The credentials that the router serves clients inside the namespace with.
pub const LOCAL_SERVER: &str = "skupper-local-server";
/// The credentials of the default RouterAccess.
pub const SITE_SERVER: &str = "skupper-site-server";
/// Secret: every credential that the router uses, and `profiles.json`.
pub const CREDENTIALS: &str = "skupper-router-credentials";
/// ConfigMap: what the adaptors report.
pub const REPORT: &str = spanwire_router::report::REPORT_CONFIG_MAP;
/// Access and credentials of the grant server, in the operator's namespace.
pub const GRANT_SERVER: &str = "skupper-grant-server";
/// CA of the grant server.
pub const GRANT_SERVER_CA: &str = "skupper-grant-server-ca";

/// A reference by which the garbage collector removes a child after its owner: no controller flag, as a child may have
/// several claimants.
pub fn owner<K: Resource<DynamicType = ()>>(object: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: object.meta().name.clone().unwrap_or_default(),
        uid: object.meta().uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

/// The groups of a site: one router each.
pub fn groups(ha: bool) -> &'static [&'static str] {
    if ha { &[ROUTER, ROUTER_2] } else { &[ROUTER] }
}

/// Whether this is the name of a group.
pub fn is_group(name: &str) -> bool {
    name == ROUTER || name == ROUTER_2
}

/// The SecuredAccess of a RouterAccess in a group.
pub fn secured_access(router_access: &str, group: &str) -> String {
    if group == ROUTER {
        router_access.to_owned()
    } else {
        format!("{router_access}-2")
    }
}

/// The router's listener for a role of a RouterAccess.
pub fn listener(router_access: &str, role: &str) -> String {
    format!("{router_access}-{role}")
}

/// The router's sslProfile for a Link's credentials.
pub fn link_profile(credentials: &str) -> String {
    format!("{credentials}-profile")
}
