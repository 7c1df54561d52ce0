//! What does a credential take over from the one before it, and what does it hand on?

use std::collections::BTreeSet;

use rcgen::{BasicConstraints, Certificate, IsCa, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE};
use spanwire_plan::plan::{Issue, Legacy};
use spanwire_router::credentials::digest;

use super::signer::Authority;
use super::{
    AUTHORITY_USAGES, Credential, MakeCredential, ReadSigner, Signer, Subject, authority, issue,
    params, pem, verified,
};
use crate::facts;

/// Nothing may stand between a bridge and the certificates of the new CA.
const BRIDGE_PATH_LENGTH: u8 = 0;

/// Makes what was ordered, in the place of `before`: what the Secret holds now.
pub fn succeed(
    order: &Issue,
    signer: Option<&Signer>,
    before: &Signer,
) -> Result<Credential, MakeCredential> {
    let legacy = &order.legacy;
    if legacy.pair {
        return surrounded(legacy, signer, before);
    }
    if !legacy.bridge {
        let fresh = issue(order, signer)?;
        let ca = joined(&fresh.ca, &kept(CA_FILE, &before.roots, &legacy.roots)?)?;
        return verified(Credential { ca, ..fresh });
    }
    if order.signer.is_some() || signer.is_some() {
        return Err(MakeCredential::MatchSigner);
    }
    let old = before.authority()?;
    let subject = Subject::of(order);
    let (key, certificate) = authority(&subject, order.rsa)?;
    let between = kept(
        CERTIFICATE_FILE,
        &old.intermediates,
        &with_own(legacy, &old),
    )?;
    let chain = bridge(&subject, &key, &old)?.pem() + &between;
    let roots = kept(CA_FILE, &old.roots, &legacy.roots)?;
    follows(&roots, &chain)?;
    verified(Credential {
        ca: joined(&certificate, &roots)?,
        certificate: certificate + &chain,
        key: pem::section("PRIVATE KEY", key.serialized_der()),
    })
}

/// The same key and certificate, with what is handed on now around them.
fn surrounded(
    legacy: &Legacy,
    signer: Option<&Signer>,
    before: &Signer,
) -> Result<Credential, MakeCredential> {
    let chain = read(CERTIFICATE_FILE, &before.certificate)?;
    let own = chain
        .first()
        .ok_or(ReadSigner::FindFile(CERTIFICATE_FILE))?;
    let own = pem::certificate(own);
    let (between, roots) = match signer {
        Some(signer) => {
            let issuer = signer.authority()?;
            (issuer.intermediates, issuer.roots)
        }
        // A CA hands on its own root.
        None => (String::new(), own_root(before)?),
    };
    let stays = kept(CERTIFICATE_FILE, &before.certificate, &legacy.chain)?;
    verified(Credential {
        certificate: joined(&(own + &stays), &between)?,
        ca: joined(&roots, &kept(CA_FILE, &before.roots, &legacy.roots)?)?,
        key: before.key.clone(),
    })
}

/// The new key, signed by the old one: in the place of the new CA's own certificate for whoever trusts the old CA.
fn bridge(
    subject: &Subject<'_>,
    key: &KeyPair,
    old: &Authority,
) -> Result<Certificate, MakeCredential> {
    let subject = Subject {
        not_after: subject.not_after.min(old.not_after),
        ..*subject
    };
    let mut params = params(&subject)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(BRIDGE_PATH_LENGTH));
    params.key_usages = AUTHORITY_USAGES.to_vec();
    old.sign(&params, key).map_err(MakeCredential::Sign)
}

fn own_root(ca: &Signer) -> Result<String, ReadSigner> {
    let alone = Signer {
        certificate: ca.certificate.clone(),
        roots: String::new(),
        key: ca.key.clone(),
    };
    Ok(alone.authority()?.roots)
}

/// Whether whoever trusts the old roots can follow the bridge.
fn follows(roots: &str, chain: &str) -> Result<(), MakeCredential> {
    match facts::pair(Some(roots.as_bytes()), chain.as_bytes(), &[]).chain_error {
        Some(error) => Err(MakeCredential::Verify(error)),
        None => Ok(()),
    }
}

/// An old CA that is no root itself stands between its root and the bridge.
fn with_own(legacy: &Legacy, old: &Authority) -> BTreeSet<String> {
    let own = digest(&old.certificate);
    legacy.chain.iter().cloned().chain([own]).collect()
}

/// The certificates of a file that stay.
fn kept(file: &'static str, pem: &str, stays: &BTreeSet<String>) -> Result<String, ReadSigner> {
    if stays.is_empty() || pem.trim().is_empty() {
        return Ok(String::new());
    }
    let stay = read(file, pem)?;
    let stay = stay.iter().filter(|der| stays.contains(&digest(der)));
    Ok(stay.map(|der| pem::certificate(der)).collect())
}

/// Both, each certificate once.
fn joined(first: &str, second: &str) -> Result<String, ReadSigner> {
    let both = first.to_owned() + second;
    let mut seen = BTreeSet::new();
    let once = CertificateDer::pem_slice_iter(both.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| ReadSigner::ReadFile(error.to_string()))?;
    Ok(once
        .iter()
        .filter(|der| seen.insert(digest(der)))
        .map(|der| pem::certificate(der))
        .collect())
}

fn read(file: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, ReadSigner> {
    facts::certificates(file, pem.as_bytes())
        .map_err(|error| ReadSigner::ReadFile(error.to_string()))
}

#[cfg(test)]
mod tests;
