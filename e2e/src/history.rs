//! Did a configuration ever name a credential that was not stored? Reads every stored revision from the audit log.
//!
//! The API server logs the object that each write left behind, so nothing is missed between two looks and it is known
//! who wrote what. In the order of resource versions, each write of ours has to leave no gap that was not there before:
//! a profile that a stored `skrouterd.json` names is in the credentials Secret, complete and as its own `profiles.json`
//! says; and what a router's Deployment mounts is there (`design.md` §3). A gap that somebody else made is not our fault,
//! and what a Site leaves behind is the garbage collector's, which takes it in any order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use spanwire_router::config::{CONFIG_FILE, Document};
use spanwire_router::credentials::{self, PROFILES_FILE, Profiles};
use spanwire_router::entity::Entity;

use crate::audit::{AuditLog, Mark, Request};

/// A write and what it left behind.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(flatten)]
    request: Request,
    #[serde(default)]
    request_received_timestamp: String,
    /// Logged, like the answer, for Secrets, ConfigMaps and Deployments: an object, or a patch of one.
    #[serde(default)]
    request_object: Value,
    #[serde(default)]
    response_object: Value,
}

/// What is stored in a namespace after some write.
#[derive(Debug, Default)]
struct Stored {
    sites: BTreeSet<String>,
    /// Resource and name → the object.
    objects: BTreeMap<(String, String), Value>,
    /// Secret → profiles that are complete and match.
    secrets: BTreeMap<String, BTreeSet<String>>,
    /// ConfigMap → profiles that its configuration names.
    configs: BTreeMap<String, BTreeSet<String>>,
    /// Deployment → what it mounts: Secrets, ConfigMaps.
    deployments: BTreeMap<String, (Vec<String>, Vec<String>)>,
}

/// Fails if one of our writes in `namespaces`, which were made after the mark, left a gap that was not there before. Gives
/// back how many revisions of routers' configurations it has looked at.
pub fn is_in_order(audit: &AuditLog, mark: Mark, namespaces: &[impl AsRef<str>]) -> Result<usize> {
    let mut configurations = 0;
    for namespace in namespaces {
        let namespace = namespace.as_ref();
        let entries = stored(audit, mark, namespace)?;
        let stored: Vec<&Entry> = entries.iter().collect();
        let is_configuration = |entry: &&&Entry| {
            [&entry.request_object, &entry.response_object]
                .into_iter()
                .any(|object| named(object).is_some())
        };
        configurations += stored.iter().filter(is_configuration).count();
        let faults = faults(stored);
        ensure!(
            faults.is_empty(),
            "configuration came before credentials in {namespace}:\n{}",
            faults.join("\n")
        );
    }
    Ok(configurations)
}

/// How many certificates each Secret is known to have had that was made after the mark, one after the other.
pub fn certificates(
    audit: &AuditLog,
    mark: Mark,
    namespace: &str,
) -> Result<BTreeMap<String, usize>> {
    let entries = stored(audit, mark, namespace)?;
    let mut entries: Vec<&Entry> = entries.iter().collect();
    in_order(&mut entries);
    let mut certificates: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for entry in entries {
        let object = &entry.request.object_ref;
        if object.resource != "secrets" || entry.is_unclear() {
            continue;
        }
        let stored = [&entry.response_object, &entry.request_object];
        let stored = stored.into_iter().find_map(certificate);
        let known = certificates.entry(object.name.clone()).or_default();
        if let Some(certificate) = stored
            && known.last() != Some(certificate)
        {
            known.push(certificate.clone());
        }
    }
    certificates.retain(|_, known| !known.is_empty());
    let counted = certificates.into_iter();
    Ok(counted.map(|(name, known)| (name, known.len())).collect())
}

/// The certificate in a Secret, in a merge patch of one, or in the operation that puts new data into one.
fn certificate(written: &Value) -> Option<&Value> {
    let operations = written.as_array().into_iter().flatten();
    let data = operations
        .filter(|operation| operation["path"] == "/data")
        .map(|operation| &operation["value"]);
    let mut data = data.chain([&written["data"]]);
    data.find_map(|data| data.get("tls.crt"))
}

/// What was written in a namespace that was made after the mark, or may have been.
fn stored(audit: &AuditLog, mark: Mark, namespace: &str) -> Result<Vec<Entry>> {
    let here = format!("\"namespace\":\"{namespace}\"");
    let mut entries: Vec<Entry> = audit.entries(mark, |line| line.contains(&here))?;
    entries.retain(|entry| {
        let request = &entry.request;
        request.object_ref.namespace == namespace
            && request.object_ref.subresource.is_empty()
            && request.is_write()
            && (entry.is_done() || entry.is_unclear())
    });
    Ok(clear_up(entries))
}

