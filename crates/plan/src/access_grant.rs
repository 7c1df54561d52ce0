//! AccessGrant: may other sites link to this one, where do they ask, and how long?

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use spanwire_api::access_grant::{AccessGrantStatus, reason};
use spanwire_api::condition::{PROCESSED, RESOLVED};
use spanwire_api::{AccessGrant, RouterAccess};

use crate::credential;
use crate::duration;
use crate::env::Env;
use crate::kinds::{Changed, all};
use crate::names;
use crate::offer::{Allowance, Offer, Refusal, is_linkable, offer};
use crate::plan::{Code, ObjectKind, Plan, Status, Verdict};
use crate::world::{World, named};

/// How long a grant may be redeemed where it does not say so: as the CRD documents.
const WINDOW: Duration = Duration::from_mins(15);

pub(crate) fn plan(grant: &AccessGrant, world: &World, env: &Env<'_>) -> Plan {
    if grant.metadata.deletion_timestamp.is_some() {
        return Plan::nothing();
    }
    let offer = offer(world);
    let wish = Wish::check(grant, offer.as_ref(), world, env);
    let said = Allowance::of(grant);
    // Once its end is said, it stays.
    let first = || {
        wish.as_ref()
            .ok()
            .and_then(|wish| wish.end(start(grant, env.now)))
    };
    let allowance = Allowance {
        end: said.end.or_else(first),
        ..said
    };
    let resolved = || resolved(grant, allowance, offer.as_ref(), world, env);
    let mut status = Status {
        sum_of: &[PROCESSED, RESOLVED],
        ..Status::default()
    };
    match wish {
        Ok(_) => {
            status.verdicts = vec![Verdict::ready(PROCESSED), resolved()];
            status.fields = fields(grant, allowance.end.filter(|_| said.end.is_none()), world);
            status.code = Some(code(grant));
        }
        // What a token was made from is never changed by a spec that makes no sense.
        Err(verdict) => {
            let resolved = match code(grant) {
                Code::Keep if env.config.grants => resolved(),
                _ => Verdict::pending(RESOLVED, reason::PENDING, "Pending"),
            };
            status.verdicts = vec![verdict, resolved];
        }
    }
    let mut plan = Plan::only(status);
    let issuer = offer.as_ref().map(|offer| issuer(grant, offer));
    let accesses = world.router_accesses.fitting();
    let judged = accesses.map(|access| access.spec.tls_credentials.as_str());
    credential::judge_again(&mut plan, judged.chain(issuer), world, env.now);
    if let Some(end) = allowance.end.filter(|end| *end > env.now) {
        plan.look_again(Duration::try_from(end.duration_since(env.now)).unwrap_or_default());
    }
    plan
}

pub(crate) fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
    match changed {
        Changed::Object(ObjectKind::AccessGrant, name) => vec![(*name).to_owned()],
        Changed::Object(
            ObjectKind::Site | ObjectKind::RouterAccess | ObjectKind::Secret,
            _,
        )
        // Which site is active.
        | Changed::Object(ObjectKind::ConfigMap, names::ROUTER)
        | Changed::GrantServer => all(&world.access_grants),
        _ => Vec::new(),
    }
}

pub(crate) fn references(grant: &AccessGrant) -> Vec<(ObjectKind, String)> {
    named(grant.spec.issuer.as_deref())
        .map(|issuer| (ObjectKind::Secret, issuer.to_owned()))
        .into_iter()
        .collect()
}

/// A spec that makes sense, for a site that accepts links.
struct Wish {
    window: Duration,
}

impl Wish {
    fn check(
        grant: &AccessGrant,
        offer: Option<&Offer>,
        world: &World,
        env: &Env<'_>,
    ) -> Result<Self, Verdict> {
        let spec = &grant.spec;
        let refused = |reason, message: String| Err(Verdict::error(PROCESSED, reason, message));
        if !env.config.grants {
            return refused(
                reason::GRANTS_DISABLED,
                "AccessGrants are not enabled".to_owned(),
            );
        }
        let window = window(spec.expiration_window.as_deref())
            .map_err(|message| Verdict::error(PROCESSED, reason::INVALID_DURATION, message))?;
        if spec.redemptions_allowed.is_some_and(|allowed| allowed < 0) {
            let message = "spec.redemptionsAllowed is negative: it has to be 1 or more";
            return refused(reason::INVALID_OBJECT, message.to_owned());
        }
        let Some(offer) = offer else {
            return Err(siteless(PROCESSED));
        };
        if offer.edge {
            return Err(verdict(PROCESSED, Refusal::EdgeSite));
        }
        if let Some(issuer) = named(spec.issuer.as_deref())
            && let Err(fault) = credential::signing(world, issuer, env.now)
        {
            return Err(fault.verdict(PROCESSED));
        }
        Ok(Self { window })
    }

