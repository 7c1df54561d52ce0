//! Link → connector of the Site's routers: can it be configured, and does it carry traffic?
//!
//! A Link has no children. The Site's plan writes its connector; this one says what became of it.

use std::collections::BTreeSet;

use spanwire_api::condition::{CONFIGURED, OPERATIONAL};
use spanwire_api::link::reason;
use spanwire_api::{Link, Site};
use spanwire_router::entity::{Connector, Role};
use spanwire_router::report::{LinkReport, reason as refusal};

use crate::credential::{self, Fault};
use crate::env::Env;
use crate::kinds::{Changed, all};
use crate::names;
use crate::plan::{ObjectKind, Plan, Status, Verdict};
use crate::site::claims::Claims;
use crate::site::credentials::{Credentials, Unclaimed, is_stored, remark};
use crate::site::{self, nudge};
use crate::world::World;

/// Upstream's text for a link that is not up.
const NOT_OPERATIONAL: &str = "Not operational";

pub(crate) fn plan(link: &Link, world: &World, env: &Env<'_>) -> Plan {
    if link.metadata.deletion_timestamp.is_some() {
        return Plan::nothing();
    }
    let Some(site) = world.site() else {
        let message = "No active site in namespace";
        let verdict = Verdict::error(CONFIGURED, reason::NO_ACTIVE_SITE, message);
        return Plan::only(told(
            verdict,
            Verdict::pending(OPERATIONAL, reason::NOT_CONNECTED, NOT_OPERATIONAL),
        ));
    };
    let secret = link.spec.tls_credentials.as_deref().unwrap_or_default();
    let fault = credential::usable(world, secret, env.now).err();
    let mut plan = Plan::only(told(
        configured(link, site, fault.as_ref(), world, env).with_remark(&remarks(link)),
        operational(link, site, fault.as_ref(), world),
    ));
    if let Some(wait) = credential::turn(world, secret, env.now) {
        plan.look_again(wait);
    }
    plan
}

pub(crate) fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
    let is_read = match changed {
        Changed::Object(ObjectKind::Secret, name) if *name != names::CREDENTIALS => {
            return world
                .links
                .fitting()
                .filter(|link| reads(link, name, world))
                .filter_map(|link| link.metadata.name.clone())
                .collect();
        }
        Changed::Object(ObjectKind::ConfigMap, name) => {
            names::is_group(name) || *name == names::REPORT
        }
        _ => changed.is_of(&[
            ObjectKind::Site,
            ObjectKind::Link,
            ObjectKind::RouterAccess,
            ObjectKind::SecuredAccess,
            ObjectKind::Secret,
            ObjectKind::Deployment,
            ObjectKind::ReplicaSet,
            ObjectKind::Pod,
        ]),
    };
    if is_read {
        all(&world.links)
    } else {
        Vec::new()
    }
}

/// Whether the plan for a Link may depend on this Secret: its own, or, while it waits for room, any.
fn reads(link: &Link, secret: &str, world: &World) -> bool {
    let own = link.spec.tls_credentials.as_deref().unwrap_or_default();
    own == secret || !is_stored(&names::link_profile(own), world)
}

pub(crate) fn references(link: &Link) -> Vec<(ObjectKind, String)> {
    let secret = link
        .spec
        .tls_credentials
        .clone()
        .filter(|name| !name.is_empty());
    secret
        .into_iter()
        .map(|name| (ObjectKind::Secret, name))
        .collect()
}

/// The connector that a Link asks for, on a router of this mode.
pub(crate) fn connector(link: &Link, edge: bool) -> Result<Connector, Verdict> {
    let spec = &link.spec;
    let (role, wanted) = if edge {
        (Role::Edge, "edge")
    } else {
        (Role::InterRouter, "inter-router")
    };
    let endpoint = spec
        .endpoints
        .iter()
        .find(|endpoint| endpoint.name == wanted);
    let Some(endpoint) = endpoint.filter(|endpoint| !endpoint.host.trim().is_empty()) else {
        let message = format!(
            "spec.endpoints has none called \"{wanted}\" with a host, which this site would dial"
        );
        return Err(Verdict::error(CONFIGURED, reason::NO_ENDPOINT, message));
    };
    let Some(port) = endpoint.port.parse::<u16>().ok().filter(|port| *port > 0) else {
        let message = format!(
            "port \"{}\" of endpoint \"{wanted}\" is no number from 1 to 65535",
            endpoint.port
        );
        return Err(Verdict::error(CONFIGURED, reason::NO_ENDPOINT, message));
    };
    let Some(secret) = spec
        .tls_credentials
        .as_deref()
        .filter(|name| !name.is_empty())
    else {
        let message = "spec.tlsCredentials is empty: name the secret to connect with";
        return Err(Verdict::error(
            CONFIGURED,
            reason::CREDENTIALS_NOT_FOUND,
            message,
        ));
    };
    let cost = spec
        .cost
        .and_then(|cost| u32::try_from(cost).ok())
        .unwrap_or(1)
        .max(1);
    let name = link.metadata.name.as_deref().unwrap_or_default();
    Ok(site::connector(
        name,
        role,
        endpoint.host.trim(),
        port,
        cost,
        secret,
    ))
}

