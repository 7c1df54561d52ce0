//! What is true of a Site now?

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};
use spanwire_api::condition::{CONFIGURED, RESOLVED, RUNNING};
use spanwire_api::site::reason;
use spanwire_api::{Controller, Endpoint, Site};
use spanwire_router::report::{Refused, reason as refusal};

use crate::env::Env;
use crate::plan::{Status, Verdict, Word};
use crate::site::shape::{self, default_issuer};
use crate::site::{claims, nudge};
use crate::world::World;
use crate::{credential, names};

/// Everything that a Site's status says, given what is wrong with its configuration.
pub(crate) fn status(
    site: &Site,
    problems: Vec<Verdict>,
    remarks: &[String],
    world: &World,
    env: &Env<'_>,
) -> Status {
    let endpoints = endpoints(world);
    let wants_access = shape::wants_access(site);
    let mut verdicts = vec![configured(problems, remarks)];
    verdicts.extend(running(site, world));
    if wants_access || !world.router_accesses.is_empty() {
        verdicts.push(resolved(wants_access, &endpoints, world));
    }
    let sum_of = sum_of(&verdicts, wants_access);
    Status {
        verdicts,
        sum_of,
        fields: fields(site, &endpoints, env),
        ..Status::default()
    }
}

/// The status of a Site that nothing is done for.
pub(crate) fn only(verdict: Verdict) -> Status {
    Status {
        verdicts: vec![verdict],
        sum_of: &[CONFIGURED],
        ..Status::default()
    }
}

/// What `Ready` is the sum of. Where somebody has to change something, that is told rather than that no pod runs.
fn sum_of(verdicts: &[Verdict], wants_access: bool) -> &'static [&'static str] {
    if verdicts
        .first()
        .is_some_and(|configured| configured.word == Word::Error)
    {
        return &[CONFIGURED];
    }
    if wants_access {
        &[CONFIGURED, RUNNING, RESOLVED]
    } else {
        &[CONFIGURED, RUNNING]
    }
}

/// What the routers and the site's own credentials have to say against the configuration.
pub(crate) fn problems(world: &World, env: &Env<'_>) -> Vec<Verdict> {
    let mut problems = Vec::new();
    if let Err(fault) = credential::usable(world, names::LOCAL_SERVER, env.now) {
        problems.push(if fault.reason == reason::CREDENTIALS_NOT_FOUND {
            // Its Certificate brings it.
            Verdict::pending(CONFIGURED, fault.reason, fault.message)
        } else {
            fault.verdict(CONFIGURED)
        });
    }
    let reports = world
        .routers()
        .filter_map(|(pod, report)| Some((pod, report?)));
    let messages: BTreeSet<String> = reports
        .flat_map(|(pod, report)| report.refused.iter().filter_map(|one| refusal_of(pod, one)))
        .collect();
    problems.extend(
        messages
            .into_iter()
            .map(|message| Verdict::error(CONFIGURED, reason::ROUTER_REFUSED, message)),
    );
    problems
}

/// What a router's adaptor says is wrong with the site's own configuration.
fn refusal_of(pod: &Pod, refused: &Refused) -> Option<String> {
    let Refused {
        entity, message, ..
    } = refused;
    match refused.reason.as_str() {
        refusal::CREDENTIAL_MISSING => None,
        refusal::ROUTER_UNREACHABLE => {
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            Some(format!("pod {pod}: {message}"))
        }
        _ if is_own(entity) => Some(format!("the router refused {entity}: {message}")),
        _ => None,
    }
}

/// Whether an entity of a report is the site's own, rather than a Link's or a RouterAccess'; a mounted file is.
fn is_own(entity: &str) -> bool {
    match entity.split_once('/') {
        None => true,
        Some((_, name)) => [
            claims::AMQP,
            claims::AMQPS,
            claims::HTTP,
            names::LOCAL_SERVER,
            names::ROUTER,
        ]
        .contains(&name),
    }
}

