//! Do a key, a certificate and the CAs beside them belong together?

use std::collections::BTreeSet;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE, PairFacts};
use spanwire_router::credentials;
use thiserror::Error;
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use zeroize::Zeroizing;

use super::certificate::{ReadCertificates, certificates, common_name, is_self_issued, parsed};

/// The largest key that is read: RSA with 8192 bits has about 7 KiB.
const MAX_KEY: usize = 64 * 1024;
/// The most signatures that are checked for one chain, whatever a bundle is made to look like.
const MAX_SIGNATURES: usize = 100;

/// Why a file cannot be used as a private key. The texts are shown to people.
#[derive(Debug, Error)]
pub(crate) enum ReadKey {
    #[error("{KEY_FILE} has more than the {MAX_KEY} bytes that are read")]
    LimitSize,
    #[error("{KEY_FILE} is encrypted, and there is nobody to ask for its password")]
    DecryptKey,
    #[error("{KEY_FILE} is not a private key in PEM")]
    ReadPem,
    #[error(
        "{KEY_FILE} is of a kind that cannot be used: RSA from 2048 bits, P-256, P-384 and Ed25519 can"
    )]
    KnowKind,
}

/// Why a chain leads nowhere. The texts are shown to people.
#[derive(Debug, Error)]
enum FollowChain {
    #[error("there is no {CA_FILE}")]
    FindTrusted,
    #[error(transparent)]
    Read(#[from] ReadCertificates),
    #[error(
        "{subject:?} was issued by {issuer:?}, which is neither in {CERTIFICATE_FILE} nor in {CA_FILE}"
    )]
    FindIssuer { subject: String, issuer: String },
    #[error(
        "{subject:?} was not signed by the {issuer:?} that is in {CA_FILE} or {CERTIFICATE_FILE}"
    )]
    VerifySignature { subject: String, issuer: String },
    #[error("{subject:?} is signed in a way that cannot be verified here")]
    KnowAlgorithm { subject: String },
    #[error(
        "{subject:?} was issued by {issuer:?}, which may not issue it: it is no CA, or its path length forbids it"
    )]
    AllowIssuer { subject: String, issuer: String },
    #[error("the chain of {CERTIFICATE_FILE} is too long or too tangled")]
    LimitEffort,
}

/// How the three files of a credential fit together.
pub(crate) fn pair(ca: Option<&[u8]>, certificate: &[u8], key: &[u8]) -> PairFacts {
    PairFacts {
        key_error: key_error(certificate, key),
        chain_error: chain_error(ca, certificate)
            .err()
            .map(|error| error.to_string()),
        signers: signers(ca, certificate).unwrap_or_default(),
    }
}

/// The first private key of a file in PEM: PKCS#1, SEC1 or PKCS#8.
pub(crate) fn private_key(pem: &[u8]) -> Result<Zeroizing<PrivateKeyDer<'static>>, ReadKey> {
    if pem.len() > MAX_KEY {
        return Err(ReadKey::LimitSize);
    }
    // Both ways to say so: PKCS#8's label, and OpenSSL's old `Proc-Type: 4,ENCRYPTED`.
    if pem
        .windows(b"ENCRYPTED".len())
        .any(|window| window == b"ENCRYPTED")
    {
        return Err(ReadKey::DecryptKey);
    }
    PrivateKeyDer::from_pem_slice(pem)
        .map(Zeroizing::new)
        .map_err(|_| ReadKey::ReadPem)
}

fn key_error(certificate: &[u8], key: &[u8]) -> Option<String> {
    let key = match private_key(key) {
        Ok(key) => key,
        Err(error) => return Some(error.to_string()),
    };
    let Ok(signer) = any_supported_type(&key) else {
        return Some(ReadKey::KnowKind.to_string());
    };
    let Some(matches) = certificates(CERTIFICATE_FILE, certificate)
        .and_then(|certificates| {
            let parsed = parsed(CERTIFICATE_FILE, &certificates)?;
            Ok(parsed
                .first()
                .zip(signer.public_key())
                .map(|(certificate, public_key)| {
                    certificate.public_key().raw == public_key.as_ref()
                }))
        })
        .ok()
        .flatten()
    else {
        return Some(format!(
            "{CERTIFICATE_FILE} holds no certificate that {KEY_FILE} could belong to"
        ));
    };
    (!matches).then(|| format!("{KEY_FILE} belongs to another certificate than {CERTIFICATE_FILE}"))
}

