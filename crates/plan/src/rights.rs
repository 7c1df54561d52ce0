//! Which verbs does the operator hold, and what for?
//!
//! One table, from which the Roles in `config/rbac` are made and against which the audit log of the tests is held: a
//! verb that is not here is not needed, and a verb that is here is used, or has to be held to be granted to router pods
//! (Kubernetes lets nobody grant more than he holds).

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::labels;

/// The operator's ServiceAccount, and the name of its Roles.
pub const SERVICE_ACCOUNT: &str = "spanwire-controller";
/// The namespace that the operator is installed in, unless its user decides otherwise.
pub const NAMESPACE: &str = "spanwire";

/// Where a right holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In every namespace that is watched.
    Watched,
    /// In the operator's own namespace.
    OwnNamespace,
}

/// Some verbs on some resources, and what they are for.
#[derive(Clone, Copy, Debug)]
pub struct Right {
    /// API group, empty for the core.
    pub group: &'static str,
    /// Plurals, with the subresource where it is one.
    pub resources: &'static [&'static str],
    /// What may be done.
    pub verbs: &'static [&'static str],
    /// What for.
    pub why: &'static str,
    /// Whether the operator never uses it, and holds it only so that it may grant it.
    pub held_to_grant: bool,
    /// Where.
    pub scope: Scope,
}

const SKUPPER: &str = spanwire_api::GROUP;
/// To keep a store filled.
const READ: &[&str] = &["get", "list", "watch"];
/// To keep a store filled, and to make, correct and remove what is ours.
const OWN: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];
/// As [`OWN`], for what only the garbage collector removes.
const KEEP: &[&str] = &["get", "list", "watch", "create", "patch"];

/// All rights of the operator.
pub const RIGHTS: &[Right] = &[
    Right {
        group: SKUPPER,
        resources: &["sites", "accessgrants", "accesstokens"],
        verbs: READ,
        why: "users' objects: read, never written",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: SKUPPER,
        resources: &["routeraccesses", "securedaccesses"],
        verbs: OWN,
        why: "linkAccess of a Site, and the access of each router; removed when nobody asks for them any more",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: SKUPPER,
        resources: &["certificates"],
        verbs: OWN,
        why: "the CAs of a Site, and the certificates of its accesses; removed when nobody asks for them any more",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: SKUPPER,
        resources: &["links"],
        verbs: &["get", "list", "watch", "create"],
        why: "the links of a redeemed token, which are the user's once they are made",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: SKUPPER,
        resources: &[
            "sites/status",
            "links/status",
            "routeraccesses/status",
            "securedaccesses/status",
            "certificates/status",
            "accessgrants/status",
            "accesstokens/status",
        ],
        verbs: &["patch"],
        why: "to say what is true; the grant server counts redemptions",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: "",
        resources: &["secrets"],
        verbs: KEEP,
        why: "credentials: issued, renewed, gathered for the routers; those of others are read where an object names them",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: "",
        resources: &["configmaps"],
        verbs: OWN,
        why: "the routers' configuration and reports, and who controls a namespace; the second router's goes with ha",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: "",
        resources: &["services", "serviceaccounts"],
        verbs: KEEP,
        why: "the way to the routers, and the account of their pods",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: "rbac.authorization.k8s.io",
        resources: &["roles", "rolebindings"],
        verbs: KEEP,
        why: "what the router pods may do: write their own report, nothing else",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: "apps",
        resources: &["deployments"],
        verbs: OWN,
        why: "the routers; the second one is removed with ha",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: "apps",
        resources: &["replicasets"],
        verbs: READ,
        why: "to know a router pod by its owners, not by its labels",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: "",
        resources: &["pods"],
        verbs: &["get", "list", "watch", "patch"],
        why: "whether a router is ready; one annotation that makes the kubelet refresh its files",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: "events.k8s.io",
        resources: &["events"],
        verbs: &["create", "patch"],
        why: "what a person would want to know later",
        held_to_grant: false,
        scope: Scope::Watched,
    },
    Right {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "create", "update"],
        why: "which of several replicas reconciles",
        held_to_grant: false,
        scope: Scope::OwnNamespace,
    },
];

/// The rights in every namespace.
pub fn cluster_role() -> ClusterRole {
    ClusterRole {
        metadata: metadata(None),
        rules: Some(rules(Scope::Watched)),
        ..ClusterRole::default()
    }
}

/// Gives [`cluster_role`] to the operator.
pub fn cluster_role_binding() -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: metadata(None),
        role_ref: role_ref("ClusterRole"),
        subjects: Some(vec![subject()]),
    }
}

/// The rights in the operator's own namespace.
pub fn lease_role() -> Role {
    Role {
        metadata: metadata(Some(NAMESPACE)),
        rules: Some(rules(Scope::OwnNamespace)),
    }
}

/// Gives [`lease_role`] to the operator.
pub fn lease_role_binding() -> RoleBinding {
    RoleBinding {
        metadata: metadata(Some(NAMESPACE)),
        role_ref: role_ref("Role"),
        subjects: Some(vec![subject()]),
    }
}

fn rules(scope: Scope) -> Vec<PolicyRule> {
    let texts = |list: &[&str]| {
        list.iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    RIGHTS
        .iter()
        .filter(|right| right.scope == scope)
        .map(|right| PolicyRule {
            api_groups: Some(texts(&[right.group])),
            resources: Some(texts(right.resources)),
            verbs: texts(right.verbs),
            ..PolicyRule::default()
        })
        .collect()
}

fn metadata(namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(SERVICE_ACCOUNT.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some(labels::ours()),
        ..ObjectMeta::default()
    }
}

fn role_ref(kind: &str) -> RoleRef {
    RoleRef {
        api_group: "rbac.authorization.k8s.io".to_owned(),
        kind: kind.to_owned(),
        name: SERVICE_ACCOUNT.to_owned(),
    }
}

fn subject() -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: SERVICE_ACCOUNT.to_owned(),
        namespace: Some(NAMESPACE.to_owned()),
        ..Subject::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(group: &str, resource: &str, verb: &str) -> bool {
        RIGHTS.iter().any(|right| {
            right.group == group
                && right.resources.contains(&resource)
                && right.verbs.contains(&verb)
        })
    }

    #[test]
    fn what_router_pods_are_granted_is_held() {
        for verb in ["get", "patch"] {
            assert!(holds("", "configmaps", verb));
        }
    }

    #[test]
    fn nothing_that_could_be_used_to_gain_more_is_held() {
        for right in RIGHTS {
            for verb in right.verbs {
                assert!(!["*", "escalate", "bind", "impersonate"].contains(verb));
            }
            assert!(
                !right
                    .resources
                    .iter()
                    .any(|name| name.contains('*') || *name == "pods/exec" || *name == "nodes")
            );
            assert!(!right.why.is_empty());
        }
        assert!(!holds("", "secrets", "update") && !holds("", "secrets", "delete"));
    }

    #[test]
    fn no_resource_stands_in_two_rows_of_one_scope() {
        let mut seen = std::collections::BTreeSet::new();
        for right in RIGHTS {
            for resource in right.resources {
                assert!(seen.insert((right.group, resource)), "{resource}");
            }
        }
    }

    #[test]
    fn what_is_rendered_is_the_table() {
        assert_eq!(
            cluster_role().rules.unwrap().len() + lease_role().rules.unwrap().len(),
            RIGHTS.len()
        );
        assert_eq!(cluster_role_binding().role_ref.kind, "ClusterRole");
        assert_eq!(
            lease_role_binding().subjects.unwrap()[0].name,
            SERVICE_ACCOUNT
        );
    }
}
