//! Whom does a connector believe to be its host?
//!
//! The real router compares the host with DNS names only: a correct address in the certificate
//! does not help, while an address written as a DNS name, or as the common name, does.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Checks the chain, and the host against DNS names and, where there are none, the common name.
#[derive(Debug)]
pub(crate) struct DnsOnlyVerifier {
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
    verify_hostname: bool,
}

impl DnsOnlyVerifier {
    pub(crate) fn new(
        roots: RootCertStore,
        algorithms: WebPkiSupportedAlgorithms,
        verify_hostname: bool,
    ) -> Self {
        Self {
            roots,
            algorithms,
            verify_hostname,
        }
    }
}

impl ServerCertVerifier for DnsOnlyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        if self.verify_hostname && !names(end_entity, &server_name.to_str()) {
            return Err(Error::InvalidCertificate(CertificateError::NotValidForName));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Does the certificate carry this host as a DNS name, or else as its common name?
fn names(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return false;
    };
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let dns_name_matches = alternatives.is_some_and(|extension| {
        extension.value.general_names.iter().any(|name| match name {
            GeneralName::DNSName(pattern) => covers(pattern, host),
            _ => false,
        })
    });
    let common_name_matches = || {
        certificate
            .subject()
            .iter_common_name()
            .any(|name| name.as_str().is_ok_and(|pattern| covers(pattern, host)))
    };
    dns_name_matches || common_name_matches()
}

/// Equal but for case, or a `*.` in place of the first label.
fn covers(pattern: &str, host: &str) -> bool {
    if let Some(suffix) = pattern.strip_prefix("*.") {
        return host
            .split_once('.')
            .is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(suffix));
    }
    pattern.eq_ignore_ascii_case(host)
}

/// The subject of a certificate as the router shows a peer's: last part first, joined by commas.
pub(crate) fn subject(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut parts: Vec<String> = certificate
        .subject()
        .to_string()
        .split(", ")
        .map(str::to_owned)
        .collect();
    parts.reverse();
    Some(parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_covers_one_label() {
        assert!(covers("*.example.com", "a.example.com"));
        assert!(!covers("*.example.com", "a.b.example.com"));
        assert!(!covers("*.example.com", "example.com"));
    }

    #[test]
    fn an_address_written_as_a_name_covers_the_address() {
        assert!(covers("10.0.0.1", "10.0.0.1"));
    }
}
