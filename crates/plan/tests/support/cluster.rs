//! How does a cluster answer, without being one?
//!
//! Carries out plans on a World in memory, as the workshop and the API server would: preconditions, copies that must not
//! have moved on, gates between stages, owners and their garbage, a router pod for each Deployment.

#![allow(dead_code, unused_imports, reason = "each test target uses its share")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod issue;
mod objects;
mod peer;
mod pods;
mod server;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use spanwire_plan::facts::{CertificateFacts, FileFacts};
use spanwire_plan::kinds::plans;
use spanwire_plan::plan::{ObjectKind, Plan, Ref};
use spanwire_plan::report::report;
use spanwire_plan::{Act, Config, Env, World, names};
use spanwire_router::credentials::digest;

use issue::secret;
pub(crate) use issue::verifies;
pub(crate) use objects::assert_same;
use objects::{insert, remove, whole};
pub(crate) use peer::Peer;
use server::Refused;

pub(crate) const NAMESPACE: &str = "west";

/// One namespace of a cluster, and the operator's view of it.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// What is stored.
    pub(crate) world: World,
    pub(crate) config: Config,
    /// How many acts have succeeded.
    pub(crate) acts: usize,
    /// After how many acts the operator dies.
    pub(crate) cut: Option<usize>,
    /// Every act that was tried, in words.
    pub(crate) log: Vec<String>,
    /// Whether adaptors see nothing of what is nudged.
    pub(crate) deaf: bool,
    /// Who answers when a token is redeemed.
    pub(crate) peer: Peer,
    /// How often one was.
    pub(crate) redemptions: usize,
    now: Timestamp,
    serial: u64,
    texts: BTreeMap<(ObjectKind, String), BTreeMap<String, String>>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            world: World {
                namespace: NAMESPACE.to_owned(),
                ..World::default()
            },
            config: Config {
                cluster_host: Some("10.0.0.1".to_owned()),
                ..Config::default()
            },
            acts: 0,
            cut: None,
            log: Vec::new(),
            deaf: false,
            peer: Peer::default(),
            redemptions: 0,
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            serial: 0,
            texts: BTreeMap::new(),
        }
    }
}

