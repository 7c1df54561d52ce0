//! RouterAccess → SecuredAccess: on which ports do the site's routers accept links, and where are they reached?

mod role;
mod status;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use spanwire_api::condition::CONFIGURED;
use spanwire_api::router_access::reason;
use spanwire_api::{RouterAccess, SecuredAccess, SecuredAccessPort, SecuredAccessSpec, Site};

use crate::env::Env;
use crate::kinds::{Changed, all};
use crate::plan::{Act, Child, ObjectKind, Plan, Ref, Verdict};
use crate::secured_access::settings;
use crate::settle::{child, settle};
use crate::site::{default_issuer, groups};
use crate::world::{World, named, owns};
use crate::{credential, labels, names};
use role::roles;
use status::{configured, pending, published, resolved, told};

pub(crate) fn plan(access: &RouterAccess, world: &World, env: &Env<'_>) -> Plan {
    if access.metadata.deletion_timestamp.is_some() {
        return Plan::nothing();
    }
    let before = published(access);
    if access.spec.tls_credentials.is_empty() {
        let message =
            "spec.tlsCredentials is empty: name the secret that the routers show themselves with";
        let configured = Verdict::error(CONFIGURED, reason::INVALID_OBJECT, message);
        return told(configured, pending(reason::PENDING, "Pending"), before);
    }
    let Some(site) = world.site() else {
        let message = "No active site in namespace";
        let configured = Verdict::pending(CONFIGURED, reason::NO_ACTIVE_SITE, message);
        return told(configured, pending(reason::NO_ACTIVE_SITE, message), before);
    };

    let roles = roles(access, world);
    let groups = groups(site);
    let children: Vec<Child> = if roles.accepted.is_empty() {
        Vec::new()
    } else {
        groups
            .iter()
            .map(|group| secured_access(access, site, group, &roles.accepted))
            .collect()
    };
    let settling = settle(children, world);
    let mut acts = settling.acts;
    acts.extend(surplus(access, groups, world));

    let configured = configured(access, site, &roles, &settling.taken, world, env);
    let (resolved, endpoints) = resolved(access, groups, &roles.accepted, world);
    let mut plan = told(configured, resolved, &endpoints);
    plan.push(CONFIGURED, false, acts);
    let judged = [access.spec.tls_credentials.as_str(), issuer(access, site)];
    credential::judge_again(&mut plan, judged, world, env.now);
    plan
}

pub(crate) fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
    let is_read = match changed {
        Changed::Object(ObjectKind::ConfigMap, name) => {
            [names::ROUTER, names::REPORT].contains(name)
        }
        Changed::Object(kind, _) => matches!(
            kind,
            // Older accesses have the first choice of a port.
            ObjectKind::RouterAccess
                | ObjectKind::Site
                | ObjectKind::SecuredAccess
                | ObjectKind::Secret
                // Whose reports are believed.
                | ObjectKind::Deployment
                | ObjectKind::ReplicaSet
                | ObjectKind::Pod
        ),
        Changed::GrantServer | Changed::Attempt => false,
    };
    if is_read {
        all(&world.router_accesses)
    } else {
        Vec::new()
    }
}

pub(crate) fn references(access: &RouterAccess) -> Vec<(ObjectKind, String)> {
    let spec = &access.spec;
    named(Some(&spec.tls_credentials))
        .into_iter()
        .chain(named(spec.issuer.as_deref()))
        .map(|name| (ObjectKind::Secret, name.to_owned()))
        .collect()
}

/// The roles that the routers should play for this access, each with its port: what the router is configured with.
pub(crate) fn listeners(access: &RouterAccess, world: &World) -> Vec<(String, u16)> {
    if access.metadata.deletion_timestamp.is_some() || access.spec.tls_credentials.is_empty() {
        return Vec::new();
    }
    roles(access, world).accepted
}

fn own_secured_access<'w>(
    access: &RouterAccess,
    group: &str,
    world: &'w World,
) -> Option<&'w SecuredAccess> {
    let name = names::secured_access(access.metadata.name.as_deref()?, group);
    let live = world.secured_accesses.get(&name)?.fits()?;
    owns(&access.metadata, &live.metadata).then_some(live)
}

fn is_generated(access: &RouterAccess) -> bool {
    access.spec.generate_tls_credentials.unwrap_or_default()
}

/// The Secret of the CA that signs generated credentials.
fn issuer<'a>(access: &'a RouterAccess, site: &'a Site) -> &'a str {
    named(access.spec.issuer.as_deref()).unwrap_or_else(|| default_issuer(site))
}

fn secured_access(
    access: &RouterAccess,
    site: &Site,
    group: &str,
    roles: &[(String, u16)],
) -> Child {
    let spec = &access.spec;
    let name = access.metadata.name.as_deref().unwrap_or_default();
    let ports = roles.iter().map(|(role, port)| SecuredAccessPort {
        name: role.clone(),
        port: Some(i32::from(*port)),
        target_port: Some(i32::from(*port)),
        protocol: Some("TCP".to_owned()),
    });
    let selector = labels::map([
        (labels::COMPONENT, labels::COMPONENT_ROUTER),
        (labels::GROUP, group),
    ]);
    let mut wanted = SecuredAccess::new(
        &names::secured_access(name, group),
        SecuredAccessSpec {
            selector,
            ports: ports.collect(),
            access_type: named(spec.access_type.as_deref()).map(str::to_owned),
            issuer: is_generated(access).then(|| issuer(access, site).to_owned()),
            certificate: Some(spec.tls_credentials.clone()),
            settings: settings(&spec.settings, &spec.options).0,
            ..SecuredAccessSpec::default()
        },
    );
    let mut annotations =
        labels::map([(labels::CONTROLLED, "true"), (labels::ROUTER_ACCESS, name)]);
    if !spec.subject_alternative_names.is_empty() {
        annotations.insert(
            labels::HOSTS.to_owned(),
            spec.subject_alternative_names.join(","),
        );
    }
    wanted.metadata = ObjectMeta {
        namespace: access.metadata.namespace.clone(),
        labels: Some(labels::ours()),
        annotations: Some(annotations),
        owner_references: Some(vec![names::owner(access)]),
        ..wanted.metadata
    };
    child(ObjectKind::SecuredAccess, &wanted)
}

/// Deletes our SecuredAccesses for groups that are gone.
fn surplus(access: &RouterAccess, groups: &[&str], world: &World) -> Vec<Act> {
    let name = access.metadata.name.as_deref().unwrap_or_default();
    let wanted: Vec<String> = groups
        .iter()
        .map(|group| names::secured_access(name, group))
        .collect();
    let is_ours = |other: &&SecuredAccess| {
        let annotations = other.metadata.annotations.as_ref();
        annotations
            .and_then(|map| map.get(labels::ROUTER_ACCESS))
            .is_some_and(|of| of == name)
    };
    world
        .secured_accesses
        .fitting()
        .filter(is_ours)
        .filter_map(|other| other.metadata.name.as_ref())
        .filter(|other| !wanted.contains(other))
        .filter_map(|other| {
            let live = world.deletable(ObjectKind::SecuredAccess, other, &access.metadata)?;
            let reference = Ref {
                kind: ObjectKind::SecuredAccess,
                namespace: world.namespace.clone(),
                name: other.clone(),
            };
            Some(Act::Delete(reference, live))
        })
        .collect()
}
