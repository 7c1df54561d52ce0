//! How is a credential made?
//!
//! The order says what, this file how: keys are made here, live here and in the Secret, and are wiped in between.
//! Nothing is handed out that does not verify. Making an RSA key takes a while, so callers on the event loop use
//! `spawn_blocking`.

mod key;
pub(crate) mod pem;
mod signer;
mod succession;

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use spanwire_plan::plan::Issue;
use spanwire_router::credentials::digest;
use thiserror::Error;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::facts;
use crate::text;

pub use signer::{Authority, ReadSigner, Signer};
pub use succession::succeed;

use key::generate;

/// The longest common name, in characters (RFC 5280, appendix A, `ub-common-name`).
const MAX_COMMON_NAME: usize = 64;
/// The most names of one certificate.
const MAX_HOSTS: usize = 256;
/// The longest name: what DNS allows.
const MAX_HOST: usize = 253;
/// One intermediate CA may stand between a CA of ours and a certificate: the bridge from an old key to a new one.
const PATH_LENGTH: u8 = 1;
/// What the key of a CA is for.
const AUTHORITY_USAGES: [KeyUsagePurpose; 3] = [
    KeyUsagePurpose::KeyCertSign,
    KeyUsagePurpose::CrlSign,
    KeyUsagePurpose::DigitalSignature,
];
/// Random bytes of a serial number: 128 bits (RFC 5280 §4.1.2.2 allows 20 bytes).
const SERIAL: usize = 16;

/// The content of a Secret of type `kubernetes.io/tls`.
pub struct Credential {
    /// `ca.crt`: the roots that whoever holds the credential trusts, PEM.
    pub ca: String,
    /// `tls.crt`: the certificate and whatever stands between it and a root, PEM.
    pub certificate: String,
    /// `tls.key`: PKCS#8, PEM.
    pub key: Zeroizing<String>,
}

impl Credential {
    /// SHA-256 over the certificate in DER, 64 lower-case hex digits: as facts name it.
    pub fn fingerprint(&self) -> Result<String, MakeCredential> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes())
            .map(|der| digest(&der))
            .map_err(|error| MakeCredential::Verify(error.to_string()))
    }
}

