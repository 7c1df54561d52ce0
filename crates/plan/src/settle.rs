//! Does a live object already say what is wanted of it?
//!
//! *Settled* is defined, not felt: every applied child carries a digest of the wanted object, and is settled when
//! that digest is the same **and** the wanted object is contained in the live one. So a field that somebody dropped
//! is noticed, and what the server or somebody else added is not fought. Of the children of our own API all of the spec
//! is ours: there, a field that we leave out says something.

use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::labels;
use crate::plan::{Act, Child, Content, Live, ObjectKind};
use crate::world::{LiveContent, LiveObject, World};

/// The field manager of everything that we write.
pub const FIELD_MANAGER: &str = "spanwire";
/// Field managers of the incumbent, whose fields become ours at the first touch.
const INCUMBENTS: [&str; 3] = ["skupper-controller", "controller", "kube-adaptor"];

/// What is left to do for some children.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settling {
    /// At most one act a child.
    pub acts: Vec<Act>,
    /// Objects that stand in the way: they have a name that is needed, and are somebody else's.
    pub taken: Vec<String>,
}

/// What is left to do for these children in this World.
pub fn settle(children: impl IntoIterator<Item = Child>, world: &World) -> Settling {
    let mut settling = Settling::default();
    for child in children {
        let child = sealed(child);
        let Some(live) = world.live(child.kind, child.name()) else {
            settling.acts.push(Act::Create(child));
            continue;
        };
        if !is_ours(&child, live.metadata) {
            settling.taken.push(format!(
                "{} \"{}\" exists but is not controlled by skupper: delete or rename it",
                child.kind.resource().kind,
                child.name()
            ));
        } else if live.metadata.deletion_timestamp.is_none() {
            let removal = removal(&child, &live);
            if removal.is_empty() && is_settled(&child, &live) {
                continue;
            }
            // Where there is a surplus, a merge patch is written: an apply leaves fields that another manager holds, and
            // a null in a merge patch removes them.
            let mut surplus = surplus(&child, &live);
            surplus.extend(removal.keys().cloned());
            let precondition = Live {
                surplus,
                ..Live::of(live.metadata)
            };
            let child = without(child, removal);
            settling.acts.push(Act::Apply(child, precondition));
        }
    }
    settling
}

/// The write of a settled child that changes nothing, and that is refused where the World is behind: a fence in
/// front of what may only be done while the stored object is the one that was seen.
pub fn fence(child: Child, world: &World) -> Option<Act> {
    let live = Live::of(world.live(child.kind, child.name())?.metadata);
    Some(Act::Apply(sealed(child), live))
}

/// Whether the live object carries the uid of an owner that the child should have.
pub fn is_ours(child: &Child, live: &ObjectMeta) -> bool {
    child.owners().any(|uid| {
        live.owner_references
            .iter()
            .flatten()
            .any(|owner| owner.uid == uid)
    })
}

/// Whether fields have to be taken over before an apply can remove them: a POST leaves an `Update` entry, and so
/// does everything that the incumbent wrote.
pub fn needs_take_over(metadata: &ObjectMeta) -> bool {
    metadata.managed_fields.iter().flatten().any(|entry| {
        let manager = entry.manager.as_deref().unwrap_or_default();
        let of_status = entry
            .subresource
            .as_deref()
            .is_some_and(|part| !part.is_empty());
        let is_update = entry.operation.as_deref() == Some("Update");
        !of_status && (manager == FIELD_MANAGER && is_update || INCUMBENTS.contains(&manager))
    })
}

/// A child from a typed object of `k8s_openapi` or `spanwire_api`.
pub fn child<K: Serialize>(kind: ObjectKind, object: &K) -> Child {
    let mut object = serde_json::to_value(object).unwrap_or_default();
    let resource = kind.resource();
    object["apiVersion"] = json!(resource.api_version);
    object["kind"] = json!(resource.kind);
    if object.get("status").is_some_and(Value::is_null) {
        object.as_object_mut().map(|object| object.remove("status"));
    }
    Child {
        kind,
        object,
        data: std::collections::BTreeMap::new(),
        unwanted: Vec::new(),
    }
}

