//! Is everybody woken whose plan is another one now?
//!
//! The law that lets the operator sleep: where a change alters a plan, `wakes` names the object of that plan. Every
//! object of every case is taken away and altered, one at a time, and put back.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/case.rs"]
mod case;

use std::collections::BTreeMap;

use case::Case;
use serde_json::{Value, json};
use spanwire_plan::kinds::{Changed, plans, references, wakes};
use spanwire_plan::plan::{ObjectKind, Ref};
use spanwire_plan::world::GrantServer;
use spanwire_plan::{Plan, World};

/// The fields of a World that are lists of objects.
const LISTS: [(&str, ObjectKind); 16] = [
    ("sites", ObjectKind::Site),
    ("links", ObjectKind::Link),
    ("routerAccesses", ObjectKind::RouterAccess),
    ("securedAccesses", ObjectKind::SecuredAccess),
    ("certificates", ObjectKind::Certificate),
    ("accessGrants", ObjectKind::AccessGrant),
    ("accessTokens", ObjectKind::AccessToken),
    ("secrets", ObjectKind::Secret),
    ("configMaps", ObjectKind::ConfigMap),
    ("services", ObjectKind::Service),
    ("serviceAccounts", ObjectKind::ServiceAccount),
    ("roles", ObjectKind::Role),
    ("roleBindings", ObjectKind::RoleBinding),
    ("deployments", ObjectKind::Deployment),
    ("replicaSets", ObjectKind::ReplicaSet),
    ("pods", ObjectKind::Pod),
];

/// What may become of an object: where, and what then stands there (null: nothing).
fn alterations(kind: ObjectKind) -> Vec<(&'static str, Value)> {
    let mut alterations = vec![
        ("/metadata/deletionTimestamp", json!("2030-01-01T00:00:00Z")),
        ("/metadata/resourceVersion", json!("99")),
        ("/metadata/uid", json!("another")),
        ("/metadata/annotations", Value::Null),
        ("/metadata/ownerReferences", Value::Null),
        ("/status", Value::Null),
    ];
    alterations.extend(match kind {
        ObjectKind::Site => vec![
            ("/metadata/creationTimestamp", json!("2030-01-01T00:00:00Z")),
            ("/spec", json!("does not fit: it is a test")),
            ("/spec/edge", json!(true)),
            ("/spec/ha", json!(true)),
            ("/spec/defaultIssuer", json!("other-ca")),
        ],
        ObjectKind::RouterAccess => vec![
            ("/metadata/creationTimestamp", json!("2020-01-01T00:00:00Z")),
            ("/spec", json!("does not fit: it is a test")),
            ("/spec/roles", json!([{"name": "edge", "port": 55671}])),
            ("/spec/tlsCredentials", json!("another")),
            ("/spec/issuer", json!("other-ca")),
        ],
        ObjectKind::SecuredAccess => vec![
            ("/metadata/creationTimestamp", json!("2020-01-01T00:00:00Z")),
            ("/spec", json!("does not fit: it is a test")),
            ("/spec/accessType", json!("local")),
            ("/spec/ports", json!([])),
            ("/spec/issuer", json!("other-ca")),
        ],
        ObjectKind::Link | ObjectKind::Certificate => vec![
            ("/metadata/creationTimestamp", json!("2020-01-01T00:00:00Z")),
            ("/spec", json!("does not fit: it is a test")),
        ],
        ObjectKind::AccessGrant | ObjectKind::AccessToken => {
            vec![("/spec", json!({})), ("/metadata/generation", json!(9))]
        }
        ObjectKind::Secret => vec![
            ("/files", json!({})),
            ("/files/tls.crt/certificates", json!([])),
            (
                "/pair",
                json!({"keyError": "the key is another certificate's"}),
            ),
        ],
        ObjectKind::ConfigMap => vec![
            ("/files", json!({})),
            ("/reports", json!({})),
            ("/profilesNamed", Value::Null),
        ],
        _ => vec![("/spec", Value::Null)],
    });
    alterations
}

