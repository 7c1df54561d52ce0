//! Which labels and annotations do objects carry, and what do they mean?

use std::collections::BTreeMap;

/// ConfigMap that says which controller owns its namespace.
pub const CONTROL_CONFIG_MAP: &str = "skupper";
/// Key of [`CONTROL_CONFIG_MAP`].
pub const CONTROL_KEY: &str = "controller";

/// What stands in a World where a code stood: that there is one.
pub const PRESENT: &str = "present";

/// Label by which the operator watches what it makes, and by which `skupper` finds it.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// Value of [`PART_OF`].
pub const PART_OF_SKUPPER: &str = "skupper";
/// Label of router pods, and the whole selector of their Deployments (immutable, and upstream's).
pub const COMPONENT: &str = "skupper.io/component";
/// Value of [`COMPONENT`] on router pods.
pub const COMPONENT_ROUTER: &str = "router";
/// Label of router pods: their group.
pub const GROUP: &str = "skupper.io/group";
/// Label on a router's ConfigMap.
pub const ROUTER_CONFIG: &str = "internal.skupper.io/router-config";
/// Annotation (label on Services) on what a controller made.
pub const CONTROLLED: &str = "internal.skupper.io/controlled";
/// Annotation on Secrets, label on Certificates that a controller made.
pub const CERTIFICATE: &str = "internal.skupper.io/certificate";
/// Label on Services of a SecuredAccess.
pub const SECURED_ACCESS: &str = "internal.skupper.io/secured-access";
/// Annotation on a SecuredAccess: the RouterAccess that it is for.
pub const ROUTER_ACCESS: &str = "internal.skupper.io/routeraccess";

/// Label of router Deployments and pods: what kind of router it is.
pub const SITE_TYPE: &str = "skupper.io/type";
/// Label by which upstream's Services select router pods.
pub const APPLICATION: &str = "application";
/// Label of Kubernetes' own vocabulary.
pub const NAME: &str = "app.kubernetes.io/name";

/// Annotation: digest of the wanted object (`settle.rs`).
pub const APPLIED: &str = "internal.spanwire.io/applied";
/// Annotation of router pods that asks their kubelet for a refresh: `<revision>.<try>.<unix seconds>`.
pub const NUDGE: &str = "internal.spanwire.io/nudge";
/// Annotation of the pod template: digest of `bootstrap.json`.
pub const BOOTSTRAP: &str = "internal.spanwire.io/bootstrap";
/// Annotation of the pod template: uid of the ServiceAccount, once it is younger than the Deployment.
pub const ACCOUNT: &str = "internal.spanwire.io/service-account";
/// Annotation on a Certificate, set by a person: any new value asks for a new key.
pub const RENEW: &str = "internal.spanwire.io/renew";
/// Annotation on a Secret: the value of [`RENEW`] that it was made for.
pub const RENEWED: &str = "internal.spanwire.io/renewed";
/// Annotation on the Secret of a leaf: the value of [`RENEWED`] on the Secret of the CA that signed it, so that a wish for
/// another CA that was granted once does not count again when the CA's Secret is lost.
pub const CA_RENEWED: &str = "internal.spanwire.io/ca-renewed";
/// Annotation on a Secret: fingerprint of the certificate that we issued into it. Another certificate was put there by
/// somebody else.
pub const ISSUED: &str = "internal.spanwire.io/issued";
/// Annotation on the Secret of a leaf: since when it trusts the old CA beside a new one that the old one does not vouch
/// for, RFC 3339.
pub const BUNDLED: &str = "internal.spanwire.io/bundled";
/// Annotation on a Secret: when we last replaced what somebody else had put into it, RFC 3339.
pub const REPAIRED: &str = "internal.spanwire.io/repaired";
/// Annotation on the Secret of a redeemed token: the Links that came with it, JSON.
pub const LINKS: &str = "internal.spanwire.io/links";
/// Annotation on a SecuredAccess: further hosts that its certificate is good for, a comma list.
pub const HOSTS: &str = "internal.spanwire.io/hosts";
/// Annotation on the Secret and the Links of a redeemed token: uid of the AccessToken.
pub const TOKEN: &str = "internal.spanwire.io/token";

/// A map from pairs.
pub fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Annotation on a Certificate: the hosts that the owner of this uid asks for (upstream's; ours are in the spec).
pub fn hosts_of(owner: &str) -> String {
    format!("internal.skupper.io/hosts-{owner}")
}

/// Labels of everything that the operator makes.
pub fn ours() -> BTreeMap<String, String> {
    map([(PART_OF, PART_OF_SKUPPER)])
}