/// The child with the digest of itself among its annotations.
fn sealed(mut child: Child) -> Child {
    let digest = digest(&child);
    if let Some(metadata) = child.object.get_mut("metadata") {
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        metadata["annotations"][labels::APPLIED] = json!(digest);
    }
    child
}

/// First 16 hex digits of the SHA-256 over the wanted object. For copied bytes their digests count, never the
/// source's uid or resourceVersion: the same bytes from elsewhere are no change.
fn digest(child: &Child) -> String {
    let mut hasher = Sha256::new();
    hasher.update(child.object.to_string());
    for (key, content) in &child.data {
        hasher.update([0]);
        hasher.update(key);
        hasher.update([0]);
        hasher.update(content_digest(content));
    }
    hasher
        .finalize()
        .iter()
        .take(8)
        .fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

fn content_digest(content: &Content) -> String {
    match content {
        Content::Text(text) => spanwire_router::credentials::digest(text.as_bytes()),
        Content::Copy(copied) => copied.sha256.clone(),
    }
}

fn is_settled(child: &Child, live: &LiveObject<'_>) -> bool {
    let wanted = &child.object["metadata"]["annotations"][labels::APPLIED];
    let applied = live
        .metadata
        .annotations
        .as_ref()
        .and_then(|map| map.get(labels::APPLIED));
    applied.map(String::as_str) == wanted.as_str() && is_contained(child, live)
}

fn is_contained(child: &Child, live: &LiveObject<'_>) -> bool {
    let metadata = serde_json::to_value(live.metadata).unwrap_or_default();
    let files = match &live.content {
        LiveContent::Whole(whole) => {
            return contains(whole, &child.object)
                && (!is_whole(child.kind) || is_listed(&whole["spec"], &child.object["spec"]));
        }
        LiveContent::Secret(facts) => &facts.files,
        LiveContent::ConfigMap(facts) => &facts.files,
    };
    contains(&metadata, &child.object["metadata"])
        && surplus(child, live).is_empty()
        && child.data.iter().all(|(key, content)| {
            files
                .get(key)
                .is_some_and(|file| file.sha256 == content_digest(content))
        })
}

/// Keys that should go: of a Secret all that are not wanted; of a ConfigMap, whose other keys may be other writers', only
/// those that are named.
fn surplus(child: &Child, live: &LiveObject<'_>) -> Vec<String> {
    match &live.content {
        LiveContent::ConfigMap(facts) => child
            .unwanted
            .iter()
            .filter(|key| facts.files.contains_key(*key))
            .cloned()
            .collect(),
        LiveContent::Secret(facts) if !child.data.is_empty() => facts
            .files
            .keys()
            .filter(|key| !child.data.contains_key(*key))
            .cloned()
            .collect(),
        _ => Vec::new(),
    }
}

/// Whether all of the spec is ours, and not only what we say of it.
fn is_whole(kind: ObjectKind) -> bool {
    matches!(
        kind,
        ObjectKind::RouterAccess | ObjectKind::SecuredAccess | ObjectKind::Certificate
    )
}

/// The child with nulls where something of the live spec is to go. Its digest is that of what is wanted.
fn without(mut child: Child, removal: Map<String, Value>) -> Child {
    if let Some(spec) = child.object.get_mut("spec") {
        overlay(spec, removal);
    }
    child
}

fn overlay(wanted: &mut Value, removal: Map<String, Value>) {
    for (field, removal) in removal {
        match removal {
            Value::Object(inner) => overlay(&mut wanted[field], inner),
            null => wanted[field] = null,
        }
    }
}

/// Whether the lists of a spec that is wholly ours have no further items.
fn is_listed(live: &Value, wanted: &Value) -> bool {
    let lists = wanted.as_object().into_iter().flatten();
    lists
        .filter_map(|(field, wanted)| Some((wanted.as_array()?, live.get(field)?.as_array()?)))
        .all(|(wanted, live)| wanted.len() == live.len())
}

/// A null for each field of the live spec that is not wanted; none where the spec is not wholly ours.
fn removal(child: &Child, live: &LiveObject<'_>) -> Map<String, Value> {
    let LiveContent::Whole(live) = &live.content else {
        return Map::new();
    };
    if !is_whole(child.kind) {
        return Map::new();
    }
    let mut removal = unwanted(&live["spec"], &child.object["spec"]);
    if child.kind == ObjectKind::RouterAccess {
        // Settings that somebody else gave it stay.
        removal.remove("settings");
        removal.remove("options");
    }
    removal
}

fn unwanted(live: &Value, wanted: &Value) -> Map<String, Value> {
    let mut removal = Map::new();
    for (field, live) in live.as_object().into_iter().flatten() {
        match wanted.get(field) {
            Some(wanted @ Value::Object(_)) => {
                let inner = unwanted(live, wanted);
                if !inner.is_empty() {
                    removal.insert(field.clone(), Value::Object(inner));
                }
            }
            None | Some(Value::Null) if !is_blank(live) => {
                removal.insert(field.clone(), Value::Null);
            }
            _ => {}
        }
    }
    removal
}

/// Whether a field says no more than if it were not there.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Whether everything that `wanted` says stands in `live` too.
pub fn contains(live: &Value, wanted: &Value) -> bool {
    contains_at("", live, wanted)
}

fn contains_at(field: &str, live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (_, Value::Null) => true,
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| match live.get(key) {
                Some(live) => contains_at(key, live, wanted),
                None => wanted.is_null() || wanted.as_array().is_some_and(Vec::is_empty),
            })
        }
        (Value::Array(live), Value::Array(wanted)) => contains_all(field, live, wanted),
        (Value::Number(live), Value::Number(wanted)) => live.as_f64() == wanted.as_f64(),
        _ => live == wanted,
    }
}