#[test]
fn a_change_that_alters_a_plan_also_wakes_it() {
    let cases = Case::all();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let altered: usize = std::thread::scope(|scope| {
        let parts = cases.chunks(cases.len().div_ceil(threads));
        let threads: Vec<_> = parts
            .map(|part| scope.spawn(|| part.iter().map(plans_altered).sum::<usize>()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert!(
        altered > 1000,
        "only {altered} plans were altered: the law was hardly tried"
    );
}

/// Tries the law on one case, and says how many plans were altered.
fn plans_altered(case: &Case) -> usize {
    let bell = Bell {
        before: plans(&case.world, &case.env()),
        case,
    };
    let world = serde_json::to_value(&case.world).unwrap();
    let mut altered = 0;
    for (list, kind) in LISTS {
        let objects = world[list].as_array().map_or(0, Vec::len);
        for index in 0..objects {
            let name = world[list][index]["metadata"]["name"].as_str().unwrap();
            for version in versions(&world, list, index, kind) {
                altered += bell.assert_heard(&Changed::Object(kind, name), &version);
            }
        }
    }
    let mut silent = case.world.clone();
    silent.grant_server = GrantServer::default();
    altered += bell.assert_heard(&Changed::GrantServer, &silent);
    let mut untried = case.world.clone();
    untried.attempts.clear();
    altered + bell.assert_heard(&Changed::Attempt, &untried)
}

/// The World without an object, and with each altered version of it.
fn versions(world: &Value, list: &str, index: usize, kind: ObjectKind) -> Vec<World> {
    let mut without = world.clone();
    without[list].as_array_mut().unwrap().remove(index);
    let altered = alterations(kind)
        .into_iter()
        .filter_map(|(pointer, value)| {
            let mut altered = world.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let parent = altered[list][index].pointer_mut(parent)?.as_object_mut()?;
            match value {
                Value::Null => parent.remove(field),
                value => parent.insert(field.to_owned(), value),
            };
            (altered != *world).then_some(altered)
        });
    std::iter::once(without)
        .chain(altered)
        .map(|world| serde_json::from_value(world).unwrap())
        .collect()
}

/// The content of a Secret or ConfigMap is read only where an object says that it depends on it.
#[test]
fn a_body_that_a_plan_depends_on_is_referenced() {
    for case in Case::all() {
        let before = plans(&case.world, &case.env());
        let referenced = references(&case.world);
        let world = serde_json::to_value(&case.world).unwrap();
        for (list, kind) in [
            ("secrets", ObjectKind::Secret),
            ("configMaps", ObjectKind::ConfigMap),
        ] {
            for index in 0..world[list].as_array().map_or(0, Vec::len) {
                let body = &world[list][index];
                let name = body["metadata"]["name"].as_str().unwrap();
                let mut unread = world.clone();
                unread[list][index] = json!({"metadata": body["metadata"], "type": body["type"]});
                unread[list][index]
                    .as_object_mut()
                    .unwrap()
                    .retain(|_, value| !value.is_null());
                let unread = serde_json::from_value(unread).unwrap();
                assert!(
                    before == plans(&unread, &case.env())
                        || referenced.contains(&(kind, name.to_owned())),
                    "{}: {kind:?} {name} matters, and nobody references it",
                    case.name
                );
            }
        }
    }
}

/// A case, and the plans that hold before anything changes.
struct Bell<'a> {
    case: &'a Case,
    before: BTreeMap<Ref, Plan>,
}

impl Bell<'_> {
    /// Says how many plans are others after the change from the case's World to this one, and back again.
    fn assert_heard(&self, changed: &Changed<'_>, altered: &World) -> usize {
        let after = plans(altered, &self.case.env());
        let differing: Vec<(&Ref, &Plan, &Plan)> = self
            .before
            .iter()
            .filter_map(|(object, before)| Some((object, before, after.get(object)?)))
            .filter(|(_, before, after)| before != after)
            .collect();
        for (world, way) in [(altered, "there"), (&self.case.world, "back")] {
            let woken = wakes(changed, world);
            for (object, before, after) in &differing {
                assert!(
                    woken.contains(object),
                    "{}: {changed:?} changed ({way}), and nobody wakes {:?} {}, whose plan is another one:\n{}",
                    self.case.name,
                    object.kind,
                    object.name,
                    difference(&format!("{before:#?}"), &format!("{after:#?}")),
                );
            }
        }
        differing.len()
    }
}

/// The lines between the common beginning and the common end of two texts.
fn difference(before: &str, after: &str) -> String {
    let (before, after): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let same = before
        .iter()
        .zip(&after)
        .take_while(|(before, after)| before == after)
        .count();
    let show = |sign: &str, lines: &[&str]| {
        let lines = lines[same..].iter().take(20);
        let signed: Vec<String> = lines.map(|line| format!("{sign} {line}\n")).collect();
        signed.concat()
    };
    show("-", &before) + &show("+", &after)
}
