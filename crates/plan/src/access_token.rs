//! AccessToken → Secret and Links: has it been exchanged for a link, and if not, what is the next step?
//!
//! The answer of the other site is stored before it is acted on: one Secret, named as the token, annotated with the
//! Links that came with it. The Links are planned from it until the token says Redeemed; after that they are the user's.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Map, json};
use spanwire_api::access_token::reason;
use spanwire_api::condition::REDEEMED;
use spanwire_api::{AccessToken, Condition, Link, LinkSpec, Site};

use crate::env::Env;
use crate::facts::SecretFacts;
use crate::kinds::{Changed, all};
use crate::plan::{Act, Child, Event, ObjectKind, Plan, Redeem, Status, StoredLink, Verdict};
use crate::settle::{child, settle};
use crate::world::{Attempt, Named, Outcome, World, owns};
use crate::{labels, names};

/// The first pause after nobody has answered; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LAST_PAUSE: Duration = Duration::from_mins(5);
/// How long a stored answer may take to be seen by a watch before it counts as lost.
const SIGHT: SignedDuration = SignedDuration::from_mins(1);
/// What a token is told to do whose grant gives nothing more.
const REMEDY: &str = "get a new token from the other site";

pub(crate) fn plan(token: &AccessToken, world: &World, env: &Env<'_>) -> Plan {
    if token.metadata.deletion_timestamp.is_some() {
        return Plan::nothing();
    }
    if condition(token).is_some_and(|redeemed| redeemed.status == "True") {
        return told(Verdict::ready(REDEEMED));
    }
    let site = world.site();
    let Some(site) = site.filter(|site| site.metadata.deletion_timestamp.is_none()) else {
        return told(pending(
            reason::NO_ACTIVE_SITE,
            "No active site in namespace",
        ));
    };
    let stored = world.secrets.get(name(token));
    let is_answer = stored.is_some_and(|stored| mark(&stored.metadata) == Some(uid(token)));
    if !is_answer && is_of_ours(name(token), world) {
        let message = format!(
            "Secret \"{}\" is one that is made here for something else: rename the token",
            name(token)
        );
        return told(error(reason::NAME_TAKEN, message));
    }
    if let Some(stored) = stored {
        return links_from(token, site, stored, world);
    }
    if let Err(message) = check(token) {
        return told(error(reason::TOKEN_INVALID, message));
    }
    let generation = token.metadata.generation.unwrap_or_default();
    let attempt = token
        .metadata
        .uid
        .as_ref()
        .and_then(|uid| world.attempts.get(uid));
    if let Some(attempt) = attempt.filter(|attempt| attempt.generation == generation) {
        return after(attempt, token, site, world, env);
    }
    if let Some(refusal) = final_refusal(token, generation) {
        return told(refusal);
    }
    let verdict = pending(reason::PENDING, "the token is being redeemed");
    redeem(token, site, world, verdict)
}

pub(crate) fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
    match changed {
        Changed::Object(ObjectKind::AccessToken, name) => vec![(*name).to_owned()],
        // The Secret that an answer is stored in, or a Certificate whose Secret that would be.
        Changed::Object(ObjectKind::Secret | ObjectKind::Certificate, name) => {
            world.access_tokens.get(name).map(|_| (*name).to_owned()).into_iter().collect()
        }
        Changed::Object(ObjectKind::Site | ObjectKind::Link, _)
        // Which site is active.
        | Changed::Object(ObjectKind::ConfigMap, names::ROUTER)
        | Changed::Attempt => all(&world.access_tokens),
        _ => Vec::new(),
    }
}

pub(crate) fn references(token: &AccessToken) -> Vec<(ObjectKind, String)> {
    vec![(ObjectKind::Secret, name(token).to_owned())]
}

/// Whether there is any sense in dialling. The code's bytes are not here; that there is one is.
/// Whether a Secret of this name is ours to make, now or later. What another site sent must not stand in its place.
fn is_of_ours(name: &str, world: &World) -> bool {
    let reserved = [
        names::SITE_CA,
        names::SITE_SERVER,
        names::LOCAL_CA,
        names::LOCAL_SERVER,
        names::CREDENTIALS,
        names::GRANT_SERVER,
        names::GRANT_SERVER_CA,
    ];
    reserved.contains(&name) || world.certificates.get(name).is_some()
}

fn check(token: &AccessToken) -> Result<(), String> {
    let spec = &token.spec;
    let Some(host) = spec.url.strip_prefix("https://") else {
        return Err(
            "token url scheme must be https: copy status.url of the AccessGrant".to_owned(),
        );
    };
    if host.is_empty() || host.starts_with(['/', ':', '?', '#']) {
        return Err(
            "could not parse token url: it names no host; copy status.url of the AccessGrant"
                .to_owned(),
        );
    }
    if spec.code.is_empty() {
        return Err("token does not have a code: copy status.code of the AccessGrant".to_owned());
    }
    if spec.ca.trim().is_empty() {
        return Err("token does not have a CA: copy status.ca of the AccessGrant".to_owned());
    }
    if !spec.ca.contains("-----BEGIN CERTIFICATE-----") {
        return Err(
            "the token's CA is no PEM certificate: copy status.ca of the AccessGrant".to_owned(),
        );
    }
    Ok(())
}

