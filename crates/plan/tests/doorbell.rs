//! Is everybody woken whose plan is another one now?
//!
//! The law that lets the operator sleep: where a change alters a plan, `wakes` names the object of that plan. Every
//! object of every case is taken away and altered, one at a time, and put back.

#[path = "support/case.rs"]
mod case;

use std::collections::BTreeMap;

use case::Case;
use serde_json::{Value, json};
use spanwire_plan::kinds::{Changed, plans, wakes};
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
fn alterations() -> Vec<(&'static str, Value)> {
    vec![
        ("/metadata/deletionTimestamp", json!("2030-01-01T00:00:00Z")),
        ("/metadata/resourceVersion", json!("99")),
        ("/metadata/uid", json!("another")),
        ("/metadata/creationTimestamp", json!("2020-01-01T00:00:00Z")),
        ("/metadata/generation", json!(9)),
        ("/metadata/annotations", Value::Null),
        ("/metadata/labels", Value::Null),
        ("/metadata/ownerReferences", Value::Null),
        ("/status", Value::Null),
        ("/spec", json!({})),
        ("/spec", json!("does not fit: it is a test")),
        ("/spec/edge", json!(true)),
        ("/spec/ha", json!(true)),
        ("/spec/defaultIssuer", json!("other-ca")),
        ("/spec/accessType", json!("loadbalancer")),
        ("/spec/ports", json!([])),
        ("/spec/roles", json!([{"name": "edge", "port": 55671}])),
        ("/spec/issuer", json!("other-ca")),
        ("/spec/tlsCredentials", json!("another")),
        ("/files", json!({})),
        ("/files/tls.crt/certificates", json!([])),
        (
            "/pair",
            json!({"keyError": "the key is another certificate's"}),
        ),
        ("/reports", json!({})),
        ("/profilesNamed", Value::Null),
    ]
}

#[test]
fn a_change_that_alters_a_plan_also_wakes_it() {
    let mut altered = 0;
    for case in Case::all() {
        let bell = Bell {
            before: plans(&case.world, &case.env()),
            case: &case,
        };
        let world = serde_json::to_value(&case.world).unwrap();
        for (list, kind) in LISTS {
            let objects = world[list].as_array().map_or(0, Vec::len);
            for index in 0..objects {
                let name = world[list][index]["metadata"]["name"].as_str().unwrap();
                let worlds = versions(&world, list, index).into_iter();
                for world in worlds.filter_map(|world| serde_json::from_value(world).ok()) {
                    altered += bell.assert_heard(&Changed::Object(kind, name), &world);
                }
            }
        }
        let mut silent = case.world.clone();
        silent.grant_server = GrantServer::default();
        altered += bell.assert_heard(&Changed::GrantServer, &silent);
        let mut untried = case.world.clone();
        untried.attempts.clear();
        altered += bell.assert_heard(&Changed::Attempt, &untried);
    }
    assert!(
        altered > 2000,
        "only {altered} plans were altered: the law was hardly tried"
    );
}

/// The World without an object, and with each altered version of it.
fn versions(world: &Value, list: &str, index: usize) -> Vec<Value> {
    let mut without = world.clone();
    without[list].as_array_mut().unwrap().remove(index);
    let altered = alterations().into_iter().filter_map(|(pointer, value)| {
        let mut altered = world.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = altered[list][index].pointer_mut(parent)?.as_object_mut()?;
        match value {
            Value::Null => parent.remove(field),
            value => parent.insert(field.to_owned(), value),
        };
        Some(altered)
    });
    std::iter::once(without).chain(altered).collect()
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
        lines
            .map(|line| format!("{sign} {line}\n"))
            .collect::<String>()
    };
    show("-", &before) + &show("+", &after)
}
