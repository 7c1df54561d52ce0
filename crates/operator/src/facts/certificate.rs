//! What does a file of certificates say?

use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use spanwire_plan::facts::CertificateFacts;
use spanwire_router::credentials;
use thiserror::Error;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Name;

use crate::text;

/// The largest file that is read. A bundle of every public CA has about 230 KiB.
pub(crate) const MAX_FILE: usize = 512 * 1024;
/// The most certificates in a file. A bundle of every public CA has about 150.
const MAX_CERTIFICATES: usize = 256;
/// The most alternative names of one kind that are kept of a certificate.
const MAX_NAMES: usize = 1024;
/// The longest common name that is kept, in characters. RFC 5280, appendix A allows 64.
const MAX_SUBJECT: usize = 256;

/// Why a file cannot be used as certificates. The texts are shown to people.
#[derive(Debug, Error)]
pub(crate) enum ReadCertificates {
    #[error("{file} has {size} bytes, more than the {MAX_FILE} that are read")]
    LimitSize { file: String, size: usize },
    #[error("{file} holds more than {MAX_CERTIFICATES} certificates")]
    LimitCount { file: String },
    #[error("{file} is damaged: it has a PEM section that cannot be read")]
    ReadPem { file: String },
    #[error("{file} holds no certificate in PEM")]
    FindCertificate { file: String },
    #[error("certificate {number} of {file} is no X.509 certificate")]
    ParseCertificate { file: String, number: usize },
}

/// The certificates of a file in PEM, in the file's order; at least one.
pub(crate) fn certificates(
    file: &str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, ReadCertificates> {
    let file = || text::printable(file, MAX_SUBJECT);
    if pem.len() > MAX_FILE {
        return Err(ReadCertificates::LimitSize {
            file: file(),
            size: pem.len(),
        });
    }
    let mut found = Vec::new();
    for section in CertificateDer::pem_slice_iter(pem) {
        if found.len() == MAX_CERTIFICATES {
            return Err(ReadCertificates::LimitCount { file: file() });
        }
        found.push(section.map_err(|_| ReadCertificates::ReadPem { file: file() })?);
    }
    if found.is_empty() {
        return Err(ReadCertificates::FindCertificate { file: file() });
    }
    Ok(found)
}

/// Certificates as X.509, in the same order.
pub(crate) fn parsed<'der>(
    file: &str,
    certificates: &'der [CertificateDer<'_>],
) -> Result<Vec<X509Certificate<'der>>, ReadCertificates> {
    certificates
        .iter()
        .enumerate()
        .map(|(index, der)| {
            parse(der).ok_or_else(|| ReadCertificates::ParseCertificate {
                file: text::printable(file, MAX_SUBJECT),
                number: index + 1,
            })
        })
        .collect()
}

/// What is known of each certificate of a file.
pub(crate) fn facts(file: &str, pem: &[u8]) -> Result<Vec<CertificateFacts>, ReadCertificates> {
    let certificates = certificates(file, pem)?;
    let parsed = parsed(file, &certificates)?;
    certificates
        .iter()
        .zip(&parsed)
        .enumerate()
        .map(|(index, (der, certificate))| {
            certificate_facts(der, certificate).ok_or_else(|| ReadCertificates::ParseCertificate {
                file: text::printable(file, MAX_SUBJECT),
                number: index + 1,
            })
        })
        .collect()
}

/// Whether the certificate is a root's: signed with its own key. A bridge from an old key to a new one of the same CA
/// names itself as its issuer too, and is none.
pub(crate) fn is_self_signed(certificate: &X509Certificate<'_>) -> bool {
    is_self_issued(certificate) && certificate.verify_signature(None).is_ok()
}

/// Whether the certificate names its own subject as its issuer.
pub(crate) fn is_self_issued(certificate: &X509Certificate<'_>) -> bool {
    certificate.subject().as_raw() == certificate.issuer().as_raw()
}

/// The common name, made fit to print; empty where there is none.
pub(crate) fn common_name(name: &X509Name<'_>) -> String {
    let name = name
        .iter_common_name()
        .find_map(|name| name.as_str().ok())
        .unwrap_or_default();
    text::printable(name, MAX_SUBJECT)
}

fn parse<'der>(der: &'der CertificateDer<'_>) -> Option<X509Certificate<'der>> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Some(certificate),
        _ => None,
    }
}

fn certificate_facts(der: &[u8], certificate: &X509Certificate<'_>) -> Option<CertificateFacts> {
    let usage = certificate.extended_key_usage().ok()?;
    let constraints = certificate.basic_constraints().ok()?;
    let names = certificate.subject_alternative_name().ok()?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let mut facts = CertificateFacts {
        subject: common_name(certificate.subject()),
        issuer: common_name(certificate.issuer()),
        dns: names
            .clone()
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some(text::printable(name, MAX_SUBJECT)),
                _ => None,
            })
            .take(MAX_NAMES)
            .collect(),
        ips: names
            .filter_map(|name| match name {
                GeneralName::IPAddress(octets) => ip(octets),
                _ => None,
            })
            .take(MAX_NAMES)
            .map(|ip| ip.to_string())
            .collect(),
        client: usage
            .as_ref()
            .is_none_or(|usage| usage.value.any || usage.value.client_auth),
        server: usage
            .as_ref()
            .is_none_or(|usage| usage.value.any || usage.value.server_auth),
        is_ca: constraints
            .as_ref()
            .is_some_and(|constraints| constraints.value.ca),
        path_length: constraints.and_then(|constraints| constraints.value.path_len_constraint),
        not_before: timestamp(certificate.validity().not_before)?,
        not_after: timestamp(certificate.validity().not_after)?,
        key_id: None,
        authority_id: None,
        fingerprint: credentials::digest(der),
    };
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => facts.key_id = key_id(id.0),
            ParsedExtension::AuthorityKeyIdentifier(authority) => {
                facts.authority_id = authority
                    .key_identifier
                    .as_ref()
                    .and_then(|id| key_id(id.0));
            }
            _ => {}
        }
    }
    Some(facts)
}

/// A key identifier is compared, and usually 20 bytes long; more than a SHA-512 is not worth keeping.
fn key_id(id: &[u8]) -> Option<String> {
    (id.len() <= 64).then(|| text::hex(id))
}

fn timestamp(time: ASN1Time) -> Option<Timestamp> {
    Timestamp::from_second(time.timestamp()).ok()
}

fn ip(octets: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(octets)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from))
        .ok()
}
