//! RouterAccess → SecuredAccess: on which ports do the site's routers accept links, and where are they reached?

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Map;
use spanwire_api::condition::{CONFIGURED, RESOLVED};
use spanwire_api::router_access::reason;
use spanwire_api::{
    Condition, Endpoint, RouterAccess, SecuredAccess, SecuredAccessPort, SecuredAccessSpec, Site,
};

use crate::credential::{self, Fault};
use crate::kinds::{Changed, all};
use crate::plan::{Act, Child, Env, ObjectKind, Plan, Ref, Status, Verdict};
use crate::secured_access::{listed, settings};
use crate::settle::{child, settle};
use crate::site::{default_issuer, is_edge};
use crate::world::{World, named, owns, seniority};
use crate::{labels, names};

/// Ports that the router pod uses itself: the router's AMQPS and AMQP, its adaptor's and its own metrics and health.
const RESERVED: [u16; 5] = [5671, 5672, 9000, 9090, 9191];

pub(crate) fn plan(access: &RouterAccess, world: &World, env: &Env<'_>) -> Plan {
    if access.metadata.deletion_timestamp.is_some() {
        return Plan::nothing();
    }
    let before = published(access);
    if access.spec.tls_credentials.is_empty() {
        let message = "spec.tlsCredentials is empty: name the secret that the routers show themselves with";
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
        groups.iter().map(|group| secured_access(access, site, group, &roles.accepted)).collect()
    };
    let settling = settle(children, world);
    let mut acts = settling.acts;
    acts.extend(surplus(access, groups, world));

    let configured = configured(access, site, &roles, &settling.taken, world, env);
    let (resolved, endpoints) = resolved(access, groups, &roles.accepted, world);
    let mut plan = told(configured, resolved, &endpoints);
    plan.push(CONFIGURED, false, acts);
    plan
}

