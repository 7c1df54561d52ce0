//! Is everybody woken whose plan is another one now?
//!
//! The law that lets the operator sleep: where a change alters a plan, `wakes` names the object of that plan. Every
//! object of every case is taken away and altered, one at a time, and put back.

#[path = "support/case.rs"]
mod case;

use case::Case;
use serde_json::{Value, json};
use spanwire_plan::kinds::{Changed, plans, wakes};
use spanwire_plan::plan::ObjectKind;
use spanwire_plan::{Env, World};

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
        ("/pair", json!({"keyError": "the key is another certificate's"})),
        ("/reports", json!({})),
        ("/profilesNamed", Value::Null),
    ]
}

#[test]
fn a_change_that_alters_a_plan_also_wakes_it() {
    let mut changes = 0;
    for case in Case::all() {
        let env = case.env();
        let world = serde_json::to_value(&case.world).unwrap();
        for (list, kind) in LISTS {
            let objects = world[list].as_array().map_or(0, Vec::len);
            for index in 0..objects {
                let name = world[list][index]["metadata"]["name"].as_str().unwrap();
                for altered in versions(&world, list, index) {
                    let Ok(altered) = serde_json::from_value::<World>(altered) else {
                        continue;
                    };
                    let changed = Changed::Object(kind, name);
                    changes += assert_woken(&case, &altered, &changed, &env);
                }
            }
        }
        let without = World { grant_server: Default::default(), ..case.world.clone() };
        changes += assert_woken(&case, &without, &Changed::GrantServer, &env);
        let without = World { attempts: Default::default(), ..case.world.clone() };
        changes += assert_woken(&case, &without, &Changed::Attempt, &env);
    }
    assert!(changes > 500, "only {changes} plans were altered: the law was hardly tried");
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

/// Says how many plans are others after the change from the case's World to this one, and back again.
fn assert_woken(case: &Case, altered: &World, changed: &Changed<'_>, env: &Env<'_>) -> usize {
    let (before, after) = (plans(&case.world, env), plans(altered, env));
    let differing: Vec<_> = before
        .iter()
        .filter(|(object, plan)| after.get(object).is_some_and(|after| after != *plan))
        .map(|(object, _)| object)
        .collect();
    for (world, way) in [(altered, "change"), (&case.world, "way back")] {
        let woken = wakes(changed, world);
        for object in &differing {
            assert!(
                woken.contains(object),
                "{}: after the {way} of {changed:?} the plan of {object:?} is another one, and nobody wakes it:\n{:#?}\n{:#?}",
                case.name, before[object], after[object],
            );
        }
    }
    differing.len()
}
