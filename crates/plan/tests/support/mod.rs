//! How does a cluster answer, without being one?
//!
//! Carries out plans on a World in memory, as the workshop and the API server would: preconditions, copies that must not
//! have moved on, gates between stages, owners and their garbage, a router pod for each Deployment.

#![allow(dead_code, reason = "each test target uses its share")]

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use spanwire_plan::facts::{CertificateFacts, FileFacts, PairFacts, SecretFacts};
use spanwire_plan::kinds::plans;
use spanwire_plan::plan::{Child, Content, Issue, Live, Nudge, ObjectKind, Plan, Ref};
use spanwire_plan::report::report;
use spanwire_plan::world::{Named, owns};
use spanwire_plan::{Act, Config, Env, World, labels, names};
use spanwire_router::config::{CONFIG_FILE, Document};
use spanwire_router::credentials::{PROFILES_FILE, Profiles, digest, revision};
use spanwire_router::report::{Report, report_key};

pub(crate) const NAMESPACE: &str = "west";

/// Kinds that the garbage collector looks through.
const ALL: [ObjectKind; 16] = [
    ObjectKind::Site,
    ObjectKind::Link,
    ObjectKind::RouterAccess,
    ObjectKind::SecuredAccess,
    ObjectKind::Certificate,
    ObjectKind::AccessGrant,
    ObjectKind::AccessToken,
    ObjectKind::Secret,
    ObjectKind::ConfigMap,
    ObjectKind::Service,
    ObjectKind::ServiceAccount,
    ObjectKind::Role,
    ObjectKind::RoleBinding,
    ObjectKind::Deployment,
    ObjectKind::ReplicaSet,
    ObjectKind::Pod,
];

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
    now: Timestamp,
    serial: u64,
    texts: BTreeMap<(ObjectKind, String), BTreeMap<String, String>>,
}

