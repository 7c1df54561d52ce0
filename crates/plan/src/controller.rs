//! Our own Deployment → the grant server's access and CA: how is the operator itself reached?

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use spanwire_api::condition::CONFIGURED;
use spanwire_api::{
    Certificate, CertificateSpec, Endpoint, SecuredAccess, SecuredAccessPort, SecuredAccessSpec,
};

use crate::env::{Config, Env};
use crate::kinds::{Changed, all};
use crate::plan::{Child, ObjectKind, Plan};
use crate::settle::{child, settle};
use crate::world::World;
use crate::{labels, names};

/// The CA's common name, which is upstream's (`facts/skupper-v2.md` §7.4).
const CA_SUBJECT: &str = "SkupperGrantServerCA";
/// The one port of the access.
const PORT: &str = "https";

/// The Deployment's status is not ours to tell, so what fails here is told by the children, or in the log.
pub(crate) fn plan(deployment: &Deployment, world: &World, env: &Env<'_>) -> Plan {
    let metadata = &deployment.metadata;
    let is_own = metadata.namespace.as_ref() == Some(&env.config.namespace)
        && metadata.name.as_ref() == Some(&env.config.name);
    if !is_own || !env.config.grants || metadata.deletion_timestamp.is_some() {
        return Plan::nothing();
    }
    let children = [
        certificate(deployment),
        secured_access(deployment, env.config),
    ];
    let mut plan = Plan::nothing();
    plan.push(CONFIGURED, false, settle(children, world).acts);
    plan
}

pub(crate) fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
    match changed {
        Changed::Object(ObjectKind::Deployment, name) => vec![(*name).to_owned()],
        Changed::Object(
            ObjectKind::Certificate | ObjectKind::SecuredAccess,
            names::GRANT_SERVER | names::GRANT_SERVER_CA,
        ) => all(&world.deployments),
        _ => Vec::new(),
    }
}

pub(crate) fn references(_: &Deployment) -> Vec<(ObjectKind, String)> {
    Vec::new()
}

/// Where the grant server is reached, as `host:port`, once its access in the operator's own namespace is published.
pub fn address(home: &World) -> Option<String> {
    let access = home.secured_accesses.get(names::GRANT_SERVER)?.fits()?;
    let mut endpoints = access.status.as_ref()?.endpoints.iter();
    let Endpoint { host, port, .. } = endpoints.find(|endpoint| endpoint.name == PORT)?;
    Some(if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    })
}

fn certificate(deployment: &Deployment) -> Child {
    let spec = CertificateSpec {
        subject: CA_SUBJECT.to_owned(),
        signing: Some(true),
        ..CertificateSpec::default()
    };
    let mut certificate = Certificate::new(names::GRANT_SERVER_CA, spec);
    let mut labels = labels::ours();
    labels.insert(labels::CERTIFICATE.to_owned(), "true".to_owned());
    certificate.metadata = owned(deployment, certificate.metadata, labels);
    child(ObjectKind::Certificate, &certificate)
}

fn secured_access(deployment: &Deployment, config: &Config) -> Child {
    let selector = deployment.spec.as_ref().map(|spec| &spec.selector);
    let port = SecuredAccessPort {
        name: PORT.to_owned(),
        port: Some(config.grant_port),
        target_port: Some(config.grant_port),
        protocol: Some("TCP".to_owned()),
    };
    let spec = SecuredAccessSpec {
        selector: selector
            .and_then(|selector| selector.match_labels.clone())
            .unwrap_or_default(),
        ports: vec![port],
        issuer: Some(names::GRANT_SERVER_CA.to_owned()),
        certificate: Some(names::GRANT_SERVER.to_owned()),
        ..SecuredAccessSpec::default()
    };
    let mut access = SecuredAccess::new(names::GRANT_SERVER, spec);
    access.metadata = owned(deployment, access.metadata, labels::ours());
    child(ObjectKind::SecuredAccess, &access)
}

fn owned(
    deployment: &Deployment,
    metadata: ObjectMeta,
    labels: BTreeMap<String, String>,
) -> ObjectMeta {
    ObjectMeta {
        namespace: deployment.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(labels::map([(labels::CONTROLLED, "true")])),
        owner_references: Some(vec![names::owner(deployment)]),
        ..metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn published(endpoint: (&str, &str)) -> World {
        serde_json::from_value(json!({
            "namespace": "spanwire",
            "securedAccesses": [{
                "metadata": {"name": "skupper-grant-server"},
                "status": {"endpoints": [
                    {"name": "other", "host": "no", "port": "1"},
                    {"name": endpoint.0, "host": endpoint.1, "port": "9090"},
                ]},
            }],
        }))
        .unwrap()
    }

    #[test]
    fn an_address_can_stand_in_a_url() {
        let address = |host: &str| address(&published(("https", host)));
        assert_eq!(address("a.example").as_deref(), Some("a.example:9090"));
        assert_eq!(address("10.0.0.1").as_deref(), Some("10.0.0.1:9090"));
        assert_eq!(address("fd00::1").as_deref(), Some("[fd00::1]:9090"));
    }

    #[test]
    fn what_is_not_published_is_no_address() {
        assert_eq!(address(&World::default()), None);
        assert_eq!(address(&published(("amqps", "a.example"))), None);
    }
}
