//! What may the router pods do through the API?
//!
//! Report, and nothing else: one ConfigMap by name. No Secret, no list of anything (promise P6).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use spanwire_router::report::report_key;

use crate::names;
use crate::plan::{Child, ObjectKind};
use crate::settle::child;
use crate::site::shape::Shape;
use crate::world::World;

/// The verbs that an adaptor has on its report, and that the operator has to hold to grant them.
pub(crate) const REPORT_VERBS: [&str; 2] = ["get", "patch"];

/// The account of the router pods, its rights, and what these are about. An account that the Site names is the
/// user's; it gets the same rights, for without them its routers could not report.
pub(crate) fn children(shape: &Shape<'_>, world: &World) -> Vec<Child> {
    let account = ServiceAccount {
        metadata: shape.metadata(names::ROUTER),
        // Only one container of the pod gets a token, by a volume of its own.
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    let role = Role {
        metadata: shape.metadata(names::ROUTER),
        rules: Some(vec![PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec!["configmaps".to_owned()]),
            resource_names: Some(vec![names::REPORT.to_owned()]),
            verbs: REPORT_VERBS.map(str::to_owned).to_vec(),
            ..PolicyRule::default()
        }]),
    };
    let binding = RoleBinding {
        metadata: shape.metadata(names::ROUTER),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "Role".to_owned(),
            name: names::ROUTER.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: shape.service_account.to_owned(),
            namespace: Some(shape.namespace.to_owned()),
            ..Subject::default()
        }]),
    };
    let report = ConfigMap {
        metadata: shape.metadata(names::REPORT),
        ..ConfigMap::default()
    };
    let mut children = vec![
        child(ObjectKind::Role, &role),
        child(ObjectKind::RoleBinding, &binding),
        Child {
            unwanted: reports_of_the_dead(world),
            ..child(ObjectKind::ConfigMap, &report)
        },
    ];
    if shape.service_account == names::ROUTER {
        children.insert(0, child(ObjectKind::ServiceAccount, &account));
    }
    children
}

/// Keys of reports whose pods are gone: an adaptor cannot know it of others, and there is room for few. What is no report
/// is somebody else's, and stays.
fn reports_of_the_dead(world: &World) -> Vec<String> {
    let living: BTreeSet<String> = world
        .pods
        .iter()
        .map(|pod| {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            report_key(name, pod.metadata.uid.as_deref().unwrap_or_default())
        })
        .collect();
    let reports = world.config_maps.get(names::REPORT);
    reports
        .into_iter()
        .flat_map(|facts| facts.reports.keys())
        .filter(|key| !living.contains(*key))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{ConfigMapFacts, FileFacts};
    use spanwire_router::report::Report;

    #[test]
    fn reports_of_pods_that_are_gone_go_too() {
        let mut world = World::default();
        world.pods.insert(
            serde_json::from_value(serde_json::json!({"metadata": {"name": "a", "uid": "1"}}))
                .unwrap(),
        );
        world.config_maps.insert(ConfigMapFacts {
            metadata: serde_json::from_value(serde_json::json!({"name": names::REPORT})).unwrap(),
            files: ["a.1", "a.0", "b.2", "a-note"]
                .map(|key| (key.to_owned(), FileFacts::default()))
                .into(),
            reports: ["a.1", "a.0", "b.2"]
                .map(|key| (key.to_owned(), Report::default()))
                .into(),
            ..ConfigMapFacts::default()
        });
        assert_eq!(reports_of_the_dead(&world), ["a.0", "b.2"]);
    }
}