/// An act that the API server refused.
#[derive(Debug)]
pub(crate) struct Refused(String);

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
        self.now += k8s_openapi::jiff::SignedDuration::from_secs(seconds);
    }

    /// What a user applies: creates the object, or replaces its spec.
    pub(crate) fn apply(&mut self, kind: ObjectKind, name: &str, spec: Value) {
        self.put(
            kind,
            json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}),
        );
    }

    /// What a user deletes.
    pub(crate) fn delete(&mut self, kind: ObjectKind, name: &str) {
        remove(&mut self.world, kind, name);
        self.collect_garbage();
    }

    /// A Secret that a user brings: a good client credential.
    pub(crate) fn bring_credential(&mut self, name: &str) {
        let ca = self.certificate("CA", "CA", true);
        let leaf = self.certificate(name, "CA", false);
        let metadata = self.fresh(ObjectKind::Secret, name);
        self.world.secrets.insert(secret(metadata, leaf, &ca));
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

    /// Carries out one act, or refuses it as the API server would.
    pub(crate) fn act(&mut self, act: &Act) -> Result<(), Refused> {
        self.log.push(word(act));
        match act {
            Act::Create(child) => {
                if self.world.live(child.kind, child.name()).is_some() {
                    return Err(Refused(format!("{} exists", child.name())));
                }
                self.store(child, None)
            }
            Act::Apply(child, live) => {
                self.check(child.kind, child.name(), live)?;
                self.store(child, Some(live))
            }
            Act::Delete(Ref { kind, name, .. }, live) => {
                self.check(*kind, name, live)?;
                self.delete(*kind, name);
                Ok(())
            }
            Act::Issue(issue) => self.issue(issue),
            Act::Redeem(_) => Ok(()),
            Act::Nudge(nudge) => self.nudge(nudge),
        }?;
        self.check_law();
        Ok(())
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

    fn check(&self, kind: ObjectKind, name: &str, live: &Live) -> Result<(), Refused> {
        let Some(stored) = self.world.live(kind, name) else {
            return Err(Refused(format!("{name} is gone")));
        };
        let is_same = stored.metadata.uid.as_deref() == Some(&live.uid)
            && stored.metadata.resource_version.as_deref() == Some(&live.resource_version);
        if is_same {
            Ok(())
        } else {
            Err(Refused(format!("{name} has moved on")))
        }
    }

    fn store(&mut self, child: &Child, live: Option<&Live>) -> Result<(), Refused> {
        match child.kind {
            ObjectKind::Secret => self.store_secret(child, live),
            ObjectKind::ConfigMap => {
                self.store_config_map(child);
                Ok(())
            }
            _ => {
                self.put(child.kind, child.object.clone());
                Ok(())
            }
        }
    }

    /// Stores an object of a kind that is kept whole; the API server keeps its status and what else it knows.
    fn put(&mut self, kind: ObjectKind, mut object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let live = self
            .world
            .live(kind, &name)
            .map(|live| live.metadata.clone());
        if let Some(live) = live {
            let old = serde_json::to_value(whole(&self.world, kind, &name)).unwrap();
            let mut same = old.clone();
            same["metadata"]["labels"] = object["metadata"]["labels"].clone();
            same["metadata"]["annotations"] = object["metadata"]["annotations"].clone();
            if !object["metadata"]["ownerReferences"].is_null() {
                same["metadata"]["ownerReferences"] = object["metadata"]["ownerReferences"].clone();
            }
            for (field, value) in object.as_object().unwrap() {
                if !["metadata", "status"].contains(&field.as_str()) {
                    same[field] = value.clone();
                }
            }
            if same == old {
                return;
            }
            let generation =
                live.generation.unwrap_or_default() + i64::from(same["spec"] != old["spec"]);
            same["metadata"]["generation"] = json!(generation);
            same["metadata"]["resourceVersion"] = json!(self.tick());
            object = same;
        } else {
            let fresh = serde_json::to_value(self.fresh(kind, &name)).unwrap();
            for (field, value) in fresh.as_object().unwrap() {
                object["metadata"][field] = value.clone();
            }
        }
        if kind == ObjectKind::Service {
            assign_addresses(&mut object);
        }
        insert(&mut self.world, kind, object);
    }

    fn store_config_map(&mut self, child: &Child) {
        let name = child.name().to_owned();
        let old = self.world.config_maps.get(&name).cloned();
        let mut facts = old.clone().unwrap_or_default();
        facts.metadata = self.metadata(child, old.as_ref().map(|old| &old.metadata));
        let texts = self.texts.entry((child.kind, name)).or_default();
        for (key, content) in &child.data {
            let Content::Text(text) = content else {
                panic!("a copy in a ConfigMap")
            };
            facts.files.insert(key.clone(), file(text));
            texts.insert(key.clone(), text.clone());
        }
        facts.profiles_named = texts.get(CONFIG_FILE).map(|text| {
            let document = Document::parse(text.as_bytes()).unwrap();
            document
                .profile_names()
                .into_iter()
                .map(str::to_owned)
                .collect()
        });
        if old.as_ref() != Some(&facts) {
            facts.metadata.resource_version = Some(self.tick());
            self.world.config_maps.insert(facts);
        }
    }

    fn store_secret(&mut self, child: &Child, live: Option<&Live>) -> Result<(), Refused> {
        let name = child.name().to_owned();
        let old = self.world.secrets.get(&name).cloned();
        let mut facts = old.clone().unwrap_or_default();
        facts.metadata = self.metadata(child, old.as_ref().map(|old| &old.metadata));
        child.object["type"]
            .as_str()
            .unwrap_or("Opaque")
            .clone_into(&mut facts.type_);
        for key in live.map(|live| live.surplus.as_slice()).unwrap_or_default() {
            facts.files.remove(key);
        }
        for (key, content) in &child.data {
            let file = match content {
                Content::Text(text) => file(text),
                Content::Copy(copied) => {
                    let from = &copied.from;
                    let source = self.world.secrets.get(&from.secret);
                    let source = source.filter(|source| {
                        source.metadata.uid.as_deref() == Some(&from.uid)
                            && source.metadata.resource_version.as_deref()
                                == Some(&from.resource_version)
                    });
                    let Some(source) = source else {
                        return Err(Refused(format!("{} has moved on", from.secret)));
                    };
                    let file = source.files.get(&copied.file).unwrap();
                    assert_eq!(file.sha256, copied.sha256, "the digest of what is copied");
                    file.clone()
                }
            };
            facts.files.insert(key.clone(), file);
        }
        if let Some(Content::Text(text)) = child.data.get(PROFILES_FILE) {
            facts.profiles = Some(Profiles::parse(text.as_bytes()).unwrap());
            let texts = self.texts.entry((child.kind, name)).or_default();
            texts.insert(PROFILES_FILE.to_owned(), text.clone());
        }
        if old.as_ref() != Some(&facts) {
            facts.metadata.resource_version = Some(self.tick());
            self.world.secrets.insert(facts);
        }
        Ok(())
    }

    fn issue(&mut self, issue: &Issue) -> Result<(), Refused> {
        let name = issue.secret.name().to_owned();
        let old = self
            .world
            .secrets
            .get(&name)
            .map(|facts| facts.metadata.clone());
        match &issue.live {
            Some(live) => self.check(ObjectKind::Secret, &name, live)?,
            None if old.is_some() => return Err(Refused(format!("{name} exists"))),
            None => {}
        }
        let signer = match &issue.signer {
            None => None,
            Some(source) => {
                let facts = self.world.secrets.get(&source.secret);
                let moved = || Refused(format!("{} has moved on", source.secret));
                let facts = facts.ok_or_else(moved)?;
                if facts.metadata.resource_version.as_deref() != Some(&source.resource_version) {
                    return Err(moved());
                }
                Some(facts.certificate().unwrap().clone())
            }
        };
        let subject: String = issue.subject.chars().take(64).collect();
        let issuer = signer
            .as_ref()
            .map_or(subject.clone(), |signer| signer.subject.clone());
        let is_ip = |host: &&String| host.parse::<std::net::IpAddr>().is_ok();
        let leaf = CertificateFacts {
            dns: issue.hosts.iter().cloned().collect(),
            ips: issue.hosts.iter().filter(is_ip).cloned().collect(),
            client: issue.client,
            server: issue.server,
            not_before: issue.not_before,
            not_after: issue.not_after,
            ..self.certificate(&subject, &issuer, signer.is_none())
        };
        let ca = signer.unwrap_or_else(|| leaf.clone());
        let mut metadata = self.metadata(&issue.secret, old.as_ref());
        metadata.resource_version = Some(self.tick());
        self.world.secrets.insert(secret(metadata, leaf, &ca));
        Ok(())
    }

    fn nudge(&mut self, nudge: &Nudge) -> Result<(), Refused> {
        let pod = self.world.pods.get(&nudge.pod).cloned();
        let Some(mut pod) = pod.filter(|pod| pod.metadata.uid.as_ref() == Some(&nudge.uid)) else {
            return Err(Refused(format!("{} is gone", nudge.pod)));
        };
        let value = (labels::NUDGE.to_owned(), nudge.value.clone());
        pod.metadata
            .annotations
            .get_or_insert_default()
            .extend([value]);
        pod.metadata.resource_version = Some(self.tick());
        self.world.pods.insert(pod);
        if !self.deaf {
            self.adapt(&nudge.pod);
        }
        Ok(())
    }

    /// The Deployment controller, the kubelet and the adaptor: one ready pod a Deployment.
    fn run_pods(&mut self) {
        let deployments: Vec<Deployment> = self.world.deployments.iter().cloned().collect();
        for deployment in deployments {
            let name = deployment.metadata.name.as_deref().unwrap();
            if !names::is_group(name) {
                continue;
            }
            let template = &deployment.spec.as_ref().unwrap().template;
            let hash = digest(serde_json::to_string(template).unwrap().as_bytes());
            let own = format!("{name}-{}", &hash[..8]);
            let is_there = self.world.pods.get(&own).is_some();
            let has_sources = self.world.secrets.get(names::CREDENTIALS).is_some()
                && self.world.config_maps.get(name).is_some();
            if is_there || !has_sources {
                continue;
            }
            let stale: Vec<String> = self
                .world
                .replica_sets
                .iter()
                .filter(|set| owns(&deployment.metadata, &set.metadata))
                .filter_map(|set| set.metadata.name.clone())
                .collect();
            for set in stale {
                self.delete(ObjectKind::ReplicaSet, &set);
            }
            let mut set = self.fresh(ObjectKind::ReplicaSet, &own);
            set.owner_references = Some(vec![names::owner(&deployment)]);
            let owner = json!({
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": own, "uid": set.uid,
            });
            insert(
                &mut self.world,
                ObjectKind::ReplicaSet,
                json!({"metadata": set}),
            );
            let mut metadata = serde_json::to_value(self.fresh(ObjectKind::Pod, &own)).unwrap();
            metadata["ownerReferences"] = json!([owner]);
            metadata["labels"] = json!(template.metadata.as_ref().unwrap().labels);
            let pod = json!({
                "metadata": metadata,
                "status": {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{
                        "name": "kube-adaptor", "image": "", "imageID": "", "ready": true,
                        "restartCount": 0, "state": {"running": {"startedAt": self.now.to_string()}},
                    }],
                },
            });
            insert(&mut self.world, ObjectKind::Pod, pod);
            self.adapt(&own);
        }
    }

    /// An adaptor reads its mount and reports; each wanted connector is up.
    fn adapt(&mut self, pod: &str) {
        let pod = self.world.pods.get(pod).unwrap();
        let group = pod.metadata.labels.as_ref().unwrap()[labels::GROUP].clone();
        let key = report_key(
            pod.metadata.name.as_deref().unwrap(),
            pod.metadata.uid.as_deref().unwrap(),
        );
        let text = |kind, name: &str, key: &str| {
            self.texts
                .get(&(kind, name.to_owned()))
                .and_then(|texts| texts.get(key).cloned())
        };
        let profiles = text(ObjectKind::Secret, names::CREDENTIALS, PROFILES_FILE);
        let config = text(ObjectKind::ConfigMap, &group, CONFIG_FILE);
        let (Some(profiles), Some(config)) = (profiles, config) else {
            return;
        };
        let links = Document::parse(config.as_bytes()).unwrap().entities;
        let links = links
            .iter()
            .filter(|entity| entity.type_name() == "connector");
        let up = spanwire_router::report::LinkReport {
            up: true,
            ..Default::default()
        };
        let report = Report {
            revision: revision(profiles.as_bytes(), config.as_bytes()),
            settled: true,
            links: links
                .map(|link| (link.name().unwrap().to_owned(), up.clone()))
                .collect(),
            ..Report::default()
        };
        if let Some(mut facts) = self.world.config_maps.get(names::REPORT).cloned()
            && facts.reports.get(&key) != Some(&report)
        {
            facts.reports.insert(key, report);
            facts.metadata.resource_version = Some(self.tick());
            self.world.config_maps.insert(facts);
        }
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
            object["status"] = Value::Object(wanted);
            self.log.push(format!(
                "publish {kind:?} {name}: {}",
                object["status"]["message"]
            ));
            object["metadata"]["resourceVersion"] = json!(self.tick());
            insert(&mut self.world, *kind, object);
        }
    }

    fn collect_garbage(&mut self) {
        loop {
            let uids: BTreeSet<&String> = ALL
                .into_iter()
                .flat_map(|kind| metadata_of(&self.world, kind))
                .filter_map(|metadata| metadata.uid.as_ref())
                .collect();
            let orphan = ALL.into_iter().find_map(|kind| {
                metadata_of(&self.world, kind)
                    .into_iter()
                    .find_map(|metadata| {
                        let owners = metadata.owner_references.as_deref().unwrap_or_default();
                        let is_orphan = !owners.is_empty()
                            && owners.iter().all(|owner| !uids.contains(&owner.uid));
                        is_orphan.then(|| (kind, metadata.name.clone().unwrap()))
                    })
            });
            let Some((kind, name)) = orphan else { return };
            remove(&mut self.world, kind, &name);
            self.texts.remove(&(kind, name));
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
            creation_timestamp: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                self.now,
            )),
            resource_version: Some(version),
            ..ObjectMeta::default()
        }
    }

    /// Metadata of a child, as the API server would have it after the write.
    fn metadata(&mut self, child: &Child, old: Option<&ObjectMeta>) -> ObjectMeta {
        let wanted: ObjectMeta = serde_json::from_value(child.object["metadata"].clone()).unwrap();
        let base = old
            .cloned()
            .unwrap_or_else(|| self.fresh(child.kind, child.name()));
        ObjectMeta {
            labels: wanted.labels,
            annotations: wanted.annotations,
            owner_references: wanted.owner_references,
            ..base
        }
    }

    fn certificate(&mut self, subject: &str, issuer: &str, is_ca: bool) -> CertificateFacts {
        CertificateFacts {
            subject: subject.to_owned(),
            issuer: issuer.to_owned(),
            dns: BTreeSet::new(),
            ips: BTreeSet::new(),
            client: true,
            server: true,
            is_ca,
            path_length: is_ca.then_some(1),
            not_before: self.now - k8s_openapi::jiff::SignedDuration::from_hours(1),
            not_after: self.now + k8s_openapi::jiff::SignedDuration::from_hours(24 * 365),
            key_id: None,
            authority_id: None,
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

/// A credential's Secret, as facts.
fn secret(metadata: ObjectMeta, leaf: CertificateFacts, ca: &CertificateFacts) -> SecretFacts {
    let file = |content: &str, size: usize, certificates: Vec<CertificateFacts>| FileFacts {
        size,
        sha256: digest(content.as_bytes()),
        certificates,
        error: None,
    };
    let files = [
        ("ca.crt", file(&ca.fingerprint, 615, vec![ca.clone()])),
        (
            "tls.key",
            file(&format!("key of {}", leaf.fingerprint), 227, Vec::new()),
        ),
        ("tls.crt", file(&leaf.fingerprint, 631, vec![leaf.clone()])),
    ];
    SecretFacts {
        metadata,
        type_: "kubernetes.io/tls".to_owned(),
        files: files
            .map(|(name, file)| (name.to_owned(), file))
            .into_iter()
            .collect(),
        pair: Some(PairFacts {
            key_error: None,
            chain_error: None,
        }),
        profiles: None,
    }
}

fn file(text: &str) -> FileFacts {
    FileFacts {
        size: text.len(),
        sha256: digest(text.as_bytes()),
        ..FileFacts::default()
    }
}

/// Addresses as a platform gives them.
fn assign_addresses(service: &mut Value) {
    let kind = service["spec"]["type"]
        .as_str()
        .unwrap_or("ClusterIP")
        .to_owned();
    service["status"] = if kind == "LoadBalancer" {
        json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}})
    } else {
        json!({"loadBalancer": {}})
    };
    if kind != "ClusterIP" {
        for port in service["spec"]["ports"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            let node_port = 30000 + port["port"].as_i64().unwrap_or_default() % 2000;
            port["nodePort"] = json!(node_port);
        }
    }
}