/// Why a credential was not made. The texts are shown to people.
#[derive(Debug, Error)]
pub enum MakeCredential {
    /// The order names a CA that was not given, or the other way round.
    #[error("the CA that the order names is not the one at hand")]
    MatchSigner,
    /// The CA cannot be used.
    #[error(transparent)]
    UseSigner(#[from] ReadSigner),
    /// Start and end are the wrong way round, once the end is cut to the CA's.
    #[error("the certificate would not be valid for a moment: from {not_before} to {not_after}")]
    SpanTime {
        /// As ordered.
        not_before: Timestamp,
        /// As ordered, or the CA's.
        not_after: Timestamp,
    },
    /// A time that X.509 cannot say.
    #[error("{0} cannot be written in a certificate")]
    WriteTime(Timestamp),
    /// A name that cannot be written.
    #[error("{0:?} can be no name in a certificate")]
    WriteHost(String),
    /// Too many names.
    #[error("{0} names are more than the {MAX_HOSTS} that a certificate is made for")]
    LimitHosts(usize),
    /// The random number generator failed.
    #[error("no random number was to be had")]
    DrawSerial,
    /// The key could not be made.
    #[error("the key was not made: {0}")]
    MakeKey(#[source] rcgen::Error),
    /// The certificate could not be made.
    #[error("the certificate was not signed: {0}")]
    Sign(#[source] rcgen::Error),
    /// What was made does not verify. A CA whose subject names a component twice (`DC=example, DC=com`) is the known
    /// cause: it cannot be written as an issuer.
    #[error("what was made does not verify, so it was thrown away: {0}")]
    Verify(String),
}

/// What a certificate is for.
struct Usage {
    client: bool,
    server: bool,
}

/// What a certificate says, whoever signs it.
struct Subject<'a> {
    name: &'a str,
    hosts: &'a [String],
    not_before: Timestamp,
    not_after: Timestamp,
}

impl<'a> Subject<'a> {
    fn of(order: &'a Issue) -> Self {
        Self {
            name: &order.subject,
            hosts: &order.hosts,
            not_before: order.not_before,
            not_after: order.not_after,
        }
    }
}

/// Makes what was ordered: a CA that signs itself, or a certificate signed by `signer`. What the order takes over from
/// the Secret that is there is the business of [`succeed`].
pub fn issue(order: &Issue, signer: Option<&Signer>) -> Result<Credential, MakeCredential> {
    let subject = Subject::of(order);
    match (&order.signer, signer) {
        (None, None) => {
            let (key, certificate) = authority(&subject, order.rsa)?;
            verified(Credential {
                ca: certificate.clone(),
                certificate,
                key: pem::section("PRIVATE KEY", key.serialized_der()),
            })
        }
        (Some(_), Some(signer)) => {
            let usage = Usage {
                client: order.client,
                server: order.server,
            };
            leaf(&subject, &usage, &signer.authority()?, order.rsa)
        }
        _ => Err(MakeCredential::MatchSigner),
    }
}

/// Makes a credential that dials and does nothing else: what a redeemed token brings.
pub fn client_credential(
    subject: &str,
    issuer: &Authority,
    not_before: Timestamp,
    not_after: Timestamp,
    rsa: bool,
) -> Result<Credential, MakeCredential> {
    let subject = Subject {
        name: subject,
        hosts: &[],
        not_before,
        not_after,
    };
    leaf(
        &subject,
        &Usage {
            client: true,
            server: false,
        },
        issuer,
        rsa,
    )
}

/// A CA that signs itself: its key, and its certificate in PEM.
fn authority(
    subject: &Subject<'_>,
    rsa: bool,
) -> Result<(Zeroizing<KeyPair>, String), MakeCredential> {
    let key = generate(rsa).map_err(MakeCredential::MakeKey)?;
    let mut params = params(subject)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(PATH_LENGTH));
    params.key_usages = AUTHORITY_USAGES.to_vec();
    let certificate = params
        .self_signed(&*key)
        .map_err(MakeCredential::Sign)?
        .pem();
    Ok((key, certificate))
}

fn leaf(
    subject: &Subject<'_>,
    usage: &Usage,
    issuer: &Authority,
    rsa: bool,
) -> Result<Credential, MakeCredential> {
    let subject = Subject {
        not_after: subject.not_after.min(issuer.not_after),
        ..*subject
    };
    let key = generate(rsa).map_err(MakeCredential::MakeKey)?;
    let mut params = params(&subject)?;
    params.extended_key_usages = purposes(usage);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    if rsa {
        // For peers that still exchange keys by RSA, as TLS before 1.3 may.
        params.key_usages.push(KeyUsagePurpose::KeyEncipherment);
    }
    let certificate = issuer.sign(&params, &key).map_err(MakeCredential::Sign)?;
    verified(Credential {
        ca: issuer.roots.clone(),
        certificate: certificate.pem() + &issuer.intermediates,
        key: pem::section("PRIVATE KEY", key.serialized_der()),
    })
}

fn params(subject: &Subject<'_>) -> Result<CertificateParams, MakeCredential> {
    if subject.not_after <= subject.not_before {
        return Err(MakeCredential::SpanTime {
            not_before: subject.not_before,
            not_after: subject.not_after,
        });
    }
    let mut serial = [0; SERIAL];
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| MakeCredential::DrawSerial)?;
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, text::cut(subject.name, MAX_COMMON_NAME));
    // Everything that would otherwise have a default of the library's choice, validity above all.
    let mut params = CertificateParams::default();
    params.not_before = date_time(subject.not_before)?;
    params.not_after = date_time(subject.not_after)?;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.subject_alt_names = alternative_names(subject.hosts)?;
    params.distinguished_name = distinguished_name;
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// An IP address is written twice, as an address and as a DNS name: the router knows no other
/// (`facts/router.md` §5).
fn alternative_names(hosts: &[String]) -> Result<Vec<SanType>, MakeCredential> {
    if hosts.len() > MAX_HOSTS {
        return Err(MakeCredential::LimitHosts(hosts.len()));
    }
    let mut ips = BTreeSet::new();
    let mut names = BTreeSet::new();
    for host in hosts
        .iter()
        .map(|host| host.trim())
        .filter(|host| !host.is_empty())
    {
        if let Ok(ip) = host.parse::<IpAddr>() {
            ips.insert(ip);
            names.insert(ip.to_string());
        }
        names.insert(host.to_owned());
    }
    names
        .into_iter()
        .map(|name| {
            let refused = || MakeCredential::WriteHost(text::printable(&name, MAX_HOST));
            if name.len() > MAX_HOST || name.chars().any(|c| !c.is_ascii_graphic()) {
                return Err(refused());
            }
            name.as_str()
                .try_into()
                .map(SanType::DnsName)
                .map_err(|_| refused())
        })
        .chain(ips.into_iter().map(|ip| Ok(SanType::IpAddress(ip))))
        .collect()
}

/// Neither means both (`design.md` §5).
fn purposes(usage: &Usage) -> Vec<ExtendedKeyUsagePurpose> {
    let mut purposes = Vec::new();
    if usage.server || !usage.client {
        purposes.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    if usage.client || !usage.server {
        purposes.push(ExtendedKeyUsagePurpose::ClientAuth);
    }
    purposes
}

fn date_time(time: Timestamp) -> Result<OffsetDateTime, MakeCredential> {
    OffsetDateTime::from_unix_timestamp(time.as_second())
        .ok()
        .filter(|date| (1950..=9999).contains(&date.year()))
        .ok_or(MakeCredential::WriteTime(time))
}

/// The credential, if its peers will believe it.
fn verified(credential: Credential) -> Result<Credential, MakeCredential> {
    let pair = facts::pair(
        Some(credential.ca.as_bytes()),
        credential.certificate.as_bytes(),
        credential.key.as_bytes(),
    );
    match pair.key_error.or(pair.chain_error) {
        Some(error) => Err(MakeCredential::Verify(error)),
        None => Ok(credential),
    }
}

#[cfg(test)]
mod tests;
