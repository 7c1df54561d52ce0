//! Certificate → Secret: which credential should there be, and is it there?

mod authority;
mod leaf;
mod life;
mod order;
mod trust;
mod wish;

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;
use spanwire_api::Certificate;
use spanwire_api::certificate::reason;
use spanwire_api::condition::READY;
use spanwire_api::condition::reason::{CREDENTIALS_EXPIRED, CREDENTIALS_INVALID};

use crate::credential::{self, Fault};
use crate::env::Env;
use crate::facts::{CERTIFICATE_FILE, CertificateFacts, SecretFacts};
use crate::kinds::{Changed, all};
use crate::labels;
use crate::plan::{Act, Legacy, ObjectKind, Plan, Status, Verdict};
use crate::world::{World, owns};
use order::Cause;
use wish::Wish;

pub(crate) use order::source;
pub(crate) use wish::hosts;

/// How long a Secret that we put right is left to somebody who changes it again.
const STRIFE: SignedDuration = SignedDuration::from_secs(30);

/// What should become of a Secret of ours.
enum Need {
    /// Nothing, until then.
    Nothing { until: Timestamp },
    /// Another key and certificate.
    Renew { why: String, legacy: Legacy },
    /// The same, because somebody else has changed it; of what it trusted these stay.
    Repair {
        why: String,
        roots: BTreeSet<String>,
    },
    /// The same key and certificate, with something else around them.
    Surround {
        why: String,
        legacy: Legacy,
        is_bundle: bool,
    },
    /// Something that a person has to do.
    Refuse(Verdict),
    /// The same, of a CA whose key is gone.
    Lost(Verdict),
}

pub(crate) fn plan(certificate: &Certificate, world: &World, env: &Env<'_>) -> Plan {
    if certificate.metadata.deletion_timestamp.is_some() {
        return Plan::nothing();
    }
    let wish = match Wish::check(certificate) {
        Ok(wish) => wish,
        Err(verdict) => return remembering(vec![verdict], certificate),
    };
    let live = world.secrets.get(&wish.name);
    let signer = match wish
        .ca
        .map(|ca| trust::signer(world, ca, env.now))
        .transpose()
    {
        Ok(signer) => signer,
        Err(fault) => {
            let mut plan = told(
                vec![without_signer(&wish, live, fault)],
                live.and_then(SecretFacts::certificate),
            );
            credential::judge_again(&mut plan, wish.ca, world, env.now);
            return plan;
        }
    };
    let Some(live) = live else {
        if let Some(verdict) = authority::lost(&wish, certificate, world, env.now, "is gone") {
            return lost(verdict, certificate, env.now);
        }
        let mut plan = told(vec![issuing(&wish)], None);
        let cause = (&Cause::Missing, Legacy::default());
        let order = order::order(certificate, &wish, signer, None, cause, env);
        plan.push(READY, true, vec![Act::Issue(Box::new(order))]);
        return plan;
    };
    if trust::is_left_behind(live, world) {
        // The collector deletes it: until then it is nobody's, and tells nothing of ours.
        return remembering(vec![going(&wish)], certificate);
    }
    if !owns(&certificate.metadata, &live.metadata) {
        let mut plan = told(
            vec![foreign(&wish, live, signer, world, env.now)],
            live.certificate(),
        );
        let judged = [wish.name.as_str()].into_iter().chain(wish.ca);
        credential::judge_again(&mut plan, judged, world, env.now);
        return plan;
    }
    if live.metadata.deletion_timestamp.is_some() {
        return remembering(vec![going(&wish)], certificate);
    }
    let need = match signer {
        Some(ca) => leaf::need(&wish, live, ca, env),
        None => authority::need(certificate, &wish, live, world, env),
    };
    let mut plan = told(
        verdicts(&wish, live, signer, world, env),
        live.certificate(),
    );
    let (cause, legacy) = match need {
        Need::Nothing { until } => {
            plan.look_again(life::wait(env.now, until));
            return plan;
        }
        Need::Lost(verdict) => return lost(verdict, certificate, env.now),
        Need::Refuse(verdict) => {
            let mut plan = told(vec![verdict], live.certificate());
            if let Some(current) = live
                .certificate()
                .filter(|current| env.now <= current.not_after)
            {
                plan.look_again(life::wait(env.now, current.not_after) + Duration::from_secs(1));
            }
            return plan;
        }
        Need::Renew { why, legacy } => (Cause::Renewal(why), legacy),
        Need::Repair { why, roots } => {
            if let Some(until) = contested(live, env.now) {
                let verdict = strife(&wish, &why, until);
                let mut plan = told(vec![verdict], live.certificate());
                plan.look_again(life::wait(env.now, until));
                return plan;
            }
            let legacy = Legacy {
                roots,
                ..Legacy::default()
            };
            (Cause::Repair(why), legacy)
        }
        Need::Surround {
            why,
            legacy,
            is_bundle: true,
        } => (Cause::Bundle(why), legacy),
        Need::Surround {
            why,
            legacy,
            is_bundle: false,
        } => (Cause::Surroundings(why), legacy),
    };
    let order = order::order(
        certificate,
        &wish,
        signer,
        Some(live),
        (&cause, legacy),
        env,
    );
    plan.push(READY, true, vec![Act::Issue(Box::new(order))]);
    plan
}