fn chain_error(ca: Option<&[u8]>, chain: &[u8]) -> Result<(), FollowChain> {
    let trusted = certificates(CA_FILE, ca.ok_or(FollowChain::FindTrusted)?)?;
    let chain = certificates(CERTIFICATE_FILE, chain)?;
    let path = Path {
        trusted: parsed(CA_FILE, &trusted)?,
        offered: parsed(CERTIFICATE_FILE, &chain)?,
    };
    // `certificates` finds at least one, or fails.
    match (path.offered.first(), chain.first()) {
        (Some(leaf), Some(der)) if !trusted.contains(der) => path.follow(leaf),
        _ => Ok(()),
    }
}

/// Whose key has signed the first certificate; nobody's where a file cannot be read, which is told elsewhere.
fn signers(ca: Option<&[u8]>, chain: &[u8]) -> Result<BTreeSet<String>, ReadCertificates> {
    let mut all = certificates(CERTIFICATE_FILE, chain)?;
    all.extend(ca.map_or(Ok(Vec::new()), |ca| certificates(CA_FILE, ca))?);
    let parsed = parsed(CERTIFICATE_FILE, &all)?;
    let Some(first) = parsed.first() else {
        return Ok(BTreeSet::new());
    };
    let signers = all
        .iter()
        .zip(&parsed)
        .filter(|(_, issuer)| issuer.subject().as_raw() == first.issuer().as_raw())
        .take(MAX_SIGNATURES)
        .filter(|(_, issuer)| first.verify_signature(Some(issuer.public_key())).is_ok());
    Ok(signers.map(|(der, _)| credentials::digest(der)).collect())
}

/// What a chain can be made of.
struct Path<'der> {
    trusted: Vec<X509Certificate<'der>>,
    offered: Vec<X509Certificate<'der>>,
}

impl Path<'_> {
    /// Looks for a way from the certificate to a trusted one, shortest first. If there is none, says what was wrong
    /// with the last try, or where the chain breaks off.
    fn follow(&self, leaf: &X509Certificate<'_>) -> Result<(), FollowChain> {
        let mut effort = MAX_SIGNATURES;
        let mut refused = None;
        // Certificates to find an issuer for, each with the number of CAs between it and the leaf that count for
        // a path length (RFC 5280 §6.1.4 (l): self-issued ones do not).
        let mut open = vec![(leaf, 0)];
        let mut next = 0;
        while let Some(&(certificate, cas)) = open.get(next) {
            next += 1;
            let trusted = self.trusted.iter().map(|issuer| (issuer, true));
            let offered = self.offered.iter().map(|issuer| (issuer, false));
            for (issuer, is_trusted) in trusted.chain(offered) {
                if issuer.subject().as_raw() != certificate.issuer().as_raw()
                    || open.iter().any(|(seen, _)| std::ptr::eq(*seen, issuer))
                {
                    continue;
                }
                effort = effort.checked_sub(1).ok_or(FollowChain::LimitEffort)?;
                match check_issuer(certificate, issuer, cas) {
                    Ok(()) if is_trusted => return Ok(()),
                    Ok(()) => open.push((issuer, cas + u32::from(!is_self_issued(issuer)))),
                    Err(error) => refused = Some(error),
                }
            }
        }
        let last = open.last().map_or(leaf, |(certificate, _)| certificate);
        Err(refused.unwrap_or_else(|| FollowChain::FindIssuer {
            subject: common_name(last.subject()),
            issuer: common_name(last.issuer()),
        }))
    }
}

fn check_issuer(
    certificate: &X509Certificate<'_>,
    issuer: &X509Certificate<'_>,
    cas: u32,
) -> Result<(), FollowChain> {
    let subject = common_name(certificate.subject());
    match certificate.verify_signature(Some(issuer.public_key())) {
        Ok(()) => {}
        Err(X509Error::SignatureUnsupportedAlgorithm) => {
            return Err(FollowChain::KnowAlgorithm { subject });
        }
        Err(_) => {
            let issuer = common_name(issuer.subject());
            return Err(FollowChain::VerifySignature { subject, issuer });
        }
    }
    let may_issue = issuer
        .basic_constraints()
        .ok()
        .flatten()
        .is_some_and(|constraints| {
            constraints.value.ca
                && constraints
                    .value
                    .path_len_constraint
                    .is_none_or(|longest| cas <= longest)
        })
        && issuer
            .key_usage()
            .is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    if may_issue {
        return Ok(());
    }
    Err(FollowChain::AllowIssuer {
        subject,
        issuer: common_name(issuer.subject()),
    })
}