/// Finds out what became of creations whose caller had gone before they were answered: what is not made again was made.
fn clear_up(entries: Vec<Entry>) -> Vec<Entry> {
    let mut clear = Vec::new();
    let mut entries = VecDeque::from(entries);
    while let Some(mut entry) = entries.pop_front() {
        if entry.is_unclear() && entry.request.verb == "create" {
            let of = |entry: &Entry| {
                let object = &entry.request.object_ref;
                (object.resource.clone(), object.name.clone())
            };
            let mut later = entries.iter().filter(|later| of(later) == of(&entry));
            let next = later.find(|later| later.is_done());
            if next.is_some_and(|next| next.request.verb == "create") {
                continue;
            }
            entry.response_object = entry.request_object.clone();
            entry.request.response_status.code = 201;
        }
        clear.push(entry);
    }
    clear
}

fn faults(mut entries: Vec<&Entry>) -> Vec<String> {
    in_order(&mut entries);
    let mut stored = Stored::default();
    let mut faults = Vec::new();
    let mut before = BTreeSet::new();
    for entry in entries {
        if entry.is_unclear() {
            // From here on it is not known what there is.
            break;
        }
        stored.take(entry);
        let after = stored.gaps();
        if entry.request.is_ours() && !stored.sites.is_empty() {
            let new = after.difference(&before);
            faults.extend(new.map(|gap| format!("{}: {gap}", entry.request)));
        }
        before = after;
    }
    faults
}

/// By resource version; what left no object behind comes after everything that was answered before it was asked.
fn in_order(entries: &mut [&Entry]) {
    let mut versions: Vec<(&str, u64)> = entries
        .iter()
        .filter_map(|entry| Some((entry.request.stage_timestamp.as_str(), entry.version()?)))
        .collect();
    versions.sort_unstable();
    let mut newest = 0;
    for (_, version) in &mut versions {
        newest = newest.max(*version);
        *version = newest;
    }
    let version = |entry: &Entry| {
        entry.version().unwrap_or_else(|| {
            let asked = entry.request_received_timestamp.as_str();
            let earlier = versions.partition_point(|(answered, _)| *answered < asked);
            earlier
                .checked_sub(1)
                .and_then(|last| versions.get(last))
                .map_or(0, |(_, version)| *version)
        })
    };
    entries.sort_by_cached_key(|entry| {
        (
            version(entry),
            entry.version().is_none(),
            entry.request.stage_timestamp.clone(),
        )
    });
}

impl Entry {
    fn version(&self) -> Option<u64> {
        let version = self.response_object["metadata"]["resourceVersion"].as_str()?;
        // The answer to a deletion shows the object as it was.
        (!self.is_deletion()).then(|| version.parse().ok())?
    }

    /// The object that the write left behind. Who asks for no more than its metadata is told no more: then it is what was
    /// there, patched.
    fn object(&self, before: Option<&Value>) -> Value {
        if self.response_object["kind"] != "PartialObjectMetadata" {
            return self.response_object.clone();
        }
        let mut object = before.cloned().unwrap_or_default();
        // Of the lists of operations that we send none touches what is judged here.
        if self.request_object.is_object() {
            json_patch::merge(&mut object, &self.request_object);
        }
        object
    }

    fn is_done(&self) -> bool {
        (200..300).contains(&self.request.response_status.code)
    }

    /// Whether the API server cannot say what became of it, as when its caller is gone.
    fn is_unclear(&self) -> bool {
        self.request.response_status.code >= 500
    }

    fn is_deletion(&self) -> bool {
        self.request.verb.starts_with("delete")
    }
}

impl Stored {
    fn take(&mut self, entry: &Entry) {
        let object = &entry.request.object_ref;
        let name = &object.name;
        let is_gone = entry.is_deletion();
        let is_all = is_gone && name.is_empty();
        let key = (object.resource.clone(), name.clone());
        let live = entry.object(self.objects.get(&key));
        let live = &live;
        match object.resource.as_str() {
            "sites" if is_all => self.sites.clear(),
            "sites" if is_gone => drop(self.sites.remove(name)),
            "sites" => drop(self.sites.insert(name.clone())),
            "secrets" => put(&mut self.secrets, name, is_gone, || sound(live)),
            "configmaps" => put(&mut self.configs, name, is_gone, || named(live)),
            "deployments" => put(&mut self.deployments, name, is_gone, || mounted(live)),
            _ => return,
        }
        self.objects.insert(key, live.clone());
    }

