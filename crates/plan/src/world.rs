//! What was seen in one namespace?

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube_core::{PartialObjectMeta, Resource};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use spanwire_api::{
    AccessGrant, AccessToken, Certificate, Link, RouterAccess, SecuredAccess, Site,
};
use spanwire_router::report::Report;

use crate::facts::{ConfigMapFacts, SecretFacts};
use crate::plan::{Live, ObjectKind};
use crate::seen::Seen;
use crate::{labels, names};

/// One namespace's objects by name, and the few things that other namespaces offer to it.
///
/// Built in one place (the operator's `stores`) by naming every field. It holds neither key bytes nor codes, so it
/// prints as YAML, complete and safe: that print is what a user attaches to a bug report, the input of the case
/// tests, and of `spanwire plan`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct World {
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub sites: Objects<Seen<Site>>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub links: Objects<Seen<Link>>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub router_accesses: Objects<Seen<RouterAccess>>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub secured_accesses: Objects<Seen<SecuredAccess>>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub certificates: Objects<Seen<Certificate>>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub access_grants: Objects<Seen<AccessGrant>>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub access_tokens: Objects<Seen<AccessToken>>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub secrets: Objects<SecretFacts>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub config_maps: Objects<ConfigMapFacts>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub services: Objects<Service>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub service_accounts: Objects<ServiceAccount>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub roles: Objects<Role>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub role_bindings: Objects<RoleBinding>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub deployments: Objects<Deployment>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub replica_sets: Objects<PartialObjectMeta<ReplicaSet>>,
    #[serde(default, skip_serializing_if = "Objects::is_empty")]
    pub pods: Objects<Pod>,
    /// What the operator's own namespace offers to every other.
    #[serde(default)]
    pub grant_server: GrantServer,
    /// The last try of each token by its uid: the one piece of news that does not come from the API server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attempts: BTreeMap<String, Attempt>,
}

/// How the grant server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantServer {
    /// `host:port` of its published endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// PEM of the CA that its certificate is verified against (`ca.crt` of the Secret that it serves with).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

/// How the last redemption of a token went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// metadata.generation of the token that was tried.
    pub generation: i64,
    /// When it ended.
    pub at: Timestamp,
    /// How many tries there were for this generation.
    pub tries: u32,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a redemption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The answer is stored.
    Stored,
    /// Nobody answered, or not now: it is worth another try.
    Unreachable(String),
    /// The peer's certificate does not verify against the token's CA.
    Untrusted(String),
    /// The token itself cannot be used (its CA or URL do not parse, or its address is not allowed).
    Invalid(String),
    /// The grant is used up.
    UsedUp,
    /// The grant has expired, or is not known there.
    Expired,
    /// The code is wrong.
    CodeRefused,
    /// The peer's answer is not what it should be.
    AnswerRefused(String),
}

/// Objects of one kind by name; printed as a list.
#[derive(Clone, Debug)]
pub struct Objects<K>(pub BTreeMap<String, Arc<K>>);

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K> Objects<K> {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The object of this name.
    pub fn get(&self, name: &str) -> Option<&K> {
        self.0.get(name).map(AsRef::as_ref)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.values().map(AsRef::as_ref)
    }

    /// Adds an object, or replaces the one of its name.
    pub fn insert(&mut self, object: K)
    where
        K: Named,
    {
        self.0.insert(
            object.metadata().name.clone().unwrap_or_default(),
            Arc::new(object),
        );
    }
}

impl<K> Objects<Seen<K>> {
    /// Those that fit their type, by name.
    pub fn fitting(&self) -> impl Iterator<Item = &K> {
        self.iter().filter_map(Seen::fits)
    }
}

/// What has metadata: API objects, and facts about them.
pub trait Named {
    /// Name, uid, owners …
    fn metadata(&self) -> &ObjectMeta;
}

impl<K: Resource> Named for K {
    fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }
}

impl Named for SecretFacts {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Named for ConfigMapFacts {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl<K: Serialize> Serialize for Objects<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de, K: Named + Deserialize<'de>> Deserialize<'de> for Objects<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut objects = Self::default();
        for object in Vec::<K>::deserialize(deserializer)? {
            objects.insert(object);
        }
        Ok(objects)
    }
}

/// A live object, for comparison with a wanted one.
pub struct LiveObject<'w> {
    /// Its metadata.
    pub metadata: &'w ObjectMeta,
    /// What is known of its content.
    pub content: LiveContent<'w>,
}

