//! What can be asked of the workshop, and in which order?

mod legacy;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube_core::ApiResource;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use spanwire_api::Endpoint;

pub use legacy::Legacy;

/// Every kind of object that Spanwire reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ObjectKind {
    Site,
    Link,
    RouterAccess,
    SecuredAccess,
    Certificate,
    AccessGrant,
    AccessToken,
    Secret,
    ConfigMap,
    Service,
    ServiceAccount,
    Role,
    RoleBinding,
    Deployment,
    ReplicaSet,
    Pod,
}

impl ObjectKind {
    /// The kind as the API writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Site => "Site",
            Self::Link => "Link",
            Self::RouterAccess => "RouterAccess",
            Self::SecuredAccess => "SecuredAccess",
            Self::Certificate => "Certificate",
            Self::AccessGrant => "AccessGrant",
            Self::AccessToken => "AccessToken",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::Service => "Service",
            Self::ServiceAccount => "ServiceAccount",
            Self::Role => "Role",
            Self::RoleBinding => "RoleBinding",
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::Pod => "Pod",
        }
    }

    /// Group, version and plural, as a client needs them.
    pub fn resource(self) -> ApiResource {
        use k8s_openapi::api::{apps::v1 as apps, core::v1 as core, rbac::v1 as rbac};
        match self {
            Self::Site => ApiResource::erase::<spanwire_api::Site>(&()),
            Self::Link => ApiResource::erase::<spanwire_api::Link>(&()),
            Self::RouterAccess => ApiResource::erase::<spanwire_api::RouterAccess>(&()),
            Self::SecuredAccess => ApiResource::erase::<spanwire_api::SecuredAccess>(&()),
            Self::Certificate => ApiResource::erase::<spanwire_api::Certificate>(&()),
            Self::AccessGrant => ApiResource::erase::<spanwire_api::AccessGrant>(&()),
            Self::AccessToken => ApiResource::erase::<spanwire_api::AccessToken>(&()),
            Self::Secret => ApiResource::erase::<core::Secret>(&()),
            Self::ConfigMap => ApiResource::erase::<core::ConfigMap>(&()),
            Self::Service => ApiResource::erase::<core::Service>(&()),
            Self::ServiceAccount => ApiResource::erase::<core::ServiceAccount>(&()),
            Self::Role => ApiResource::erase::<rbac::Role>(&()),
            Self::RoleBinding => ApiResource::erase::<rbac::RoleBinding>(&()),
            Self::Deployment => ApiResource::erase::<apps::Deployment>(&()),
            Self::ReplicaSet => ApiResource::erase::<apps::ReplicaSet>(&()),
            Self::Pod => ApiResource::erase::<core::Pod>(&()),
        }
    }
}

/// One object by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ref {
    /// What it is.
    pub kind: ObjectKind,
    /// Where it is.
    pub namespace: String,
    /// What it is called.
    pub name: String,
}

/// One desired object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Child {
    /// What it is.
    pub kind: ObjectKind,
    /// The whole wanted object, without `data`.
    pub object: Value,
    /// Wanted `data` of a ConfigMap or Secret, by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, Content>,
    /// Keys of `data` that should go, of an object whose other keys are other writers'.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unwanted: Vec<String>,
}

/// What one key of `data` should hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Content {
    /// This text.
    Text(String),
    /// The bytes of a file of a Secret, which only the workshop ever sees.
    Copy(Copied),
}

/// *Copy of* a file of a Secret: refused when the Secret has moved on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Copied {
    /// Where the bytes are.
    pub from: Source,
    /// Key of the source's `data`.
    pub file: String,
    /// SHA-256 of the bytes.
    pub sha256: String,
}

/// A Secret, at one revision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Name, in the namespace of the child.
    pub secret: String,
    /// The Secret's uid.
    pub uid: String,
    /// The Secret's resourceVersion.
    pub resource_version: String,
}

