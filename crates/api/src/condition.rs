//! How does an object say what is true of it now?

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use schemars::{Schema, SchemaGenerator};
use serde_json::json;

/// The desired state has been accepted and carried out as far as it is in Spanwire's hands.
pub const CONFIGURED: &str = "Configured";
/// The link carries traffic.
pub const OPERATIONAL: &str = "Operational";
/// The grant has a code and an expiry, and its site may accept links.
pub const PROCESSED: &str = "Processed";
/// Everything that the kind requires is true; what `kubectl wait --for=condition=Ready` looks at.
pub const READY: &str = "Ready";
/// Sites that trusted the CA before can still verify what it signs now. Told only where they cannot.
pub const REMOTE_TRUST: &str = "RemoteTrust";
/// The token has been exchanged for a link.
pub const REDEEMED: &str = "Redeemed";
/// The address at which remote sites reach the object is known.
pub const RESOLVED: &str = "Resolved";
/// A router pod of the site is ready.
pub const RUNNING: &str = "Running";

/// The words of `status.status`, the first column that a person reads.
pub mod word {
    /// Every condition that the kind requires is true.
    pub const READY: &str = "Ready";
    /// Nothing is wrong, something is not there yet.
    pub const PENDING: &str = "Pending";
    /// Something is wrong that a person has to change.
    pub const ERROR: &str = "Error";
}

/// Reasons that more than one kind uses. Each kind's own `reason` module lists all that it may carry.
pub mod reason {
    /// The condition is true. No other reason ever stands beside `True`.
    pub const READY: &str = "Ready";
    /// Something that will come by itself is not there yet; the message says what. Nothing to do.
    pub const PENDING: &str = "Pending";
    /// The object does not fit its schema, for instance because it was stored before the schema was there. The
    /// message says which field; correct it.
    pub const INVALID_OBJECT: &str = "InvalidObject";
    /// An object with a name that is needed exists and is not ours, so it is left alone. Delete or rename it, or
    /// rename the object that carries this condition.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// The API server refused or did not answer a write. It is tried again; a message about `forbidden` wants a
    /// person to look at the operator's Role or at an admission policy.
    pub const WRITE_FAILED: &str = "WriteFailed";
    /// Of `Ready`: the operator failed on this object by an error of its own. Nothing is taken back, the other conditions
    /// are those of the last pass that came to its end, and it is tried again. If it stays, report it, with what the
    /// operator's log says of this object.
    pub const INTERNAL_ERROR: &str = "InternalError";
    /// Of `Ready`: the operator did not get through with this object in time, most often because the API server is slow.
    /// Nothing is taken back, the other conditions are those of the last pass that came to its end, and it is tried
    /// again. If it stays, look at the API server, and at what the operator's log says of this object.
    pub const TIMED_OUT: &str = "TimedOut";
    /// What would have to be written does not fit into one object. The last good state stays in force; the message
    /// names what did not fit. Remove something, or prefer P-256 to RSA.
    pub const TOO_LARGE: &str = "TooLarge";
    /// The namespace has no Site, or none that is active. Create one.
    pub const NO_ACTIVE_SITE: &str = "NoActiveSite";
    /// The router answered that it will not have what it was told; the message is its answer. It is tried again.
    pub const ROUTER_REFUSED: &str = "RouterRefused";
    /// The Secret that is named does not exist, or lacks one of `tls.crt`, `tls.key`, `ca.crt`. Create it, or correct
    /// the name. The router is not told of it before it is complete.
    pub const CREDENTIALS_NOT_FOUND: &str = "CredentialsNotFound";
    /// The Secret that is named is there, but its key does not belong to its certificate, its certificate does not
    /// verify against its own `ca.crt`, is not valid yet or not good for the address that it is shown at, or a file does
    /// not parse or is too large. The last good version stays in force, if there was one. Replace the Secret.
    pub const CREDENTIALS_INVALID: &str = "CredentialsInvalid";
    /// The certificate that is named is past its end, or all CAs beside it are. Replace it; those that Spanwire issues
    /// renew themselves.
    pub const CREDENTIALS_EXPIRED: &str = "CredentialsExpired";
    /// The Secret of the CA that should sign does not exist, or lacks `tls.crt` or `tls.key`. Create it, or correct `ca`
    /// or `issuer`.
    pub const CA_NOT_FOUND: &str = "CaNotFound";
    /// The platform has not given the address yet: the load balancer, Route, Ingress or Gateway has no status. If it
    /// stays, the cluster may have none; set `accessType` to another one.
    pub const AWAITING_ADDRESS: &str = "AwaitingAddress";
    /// The access type is not one that this operator has enabled. The message lists those that are.
    pub const UNSUPPORTED_ACCESS_TYPE: &str = "UnsupportedAccessType";
    /// Access by node port needs to know a name or address of the cluster's nodes. Start the operator with
    /// `--cluster-host`, or choose another access type.
    pub const CLUSTER_HOST_MISSING: &str = "ClusterHostMissing";
    /// The site is an edge site, and edge sites accept no links from others. Make it an interior site, or let the
    /// other side accept the link.
    pub const EDGE_SITE: &str = "EdgeSite";
}

/// The schema of a list of conditions: one of each type, so that several writers can apply theirs side by side.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<Vec<Condition>>();
    schema.insert("x-kubernetes-list-type".into(), json!("map"));
    schema.insert("x-kubernetes-list-map-keys".into(), json!(["type"]));
    schema
}
