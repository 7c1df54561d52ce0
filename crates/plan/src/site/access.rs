//! How do clients and other sites reach the routers of a Site?

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use spanwire_api::{
    Certificate, CertificateSpec, RouterAccess, RouterAccessRole, RouterAccessSpec,
};

use crate::plan::{Act, Child, ObjectKind, Ref};
use crate::settle::child;
use crate::site::deployment::router_labels;
use crate::site::shape::Shape;
use crate::world::World;
use crate::{labels, names};

/// The CAs of a Site, and what its routers show to clients inside the namespace.
pub(crate) fn certificates(shape: &Shape<'_>) -> [Child; 3] {
    let signing = |subject: &str| CertificateSpec {
        subject: format!("{} {subject}", shape.name),
        signing: Some(true),
        ..CertificateSpec::default()
    };
    let service = names::ROUTER_LOCAL;
    let server = CertificateSpec {
        ca: names::LOCAL_CA.to_owned(),
        subject: service.to_owned(),
        hosts: vec![
            service.to_owned(),
            format!("{service}.{}", shape.namespace),
            format!("{service}.{}.svc.cluster.local", shape.namespace),
        ],
        server: Some(true),
        ..CertificateSpec::default()
    };
    [
        certificate(names::SITE_CA, signing("site CA"), shape),
        certificate(names::LOCAL_CA, signing("local CA"), shape),
        certificate(names::LOCAL_SERVER, server, shape),
    ]
}

fn certificate(name: &str, spec: CertificateSpec, shape: &Shape<'_>) -> Child {
    let mut metadata = shape.metadata(name);
    metadata
        .labels
        .get_or_insert_default()
        .extend(labels::map([(labels::CERTIFICATE, "true")]));
    metadata.annotations = Some(labels::map([
        (labels::CONTROLLED, "true"),
        (&labels::hosts_of(shape.uid), &spec.hosts.join(",")),
    ]));
    child(
        ObjectKind::Certificate,
        &Certificate {
            metadata,
            spec,
            status: None,
        },
    )
}

/// The RouterAccess that `linkAccess` asks for. Settings that somebody else gave it stay.
pub(crate) fn router_access(shape: &Shape<'_>) -> Option<Child> {
    let access_type = shape.link_access?;
    let mut metadata = shape.metadata(names::ROUTER);
    metadata.annotations = Some(labels::map([(labels::CONTROLLED, "true")]));
    let class = shape
        .site
        .spec
        .settings
        .get("ingressClassName")
        .filter(|class| !class.is_empty());
    let role = |name: &str, port| RouterAccessRole {
        name: name.to_owned(),
        port: Some(port),
    };
    let spec = RouterAccessSpec {
        roles: vec![role("inter-router", 55671), role("edge", 45671)],
        tls_credentials: names::SITE_SERVER.to_owned(),
        generate_tls_credentials: Some(true),
        issuer: Some(shape.issuer.to_owned()),
        access_type: Some(access_type.to_owned()).filter(|access_type| !access_type.is_empty()),
        settings: class
            .map(|class| ("ingressClassName".to_owned(), class.clone()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        ..RouterAccessSpec::default()
    };
    Some(child(
        ObjectKind::RouterAccess,
        &RouterAccess {
            metadata,
            spec,
            status: None,
        },
    ))
}

/// The removal of the RouterAccess that `linkAccess` asked for once.
pub(crate) fn closing(shape: &Shape<'_>, world: &World) -> Option<Act> {
    if shape.link_access.is_some() {
        return None;
    }
    let kind = ObjectKind::RouterAccess;
    let live = world.deletable(kind, names::ROUTER, &shape.site.metadata)?;
    let namespace = shape.namespace.to_owned();
    Some(Act::Delete(
        Ref {
            kind,
            namespace,
            name: names::ROUTER.to_owned(),
        },
        live,
    ))
}

/// The Service for clients inside the namespace.
pub(crate) fn local_service(shape: &Shape<'_>) -> Child {
    let mut selector = router_labels();
    selector.remove(labels::SITE_TYPE);
    let service = Service {
        metadata: shape.metadata(names::ROUTER_LOCAL),
        spec: Some(ServiceSpec {
            ports: Some(vec![ServicePort {
                name: Some("amqps".to_owned()),
                port: 5671,
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::Int(5671)),
                ..ServicePort::default()
            }]),
            selector: Some(selector),
            type_: Some("ClusterIP".to_owned()),
            ..ServiceSpec::default()
        }),
        status: None,
    };
    child(ObjectKind::Service, &service)
}