/// Which revision of a live object an act is about: its preconditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Live {
    /// The live object's uid.
    pub uid: String,
    /// The live object's resourceVersion.
    pub resource_version: String,
    /// Whether fields are still held by an `Update` entry of ours, or by the incumbent's managers, and have to be
    /// taken over before they can be removed by an apply.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub take_over: bool,
    /// Keys of the live `data` that are not wanted any more, or fields of a `spec` that is wholly ours and holds more:
    /// an apply would leave them to whoever holds them, so a merge patch is written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub surplus: Vec<String>,
}

/// One thing to do. The set is closed: a seventh needs an ADR.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Act {
    /// POST an object that the World lacks.
    Create(Child),
    /// Write over an object that the World has: server-side apply, or a merge patch where it holds copies.
    Apply(Child, Live),
    /// Delete an object of ours.
    Delete(Ref, Live),
    /// Make a key pair and a certificate, and store them.
    Issue(Box<Issue>),
    /// Redeem a token, in the pool.
    Redeem(Redeem),
    /// Patch one annotation of a router pod, so that its kubelet refreshes the volume.
    Nudge(Nudge),
}

/// A credential to be made. The Secret carries the fingerprint of a new certificate in [`crate::labels::ISSUED`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Issue {
    /// The Secret to be: name, owner, labels, annotations, type; without data.
    pub secret: Child,
    /// The Secret that is there and gets new data; absent: it is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
    /// Common name (cut to 64 characters in the certificate, RFC 5280 appendix A).
    pub subject: String,
    /// Alternative names; an IP address is written as iPAddress and as dNSName.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Extended key usage clientAuth.
    pub client: bool,
    /// Extended key usage serverAuth.
    pub server: bool,
    /// Who signs; absent: a CA that signs itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signer: Option<Source>,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity; a leaf's is cut to its CA's.
    pub not_after: Timestamp,
    /// RSA-2048 rather than P-256.
    pub rsa: bool,
    /// What stays of the credential that is there.
    #[serde(skip_serializing_if = "Legacy::is_empty")]
    pub legacy: Legacy,
    /// What to tell when it is done.
    pub event: Event,
}

/// A token to be redeemed; its code is read where it is used.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Redeem {
    /// Namespace of the AccessToken.
    pub namespace: String,
    /// Name of the AccessToken, and of the Secret that the answer is stored in.
    pub token: String,
    /// uid of the AccessToken.
    pub uid: String,
    /// metadata.generation that this attempt is for.
    pub generation: i64,
    /// Subject to ask for: the Site's uid, as upstream sends it.
    pub subject: String,
    /// The Secret to be: name, owner, labels; without data.
    pub secret: Child,
}

/// A Link as a stored answer offers it: one entry of [`crate::labels::LINKS`], rebuilt field by field from what the
/// other site said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoredLink {
    /// The Link's name: that of the token, followed by `-1`, `-2` … where there are several.
    pub name: String,
    /// Where the remote site is reached.
    pub endpoints: Vec<Endpoint>,
}

/// A refresh to be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nudge {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// uid of the pod.
    pub uid: String,
    /// `<revision>.<try>.<unix seconds>`.
    pub value: String,
}

/// Something that a person would want to know later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Whether it is bad news.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warning: bool,
    /// PascalCase, for machines.
    pub reason: String,
    /// A sentence, for people.
    pub note: String,
}

/// Acts that may run in any order: everything in a stage is tried.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stage {
    /// What to do.
    pub acts: Vec<Act>,
    /// Whether a failure here stops the stages behind it.
    pub gate: bool,
    /// The condition that a failure here is told in.
    pub serves: &'static str,
}

/// The word for a condition's state that upstream's command line prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// True.
    Ready,
    /// Not yet.
    Pending,
    /// Not without somebody doing something.
    Error,
}

/// A condition without its timestamp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The condition's type.
    pub condition: &'static str,
    /// Whether it holds, and if not, whether that will pass by itself.
    pub word: Word,
    /// PascalCase; documented beside the kind in `spanwire_api`.
    pub reason: &'static str,
    /// A sentence for a person.
    pub message: String,
}