    /// What is wanted and not there, a sentence each.
    fn gaps(&self) -> BTreeSet<String> {
        let mut gaps = BTreeSet::new();
        for (deployment, (secrets, configs)) in &self.deployments {
            let missing = secrets
                .iter()
                .filter(|secret| !self.secrets.contains_key(*secret))
                .chain(
                    configs
                        .iter()
                        .filter(|map| !self.configs.contains_key(*map)),
                );
            gaps.extend(
                missing.map(|name| {
                    format!("Deployment {deployment} mounts {name}, which is not there")
                }),
            );
        }
        let stored: BTreeSet<&String> = self.secrets.values().flatten().collect();
        for (config, profiles) in &self.configs {
            let missing = profiles.iter().filter(|profile| !stored.contains(profile));
            gaps.extend(missing.map(|profile| {
                format!(
                    "ConfigMap {config} names profile {profile}, which no Secret holds complete"
                )
            }));
        }
        gaps
    }
}

fn put<T>(
    map: &mut BTreeMap<String, T>,
    name: &str,
    is_gone: bool,
    content: impl FnOnce() -> Option<T>,
) {
    match content().filter(|_| !is_gone) {
        Some(content) => drop(map.insert(name.to_owned(), content)),
        None if name.is_empty() => map.clear(),
        None => drop(map.remove(name)),
    }
}

/// The profiles whose files are in a Secret just as its `profiles.json` says; none for a Secret without one.
fn sound(secret: &Value) -> Option<BTreeSet<String>> {
    let data = secret["data"].as_object()?;
    let file = |key: &str| STANDARD.decode(data.get(key)?.as_str()?).ok();
    let profiles = Profiles::parse(&file(PROFILES_FILE)?).ok()?;
    let is_sound = |profile: &credentials::Profile| {
        let files = [&profile.ca, &profile.crt, &profile.key];
        let mut files = files.into_iter().flatten();
        profile.check().is_ok()
            && files.all(|of| {
                file(&of.key).is_some_and(|bytes| credentials::digest(&bytes) == of.sha256)
            })
    };
    let sound = profiles.0.iter().filter(|(_, profile)| is_sound(profile));
    Some(sound.map(|(name, _)| name.clone()).collect())
}

/// The profiles that a router's configuration names; none for any other ConfigMap.
fn named(map: &Value) -> Option<BTreeSet<String>> {
    let document = Document::parse(map["data"][CONFIG_FILE].as_str()?.as_bytes()).ok()?;
    let used = document.profile_names().into_iter();
    let listed = document.entities.iter().filter_map(|entity| match entity {
        Entity::SslProfile(profile) => Some(profile.name.as_str()),
        _ => None,
    });
    Some(used.chain(listed).map(str::to_owned).collect())
}