/// What to do after a try.
fn after(
    attempt: &Attempt,
    token: &AccessToken,
    site: &Site,
    world: &World,
    env: &Env<'_>,
) -> Plan {
    let verdict = match &attempt.outcome {
        Outcome::Unreachable(why) => return again(attempt, why, token, site, world, env),
        Outcome::Stored => return stored(attempt, env.now),
        Outcome::Untrusted(why) => error(
            reason::PEER_UNTRUSTED,
            format!("the server at the token's url is not the one that its CA vouches for: {why}"),
        ),
        Outcome::Invalid(why) => error(
            reason::TOKEN_INVALID,
            format!("the token cannot be used: {why}"),
        ),
        Outcome::UsedUp => error(reason::USED_UP, format!("the grant is used up: {REMEDY}")),
        Outcome::Expired => error(
            reason::EXPIRED,
            format!("the grant has expired or is gone: {REMEDY}"),
        ),
        Outcome::CodeRefused => error(
            reason::CODE_REFUSED,
            "the other site refused the code: copy status.code of the AccessGrant",
        ),
        Outcome::AnswerRefused(why) => error(
            reason::ANSWER_INVALID,
            format!("the other site's answer is not one set of credentials and a few links: {why}"),
        ),
    };
    refused(verdict)
}

/// A redemption that was tried and led to nothing, for good: who looks later finds it among the events.
fn refused(verdict: Verdict) -> Plan {
    let event = Event {
        warning: true,
        reason: "RedemptionRefused".to_owned(),
        note: verdict.message.clone(),
    };
    let mut plan = told(verdict);
    if let Some(status) = &mut plan.status {
        status.events.push(event);
    }
    plan
}

/// Nobody answered: another try is due after a pause that grows.
fn again(
    attempt: &Attempt,
    why: &str,
    token: &AccessToken,
    site: &Site,
    world: &World,
    env: &Env<'_>,
) -> Plan {
    let verdict = pending(
        reason::PEER_UNREACHABLE,
        format!("the server at the token's url does not answer, it is tried again: {why}"),
    );
    let pause = pause(attempt.tries);
    let waited = env.now.duration_since(attempt.at);
    // A clock that was put back is no reason to wait longer.
    let waited = Duration::try_from(waited).unwrap_or(pause);
    let Some(rest) = pause.checked_sub(waited).filter(|rest| !rest.is_zero()) else {
        return redeem(token, site, world, verdict);
    };
    let mut plan = told(verdict);
    // Up to a quarter more, so that tokens for one dead server do not come all at once.
    let share = u32::try_from(env.nonce % 256).unwrap_or_default();
    plan.look_again(rest + pause / 4 * share / 256);
    plan
}

fn pause(tries: u32) -> Duration {
    let doublings = tries.saturating_sub(1).min(16);
    FIRST_PAUSE.saturating_mul(1 << doublings).min(LAST_PAUSE)
}

/// The answer was stored, and its Secret has not been seen.
fn stored(attempt: &Attempt, now: Timestamp) -> Plan {
    let waited = now.duration_since(attempt.at);
    if waited >= SIGHT {
        let message = format!("the credentials were received, and their secret is gone: {REMEDY}");
        return told(error(reason::ANSWER_LOST, message));
    }
    let mut plan = told(pending(
        reason::PENDING,
        "the credentials were received and are being stored",
    ));
    plan.look_again(Duration::try_from(SIGHT - waited).unwrap_or_default());
    plan
}

/// A refusal that an earlier life of the operator was given, for this very spec.
fn final_refusal(token: &AccessToken, generation: i64) -> Option<Verdict> {
    const FINAL: [&str; 7] = [
        reason::USED_UP,
        reason::EXPIRED,
        reason::CODE_REFUSED,
        reason::TOKEN_INVALID,
        reason::PEER_UNTRUSTED,
        reason::ANSWER_INVALID,
        reason::ANSWER_LOST,
    ];
    let redeemed = condition(token)?;
    let reason = FINAL
        .into_iter()
        .find(|reason| *reason == redeemed.reason)?;
    (redeemed.observed_generation == Some(generation))
        .then(|| error(reason, redeemed.message.clone()))
}

