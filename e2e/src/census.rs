//! What is there, and did it change? The objects that Spanwire and its users own, with their versions.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

use crate::kubectl::Kubectl;
use crate::reader;

/// Our kinds, and all kinds of children that we make.
pub(crate) const RESOURCES: [&str; 20] = [
    "sites.skupper.io",
    "links.skupper.io",
    "routeraccesses.skupper.io",
    "securedaccesses.skupper.io",
    "certificates.skupper.io",
    "accessgrants.skupper.io",
    "accesstokens.skupper.io",
    "deployments.apps",
    "replicasets.apps",
    "pods",
    "services",
    "endpointslices.discovery.k8s.io",
    "secrets",
    "configmaps",
    "serviceaccounts",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "persistentvolumeclaims",
    "networkpolicies.networking.k8s.io",
    "ingresses.networking.k8s.io",
];

/// The objects of some namespaces: `namespace/Kind/name` → resourceVersion.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Census(pub BTreeMap<String, String>);

impl Census {
    /// Counts what is in `namespaces` now.
    pub fn take(kubectl: &Kubectl, namespaces: &[&str]) -> Result<Census> {
        let mut objects = BTreeMap::new();
        for namespace in namespaces {
            for object in reader::objects(kubectl, namespace, &RESOURCES)? {
                if !is_given(&object) {
                    let version = object["metadata"]["resourceVersion"]
                        .as_str()
                        .unwrap_or_default();
                    objects.insert(name(&object), version.to_owned());
                }
            }
        }
        Ok(Census(objects))
    }

    /// What came, went or changed between this census and a later one, a line each.
    pub fn changes(&self, later: &Census) -> Vec<String> {
        let gone = self
            .0
            .keys()
            .filter(|name| !later.0.contains_key(*name))
            .map(|name| format!("- {name}"));
        let new_or_changed = later
            .0
            .iter()
            .filter_map(|(name, version)| match self.0.get(name) {
                None => Some(format!("+ {name}")),
                Some(before) if before != version => {
                    Some(format!("~ {name} {before} -> {version}"))
                }
                Some(_) => None,
            });
        gone.chain(new_or_changed).collect()
    }
}

/// What every namespace has from Kubernetes itself.
pub(crate) fn is_given(object: &Value) -> bool {
    let (kind, name) = (object["kind"].as_str(), object["metadata"]["name"].as_str());
    matches!(
        (kind, name),
        (Some("ServiceAccount"), Some("default")) | (Some("ConfigMap"), Some("kube-root-ca.crt"))
    )
}

fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let part = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!(
        "{}/{}/{}",
        part(&metadata["namespace"]),
        part(&object["kind"]),
        part(&metadata["name"])
    )
}
