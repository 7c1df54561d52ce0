//! What is a certificate: credentials that the operator issues and keeps fresh?

use std::collections::BTreeMap;

use kube_core::Rule;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{check, condition, condition::Condition};

/// What the certificate says, and who signs it.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "skupper.io",
    version = "v2alpha1",
    kind = "Certificate",
    doc = "A key and a certificate, in a Secret of the same name, issued by a CA of this namespace and renewed in time.",
    namespaced,
    status = "CertificateStatus",
    category = "skupper",
    derive = "Default",
    derive = "PartialEq",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "CA", type_ = "string", json_path = ".spec.ca"),
    printcolumn(name = "Server", type_ = "boolean", json_path = ".spec.server"),
    printcolumn(name = "Client", type_ = "boolean", json_path = ".spec.client"),
    printcolumn(name = "Signing", type_ = "boolean", json_path = ".spec.signing"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.status"),
    printcolumn(
        name = "Expiration",
        type_ = "string",
        json_path = ".status.expiration"
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["ca", "subject"], "x-kubernetes-validations" = has_a_signer()))]
pub struct CertificateSpec {
    /// The Secret of the CA that signs. Empty for a CA, which signs itself. Whoever may create Certificates can use
    /// every CA of the namespace.
    #[schemars(schema_with = "check::object_name")]
    pub ca: String,

    /// The common name. One that is longer than the 64 characters that X.509 allows is cut; `hosts` are what counts.
    #[schemars(schema_with = "check::subject")]
    pub subject: String,

    /// The DNS names and addresses that the certificate is good for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "check::hosts")]
    pub hosts: Vec<String>,

    /// Good for showing oneself to a server. With neither `client` nor `server` it is good for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<bool>,

    /// Good for showing oneself to clients. With neither `client` nor `server` it is good for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<bool>,

    /// Be a CA that signs itself and may sign others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing: Option<bool>,

    /// Finer settings by name. None is known yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

fn has_a_signer() -> serde_json::Value {
    let rule = Rule::new("self.ca != '' || (has(self.signing) && self.signing)")
        .message(
            "must name the Secret of the CA that signs; leave it empty only with signing: true",
        )
        .field_path(".ca");
    check::rules(&[rule])
}

/// What is true of the certificate now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateStatus {
    /// Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::conditions")]
    pub conditions: Vec<Condition>,

    /// `Ready`, `Pending` or `Error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,

    /// `OK`, or what is missing and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// When the certificate ends, as RFC 3339. It is renewed well before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<String>,
}

/// The reasons of a Certificate's conditions.
pub mod reason {
    pub use crate::condition::reason::{
        CA_NOT_FOUND, INTERNAL_ERROR, INVALID_OBJECT, NAME_TAKEN, PENDING, READY, TIMED_OUT,
        TOO_LARGE, WRITE_FAILED,
    };

    /// The Secret of this CA is gone while certificates that it signed are in use. A new key would cut every link that
    /// trusts the old one, so none is made by itself: restore the Secret, or ask for a new CA with the annotation that
    /// the message names.
    pub const CA_LOST: &str = "CaLost";
    /// Of `RemoteTrust`: the CA was replaced by one that it does not vouch for, and remote sites may know only the old
    /// one. The message says how many of them must redeem a new token, as far as that can be told. It ends with the last
    /// certificate of the old CA.
    pub const REMOTE_TRUST_BROKEN: &str = "RemoteTrustBroken";
    /// The CA was made with path length 0, so its successor cannot be vouched for by it. Give the remote sites the new
    /// CA before this one is replaced.
    pub const CA_CANNOT_CROSS: &str = "CaCannotCross";
    /// The CA's Secret is there, but what it holds cannot sign: a file does not parse or is too large, the key does not
    /// belong to the certificate, or that is no CA's, is not valid yet or does not verify against its own `ca.crt`.
    pub const CA_INVALID: &str = "CaInvalid";
    /// Somebody else changes the Secret again and again. It is put right, but not more often than twice a minute: find out
    /// who writes it, such as a tool that keeps a copy of it.
    pub const CONTESTED: &str = "Contested";
    /// The CA itself is past its end. Replace it; a CA that Spanwire made renews itself.
    pub const CA_EXPIRED: &str = "CaExpired";
}
