//! Our own Deployment → the grant server's access and CA: how is the operator itself reached?

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use spanwire_api::condition::CONFIGURED;
use spanwire_api::{
    Certificate, CertificateSpec, SecuredAccess, SecuredAccessPort, SecuredAccessSpec,
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