impl Cluster {
    pub(crate) fn env(&self) -> Env<'_> {
        Env {
            now: self.now,
            nonce: 7,
            config: &self.config,
        }
    }

    pub(crate) fn wait(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// What a user applies: creates the object, or replaces its spec.
    pub(crate) fn apply(&mut self, kind: ObjectKind, name: &str, spec: &Value) {
        self.put(
            kind,
            json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}),
        );
    }

    /// What a user writes into an annotation.
    pub(crate) fn annotate(&mut self, kind: ObjectKind, name: &str, key: &str, value: &str) {
        let mut object = whole(&self.world, kind, name);
        object["metadata"]["annotations"][key] = json!(value);
        self.put(kind, object);
    }

    /// What a user puts into the Secret of a CA: one of their own, with this path length.
    pub(crate) fn bring_ca(&mut self, name: &str, subject: &str, path_length: Option<u32>) {
        let ca = CertificateFacts {
            path_length,
            ..self.certificate(subject, subject, true)
        };
        let old = self
            .world
            .secrets
            .get(name)
            .map(|facts| facts.metadata.clone());
        let metadata = match old {
            Some(old) => ObjectMeta {
                resource_version: Some(self.tick()),
                ..old
            },
            None => self.fresh(ObjectKind::Secret, name),
        };
        self.world.secrets.insert(secret(metadata, &ca, &ca));
    }

    /// What a user deletes.
    pub(crate) fn delete(&mut self, kind: ObjectKind, name: &str) {
        remove(&mut self.world, kind, name);
        self.collect_garbage();
    }

    /// A Secret that a user brings: a good client credential.
    pub(crate) fn bring_credential(&mut self, name: &str) {
        let ca = self.certificate("CA", "CA", true);
        let leaf = CertificateFacts {
            authority_id: ca.key_id.clone(),
            ..self.certificate(name, "CA", false)
        };
        let metadata = self.fresh(ObjectKind::Secret, name);
        self.world.secrets.insert(secret(metadata, &leaf, &ca));
    }

    /// Replaces the content of a Secret by something that is no credential.
    pub(crate) fn spoil(&mut self, name: &str) {
        let mut facts = self.world.secrets.get(name).unwrap().clone();
        let junk = FileFacts {
            size: 4,
            sha256: digest(b"junk"),
            error: Some("no PEM".to_owned()),
            ..FileFacts::default()
        };
        facts.files.insert("tls.crt".to_owned(), junk);
        facts.metadata.resource_version = Some(self.tick());
        self.world.secrets.insert(facts);
    }

    /// Makes the CA bundle of a Secret so large.
    pub(crate) fn enlarge(&mut self, name: &str, size: usize) {
        let mut facts = self.world.secrets.get(name).unwrap().clone();
        facts.files.get_mut("ca.crt").unwrap().size = size;
        self.world.secrets.insert(facts);
    }

    /// Makes a pod say that it is not ready, and why.
    pub(crate) fn unready(&mut self, pod: &str, why: &str) {
        let mut pod = serde_json::to_value(self.world.pods.get(pod).unwrap()).unwrap();
        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False", "message": why}]);
        pod["metadata"]["resourceVersion"] = json!(self.tick());
        insert(&mut self.world, ObjectKind::Pod, pod);
    }

    /// What was written under a key of a ConfigMap.
    pub(crate) fn text(&self, kind: ObjectKind, name: &str, key: &str) -> String {
        self.texts[&(kind, name.to_owned())][key].clone()
    }

    pub(crate) fn resource_version(&self, kind: ObjectKind, name: &str) -> Option<String> {
        self.world
            .live(kind, name)?
            .metadata
            .resource_version
            .clone()
    }

    /// A condition of an object's status.
    pub(crate) fn condition(&self, kind: ObjectKind, name: &str, condition: &str) -> Value {
        let object = whole(&self.world, kind, name);
        let conditions = object["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        conditions
            .into_iter()
            .find(|told| told["type"] == condition)
            .unwrap_or_default()
    }

    /// Passes over all kinds until nothing is left to do or to say. Panics where that takes too long; false where the
    /// operator died on the way.
    pub(crate) fn settle(&mut self) -> bool {
        for _ in 0..25 {
            let before = (self.acts, self.serial);
            if !self.pass() {
                return false;
            }
            if before == (self.acts, self.serial) {
                return true;
            }
        }
        panic!("no rest after 25 passes:\n{}", self.log.join("\n"));
    }

    /// One pass: what every object needs now, carried out one after another, so that each plan but the first is of a
    /// World that has moved on. False where the operator died on the way.
    pub(crate) fn pass(&mut self) -> bool {
        self.pass_of(&self.world.clone())
    }

    /// The same, of a World that is not quite what is stored.
    pub(crate) fn pass_of(&mut self, seen: &World) -> bool {
        self.wait(1);
        for (object, plan) in plans(seen, &self.env()) {
            if !self.carry_out(&plan) {
                return false;
            }
            self.publish(&object, &plan);
        }
        self.run_pods();
        true
    }

    /// Carries out a plan, stage by stage; false where the operator died on the way.
    pub(crate) fn carry_out(&mut self, plan: &Plan) -> bool {
        for stage in &plan.stages {
            let mut is_done = true;
            for act in &stage.acts {
                if self.cut == Some(self.acts) {
                    return false;
                }
                match self.act(act) {
                    Ok(()) => self.acts += 1,
                    Err(Refused(why)) => {
                        self.log.push(format!("refused: {why}"));
                        is_done = false;
                    }
                }
            }
            if stage.gate && !is_done {
                break;
            }
        }
        true
    }

    /// Writes a status as `publish` would.
    fn publish(&mut self, Ref { kind, name, .. }: &Ref, plan: &Plan) {
        let Some(status) = &plan.status else { return };
        let Some(live) = self.world.live(*kind, name) else {
            return;
        };
        let generation = live.metadata.generation.unwrap_or_default();
        let mut object = whole(&self.world, *kind, name);
        if let Some(report) = report(&object["status"], generation, status, &[], self.now) {
            // A merge patch: null removes.
            let mut wanted = object["status"].as_object().cloned().unwrap_or_default();
            wanted.extend(report.status);
            wanted.retain(|_, value| !value.is_null());
            if report.code.is_some() {
                wanted.insert("code".to_owned(), json!("present"));
            }
            object["status"] = Value::Object(wanted);
            self.log.push(format!(
                "publish {kind:?} {name}: {}",
                object["status"]["message"]
            ));
            object["metadata"]["resourceVersion"] = json!(self.tick());
            insert(&mut self.world, *kind, object);
        }
    }

    /// `config_names_only_stored_credentials`: each profile that a stored configuration names is stored, complete, and
    /// is what `profiles.json` beside it says.
    pub(crate) fn check_law(&self) {
        let stored = self.world.secrets.get(names::CREDENTIALS);
        for group in names::groups(true) {
            let config = self.world.config_maps.get(group);
            let named = config.and_then(|config| config.profiles_named.as_ref());
            for profile in named.into_iter().flatten() {
                let told = stored.and_then(|stored| stored.profiles.as_ref()?.0.get(profile));
                let files = told.map(|told| [&told.ca, &told.crt, &told.key]);
                let is_whole = told.is_some_and(|told| told.check().is_ok())
                    && files.into_iter().flatten().all(|file| {
                        let stored = |key: &String| stored.and_then(|stored| stored.files.get(key));
                        file.as_ref().is_some_and(|file| {
                            stored(&file.key).is_some_and(|facts| facts.sha256 == file.sha256)
                        })
                    });
                assert!(
                    is_whole,
                    "{group} names {profile}, after:\n{}",
                    self.log.join("\n")
                );
            }
        }
    }

    fn tick(&mut self) -> String {
        self.serial += 1;
        self.serial.to_string()
    }

    fn fresh(&mut self, kind: ObjectKind, name: &str) -> ObjectMeta {
        let version = self.tick();
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            uid: Some(format!("{kind:?}-{version}")),
            generation: Some(1),
            creation_timestamp: Some(Time(self.now)),
            resource_version: Some(version),
            ..ObjectMeta::default()
        }
    }

    fn certificate(&mut self, subject: &str, issuer: &str, is_ca: bool) -> CertificateFacts {
        let key = self.tick();
        CertificateFacts {
            subject: subject.to_owned(),
            issuer: issuer.to_owned(),
            dns: BTreeSet::new(),
            ips: BTreeSet::new(),
            client: true,
            server: true,
            is_ca,
            path_length: is_ca.then_some(1),
            not_before: self.now - SignedDuration::from_hours(1),
            not_after: self.now + SignedDuration::from_hours(24 * 365),
            key_id: Some(key.clone()),
            authority_id: is_ca.then_some(key),
            fingerprint: digest(self.tick().as_bytes()),
        }
    }
}

/// What an act does, in words.
pub(crate) fn word(act: &Act) -> String {
    match act {
        Act::Create(child) => format!("create {:?} {}", child.kind, child.name()),
        Act::Apply(child, _) => format!("apply {:?} {}", child.kind, child.name()),
        Act::Delete(what, _) => format!("delete {:?} {}", what.kind, what.name),
        Act::Issue(issue) => format!("issue {}", issue.secret.name()),
        Act::Redeem(redeem) => format!("redeem {}", redeem.token),
        Act::Nudge(nudge) => format!("nudge {} {}", nudge.pod, nudge.value),
    }
}
