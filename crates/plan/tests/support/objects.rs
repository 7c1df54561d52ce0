//! How are the objects of a World reached by kind, and when are two Worlds the same?

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use spanwire_plan::World;
use spanwire_plan::plan::ObjectKind;
use spanwire_plan::world::{LiveContent, Named};

/// All of them.
pub(super) const ALL: [ObjectKind; 16] = [
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

pub(super) fn whole(world: &World, kind: ObjectKind, name: &str) -> Value {
    match world.live(kind, name).map(|live| live.content) {
        Some(LiveContent::Whole(value)) => value,
        _ => Value::Null,
    }
}

pub(super) fn metadata_of(world: &World, kind: ObjectKind) -> Vec<&ObjectMeta> {
    each_kind!(metadata, world, kind)
}

pub(super) fn insert(world: &mut World, kind: ObjectKind, object: Value) {
    each_kind!(insert, world, kind, object);
}

pub(super) fn remove(world: &mut World, kind: ObjectKind, name: &str) {
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
    const CHANCE: [&str; 20] = [
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
        "keyId",
        "authorityId",
        "signers",
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