/// What is known of a live object's content.
pub enum LiveContent<'w> {
    /// All of it.
    Whole(Value),
    /// The facts of a Secret.
    Secret(&'w SecretFacts),
    /// The facts of a ConfigMap.
    ConfigMap(&'w ConfigMapFacts),
}

impl World {
    /// Whether nothing is known of the namespace.
    pub fn is_bare(&self) -> bool {
        let Self {
            namespace: _,
            sites,
            links,
            router_accesses,
            secured_accesses,
            certificates,
            access_grants,
            access_tokens,
            secrets,
            config_maps,
            services,
            service_accounts,
            roles,
            role_bindings,
            deployments,
            replica_sets,
            pods,
            grant_server: _,
            attempts: _,
        } = self;
        sites.is_empty()
            && links.is_empty()
            && router_accesses.is_empty()
            && secured_accesses.is_empty()
            && certificates.is_empty()
            && access_grants.is_empty()
            && access_tokens.is_empty()
            && secrets.is_empty()
            && config_maps.is_empty()
            && services.is_empty()
            && service_accounts.is_empty()
            && roles.is_empty()
            && role_bindings.is_empty()
            && deployments.is_empty()
            && replica_sets.is_empty()
            && pods.is_empty()
    }

    /// The Site that is active here: the one that owns the router's ConfigMap, else the oldest.
    pub fn site(&self) -> Option<&Site> {
        let owner = self.config_maps.get(names::ROUTER).and_then(|config| {
            self.sites
                .fitting()
                .find(|site| owns(&site.metadata, &config.metadata))
        });
        owner.or_else(|| {
            self.sites
                .fitting()
                .filter(|site| site.metadata.deletion_timestamp.is_none())
                .min_by_key(|site| seniority(&site.metadata))
        })
    }

    /// The live object of this kind and name.
    pub fn live(&self, kind: ObjectKind, name: &str) -> Option<LiveObject<'_>> {
        match kind {
            ObjectKind::Site => whole(self.sites.get(name)),
            ObjectKind::Link => whole(self.links.get(name)),
            ObjectKind::RouterAccess => whole(self.router_accesses.get(name)),
            ObjectKind::SecuredAccess => whole(self.secured_accesses.get(name)),
            ObjectKind::Certificate => whole(self.certificates.get(name)),
            ObjectKind::AccessGrant => whole(self.access_grants.get(name)),
            ObjectKind::AccessToken => whole(self.access_tokens.get(name)),
            ObjectKind::Service => whole(self.services.get(name)),
            ObjectKind::ServiceAccount => whole(self.service_accounts.get(name)),
            ObjectKind::Role => whole(self.roles.get(name)),
            ObjectKind::RoleBinding => whole(self.role_bindings.get(name)),
            ObjectKind::Deployment => whole(self.deployments.get(name)),
            ObjectKind::ReplicaSet => whole(self.replica_sets.get(name)),
            ObjectKind::Pod => whole(self.pods.get(name)),
            ObjectKind::Secret => self.secrets.get(name).map(|facts| LiveObject {
                metadata: &facts.metadata,
                content: LiveContent::Secret(facts),
            }),
            ObjectKind::ConfigMap => self.config_maps.get(name).map(|facts| LiveObject {
                metadata: &facts.metadata,
                content: LiveContent::ConfigMap(facts),
            }),
        }
    }

    /// The pods that a Deployment of ours has made, through its ReplicaSets: a pod is not ours for its labels.
    pub fn pods_of<'w>(&'w self, deployment: &'w Deployment) -> impl Iterator<Item = &'w Pod> {
        self.pods.iter().filter(move |pod| {
            pod.metadata.deletion_timestamp.is_none()
                && self.replica_sets.iter().any(|set| {
                    owns(&set.metadata, &pod.metadata) && owns(&deployment.metadata, &set.metadata)
                })
        })
    }

    /// The living router pods of the active site, each with its adaptor's report where there is one.
    pub fn routers(&self) -> impl Iterator<Item = (&Pod, Option<&Report>)> {
        let site = self.site();
        let reports = self
            .config_maps
            .get(names::REPORT)
            .map(|facts| &facts.reports);
        self.deployments
            .iter()
            .filter(move |deployment| {
                site.is_some_and(|site| owns(&site.metadata, &deployment.metadata))
                    && deployment
                        .metadata
                        .name
                        .as_deref()
                        .is_some_and(names::is_group)
            })
            .flat_map(|deployment| self.pods_of(deployment))
            .map(move |pod| {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                let key = spanwire_router::report::report_key(name, uid);
                (pod, reports.and_then(|reports| reports.get(&key)))
            })
    }

    /// Preconditions for deleting the object of this name, if it is there and is owned by `owner`.
    pub fn deletable(&self, kind: ObjectKind, name: &str, owner: &ObjectMeta) -> Option<Live> {
        let live = self.live(kind, name)?;
        (owns(owner, live.metadata) && live.metadata.deletion_timestamp.is_none())
            .then(|| Live::of(live.metadata))
    }
}

/// Whether `owner` is an owner of `child`, by uid.
pub fn owns(owner: &ObjectMeta, child: &ObjectMeta) -> bool {
    owner.uid.as_ref().is_some_and(|uid| {
        child
            .owner_references
            .iter()
            .flatten()
            .any(|reference| reference.uid == *uid)
    })
}

/// The order in which claims on one thing are heard: the oldest first, then by name.
pub fn seniority(metadata: &ObjectMeta) -> (Option<Timestamp>, &str) {
    (
        metadata.creation_timestamp.as_ref().map(|time| time.0),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// A name that was given; the empty text means that none was.
pub(crate) fn named(name: Option<&str>) -> Option<&str> {
    name.filter(|name| !name.is_empty())
}

/// Whether an object of ours may act here: see `facts/skupper-v2.md` §2.13.
pub fn controls(world: &World, env: &crate::Env<'_>) -> bool {
    let id = format!("{}/{}", env.config.namespace, env.config.name);
    match world
        .config_maps
        .get(labels::CONTROL_CONFIG_MAP)
        .and_then(|map| map.controller.as_ref())
    {
        Some(named) if named.contains('/') => *named == id,
        Some(named) => format!("{}/{named}", world.namespace) == id,
        None => !env.config.explicit_control,
    }
}

fn whole<K: Named + Serialize>(object: Option<&K>) -> Option<LiveObject<'_>> {
    object.map(|object| LiveObject {
        metadata: object.metadata(),
        content: LiveContent::Whole(serde_json::to_value(object).unwrap_or_default()),
    })
}