pub(crate) fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
    const KINDS: [ObjectKind; 4] = [
        ObjectKind::Certificate,
        ObjectKind::Secret,
        // Whose issuer it is, and how often: that is how many sites have to redeem again when a CA is replaced.
        ObjectKind::Site,
        ObjectKind::AccessGrant,
    ];
    if changed.is_of(&KINDS) {
        all(&world.certificates)
    } else {
        Vec::new()
    }
}

pub(crate) fn references(certificate: &Certificate) -> Vec<(ObjectKind, String)> {
    let own = certificate.metadata.name.clone();
    let ca = Some(certificate.spec.ca.clone()).filter(|ca| !ca.is_empty());
    own.into_iter()
        .chain(ca)
        .map(|name| (ObjectKind::Secret, name))
        .collect()
}

/// Without a CA nothing is issued; what is there stays, and is still true while it is valid.
fn without_signer(wish: &Wish<'_>, live: Option<&SecretFacts>, fault: Fault) -> Verdict {
    let reason = match fault.reason {
        CREDENTIALS_EXPIRED => reason::CA_EXPIRED,
        CREDENTIALS_INVALID => reason::CA_INVALID,
        other => other,
    };
    let remark = match live.and_then(SecretFacts::certificate) {
        Some(_) => format!("the certificate in secret \"{}\" stays in force", wish.name),
        None => String::new(),
    };
    Verdict::error(READY, reason, fault.message).with_remark(&remark)
}

/// A Secret that is not ours is used as it is, or said not to fit; it is never touched.
fn foreign(
    wish: &Wish<'_>,
    live: &SecretFacts,
    signer: Option<&SecretFacts>,
    world: &World,
    now: Timestamp,
) -> Verdict {
    let judgement = match signer {
        None => credential::signing(world, &wish.name, now),
        Some(_) => credential::usable(world, &wish.name, now),
    };
    let unfit = match judgement {
        Err(fault) => Some(fault.message),
        Ok(_) => signer.and_then(|ca| lack(wish, live, ca)),
    };
    let Some(unfit) = unfit else {
        return Verdict::ready(READY);
    };
    Verdict::error(
        READY,
        reason::NAME_TAKEN,
        format!(
            "secret exists but is not controlled by skupper: \"{}\" does not fit ({unfit}); delete it, or bring one that does",
            wish.name
        ),
    )
}

/// What somebody else's certificate lacks of what the spec asks for. What it has besides does no harm; when to renew it
/// is its owner's business.
fn lack(wish: &Wish<'_>, live: &SecretFacts, ca: &SecretFacts) -> Option<String> {
    let current = live.certificate()?;
    if let Some(host) = wish.hosts.iter().find(|host| !current.covers(host)) {
        return Some(format!("{CERTIFICATE_FILE} is not good for {host}"));
    }
    for (is_wanted, is_allowed, role) in [
        (wish.client, current.client, "clients"),
        (wish.server, current.server, "servers"),
    ] {
        if is_wanted && !is_allowed {
            return Some(format!("{CERTIFICATE_FILE} is not good for {role}"));
        }
    }
    let ca = ca.certificate()?;
    let is_of = trust::holds(live, ca) || trust::is_signed_by(live, ca);
    (!is_of).then(|| {
        let ca = wish.ca.unwrap_or_default();
        format!("{CERTIFICATE_FILE} is not signed by CA \"{ca}\"")
    })
}

