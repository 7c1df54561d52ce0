//! What is true of a RouterAccess now?

use serde_json::Map;
use spanwire_api::condition::{CONFIGURED, RESOLVED, word};
use spanwire_api::router_access::reason;
use spanwire_api::{Condition, Endpoint, RouterAccess, SecuredAccess, Site};

use super::role::Roles;
use super::{groups, is_generated, issuer, own_secured_access};
use crate::credential::{self, Fault};
use crate::env::Env;
use crate::names;
use crate::plan::{Plan, Status, Verdict, Word};
use crate::secured_access::{listed, settings};
use crate::site::credentials::remark;
use crate::site::nudge;
use crate::world::World;

/// Whether the routers can be told all that the spec asks for, and have not refused it.
pub(super) fn configured(
    access: &RouterAccess,
    site: &Site,
    roles: &Roles,
    taken: &[String],
    world: &World,
    env: &Env<'_>,
) -> Verdict {
    if let Some(first) = roles.refused.first() {
        let messages: Vec<&str> = roles
            .refused
            .iter()
            .map(|fault| fault.message.as_str())
            .collect();
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
        return Verdict::error(
            CONFIGURED,
            told_reason(&refusal.reason),
            refusal.message.clone(),
        );
    }
    if let Err(fault) = credential::usable(world, &access.spec.tls_credentials, env.now) {
        return without_credentials(access, site, fault, world, env);
    }
    let heard = refused_by_router(access, roles, world);
    heard
        .or_else(|| not_open_yet(access, site, roles, world))
        .unwrap_or_else(|| {
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
    let verdict = if is_generated(access) {
        let fault = credential::signing(world, issuer(access, site), env.now)
            .err()
            .unwrap_or(fault);
        Verdict::pending(CONFIGURED, fault.reason, fault.message)
    } else {
        fault.verdict(CONFIGURED)
    };
    verdict.with_remark(remark(&access.spec.tls_credentials, world))
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
        return Some(Verdict::pending(
            CONFIGURED,
            reason::PENDING,
            refused.message.clone(),
        ));
    }
    Some(Verdict::error(
        CONFIGURED,
        reason::ROUTER_REFUSED,
        refused.message.clone(),
    ))
}

/// The first role whose port no router of some group has said to have opened: what is not said is not so.
fn not_open_yet(
    access: &RouterAccess,
    site: &Site,
    roles: &Roles,
    world: &World,
) -> Option<Verdict> {
    let name = access.metadata.name.as_deref().unwrap_or_default();
    let is_open = |group: &str, role: &str, port: u16| {
        let mut reports = world
            .routers()
            .filter(|(pod, _)| nudge::group(pod) == Some(group))
            .filter_map(|(_, report)| report);
        reports.any(|report| report.listeners.get(&names::listener(name, role)) == Some(&port))
    };
    let wanted = groups(site).iter().flat_map(|group| {
        let roles = roles.accepted.iter();
        roles.map(move |(role, port)| (*group, role, *port))
    });
    let (group, role, port) = wanted
        .into_iter()
        .find(|(group, role, port)| !is_open(group, role, *port))?;
    Some(Verdict::pending(
        CONFIGURED,
        reason::PENDING,
        format!("waiting for a router of {group} to open port {port} for role \"{role}\""),
    ))
}

/// Where remote sites reach the routers, group by group and role by role; what was published stays while a
/// SecuredAccess is not there to say something newer.
pub(super) fn resolved(
    access: &RouterAccess,
    groups: &[&str],
    roles: &[(String, u16)],
    world: &World,
) -> (Verdict, Vec<Endpoint>) {
    let mut endpoints = Vec::new();
    let mut missing = None;
    for group in groups {
        let secured = own_secured_access(access, group, world);
        let offered = secured
            .and_then(|secured| secured.status.as_ref())
            .map(|status| &status.endpoints);
        for (role, _) in roles {
            let mut found: Vec<Endpoint> = offered
                .into_iter()
                .flatten()
                .filter(|endpoint| endpoint.name == *role)
                .map(|endpoint| Endpoint {
                    group: (*group).to_owned(),
                    ..endpoint.clone()
                })
                .collect();
            if found.is_empty() {
                missing.get_or_insert_with(|| awaited(group, role, secured));
                let was = |endpoint: &&Endpoint| endpoint.name == *role && endpoint.group == *group;
                found.extend(published(access).iter().filter(was).cloned());
            }
            endpoints.extend(found);
        }
        if let Some(verdict) = secured.and_then(passed_on) {
            missing.get_or_insert(verdict);
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
    secured.and_then(passed_on).unwrap_or_else(|| {
        pending(
            reason::PENDING,
            format!("waiting for the address of role \"{role}\" of {group}"),
        )
    })
}

/// What a SecuredAccess says is missing, said of its RouterAccess.
fn passed_on(secured: &SecuredAccess) -> Option<Verdict> {
    let condition = failing(secured, RESOLVED)?;
    let status = secured.status.as_ref()?.status.as_deref();
    Some(Verdict {
        word: if status == Some(word::ERROR) {
            Word::Error
        } else {
            Word::Pending
        },
        ..pending(told_reason(&condition.reason), condition.message.clone())
    })
}

/// The condition of a SecuredAccess, where it is False.
fn failing<'w>(secured: &'w SecuredAccess, kind: &str) -> Option<&'w Condition> {
    secured
        .status
        .as_ref()?
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind && condition.status == "False")
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
    SHARED
        .into_iter()
        .find(|shared| *shared == reason)
        .unwrap_or(reason::PENDING)
}

pub(super) fn published(access: &RouterAccess) -> &[Endpoint] {
    access
        .status
        .as_ref()
        .map_or(&[], |status| status.endpoints.as_slice())
}

pub(super) fn pending(reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict::pending(RESOLVED, reason, message)
}

pub(super) fn told(configured: Verdict, resolved: Verdict, endpoints: &[Endpoint]) -> Plan {
    Plan::only(Status {
        verdicts: vec![configured, resolved],
        sum_of: &[CONFIGURED, RESOLVED],
        fields: Map::from_iter([("endpoints".to_owned(), listed(endpoints))]),
        ..Status::default()
    })
}