fn redeem(token: &AccessToken, site: &Site, world: &World, verdict: Verdict) -> Plan {
    // Said before it costs a redemption.
    if let Some(obstacle) = obstacle(name(token), token, site, world) {
        return told(error(reason::NAME_TAKEN, obstacle));
    }
    let metadata = &token.metadata;
    let secret = Secret {
        metadata: ObjectMeta {
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            labels: Some(labels::ours()),
            annotations: Some(labels::map([(labels::TOKEN, uid(token))])),
            owner_references: Some(vec![names::owner(site)]),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        ..Secret::default()
    };
    let act = Act::Redeem(Redeem {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        token: name(token).to_owned(),
        uid: uid(token).to_owned(),
        generation: metadata.generation.unwrap_or_default(),
        subject: site.metadata.uid.clone().unwrap_or_default(),
        secret: child(ObjectKind::Secret, &secret),
    });
    let mut plan = told(verdict);
    plan.push(REDEEMED, false, vec![act]);
    plan
}

/// The Links of a stored answer, which make the token Redeemed once they are all there.
fn links_from(token: &AccessToken, site: &Site, stored: &SecretFacts, world: &World) -> Plan {
    let of = mark(&stored.metadata);
    if of != Some(uid(token)) {
        let why = match of {
            Some(_) => "is what an earlier token of this name was given: delete it",
            None => "exists but is not controlled by skupper: delete or rename it",
        };
        let message = format!("Secret \"{}\" {why}, or rename the token", name(token));
        return told(error(reason::NAME_TAKEN, message));
    }
    if !owns(&site.metadata, &stored.metadata) || stored.metadata.deletion_timestamp.is_some() {
        let message = format!(
            "Secret \"{}\" belongs to a Site that is gone, and is going",
            name(token)
        );
        return told(pending(reason::PENDING, message));
    }
    let list = stored
        .metadata
        .annotations
        .as_ref()
        .and_then(|map| map.get(labels::LINKS));
    let links = list.and_then(|list| serde_json::from_str::<Vec<StoredLink>>(list).ok());
    let Some(links) = links.filter(|links| !links.is_empty()) else {
        let message = format!(
            "annotation {} of the stored answer does not say which links to make",
            labels::LINKS
        );
        return told(error(reason::ANSWER_INVALID, message));
    };
    let obstacles: Vec<String> = links
        .iter()
        .filter_map(|link| obstacle(&link.name, token, site, world))
        .collect();
    // A Link that is there is the user's already: it is not written again.
    let missing = links
        .into_iter()
        .filter(|link| world.links.get(&link.name).is_none());
    let acts = settle(missing.map(|missing| link(token, site, missing)), world).acts;
    let verdict = if !obstacles.is_empty() {
        error(reason::NAME_TAKEN, obstacles.join("\n"))
    } else if acts.is_empty() {
        Verdict::ready(REDEEMED)
    } else {
        pending(reason::PENDING, "the links are being made")
    };
    let mut plan = told(verdict);
    plan.push(REDEEMED, false, acts);
    plan
}

/// What is in the way of a Link: one of its name that did not come of this token.
fn obstacle(link: &str, token: &AccessToken, site: &Site, world: &World) -> Option<String> {
    let live = world.links.get(link)?.metadata();
    let is_ours = owns(&site.metadata, live) && mark(live) == Some(uid(token));
    (!is_ours).then(|| {
        format!("Link \"{link}\" exists and did not come of this token: delete or rename it, or rename the token")
    })
}

fn link(token: &AccessToken, site: &Site, stored: StoredLink) -> Child {
    let spec = LinkSpec {
        endpoints: stored.endpoints,
        tls_credentials: Some(name(token).to_owned()),
        cost: token.spec.link_cost.filter(|cost| *cost > 0),
        ..LinkSpec::default()
    };
    let mut link = Link::new(&stored.name, spec);
    link.metadata = ObjectMeta {
        namespace: token.metadata.namespace.clone(),
        annotations: Some(labels::map([(labels::TOKEN, uid(token))])),
        owner_references: Some(vec![names::owner(site)]),
        ..link.metadata
    };
    child(ObjectKind::Link, &link)
}

/// The uid of the token that an object was made for.
fn mark(metadata: &ObjectMeta) -> Option<&str> {
    metadata
        .annotations
        .as_ref()?
        .get(labels::TOKEN)
        .map(String::as_str)
}

fn name(token: &AccessToken) -> &str {
    token.metadata.name.as_deref().unwrap_or_default()
}

fn uid(token: &AccessToken) -> &str {
    token.metadata.uid.as_deref().unwrap_or_default()
}

fn condition(token: &AccessToken) -> Option<&Condition> {
    token
        .status
        .as_ref()?
        .conditions
        .iter()
        .find(|condition| condition.type_ == REDEEMED)
}

fn pending(reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict::pending(REDEEMED, reason, message)
}

fn error(reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict::error(REDEEMED, reason, message)
}

fn told(verdict: Verdict) -> Plan {
    let redeemed = verdict.holds();
    Plan::only(Status {
        verdicts: vec![verdict],
        fields: Map::from_iter([("redeemed".to_owned(), json!(redeemed))]),
        announces: vec![(REDEEMED, "TokenRedeemed", "TokenLost")],
        ..Status::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let seconds: Vec<u64> = (1..=11).map(|tries| pause(tries).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(pause(0), FIRST_PAUSE);
        assert_eq!(pause(u32::MAX), LAST_PAUSE);
    }
}