/// Until when a Secret is left as somebody else has made it, because we put it right only just now: whoever writes it as
/// often as we do is not outwritten, only outwaited.
fn contested(live: &SecretFacts, now: Timestamp) -> Option<Timestamp> {
    let repaired: Timestamp = live.annotation(labels::REPAIRED)?.parse().ok()?;
    let until = repaired.checked_add(STRIFE).ok()?;
    (repaired <= now && now < until).then_some(until)
}

fn strife(wish: &Wish<'_>, why: &str, until: Timestamp) -> Verdict {
    let message = format!(
        "secret \"{}\" was changed again by somebody else ({why}): find out who writes it; it is issued anew at {until}",
        wish.name
    );
    Verdict::error(READY, reason::CONTESTED, message)
}

/// Whether there is another value of the annotation than the one that was granted.
fn asked(wish: &Wish<'_>, live: &SecretFacts) -> bool {
    wish.renew.is_some() && wish.renew != live.annotation(labels::RENEWED)
}

/// Common names have 64 characters at most (RFC 5280, appendix A.1, ub-common-name-length).
fn cut(subject: &str) -> String {
    subject.chars().take(64).collect()
}

/// What is true of a Secret of ours. A renewal does not make what is in force any worse.
fn verdicts(
    wish: &Wish<'_>,
    live: &SecretFacts,
    signer: Option<&SecretFacts>,
    world: &World,
    env: &Env<'_>,
) -> Vec<Verdict> {
    let is_valid = live
        .certificate()
        .is_some_and(|current| env.now <= current.not_after);
    let Some(ca) = signer else {
        let remark = if authority::is_users(live) {
            "the CA was brought by its user and is used as it is"
        } else {
            ""
        };
        let is_good = is_valid && authority::usable(live).is_ok();
        return vec![if is_good {
            Verdict::ready(READY).with_remark(remark)
        } else {
            issuing(wish)
        }];
    };
    let is_fit = live
        .pair
        .as_ref()
        .is_some_and(|pair| pair.key_error.is_none() && pair.chain_error.is_none());
    let mut verdicts = vec![if is_fit && is_valid {
        Verdict::ready(READY)
    } else {
        issuing(wish)
    }];
    if wish.server {
        let strangers: Vec<_> = match ca.certificate() {
            Some(authority) if trust::is_signed_by(live, authority) => {
                leaf::kept(live, ca, env).collect()
            }
            _ => leaf::strangers(live, ca)
                .filter(|root| env.now <= root.not_after)
                .collect(),
        };
        let strangers: Vec<_> = strangers
            .into_iter()
            .filter(|root| !trust::is_vouched_for(ca, std::slice::from_ref(*root)))
            .collect();
        let since = leaf::bundled(live).unwrap_or(env.now);
        verdicts.extend(trust::broken(&wish.name, ca, &strangers, since, world));
    }
    verdicts
}

fn issuing(wish: &Wish<'_>) -> Verdict {
    let message = format!("secret \"{}\" is being issued", wish.name);
    Verdict::pending(READY, reason::PENDING, message)
}

fn going(wish: &Wish<'_>) -> Verdict {
    let message = format!("secret \"{}\" is being deleted", wish.name);
    Verdict::pending(READY, reason::PENDING, message)
}

/// What is told of a CA that is lost, for as long as anybody can miss it.
fn lost(verdict: Verdict, certificate: &Certificate, now: Timestamp) -> Plan {
    let mut plan = remembering(vec![verdict], certificate);
    let end = authority::remembered(certificate).and_then(|end| end.parse().ok());
    if let Some(end) = end.filter(|end| now <= *end) {
        plan.look_again(life::wait(now, end) + Duration::from_secs(1));
    }
    plan
}

fn told(verdicts: Vec<Verdict>, current: Option<&CertificateFacts>) -> Plan {
    let expiration = current.map(|current| current.not_after.to_string());
    with_expiration(verdicts, expiration.as_deref())
}

/// The same where the Secret tells nothing. Of a CA, the status is the only memory of there having been one.
fn remembering(verdicts: Vec<Verdict>, certificate: &Certificate) -> Plan {
    with_expiration(verdicts, authority::remembered(certificate))
}

fn with_expiration(verdicts: Vec<Verdict>, expiration: Option<&str>) -> Plan {
    Plan::only(Status {
        verdicts,
        fields: [("expiration".to_owned(), json!(expiration))]
            .into_iter()
            .collect(),
        ..Status::default()
    })
}