fn whole(world: &World, kind: ObjectKind, name: &str) -> Value {
    match world.live(kind, name).map(|live| live.content) {
        Some(spanwire_plan::world::LiveContent::Whole(value)) => value,
        _ => Value::Null,
    }
}

/// Does the same to the objects of whichever kind: `act!(objects, with…)`.
macro_rules! each_kind {
    ($act:ident, $world:expr, $kind:expr $(, $with:expr)*) => {
        match $kind {
            ObjectKind::Site => $act!($world.sites$(, $with)*),
            ObjectKind::Link => $act!($world.links$(, $with)*),
            ObjectKind::RouterAccess => $act!($world.router_accesses$(, $with)*),
            ObjectKind::SecuredAccess => $act!($world.secured_accesses$(, $with)*),
            ObjectKind::Certificate => $act!($world.certificates$(, $with)*),
            ObjectKind::AccessGrant => $act!($world.access_grants$(, $with)*),
            ObjectKind::AccessToken => $act!($world.access_tokens$(, $with)*),
            ObjectKind::Secret => $act!($world.secrets$(, $with)*),
            ObjectKind::ConfigMap => $act!($world.config_maps$(, $with)*),
            ObjectKind::Service => $act!($world.services$(, $with)*),
            ObjectKind::ServiceAccount => $act!($world.service_accounts$(, $with)*),
            ObjectKind::Role => $act!($world.roles$(, $with)*),
            ObjectKind::RoleBinding => $act!($world.role_bindings$(, $with)*),
            ObjectKind::Deployment => $act!($world.deployments$(, $with)*),
            ObjectKind::ReplicaSet => $act!($world.replica_sets$(, $with)*),
            ObjectKind::Pod => $act!($world.pods$(, $with)*),
        }
    };
}

