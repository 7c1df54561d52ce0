//! Who has signed a certificate, and who can follow the way to a new CA?

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use spanwire_api::AccessGrant;
use spanwire_api::certificate::reason;
use spanwire_api::condition::REMOTE_TRUST;

use crate::credential::{self, Fault};
use crate::facts::{CertificateFacts, SecretFacts};
use crate::plan::{ObjectKind, Verdict};
use crate::site::default_issuer;
use crate::world::{World, named};

/// Whether the certificate of this Secret was signed with the key of this CA.
pub(super) fn is_signed_by(leaf: &SecretFacts, ca: &CertificateFacts) -> bool {
    let (Some(current), Some(pair)) = (leaf.certificate(), &leaf.pair) else {
        return false;
    };
    if !pair.signers.is_empty() {
        return pair.signers.contains(&ca.fingerprint);
    }
    // The files do not hold their signer.
    match (&current.authority_id, &ca.key_id) {
        (Some(authority), Some(key)) => authority == key,
        _ => current.issuer == ca.subject && holds(leaf, ca),
    }
}

/// Whether one of the Secret's files holds this certificate.
pub(super) fn holds(leaf: &SecretFacts, certificate: &CertificateFacts) -> bool {
    let mut all = leaf.chain().iter().chain(leaf.trusted());
    all.any(|held| held.fingerprint == certificate.fingerprint)
}

/// Whether whoever trusts these CAs can verify what this CA signs, by what is served with it: a bridge that an old key
/// has signed, or an intermediate of a common root.
pub(super) fn is_vouched_for(ca: &SecretFacts, trusted: &[CertificateFacts]) -> bool {
    let Some(own) = ca.certificate() else {
        return false;
    };
    let chain = ca.chain();
    // Other certificates of the CA's own key: the bridges.
    let is_bridge = |bridge: &CertificateFacts| {
        bridge.fingerprint != own.fingerprint
            && bridge.subject == own.subject
            && bridge.key_id.is_some()
            && bridge.key_id == own.key_id
    };
    let mut open: Vec<&CertificateFacts> = vec![own];
    open.extend(chain.iter().filter(|bridge| is_bridge(bridge)));
    let mut seen = BTreeSet::new();
    while let Some(certificate) = open.pop() {
        if !seen.insert(&certificate.fingerprint) {
            continue;
        }
        if trusted.iter().any(|root| has_issued(root, certificate)) {
            return true;
        }
        open.extend(
            chain
                .iter()
                .filter(|issuer| has_issued(issuer, certificate)),
        );
    }
    false
}

/// Whether the one certificate is, by names and key ids, the issuer of the other.
pub(super) fn has_issued(issuer: &CertificateFacts, certificate: &CertificateFacts) -> bool {
    if !issuer.is_ca
        || issuer.subject != certificate.issuer
        || issuer.fingerprint == certificate.fingerprint
    {
        return false;
    }
    match (&issuer.key_id, &certificate.authority_id) {
        (Some(key), Some(authority)) => {
            key == authority && certificate.key_id.as_ref() != Some(key)
        }
        // Where a certificate names itself as its issuer, names alone say nothing.
        _ => {
            certificate.subject != certificate.issuer
                || certificate.key_id.is_some()
                    && certificate.authority_id.is_some()
                    && certificate.key_id != certificate.authority_id
        }
    }
}

/// CAs that were trusted and that the new one, which they do not vouch for, has taken the place of: what is wrong with
/// that, for the sites that know no other.
pub(super) fn broken(
    name: &str,
    ca: &SecretFacts,
    strangers: &[&CertificateFacts],
    since: Timestamp,
    world: &World,
) -> Option<Verdict> {
    let old = strangers.first()?;
    let ca_name = ca.metadata.name.as_deref().unwrap_or_default();
    let who = match redeemed(ca_name, world, since) {
        0 => "each remote site that has redeemed a token before".to_owned(),
        1 => "the remote site that has redeemed a token before".to_owned(),
        sites => format!("the remote sites that have redeemed tokens before (up to {sites})"),
    };
    let message = format!(
        "CA \"{ca_name}\" was replaced, and the old one (\"{}\") does not vouch for it: {who} cannot verify secret \
         \"{name}\" at the next connection and must redeem a new token",
        old.subject
    );
    Some(Verdict::error(
        REMOTE_TRUST,
        reason::REMOTE_TRUST_BROKEN,
        message,
    ))
}

/// How many tokens were redeemed, at most, that brought the CA of before that time.
fn redeemed(ca: &str, world: &World, since: Timestamp) -> i64 {
    let old = grants(ca, world).filter(|grant| {
        let created = grant.metadata.creation_timestamp.as_ref();
        created.is_some_and(|time| time.0 <= since)
    });
    old.filter_map(|grant| grant.status.as_ref()?.redemptions)
        .fold(0, i64::saturating_add)
}

/// The grants that this CA signs for.
fn grants<'w>(ca: &'w str, world: &'w World) -> impl Iterator<Item = &'w AccessGrant> {
    let grants = world.access_grants.fitting();
    grants.filter(move |grant| match named(grant.spec.issuer.as_deref()) {
        Some(issuer) => issuer == ca,
        None => is_default(ca, world),
    })
}

fn is_default(ca: &str, world: &World) -> bool {
    world.site().is_some_and(|site| default_issuer(site) == ca)
}

/// Whether this CA is one that remote sites are given.
pub(super) fn is_handed_out(ca: &str, world: &World) -> bool {
    is_default(ca, world) || grants(ca, world).next().is_some()
}

/// The Secret of this CA, if certificates can be signed with it, and it stays.
pub(super) fn signer<'w>(
    world: &'w World,
    ca: &str,
    now: Timestamp,
) -> Result<&'w SecretFacts, Fault> {
    let facts = credential::signing(world, ca, now)?;
    if is_left_behind(facts, world) {
        return Err(Fault {
            reason: reason::CA_NOT_FOUND,
            message: format!(
                "CA \"{}/{ca}\" belongs to a certificate that is gone, and is deleted with it",
                world.namespace
            ),
        });
    }
    Ok(facts)
}

/// Whether the garbage collector is about to delete a Secret, because the Certificate that it was made for is gone, or is
/// another one by now. One that somebody brought has no such owner.
pub(super) fn is_left_behind(secret: &SecretFacts, world: &World) -> bool {
    let is_gone = |owner: &OwnerReference| {
        let resource = ObjectKind::Certificate.resource();
        let group = owner.api_version.split('/').next();
        let is_certificate = owner.kind == resource.kind && group == Some(&resource.group);
        let live = world.live(ObjectKind::Certificate, &owner.name);
        let lives = live.is_some_and(|live| {
            let metadata = live.metadata;
            metadata.uid.as_ref() == Some(&owner.uid) && metadata.deletion_timestamp.is_none()
        });
        is_certificate && !lives
    };
    let owners = secret.metadata.owner_references.as_deref();
    owners.is_some_and(|owners| !owners.is_empty() && owners.iter().all(is_gone))
}