pub(crate) fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
    let is_read = match changed {
        Changed::Object(ObjectKind::ConfigMap, name) => [names::ROUTER, names::REPORT].contains(name),
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
    if is_read { all(&world.router_accesses) } else { Vec::new() }
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

/// What became of the roles that a spec asks for.
#[derive(Default)]
struct Roles {
    /// In the order of the spec.
    accepted: Vec<(String, u16)>,
    refused: Vec<Fault>,
}

/// Heard by seniority, so that a newcomer never takes a port away from anybody.
fn roles(access: &RouterAccess, world: &World) -> Roles {
    let mut elders: Vec<&RouterAccess> = world
        .router_accesses
        .fitting()
        .filter(|other| other.metadata.deletion_timestamp.is_none())
        .filter(|other| seniority(&other.metadata) < seniority(&access.metadata))
        .collect();
    elders.sort_by_key(|elder| seniority(&elder.metadata));
    let mut taken: Vec<(u16, &str)> = Vec::new();
    for elder in elders {
        let ports = roles_beside(elder, &taken, world).accepted.into_iter().map(|(_, port)| port);
        let name = elder.metadata.name.as_deref().unwrap_or_default();
        let ports: Vec<(u16, &str)> = ports.map(|port| (port, name)).collect();
        taken.extend(ports);
    }
    roles_beside(access, &taken, world)
}

/// The roles of an access where some ports are taken. A role whose port is refused keeps the one that it had: the last
/// good state stays in force.
fn roles_beside(access: &RouterAccess, taken: &[(u16, &str)], world: &World) -> Roles {
    let is_edge = world.site().is_some_and(is_edge);
    let mut roles = Roles::default();
    if access.spec.roles.is_empty() {
        let message = "spec.roles is empty: name at least one of inter-router, edge and normal";
        roles.refused.push(fault(reason::INVALID_OBJECT, message));
    }
    for role in &access.spec.roles {
        let name = &role.name;
        if !["inter-router", "edge", "normal"].contains(&name.as_str()) {
            let message = format!("unknown role \"{name}\": a router knows inter-router, edge and normal");
            roles.refused.push(fault(reason::UNKNOWN_ROLE, message));
            continue;
        }
        if is_edge && name != "normal" {
            let message = format!("role \"{name}\": edge sites cannot accept incoming links from remote sites");
            roles.refused.push(fault(reason::EDGE_SITE, message));
            continue;
        }
        if roles.accepted.iter().any(|(other, _)| other == name) {
            let message = format!("role \"{name}\" is there twice: remove one, or put it into a RouterAccess of its own");
            roles.refused.push(fault(reason::INVALID_OBJECT, message));
            continue;
        }
        let is_free = |port: u16| free(name, port, &roles.accepted, taken);
        match wanted_port(name, role.port).and_then(|port| is_free(port).map(|()| port)) {
            Ok(port) => roles.accepted.push((name.clone(), port)),
            Err(refusal) => {
                let kept = port_in_force(access, name, world).filter(|port| is_free(*port).is_ok());
                roles.accepted.extend(kept.map(|port| (name.clone(), port)));
                roles.refused.push(refusal);
            }
        }
    }
    roles
}

fn wanted_port(role: &str, port: Option<i32>) -> Result<u16, Fault> {
    let default = match role {
        "inter-router" => 55671,
        "edge" => 45671,
        _ => 5671,
    };
    let port = port.unwrap_or(default);
    u16::try_from(port).ok().filter(|port| *port > 0).ok_or_else(|| {
        let message = format!("role \"{role}\" has port {port}: it has to be from 1 to 65535");
        fault(reason::INVALID_OBJECT, message)
    })
}

fn free(
    role: &str,
    port: u16,
    own: &[(String, u16)],
    taken: &[(u16, &str)],
) -> Result<(), Fault> {
    if RESERVED.contains(&port) {
        let message = format!("role \"{role}\" has port {port}, which the router pod uses itself: give it another one");
        return Err(fault(reason::PORT_RESERVED, message));
    }
    if let Some((other, _)) = own.iter().find(|(_, other)| *other == port) {
        let message = format!("role \"{role}\" has port {port}, and so has role \"{other}\": change one of them");
        return Err(fault(reason::DUPLICATE_PORT, message));
    }
    if let Some((_, other)) = taken.iter().find(|(other, _)| *other == port) {
        let message = format!("role \"{role}\" has port {port}, which RouterAccess \"{other}\" has: change either");
        return Err(fault(reason::DUPLICATE_PORT, message));
    }
    Ok(())
}

fn fault(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault { reason, message: message.into() }
}

/// The port that this access' SecuredAccess offers for a role by now.
fn port_in_force(access: &RouterAccess, role: &str, world: &World) -> Option<u16> {
    let live = own_secured_access(access, names::ROUTER, world)?;
    let port = live.spec.ports.iter().find(|port| port.name == role)?.port?;
    u16::try_from(port).ok().filter(|port| *port > 0)
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

/// The routers of a site.
fn groups(site: &Site) -> &'static [&'static str] {
    names::groups(site.spec.ha.unwrap_or_default() && !is_edge(site))
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
    let mut annotations = labels::map([(labels::CONTROLLED, "true"), (labels::ROUTER_ACCESS, name)]);
    if !spec.subject_alternative_names.is_empty() {
        annotations.insert(labels::HOSTS.to_owned(), spec.subject_alternative_names.join(","));
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
    let wanted: Vec<String> =
        groups.iter().map(|group| names::secured_access(name, group)).collect();
    let is_ours = |other: &&SecuredAccess| {
        let annotations = other.metadata.annotations.as_ref();
        annotations.and_then(|map| map.get(labels::ROUTER_ACCESS)).is_some_and(|of| of == name)
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

/// Whether the routers can be told all that the spec asks for, and have not refused it.
fn configured(
    access: &RouterAccess,
    site: &Site,
    roles: &Roles,
    taken: &[String],
    world: &World,
    env: &Env<'_>,
) -> Verdict {
    if let Some(first) = roles.refused.first() {
        let messages: Vec<&str> = roles.refused.iter().map(|fault| fault.message.as_str()).collect();
        return Verdict::error(CONFIGURED, first.reason, messages.join("\n"));
    }
    if !taken.is_empty() {
        return Verdict::error(CONFIGURED, reason::NAME_TAKEN, taken.join("\n"));
    }
    let refusal = groups(site)
        .iter()
        .filter_map(|group| own_secured_access(access, group, world))
        .find_map(|secured| failing(secured, CONFIGURED));
    if let Some(refusal) = refusal {
        return Verdict::error(CONFIGURED, told_reason(&refusal.reason), refusal.message.clone());
    }
    if let Err(fault) = credential::usable(world, &access.spec.tls_credentials, env.now) {
        return without_credentials(access, site, fault, world, env);
    }
    refused_by_router(access, roles, world).unwrap_or_else(|| {
        let (_, remark) = settings(&access.spec.settings, &access.spec.options);
        Verdict::ready(CONFIGURED).with_remark(&remark)
    })
}

/// Credentials that the operator makes are on their way; others have to be brought.
fn without_credentials(
    access: &RouterAccess,
    site: &Site,
    fault: Fault,
    world: &World,
    env: &Env<'_>,
) -> Verdict {
    if !is_generated(access) {
        return fault.verdict(CONFIGURED);
    }
    let fault = credential::signing(world, issuer(access, site), env.now).err().unwrap_or(fault);
    Verdict::pending(CONFIGURED, fault.reason, fault.message)
}

fn refused_by_router(access: &RouterAccess, roles: &Roles, world: &World) -> Option<Verdict> {
    use spanwire_router::report::reason::CREDENTIAL_MISSING;

    let name = access.metadata.name.as_deref().unwrap_or_default();
    let listeners: Vec<String> = roles
        .accepted
        .iter()
        .map(|(role, _)| format!("listener/{}", names::listener(name, role)))
        .collect();
    let refused = world
        .routers()
        .filter_map(|(_, report)| report)
        .flat_map(|report| &report.refused)
        .find(|refused| listeners.contains(&refused.entity))?;
    // The files are on their way to the pod.
    if refused.reason == CREDENTIAL_MISSING {
        return Some(Verdict::pending(CONFIGURED, reason::PENDING, refused.message.clone()));
    }
    Some(Verdict::error(CONFIGURED, reason::ROUTER_REFUSED, refused.message.clone()))
}

/// Where remote sites reach the routers, group by group and role by role; what was published stays while a
/// SecuredAccess is not there to say something newer.
fn resolved(
    access: &RouterAccess,
    groups: &[&str],
    roles: &[(String, u16)],
    world: &World,
) -> (Verdict, Vec<Endpoint>) {
    let mut endpoints = Vec::new();
    let mut missing = None;
    for group in groups {
        let secured = own_secured_access(access, group, world);
        let offered = secured.and_then(|secured| secured.status.as_ref()).map(|status| &status.endpoints);
        for (role, _) in roles {
            let mut found: Vec<Endpoint> = offered
                .into_iter()
                .flatten()
                .filter(|endpoint| endpoint.name == *role)
                .map(|endpoint| Endpoint { group: (*group).to_owned(), ..endpoint.clone() })
                .collect();
            if found.is_empty() {
                missing.get_or_insert_with(|| awaited(group, role, secured));
                let was = |endpoint: &&Endpoint| endpoint.name == *role && endpoint.group == *group;
                found.extend(published(access).iter().filter(was).cloned());
            }
            endpoints.extend(found);
        }
        if let Some(condition) = secured.and_then(|secured| failing(secured, RESOLVED)) {
            missing.get_or_insert_with(|| passed_on(condition));
        }
    }
    let verdict = match missing {
        Some(verdict) => verdict,
        None if endpoints.is_empty() => pending(reason::PENDING, "Pending"),
        None => Verdict::ready(RESOLVED),
    };
    (verdict, endpoints)
}

fn awaited(group: &str, role: &str, secured: Option<&SecuredAccess>) -> Verdict {
    match secured.and_then(|secured| failing(secured, RESOLVED)) {
        Some(condition) => passed_on(condition),
        None => pending(reason::PENDING, format!("waiting for the address of role \"{role}\" of {group}")),
    }
}

/// What a SecuredAccess says is missing, said of its RouterAccess.
fn passed_on(condition: &Condition) -> Verdict {
    pending(told_reason(&condition.reason), condition.message.clone())
}

/// The condition of a SecuredAccess, where it is False.
fn failing<'w>(secured: &'w SecuredAccess, kind: &str) -> Option<&'w Condition> {
    secured.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind && condition.status == "False")
}

/// What the reason of a SecuredAccess is called on its RouterAccess.
fn told_reason(reason: &str) -> &'static str {
    use spanwire_api::secured_access::reason::CLAIMS_CONFLICT;

    const SHARED: [&str; 10] = [
        reason::AWAITING_ADDRESS,
        reason::CA_NOT_FOUND,
        reason::CLUSTER_HOST_MISSING,
        reason::CREDENTIALS_EXPIRED,
        reason::CREDENTIALS_INVALID,
        reason::CREDENTIALS_NOT_FOUND,
        reason::INVALID_OBJECT,
        reason::NAME_TAKEN,
        reason::UNSUPPORTED_ACCESS_TYPE,
        reason::WRITE_FAILED,
    ];
    if reason == CLAIMS_CONFLICT {
        return reason::CREDENTIALS_CONFLICT;
    }
    SHARED.into_iter().find(|shared| *shared == reason).unwrap_or(reason::PENDING)
}

fn published(access: &RouterAccess) -> &[Endpoint] {
    access.status.as_ref().map_or(&[], |status| status.endpoints.as_slice())
}

fn pending(reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict::pending(RESOLVED, reason, message)
}

fn told(configured: Verdict, resolved: Verdict, endpoints: &[Endpoint]) -> Plan {
    Plan::only(Status {
        verdicts: vec![configured, resolved],
        sum_of: &[CONFIGURED, RESOLVED],
        fields: Map::from_iter([("endpoints".to_owned(), listed(endpoints))]),
        ..Status::default()
    })
}