impl Verdict {
    /// The condition holds.
    pub fn ready(condition: &'static str) -> Self {
        Self {
            condition,
            word: Word::Ready,
            reason: "Ready",
            message: "OK".to_owned(),
        }
    }

    /// The condition does not hold yet.
    pub fn pending(
        condition: &'static str,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            condition,
            word: Word::Pending,
            reason,
            message: message.into(),
        }
    }

    /// The condition does not hold, and somebody has to do something.
    pub fn error(
        condition: &'static str,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            condition,
            word: Word::Error,
            reason,
            message: message.into(),
        }
    }

    /// Whether the condition is True.
    pub fn holds(&self) -> bool {
        self.word == Word::Ready
    }

    /// The same verdict with a remark for a person behind its message.
    #[must_use]
    pub fn with_remark(mut self, remark: &str) -> Self {
        if !remark.is_empty() {
            self.message = format!("{}; {remark}", self.message);
        }
        self
    }
}

/// The status that is true.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// Every condition but `Ready` where that is the sum of the others.
    pub verdicts: Vec<Verdict>,
    /// The conditions that `Ready` is the sum of, in upstream's order; empty: the kind has no sum, and `status.status`
    /// follows the first verdict.
    pub sum_of: &'static [&'static str],
    /// Further fields of `status`, `null` for those that should be absent.
    pub fields: Map<String, Value>,
    /// What becomes of `status.code`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Conditions whose turning is an event, with the reasons for turning True and for turning False.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub announces: Vec<(&'static str, &'static str, &'static str)>,
    /// What is announced when this status is told for the first time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
}

/// What `publish` does about a grant's code, which no plan ever sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Code {
    /// Make one.
    Mint,
    /// Take the one from the spec.
    CopySpec,
    /// Leave it.
    Keep,
}

/// The longest time between two looks at one object.
const LONGEST: Duration = Duration::from_hours(24);

/// What is needed, and what is true.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// Acts, in order.
    pub stages: Vec<Stage>,
    /// The status; absent where the object has none of ours to tell (it is going, or is not ours).
    pub status: Option<Status>,
    /// When to look again though nothing has changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<Duration>,
}

impl Plan {
    /// Nothing to do and nothing to say.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Nothing to do, and this status.
    pub fn only(status: Status) -> Self {
        Self {
            status: Some(status),
            ..Self::default()
        }
    }

    /// All acts, stage by stage.
    pub fn acts(&self) -> impl Iterator<Item = &Act> {
        self.stages.iter().flat_map(|stage| &stage.acts)
    }

    /// Adds a stage, unless it is empty.
    pub fn push(&mut self, serves: &'static str, gate: bool, acts: Vec<Act>) {
        if !acts.is_empty() {
            self.stages.push(Stage { acts, gate, serves });
        }
    }

    /// Brings the next look forward to `after`, or a day from now: timers do not reach as far as certificates do.
    pub fn look_again(&mut self, after: Duration) {
        let after = after.min(LONGEST);
        self.again = Some(self.again.map_or(after, |earlier| earlier.min(after)));
    }
}

impl Child {
    /// The child's metadata as far as it names it.
    pub fn name(&self) -> &str {
        self.object
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The child's namespace.
    pub fn namespace(&self) -> &str {
        self.object
            .pointer("/metadata/namespace")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Which object this is.
    pub fn reference(&self) -> Ref {
        Ref {
            kind: self.kind,
            namespace: self.namespace().to_owned(),
            name: self.name().to_owned(),
        }
    }

    /// The uids of the owners that the child should have.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.object
            .pointer("/metadata/ownerReferences")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|owner| owner.get("uid").and_then(Value::as_str))
    }
}

impl Live {
    /// The preconditions for an act on the object with this metadata.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            take_over: crate::settle::needs_take_over(metadata),
            surplus: Vec::new(),
        }
    }
}