fn contains_all(field: &str, live: &[Value], wanted: &[Value]) -> bool {
    let Some(keys) = merge_keys(field) else {
        return live.len() == wanted.len()
            && live
                .iter()
                .zip(wanted)
                .all(|(live, wanted)| contains_at(field, live, wanted));
    };
    wanted.iter().all(|wanted| {
        live.iter().any(|live| {
            keys.iter().all(|key| {
                let wanted = wanted.get(key);
                wanted.is_none_or(Value::is_null) || live.get(key) == wanted
            }) && contains_at(field, live, wanted)
        })
    })
}

/// The fields by which the API server merges the items of a list that several writers share
/// (`x-kubernetes-list-map-keys` of the built-in types); other lists are one value.
fn merge_keys(field: &str) -> Option<&'static [&'static str]> {
    match field {
        "containers" | "initContainers" | "volumes" | "env" => Some(&["name"]),
        "volumeMounts" => Some(&["mountPath"]),
        "ports" => Some(&["containerPort", "port", "protocol"]),
        "ownerReferences" => Some(&["uid"]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_adds_is_not_fought() {
        let wanted = json!({"spec": {"ports": [{"port": 1, "name": "a"}], "selector": {"a": "b"}}});
        let live = json!({"spec": {
            "clusterIP": "10.0.0.1", "selector": {"a": "b"},
            "ports": [{"port": 1, "name": "a", "protocol": "TCP", "nodePort": 30000}],
        }});
        assert!(contains(&live, &wanted));
    }

    #[test]
    fn a_dropped_field_and_a_changed_one_are_noticed() {
        let wanted = json!({"rules": [{"verbs": ["get", "patch"]}]});
        assert!(!contains(&json!({"rules": [{"verbs": ["get"]}]}), &wanted));
        assert!(!contains(
            &json!({"rules": [{"verbs": ["get", "patch"]}, {"verbs": ["*"]}]}),
            &wanted
        ));
        assert!(!contains(&json!({}), &wanted));
    }

    fn access(kind: ObjectKind, spec: &Value) -> Child {
        let owner = json!({"apiVersion": "skupper.io/v2alpha1", "kind": "Site", "name": "west", "uid": "west"});
        let metadata = json!({"name": "a", "namespace": "west", "ownerReferences": [owner]});
        Child {
            kind,
            object: json!({"metadata": metadata, "spec": spec}),
            data: std::collections::BTreeMap::new(),
            unwanted: Vec::new(),
        }
    }

    fn secured(more: &Value) -> Child {
        let mut spec = json!({
            "selector": {"component": "router"},
            "ports": [{"name": "edge", "port": 45671, "targetPort": 45671, "protocol": "TCP"}],
            "issuer": "ca",
        });
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        access(ObjectKind::SecuredAccess, &spec)
    }

    /// The World in which a child was applied, and its spec is that of another since.
    fn after(applied: Child, spec: &Child) -> World {
        let mut object = sealed(applied).object;
        object["spec"] = spec.object["spec"].clone();
        object["metadata"]["uid"] = json!("uid");
        object["metadata"]["resourceVersion"] = json!("7");
        let mut world = World::default();
        if spec.kind == ObjectKind::SecuredAccess {
            let object = serde_json::from_value(object).unwrap();
            world.secured_accesses.insert(object);
        } else {
            let object = serde_json::from_value(object).unwrap();
            world.router_accesses.insert(object);
        }
        world
    }

    #[test]
    fn a_field_that_somebody_adds_to_a_spec_of_ours_is_removed_by_name() {
        let wanted = secured(&json!({}));
        let more = json!({
            "accessType": "local",
            "settings": {"domain": "elsewhere"},
            "selector": {"component": "router", "app": "nobody"},
        });
        let world = after(wanted.clone(), &secured(&more));
        let acts = settle([wanted], &world).acts;
        let [Act::Apply(child, live)] = &acts[..] else {
            panic!("{acts:?}");
        };
        let spec = &child.object["spec"];
        assert_eq!(spec.get("accessType"), Some(&Value::Null));
        assert_eq!(spec.get("settings"), Some(&Value::Null));
        assert_eq!(
            spec["selector"],
            json!({"component": "router", "app": null})
        );
        assert_eq!(spec["issuer"], "ca");
        assert_eq!(live.surplus, ["accessType", "selector", "settings"]);
        let digest = &child.object["metadata"]["annotations"][labels::APPLIED];
        assert_eq!(*digest, json!(super::digest(&secured(&json!({})))));
    }

    #[test]
    fn an_item_that_somebody_adds_to_a_list_of_ours_is_taken_out() {
        let wanted = secured(&json!({}));
        let mut more = wanted.clone();
        let ports = more.object["spec"]["ports"].as_array_mut().unwrap();
        ports.push(json!({"name": "more", "port": 1, "targetPort": 1, "protocol": "TCP"}));
        let world = after(wanted.clone(), &more);
        let acts = settle([wanted], &world).acts;
        assert!(
            matches!(&acts[..], [Act::Apply(_, live)] if live.surplus.is_empty()),
            "{acts:?}"
        );
    }

    #[test]
    fn what_says_nothing_and_settings_of_somebody_else_are_not_fought() {
        let wanted = secured(&json!({}));
        let blank = secured(&json!({"accessType": "", "settings": {}, "certificate": null}));
        assert_eq!(
            settle([wanted.clone()], &after(wanted, &blank)),
            Settling::default()
        );
        let spec =
            json!({"roles": [{"name": "edge", "port": 45671}], "tlsCredentials": "credentials"});
        let wanted = access(ObjectKind::RouterAccess, &spec);
        let mut more = wanted.clone();
        more.object["spec"]["settings"] = json!({"ingressClassName": "mine"});
        assert_eq!(
            settle([wanted.clone()], &after(wanted.clone(), &more)),
            Settling::default()
        );
        more.object["spec"]["bindHost"] = json!("127.0.0.1");
        assert_eq!(
            settle([wanted.clone()], &after(wanted, &more)).acts.len(),
            1
        );
    }

    #[test]
    fn a_side_car_of_somebody_else_stays() {
        let wanted = json!({"containers": [{"name": "router", "image": "a"}]});
        let live = json!({"containers": [{"name": "proxy"}, {"name": "router", "image": "a"}]});
        assert!(contains(&live, &wanted));
    }

    #[test]
    fn a_post_of_ours_and_the_incumbents_fields_are_taken_over_at_the_first_apply() {
        let entry = |manager: &str, operation: &str| {
            serde_json::from_value::<ObjectMeta>(
                json!({"managedFields": [{"manager": manager, "operation": operation}]}),
            )
            .unwrap()
        };
        assert!(needs_take_over(&entry("spanwire", "Update")));
        assert!(needs_take_over(&entry("skupper-controller", "Apply")));
        assert!(!needs_take_over(&entry("spanwire", "Apply")));
        assert!(!needs_take_over(&entry("kubectl", "Update")));
    }
}
