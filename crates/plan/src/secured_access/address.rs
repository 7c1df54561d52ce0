//! Under which addresses are the ports of a SecuredAccess reached, and is it safe to say so?

use k8s_openapi::api::core::v1::{Service, ServicePort};
use spanwire_api::condition::RESOLVED;
use spanwire_api::secured_access::reason;
use spanwire_api::{Endpoint, SecuredAccess};

use super::{AccessType, Wish, shown};
use crate::certificate::hosts;
use crate::credential::{self, Fault};
use crate::env::Env;
use crate::facts::{CERTIFICATE_FILE, SecretFacts};
use crate::plan::Verdict;
use crate::world::{Named, World, named, owns};

/// Where the ports are reached, as far as the platform has said by now.
pub(super) fn endpoints(wish: &Wish<'_>, world: &World) -> Vec<Endpoint> {
    let Some(live) = world
        .services
        .get(wish.name)
        .filter(|service| owns(&wish.access.metadata, &service.metadata))
    else {
        return Vec::new();
    };
    let namespace = wish
        .access
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default();
    let at = |host: String, port: &ServicePort, number: i32| Endpoint {
        name: port.name.clone().unwrap_or_default(),
        host,
        port: number.to_string(),
        group: String::new(),
    };
    match wish.access_type {
        AccessType::Local => wish
            .ports
            .iter()
            .map(|port| at(format!("{}.{namespace}", wish.name), port, port.port))
            .collect(),
        AccessType::NodePort(host) => wish
            .ports
            .iter()
            .filter_map(|port| Some(at(canonical(host), port, node_port(live, port)?)))
            .collect(),
        AccessType::LoadBalancer => ingress_hosts(live)
            .iter()
            .flat_map(|host| {
                wish.ports
                    .iter()
                    .map(move |port| at(host.clone(), port, port.port))
            })
            .collect(),
    }
}

fn node_port(live: &Service, wanted: &ServicePort) -> Option<i32> {
    let ports = live.spec.as_ref()?.ports.as_ref()?;
    ports
        .iter()
        .find(|port| port.name == wanted.name && port.port == wanted.port)?
        .node_port
        .filter(|number| *number > 0)
}

fn ingress_hosts(live: &Service) -> Vec<String> {
    let status = live
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    status
        .and_then(|balancer| balancer.ingress.as_ref())
        .into_iter()
        .flatten()
        .filter_map(|ingress| named(ingress.ip.as_deref()).or(named(ingress.hostname.as_deref())))
        .map(canonical)
        .collect()
}

/// A host as it stands in certificates.
fn canonical(host: &str) -> String {
    hosts(&[host.to_owned()]).pop_first().unwrap_or_default()
}

/// What is published: the addresses that the stored certificate is good for, so that nobody who dials one of them is
/// turned away. What was published stays until something better is there.
pub(super) fn resolved(wish: &Wish<'_>, world: &World, env: &Env<'_>) -> (Verdict, Vec<Endpoint>) {
    let known = endpoints(wish, world);
    let before = published(wish.access);
    let is_whole = wish.ports.iter().all(|port| {
        known
            .iter()
            .any(|endpoint| port.name.as_ref() == Some(&endpoint.name))
    });
    let (lack, offered) = certified(wish, known, world, env);
    let verdict = if is_whole { lack } else { Some(awaited(wish)) };
    (
        verdict.unwrap_or_else(|| Verdict::ready(RESOLVED)),
        if offered.is_empty() {
            before.to_vec()
        } else {
            offered
        },
    )
}

/// Those of the known addresses that may be published, and what the others lack.
fn certified(
    wish: &Wish<'_>,
    known: Vec<Endpoint>,
    world: &World,
    env: &Env<'_>,
) -> (Option<Verdict>, Vec<Endpoint>) {
    let Some(secret) = shown(wish.access) else {
        return (None, known);
    };
    let credentials = credential::usable(world, secret, env.now);
    let covers = |endpoint: &Endpoint| {
        let certificate = credentials
            .as_ref()
            .ok()
            .and_then(|facts| facts.certificate());
        certificate.is_some_and(|certificate| certificate.covers(&endpoint.host))
    };
    let (mut offered, bare): (Vec<Endpoint>, Vec<Endpoint>) = known.into_iter().partition(covers);
    let lack = bare.first().map(|first| match credentials {
        Ok(facts) => uncovered(wish, secret, facts, &first.host, world),
        Err(fault) => uncertified(wish, fault, world, env),
    });
    let before = published(wish.access);
    offered.extend(
        bare.into_iter()
            .filter(|endpoint| before.contains(endpoint)),
    );
    (lack, offered)
}

/// Why a certificate is not good for a host: most likely because the next one is on its way.
fn uncovered(
    wish: &Wish<'_>,
    secret: &str,
    facts: &SecretFacts,
    host: &str,
    world: &World,
) -> Verdict {
    if wish.issuer.is_none() {
        let message = format!(
            "{CERTIFICATE_FILE} of secret \"{secret}\" is not good for {host}: bring one that is"
        );
        return Verdict::error(RESOLVED, reason::CREDENTIALS_INVALID, message);
    }
    let is_foreign = world
        .certificates
        .get(secret)
        .is_some_and(|certificate| !owns(certificate.metadata(), &facts.metadata));
    if is_foreign {
        let message = format!(
            "secret \"{secret}\" exists but is not controlled by skupper, and its {CERTIFICATE_FILE} is not good for {host}: delete it, or bring one that is"
        );
        return Verdict::error(RESOLVED, reason::NAME_TAKEN, message);
    }
    let message =
        format!("waiting until the certificate of secret \"{secret}\" is good for {host}");
    Verdict::pending(RESOLVED, reason::PENDING, message)
}

/// Why there is no certificate: where one is issued, most likely because nobody can sign it.
fn uncertified(wish: &Wish<'_>, fault: Fault, world: &World, env: &Env<'_>) -> Verdict {
    let Some(issuer) = wish.issuer else {
        return fault.verdict(RESOLVED);
    };
    let fault = credential::signing(world, issuer, env.now)
        .err()
        .unwrap_or(fault);
    Verdict::pending(RESOLVED, fault.reason, fault.message)
}

fn awaited(wish: &Wish<'_>) -> Verdict {
    let (reason, message) = match wish.access_type {
        AccessType::LoadBalancer => (
            reason::AWAITING_ADDRESS,
            format!(
                "waiting for the load balancer to give Service \"{}\" an address",
                wish.name
            ),
        ),
        AccessType::NodePort(_) => (
            reason::AWAITING_ADDRESS,
            format!("waiting for the node ports of Service \"{}\"", wish.name),
        ),
        AccessType::Local => (
            reason::PENDING,
            format!("waiting for Service \"{}\"", wish.name),
        ),
    };
    Verdict::pending(RESOLVED, reason, message)
}

pub(super) fn published(access: &SecuredAccess) -> &[Endpoint] {
    access
        .status
        .as_ref()
        .map_or(&[], |status| status.endpoints.as_slice())
}

/// What is true of the addresses while the spec says nothing that could be followed.
pub(super) fn still_resolved(access: &SecuredAccess) -> (Verdict, Vec<Endpoint>) {
    let before = published(access).to_vec();
    let verdict = if before.is_empty() {
        Verdict::pending(RESOLVED, reason::PENDING, "Pending")
    } else {
        Verdict::ready(RESOLVED)
    };
    (verdict, before)
}