    /// When a grant ends whose time begins at `start`, to the second.
    fn end(&self, start: Timestamp) -> Option<Timestamp> {
        let end = start.checked_add(self.window).ok()?;
        Timestamp::from_second(end.as_second()).ok()
    }
}

/// When the time of a grant begins that is first processed now: not before it was made, as the API server's clock has it. By
/// a clock that is far behind it would be over as soon as that is set right.
fn start(grant: &AccessGrant, now: Timestamp) -> Timestamp {
    let made = grant.metadata.creation_timestamp.as_ref();
    made.map_or(now, |made| now.max(made.0))
}

fn window(text: Option<&str>) -> Result<Duration, String> {
    let Some(text) = named(text) else {
        return Ok(WINDOW);
    };
    let hint = |wrong: &str| {
        format!("Invalid duration \"{text}\": {wrong}; write it as 90s, 15m, 1h30m or 1.5h")
    };
    match duration::parse(text) {
        Ok(window) if window.is_zero() => Err(hint("it has to be longer than zero")),
        Ok(window) => Ok(window),
        Err(wrong) => Err(hint(&wrong)),
    }
}

fn status(grant: &AccessGrant) -> Option<&AccessGrantStatus> {
    grant.status.as_ref()
}

fn issuer<'a>(grant: &'a AccessGrant, offer: &'a Offer) -> &'a str {
    offer.issuer(grant.spec.issuer.as_deref())
}

fn code(grant: &AccessGrant) -> Code {
    let is_given = status(grant).is_some_and(|status| named(status.code.as_deref()).is_some());
    match named(grant.spec.code.as_deref()) {
        _ if is_given => Code::Keep,
        Some(_) => Code::CopySpec,
        None => Code::Mint,
    }
}

/// What a token is made from, as far as it is known; `redemptions` and `claims` are the grant server's. `end` is one
/// that is not said yet.
fn fields(grant: &AccessGrant, end: Option<Timestamp>, world: &World) -> Map<String, Value> {
    let mut fields = Map::new();
    if let Some(end) = end {
        fields.insert("expirationTime".to_owned(), json!(end.to_string()));
    }
    // Together, so that whoever has one of them has what belongs to it.
    let server = &world.grant_server;
    if let (Some(address), Some(ca), Some(uid)) = (&server.address, &server.ca, &grant.metadata.uid)
    {
        fields.insert("url".to_owned(), json!(format!("https://{address}/{uid}")));
        fields.insert("ca".to_owned(), json!(ca));
    }
    fields
}

/// Whether a token of this grant could be redeemed now, and would lead to a link.
fn resolved(
    grant: &AccessGrant,
    allowance: Allowance,
    offer: Option<&Offer>,
    world: &World,
    env: &Env<'_>,
) -> Verdict {
    if let Some(refusal) = allowance.refusal(env.now) {
        return verdict(RESOLVED, refusal);
    }
    let pending = |reason, message: &str| Verdict::pending(RESOLVED, reason, message);
    if world.grant_server.address.is_none() {
        return pending(
            reason::AWAITING_ADDRESS,
            "waiting for the address of the grant server",
        );
    }
    if world.grant_server.ca.is_none() {
        return pending(
            reason::PENDING,
            "waiting for the certificate of the grant server",
        );
    }
    match offer {
        None => siteless(RESOLVED),
        Some(offer) => reachable(world, env)
            .and_then(|()| signed(issuer(grant, offer), world, env))
            .and_then(|()| told(offer))
            .err()
            .unwrap_or_else(|| Verdict::ready(RESOLVED)),
    }
}

fn siteless(condition: &'static str) -> Verdict {
    Verdict::pending(
        condition,
        reason::NO_ACTIVE_SITE,
        "No active site in namespace",
    )
}

/// What a person is told who reads the grant, where a client would be refused.
fn verdict(condition: &'static str, refusal: Refusal) -> Verdict {
    match refusal {
        Refusal::Endless => Verdict::pending(
            condition,
            reason::PENDING,
            "waiting until it is said when the grant ends",
        ),
        Refusal::Expired(end) => Verdict::error(
            condition,
            reason::EXPIRED,
            format!("expired at {end}: create another grant"),
        ),
        Refusal::UsedUp(Allowance { made, allowed, .. }) => Verdict::error(
            condition,
            reason::USED_UP,
            format!(
                "redeemed {made} of {allowed} times: raise redemptionsAllowed, or create another grant"
            ),
        ),
        Refusal::EdgeSite => Verdict::error(
            condition,
            reason::EDGE_SITE,
            "Edge sites cannot accept incoming links from remote sites",
        ),
        Refusal::NoEndpoint => Verdict::pending(
            condition,
            reason::NO_ENDPOINT,
            "the site accepts no links: set linkAccess of the Site, or create a RouterAccess",
        ),
    }
}