macro_rules! metadata {
    ($objects:expr) => {
        $objects.iter().map(Named::metadata).collect()
    };
}

macro_rules! insert {
    ($objects:expr, $object:expr) => {
        $objects.insert(serde_json::from_value($object).unwrap())
    };
}

macro_rules! remove {
    ($objects:expr, $name:expr) => {
        drop($objects.0.remove($name))
    };
}

fn metadata_of(world: &World, kind: ObjectKind) -> Vec<&ObjectMeta> {
    each_kind!(metadata, world, kind)
}

fn insert(world: &mut World, kind: ObjectKind, object: Value) {
    each_kind!(insert, world, kind, object);
}

fn remove(world: &mut World, kind: ObjectKind, name: &str) {
    each_kind!(remove, world, kind, name);
}

/// Fails where two Worlds differ in more than chance, and shows where.
pub(crate) fn assert_same(left: &World, right: &World, context: &str) {
    let lines = |world: &World| {
        let text = serde_json::to_string_pretty(&essence(world)).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (left, right) = (lines(left), lines(right));
    if let Some(line) =
        (0..left.len().max(right.len())).find(|line| left.get(*line) != right.get(*line))
    {
        let around = |lines: &[String]| {
            let range = line.saturating_sub(12)..lines.len().min(line + 6);
            lines[range].join("\n")
        };
        panic!(
            "{context}:\n{}\n--- is not ---\n{}",
            around(&left),
            around(&right)
        );
    }
}

/// A World without what differs between two installations: uids, revisions, times, key material, pods.
fn essence(world: &World) -> Value {
    let mut value = serde_json::to_value(world).unwrap();
    strip(&mut value);
    value
}

fn strip(value: &mut Value) {
    const CHANCE: [&str; 17] = [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "observedGeneration",
        "lastTransitionTime",
        "sha256",
        "fingerprint",
        "version",
        "expiration",
        "notBefore",
        "notAfter",
        "renewalTime",
        "pods",
        "replicaSets",
        "reports",
        "size",
    ];
    match value {
        Value::Object(map) => {
            map.retain(|key, _| {
                !CHANCE.contains(&key.as_str())
                    && !key.starts_with("internal.spanwire.io/")
                    && !key.starts_with("internal.skupper.io/hosts-")
            });
            map.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}
