//! Is a Secret fit to be used as a credential, and if not, why?
//!
//! Neither the router nor OpenSSL's loading checks expiry or the chain (`facts/router.md` §1, `facts/order.md` f),
//! and the router cannot say which Secret was bad: so this is said here, from facts.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use spanwire_api::condition::reason;

use crate::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE, SecretFacts};
use crate::plan::{Plan, Verdict};
use crate::world::World;

/// The largest file that is taken as a credential, in bytes: a bundle of some 40 CAs.
pub const MAX_FILE: usize = 64 * 1024;

/// Why a Secret is not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// PascalCase, as for a verdict.
    pub reason: &'static str,
    /// A sentence that names the Secret, the file and what to do.
    pub message: String,
}

impl Fault {
    fn invalid(message: String) -> Self {
        Self {
            reason: reason::CREDENTIALS_INVALID,
            message,
        }
    }

    /// The fault as a verdict on the object that names the Secret.
    pub fn verdict(self, condition: &'static str) -> Verdict {
        Verdict::error(condition, self.reason, self.message)
    }
}

/// The Secret of this name, if a router can present it: three files, key and certificate belong together, the chain
/// leads to its own `ca.crt`, and it is valid now.
pub fn usable<'w>(
    world: &'w World,
    secret: &str,
    now: Timestamp,
) -> Result<&'w SecretFacts, Fault> {
    let facts = world.secrets.get(secret).ok_or_else(|| Fault {
        reason: reason::CREDENTIALS_NOT_FOUND,
        message: format!("TLS credentials secret \"{secret}\" not found"),
    })?;
    for name in [CA_FILE, CERTIFICATE_FILE, KEY_FILE] {
        check_file(secret, facts, name, reason::CREDENTIALS_NOT_FOUND)?;
    }
    check_key(secret, facts)?;
    check_chain(secret, facts, now)?;
    check_time(secret, facts, now)?;
    Ok(facts)
}

/// The Secret of this name, if certificates can be signed with it. One without `ca.crt` hands on its own root.
pub fn signing<'w>(
    world: &'w World,
    secret: &str,
    now: Timestamp,
) -> Result<&'w SecretFacts, Fault> {
    let facts = world.secrets.get(secret).ok_or_else(|| Fault {
        reason: reason::CA_NOT_FOUND,
        message: format!("CA \"{}/{secret}\" not found", world.namespace),
    })?;
    let has_roots = facts.files.get(CA_FILE).is_some_and(|file| file.size > 0);
    let roots = has_roots.then_some(CA_FILE);
    for name in [CERTIFICATE_FILE, KEY_FILE].into_iter().chain(roots) {
        check_file(secret, facts, name, reason::CA_NOT_FOUND)?;
    }
    check_key(secret, facts)?;
    if !facts.certificate().is_some_and(|own| own.is_ca) {
        return Err(Fault::invalid(format!(
            "{CERTIFICATE_FILE} of secret \"{secret}\" may not sign others: it is no CA"
        )));
    }
    let brings_root = facts.chain().iter().any(|own| own.subject == own.issuer);
    if has_roots && !brings_root {
        check_chain(secret, facts, now)?;
    }
    check_time(secret, facts, now)?;
    Ok(facts)
}

/// Whether what a Secret holds belongs together, be it valid now or not: who trusts its `ca.crt` takes its `tls.crt`, whose
/// key it has.
pub fn is_coherent(facts: &SecretFacts) -> bool {
    let has_roots = facts.files.get(CA_FILE).is_some_and(|file| file.size > 0);
    has_roots
        && facts
            .pair
            .as_ref()
            .is_some_and(|pair| pair.key_error.is_none() && pair.chain_error.is_none())
}

/// How long it takes until the judgement of this Secret changes by itself: its certificate becomes valid, or expires, or
/// the last of its CAs does.
pub fn turn(world: &World, secret: &str, now: Timestamp) -> Option<Duration> {
    let facts = world.secrets.get(secret)?;
    let certificate = facts.certificate()?;
    let turns = [certificate.not_before, certificate.not_after];
    let turns = turns.into_iter().chain(end_of_trust(facts));
    let next = turns.filter(|turn| *turn >= now).min()?;
    // `not_after` itself is still valid.
    Some(Duration::try_from(next.duration_since(now)).unwrap_or_default() + Duration::from_secs(1))
}

/// Sees to it that a plan which judged these Secrets is made again when a judgement changes by itself.
pub fn judge_again<'a>(
    plan: &mut Plan,
    secrets: impl IntoIterator<Item = &'a str>,
    world: &World,
    now: Timestamp,
) {
    for secret in secrets {
        if let Some(wait) = turn(world, secret, now) {
            plan.look_again(wait);
        }
    }
}

/// A file has to be there, or the Secret is as good as not there.
fn check_file(
    secret: &str,
    facts: &SecretFacts,
    name: &str,
    absent: &'static str,
) -> Result<(), Fault> {
    let file = facts.files.get(name).ok_or_else(|| Fault {
        reason: absent,
        message: format!("secret \"{secret}\" has no {name}: add it"),
    })?;
    if file.size == 0 {
        return Err(Fault::invalid(format!(
            "{name} of secret \"{secret}\" is empty"
        )));
    }
    if file.size > MAX_FILE {
        return Err(Fault::invalid(format!(
            "{name} of secret \"{secret}\" has {} bytes, more than {MAX_FILE}",
            file.size
        )));
    }
    match &file.error {
        Some(error) => Err(Fault::invalid(format!(
            "{name} of secret \"{secret}\": {error}"
        ))),
        None => Ok(()),
    }
}

fn check_key(secret: &str, facts: &SecretFacts) -> Result<(), Fault> {
    match facts.pair.as_ref().and_then(|pair| pair.key_error.as_ref()) {
        Some(error) => Err(Fault::invalid(format!("secret \"{secret}\": {error}"))),
        None => Ok(()),
    }
}

fn check_chain(secret: &str, facts: &SecretFacts, now: Timestamp) -> Result<(), Fault> {
    let pair = facts.pair.as_ref();
    if let Some(error) = pair.and_then(|pair| pair.chain_error.as_ref()) {
        return Err(Fault::invalid(format!(
            "{CERTIFICATE_FILE} of secret \"{secret}\": {error}"
        )));
    }
    match end_of_trust(facts) {
        Some(end) if now > end => Err(expired(CA_FILE, secret, end)),
        _ => Ok(()),
    }
}

/// When the last of the CAs ends that the Secret trusts: nobody can be verified any more.
fn end_of_trust(facts: &SecretFacts) -> Option<Timestamp> {
    facts.trusted().iter().map(|root| root.not_after).max()
}

fn expired(file: &str, secret: &str, end: Timestamp) -> Fault {
    Fault {
        reason: reason::CREDENTIALS_EXPIRED,
        message: format!("{file} of secret \"{secret}\" expired at {end}: replace it"),
    }
}

fn check_time(secret: &str, facts: &SecretFacts, now: Timestamp) -> Result<(), Fault> {
    let certificate = facts.certificate().ok_or_else(|| {
        Fault::invalid(format!(
            "{CERTIFICATE_FILE} of secret \"{secret}\" holds no certificate"
        ))
    })?;
    if now > certificate.not_after {
        return Err(expired(CERTIFICATE_FILE, secret, certificate.not_after));
    }
    if now < certificate.not_before {
        return Err(Fault::invalid(format!(
            "{CERTIFICATE_FILE} of secret \"{secret}\" is not valid before {}",
            certificate.not_before
        )));
    }
    Ok(())
}
