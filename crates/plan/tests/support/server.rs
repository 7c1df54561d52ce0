//! What does the API server do with a write?

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use spanwire_plan::facts::FileFacts;
use spanwire_plan::plan::{Child, Content, Live, Nudge, ObjectKind, Ref};
use spanwire_plan::{Act, labels};
use spanwire_router::config::{CONFIG_FILE, Document};
use spanwire_router::credentials::{PROFILES_FILE, Profiles, digest};

use super::objects::{ALL, insert, metadata_of, remove, whole};
use super::{Cluster, word};

/// An act that the API server refused.
#[derive(Debug)]
pub(super) struct Refused(pub(super) String);

impl Cluster {
    /// Carries out one act, or refuses it as the API server would.
    pub(super) fn act(&mut self, act: &Act) -> Result<(), Refused> {
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
            Act::Redeem(redeem) => self.redeem(redeem),
            Act::Nudge(nudge) => self.nudge(nudge),
        }?;
        self.check_law();
        Ok(())
    }

    pub(super) fn check(&self, kind: ObjectKind, name: &str, live: &Live) -> Result<(), Refused> {
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
    pub(super) fn put(&mut self, kind: ObjectKind, mut object: Value) {
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

    /// Metadata of a child, as the API server would have it after the write.
    pub(super) fn metadata(&mut self, child: &Child, old: Option<&ObjectMeta>) -> ObjectMeta {
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

    pub(super) fn collect_garbage(&mut self) {
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