/// The Secrets and ConfigMaps that a Deployment mounts in one projected volume.
fn mounted(deployment: &Value) -> Option<(Vec<String>, Vec<String>)> {
    let volumes = deployment["spec"]["template"]["spec"]["volumes"].as_array()?;
    let sources: Vec<&Value> = volumes
        .iter()
        .filter_map(|volume| volume["projected"]["sources"].as_array())
        .flatten()
        .collect();
    let names = |kind: &str| -> Vec<String> {
        let names = sources
            .iter()
            .filter_map(|source| source[kind]["name"].as_str());
        names
            .filter(|name| *name != "kube-root-ca.crt")
            .map(str::to_owned)
            .collect()
    };
    Some((names("secret"), names("configMap")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use spanwire_router::credentials::{File, Profile, digest};

    use super::*;

    const US: &str = "system:serviceaccount:spanwire:spanwire-controller";
    const PERSON: &str = "admin";

    fn entry(
        user: &str,
        verb: &str,
        resource: &str,
        name: &str,
        second: u32,
        object: &Value,
    ) -> Entry {
        let time = format!("2026-11-30T20:00:{second:02}.000000Z");
        serde_json::from_value(json!({
            "verb": verb,
            "user": {"username": user},
            "objectRef": {"resource": resource, "namespace": "west", "name": name},
            "responseStatus": {"code": 200},
            "requestReceivedTimestamp": time,
            "stageTimestamp": time,
            "responseObject": object,
        }))
        .unwrap()
    }

    fn site(verb: &str, second: u32) -> Entry {
        entry(PERSON, verb, "sites", "west", second, &Value::Null)
    }

    fn secret(user: &str, version: u32, profiles: &[&str]) -> Entry {
        let crt = |name: &str| File {
            key: name.to_owned(),
            sha256: digest(name.as_bytes()),
        };
        let listed = profiles.iter().map(|name| {
            let profile = Profile::new(None, Some(crt(name)), None);
            ((*name).to_owned(), profile)
        });
        let list = Profiles(listed.collect()).to_json();
        let mut data: BTreeMap<&str, String> = profiles
            .iter()
            .map(|name| (*name, STANDARD.encode(name)))
            .collect();
        data.insert(PROFILES_FILE, STANDARD.encode(list));
        let object = json!({"metadata": {"resourceVersion": version.to_string()}, "data": data});
        entry(user, "patch", "secrets", "credentials", version, &object)
    }

    fn config(version: u32, profiles: &[&str]) -> Entry {
        let entities: Vec<Value> = profiles
            .iter()
            .map(|name| json!(["sslProfile", {"name": name, "certFile": "tls.crt"}]))
            .collect();
        let object = json!({
            "metadata": {"resourceVersion": version.to_string()},
            "data": {CONFIG_FILE: json!(entities).to_string()},
        });
        entry(
            US,
            "patch",
            "configmaps",
            "skupper-router",
            version,
            &object,
        )
    }

    fn judge(entries: &[Entry]) -> Vec<String> {
        faults(entries.iter().collect())
    }

    #[test]
    fn credentials_first_is_in_order() {
        let story = [
            site("create", 1),
            secret(US, 2, &["a"]),
            config(3, &["a"]),
            secret(US, 4, &["a", "b"]),
            config(5, &["b"]),
            secret(US, 6, &["b"]),
        ];
        assert!(judge(&story).is_empty());
    }

    #[test]
    fn a_profile_named_too_early_or_forgotten_too_early_is_a_fault() {
        let early = [site("create", 1), config(2, &["a"]), secret(US, 3, &["a"])];
        assert!(judge(&early)[0].contains("names profile a"));
        let late = [
            site("create", 1),
            secret(US, 2, &["a"]),
            config(3, &["a"]),
            secret(US, 4, &[]),
            config(5, &[]),
        ];
        assert_eq!(judge(&late).len(), 1);
    }

    #[test]
    fn the_log_may_be_out_of_order_but_versions_are_not() {
        let mut credentials = secret(US, 2, &["a"]);
        credentials.request.stage_timestamp = "2026-11-30T20:00:09.000000Z".to_owned();
        let story = [site("create", 1), config(3, &["a"]), credentials];
        assert!(judge(&story).is_empty());
    }

    #[test]
    fn a_file_that_is_not_what_the_list_says_is_no_credential() {
        let mut torn = secret(US, 2, &["a"]);
        torn.response_object["data"]["a"] = json!(STANDARD.encode("else"));
        assert_eq!(
            judge(&[site("create", 1), torn, config(3, &["a"])]).len(),
            1
        );
    }

    #[test]
    fn what_somebody_else_breaks_and_what_a_dead_site_leaves_is_no_fault() {
        let broken = [
            site("create", 1),
            secret(US, 2, &["a"]),
            config(3, &["a"]),
            secret(PERSON, 4, &[]),
            config(5, &["a"]),
            secret(US, 6, &["a"]),
        ];
        assert!(judge(&broken).is_empty());
        let gone = [
            site("create", 1),
            secret(US, 2, &["a"]),
            config(3, &["a"]),
            site("delete", 4),
            secret(US, 5, &[]),
        ];
        assert!(judge(&gone).is_empty());
    }

    #[test]
    fn a_patch_is_judged_though_its_answer_is_metadata() {
        let mut forgotten = config(4, &[]);
        forgotten.request_object =
            json!({"data": {CONFIG_FILE: json!([["sslProfile", {"name": "b"}]]).to_string()}});
        forgotten.response_object = json!({
            "kind": "PartialObjectMetadata",
            "metadata": {"resourceVersion": "4"},
        });
        let story = [
            site("create", 1),
            secret(US, 2, &["a"]),
            config(3, &["a"]),
            forgotten,
        ];
        assert!(judge(&story)[0].contains("names profile b"));
    }

    #[test]
    fn what_its_caller_did_not_live_to_see_made_was_made_unless_it_is_made_again() {
        let unclear = || {
            let mut made = config(2, &["a"]);
            made.request.verb = "create".to_owned();
            made.request.response_status.code = 504;
            made.request_object = std::mem::take(&mut made.response_object);
            made
        };
        let judge_all = |story: Vec<Entry>| judge(&clear_up(story));
        assert_eq!(judge_all(vec![site("create", 1), unclear()]).len(), 1);
        let mut again = config(4, &["a"]);
        again.request.verb = "create".to_owned();
        let story = vec![site("create", 1), unclear(), secret(US, 3, &["a"]), again];
        assert!(judge_all(story).is_empty());
    }

    #[test]
    fn a_deployment_comes_after_what_it_mounts() {
        let sources =
            json!([{"secret": {"name": "credentials"}}, {"configMap": {"name": "skupper-router"}}]);
        let object = json!({
            "metadata": {"resourceVersion": "4"},
            "spec": {"template": {"spec": {"volumes": [{"projected": {"sources": sources}}]}}},
        });
        let deployment = || entry(US, "create", "deployments", "skupper-router", 4, &object);
        let stored = [
            site("create", 1),
            secret(US, 2, &[]),
            config(3, &[]),
            deployment(),
        ];
        assert!(judge(&stored).is_empty());
        assert_eq!(
            judge(&[site("create", 1), config(3, &[]), deployment()]).len(),
            1
        );
    }
}