/// A token becomes what the site's status says, which follows the access.
fn told(offer: &Offer) -> Result<(), Verdict> {
    match offer.links("") {
        Ok(_) => Ok(()),
        Err(Refusal::NoEndpoint) => Err(Verdict::pending(
            RESOLVED,
            reason::AWAITING_ADDRESS,
            "waiting for the status of the site to name its address",
        )),
        Err(refusal) => Err(verdict(RESOLVED, refusal)),
    }
}

/// The site's CA comes by itself; another one was checked before.
fn signed(issuer: &str, world: &World, env: &Env<'_>) -> Result<(), Verdict> {
    match credential::signing(world, issuer, env.now) {
        Ok(_) => Ok(()),
        Err(fault) => Err(Verdict::pending(RESOLVED, fault.reason, fault.message)),
    }
}

/// Whether remote sites reach this one, at an address that it can prove to be its own.
fn reachable(world: &World, env: &Env<'_>) -> Result<(), Verdict> {
    let mut lack = verdict(RESOLVED, Refusal::NoEndpoint);
    let accesses = world.router_accesses.fitting();
    for access in accesses.filter(|access| access.metadata.deletion_timestamp.is_none()) {
        match accepts_links(access, world, env) {
            Ok(()) => return Ok(()),
            Err(fault) => lack = fault,
        }
    }
    Err(lack)
}

fn accepts_links(access: &RouterAccess, world: &World, env: &Env<'_>) -> Result<(), Verdict> {
    let name = access.metadata.name.as_deref().unwrap_or_default();
    let pending = |reason, message| Err(Verdict::pending(RESOLVED, reason, message));
    let hosts: Vec<&str> = access
        .status
        .iter()
        .flat_map(|status| &status.endpoints)
        .filter(|endpoint| is_linkable(endpoint))
        .map(|endpoint| endpoint.host.as_str())
        .collect();
    let Some(first) = hosts.first() else {
        let message = format!("waiting for the address of RouterAccess \"{name}\"");
        return pending(reason::AWAITING_ADDRESS, message);
    };
    let secret = &access.spec.tls_credentials;
    let facts = match credential::usable(world, secret, env.now) {
        Ok(facts) => facts,
        Err(fault) => return pending(fault.reason, fault.message),
    };
    let covers = |host: &&str| facts.certificate().is_some_and(|leaf| leaf.covers(host));
    if hosts.iter().any(covers) {
        return Ok(());
    }
    pending(
        reason::PENDING,
        format!("waiting until the certificate of secret \"{secret}\" is good for {first}"),
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use spanwire_api::AccessGrantSpec;

    use super::*;

    #[test]
    fn an_absent_window_is_a_quarter_of_an_hour() {
        for absent in [None, Some("")] {
            assert_eq!(window(absent), Ok(Duration::from_mins(15)));
        }
        assert_eq!(window(Some("15m0s")), Ok(Duration::from_mins(15)));
    }

    #[test]
    fn a_window_that_makes_no_sense_is_refused_with_a_hint() {
        for text in ["5x", "0s", "-1h", "soon", "1d"] {
            let message = window(Some(text)).unwrap_err();
            assert!(
                message.starts_with(&format!("Invalid duration \"{text}\": ")),
                "{message}"
            );
            assert!(
                message.ends_with("write it as 90s, 15m, 1h30m or 1.5h"),
                "{message}"
            );
        }
    }

    #[test]
    fn the_time_of_a_grant_begins_when_it_is_processed_but_not_before_it_was_made() {
        let mut grant = AccessGrant::new("g", AccessGrantSpec::default());
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        assert_eq!(start(&grant, at(100)), at(100));
        grant.metadata.creation_timestamp = Some(Time(at(1000)));
        assert_eq!(start(&grant, at(1200)), at(1200));
        assert_eq!(start(&grant, at(100)), at(1000));
    }

    #[test]
    fn a_window_longer_than_time_itself_ends_nowhere() {
        let longest = Wish {
            window: duration::parse("2540400h").unwrap_or_default(),
        };
        assert!(longest.end(Timestamp::MAX).is_none());
        assert!(longest.end(Timestamp::UNIX_EPOCH).is_some());
    }
}