/// One verdict of many: the first that needs a person gives the reason, all are told.
fn configured(problems: Vec<Verdict>, remarks: &[String]) -> Verdict {
    let (errors, pending): (Vec<_>, Vec<_>) = problems
        .into_iter()
        .partition(|verdict| verdict.word == Word::Error);
    let told: Vec<Verdict> = errors.into_iter().chain(pending).collect();
    let Some(first) = told.first() else {
        return Verdict::ready(CONFIGURED).with_remark(&remarks.join("; "));
    };
    let messages: Vec<&str> = told
        .iter()
        .map(|verdict| verdict.message.as_str())
        .collect();
    Verdict {
        message: messages.join("\n"),
        ..first.clone()
    }
}

/// Whether each router of the site is ready; absent while there is no pod, which the sum tells as `Not Running`.
fn running(site: &Site, world: &World) -> Option<Verdict> {
    let groups = shape::groups(site);
    let pods: Vec<&Pod> = world.routers().map(|(pod, _)| pod).collect();
    let first = pods.first()?;
    let is_up = |group: &&&str| {
        pods.iter()
            .any(|pod| nudge::group(pod) == Some(**group) && complaint(pod).is_none())
    };
    let up = groups.iter().filter(is_up).count();
    if up == groups.len() {
        return Some(Verdict::ready(RUNNING));
    }
    let message = pods
        .iter()
        .find_map(|pod| complaint(pod))
        .unwrap_or_else(|| {
            format!(
                "Pod {} not ready",
                first.metadata.name.as_deref().unwrap_or_default()
            )
        });
    let message = if up == 0 {
        message
    } else {
        format!("{up} of {} routers: {message}", groups.len())
    };
    Some(Verdict::pending(RUNNING, reason::POD_NOT_READY, message))
}

/// Why a pod is not ready, in its own words; absent when it is.
fn complaint(pod: &Pod) -> Option<String> {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    if conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    {
        return None;
    }
    let told = conditions
        .iter()
        .filter(|condition| condition.status == "False")
        .find_map(|condition| {
            condition
                .message
                .clone()
                .filter(|message| !message.is_empty())
        });
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Some(told.unwrap_or_else(|| format!("Pod {name} not ready")))
}

/// Whether other sites know where to link to.
fn resolved(wants_access: bool, endpoints: &[Endpoint], world: &World) -> Verdict {
    let own = world
        .router_accesses
        .get(names::ROUTER)
        .and_then(|access| access.fits());
    let status = own.and_then(|access| access.status.as_ref());
    let is_resolved = if wants_access {
        status.is_some_and(|status| !status.endpoints.is_empty())
    } else {
        !endpoints.is_empty()
    };
    if is_resolved {
        return Verdict::ready(RESOLVED);
    }
    let told = status
        .into_iter()
        .flat_map(|status| &status.conditions)
        .find(|condition| condition.type_ == RESOLVED && condition.status != "True")
        .map(|condition| condition.message.clone());
    Verdict::pending(
        RESOLVED,
        reason::AWAITING_ADDRESS,
        told.unwrap_or_else(|| "Pending".to_owned()),
    )
}

/// Where other sites reach this one: what all RouterAccesses offer.
fn endpoints(world: &World) -> Vec<Endpoint> {
    world
        .router_accesses
        .fitting()
        .filter(|access| access.metadata.deletion_timestamp.is_none())
        .filter_map(|access| access.status.as_ref())
        .flat_map(|status| status.endpoints.iter().cloned())
        .collect()
}

fn fields(site: &Site, endpoints: &[Endpoint], env: &Env<'_>) -> Map<String, Value> {
    let controller = Controller {
        name: env.config.name.clone(),
        namespace: env.config.namespace.clone(),
        version: env.config.version.clone(),
    };
    let endpoints = if endpoints.is_empty() {
        Value::Null
    } else {
        json!(endpoints)
    };
    [
        ("endpoints", endpoints),
        ("defaultIssuer", json!(default_issuer(site))),
        ("controller", json!(controller)),
    ]
    .into_iter()
    .map(|(field, value)| (field.to_owned(), value))
    .collect()
}