/// Whether the routers have been told, and took it.
fn configured(
    link: &Link,
    site: &Site,
    fault: Option<&Fault>,
    world: &World,
    env: &Env<'_>,
) -> Verdict {
    let name = link.metadata.name.as_deref().unwrap_or_default();
    let claims = Claims::of(world, site::is_edge(site), site::groups(site).len() > 1);
    let connector = match claims.connectors.get(name) {
        Some(Ok(connector)) => connector,
        Some(Err(verdict)) => return verdict.clone(),
        None => return Verdict::pending(CONFIGURED, reason::PENDING, "Pending"),
    };
    let profile = connector.ssl_profile.as_deref().unwrap_or_default();
    if let Some(fault) = fault {
        let verdict = fault.clone().verdict(CONFIGURED);
        return verdict.with_remark(remark(profile, world));
    }
    if let Some(refused) = refused(name, profile, world) {
        return refused;
    }
    let is_stored = is_stored(profile, world);
    if is_stored && is_named(profile, site, world) {
        return Verdict::ready(CONFIGURED);
    }
    let told = Credentials::wanted(&claims, site, world, env.now, Unclaimed::Keep);
    if !is_stored && told.left_out.iter().any(|name| name == profile) {
        let message = "the credentials of all links do not fit into one secret, and these are the youngest: remove a \
                       link, or use P-256 instead of RSA";
        return Verdict::error(CONFIGURED, reason::TOO_LARGE, message);
    }
    let message = "the routers are being told";
    Verdict::pending(CONFIGURED, reason::PENDING, message)
}

/// Whether the stored configuration of each router uses this profile.
fn is_named(profile: &str, site: &Site, world: &World) -> bool {
    site::groups(site).iter().all(|group| {
        let config = world.config_maps.get(group);
        let named = config.and_then(|config| config.profiles_named.as_ref());
        named.is_some_and(|named| named.contains(profile))
    })
}

/// What a router has against the connector or its profile.
fn refused(name: &str, profile: &str, world: &World) -> Option<Verdict> {
    let entities = [format!("connector/{name}"), format!("sslProfile/{profile}")];
    let refused = world
        .routers()
        .filter_map(|(_, report)| report)
        .flat_map(|report| &report.refused)
        .find(|refused| entities.contains(&refused.entity))?;
    Some(if refused.reason == refusal::CREDENTIAL_MISSING {
        // The kubelet has shown the pod one of two objects: the other follows.
        Verdict::pending(CONFIGURED, reason::PENDING, refused.message.clone())
    } else {
        Verdict::error(CONFIGURED, reason::ROUTER_REFUSED, refused.message.clone())
    })
}

/// Whether traffic flows, as the routers report it.
fn operational(link: &Link, site: &Site, fault: Option<&Fault>, world: &World) -> Verdict {
    let name = link.metadata.name.as_deref().unwrap_or_default();
    let groups = site::groups(site);
    let reports: Vec<(&str, &LinkReport)> = world
        .routers()
        .filter_map(|(pod, report)| Some((nudge::group(pod)?, report?.links.get(name)?)))
        .collect();
    let up: BTreeSet<&str> = reports
        .iter()
        .filter(|(_, link)| link.up)
        .map(|(group, _)| *group)
        .collect();
    let up = groups.iter().filter(|group| up.contains(*group)).count();
    if up == groups.len() {
        return Verdict::ready(OPERATIONAL);
    }
    if up > 0 {
        let message = format!("{up} of {} routers", groups.len());
        return Verdict {
            message,
            ..Verdict::ready(OPERATIONAL)
        };
    }
    // The router cannot say which certificate was bad, or why: ours are judged here (`facts/router.md` §5).
    if let Some(fault) = fault {
        let message = format!("{NOT_OPERATIONAL}: {}", fault.message);
        return Verdict::error(OPERATIONAL, fault.reason, message);
    }
    if world.routers().next().is_none() {
        let message = format!("{NOT_OPERATIONAL}: no router is running");
        return Verdict::pending(OPERATIONAL, reason::NOT_CONNECTED, message);
    }
    let seen = reports.iter().find_map(|(_, link)| link.message.as_deref());
    let (reason, message) = match seen {
        None => (reason::NOT_CONNECTED, NOT_OPERATIONAL.to_owned()),
        Some(seen) if is_distrust(seen) => {
            let message = format!(
                "{NOT_OPERATIONAL}: one of the two sites does not vouch for the certificate of the other; redeem a new \
                 token, or correct the host ({seen})"
            );
            (reason::REMOTE_TRUST_BROKEN, message)
        }
        Some(seen) => (reason::NOT_CONNECTED, format!("{NOT_OPERATIONAL}: {seen}")),
    };
    Verdict::pending(OPERATIONAL, reason, message)
}

/// Whether a router's last error says that one side does not vouch for the other's certificate, though ours is good
/// (`facts/router.md` §5).
fn is_distrust(message: &str) -> bool {
    ["certificate verify failed", "unknown ca"]
        .iter()
        .any(|text| message.contains(text))
}

/// What the spec asks for and does not get.
fn remarks(link: &Link) -> String {
    let mut remarks = Vec::new();
    if link.spec.no_client_auth.unwrap_or_default() {
        remarks.push("spec.noClientAuth is ignored, the client certificate is shown".to_owned());
    }
    for setting in link.spec.settings.keys() {
        remarks.push(format!("setting {setting} is ignored"));
    }
    remarks.join("; ")
}

fn told(configured: Verdict, operational: Verdict) -> Status {
    Status {
        verdicts: vec![configured, operational],
        sum_of: &[CONFIGURED, OPERATIONAL],
        announces: vec![(OPERATIONAL, "LinkUp", "LinkDown")],
        ..Status::default()
    }
}
