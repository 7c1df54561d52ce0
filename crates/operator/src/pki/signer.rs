//! Is this a CA, and what does it sign with?

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use rcgen::{Certificate, CertificateParams, Issuer, KeyPair};
use rustls_pki_types::CertificateDer;
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE};
use thiserror::Error;
use x509_parser::certificate::X509Certificate;
use zeroize::Zeroizing;

use super::pem;
use crate::facts::{self, certificates, is_self_signed, parsed, private_key};

/// A CA, as its Secret holds it. Any common kind will do: the key may be written as PKCS#1, SEC1 or PKCS#8, and be
/// RSA, P-256, P-384 or Ed25519.
pub struct Signer {
    /// `tls.crt`: the CA's certificate, then its chain, PEM.
    pub certificate: String,
    /// `ca.crt`: the roots that the CA hands on, PEM; empty for a Secret without one, then the CA's own root is.
    pub roots: String,
    /// `tls.key`, PEM.
    pub key: Zeroizing<String>,
}

/// Why a Secret cannot be used as a CA. The texts are shown to people.
#[derive(Debug, Error)]
pub enum ReadSigner {
    /// A file is missing or is not text.
    #[error("{0} of the CA is missing or is not text")]
    FindFile(&'static str),
    /// A file is there and does not parse.
    #[error("the CA is damaged: {0}")]
    ReadFile(String),
    /// Key and certificate do not belong together.
    #[error("the CA cannot sign: {0}")]
    MatchKey(String),
    /// The certificate may not sign others.
    #[error("{CERTIFICATE_FILE} of the CA is not the certificate of a CA")]
    BeAuthority,
}

/// A CA, ready to sign. Its key is wiped when it is dropped.
pub struct Authority {
    /// The CA's own certificate.
    pub(super) certificate: CertificateDer<'static>,
    key: Zeroizing<KeyPair>,
    /// End of the CA's own validity.
    pub(super) not_after: Timestamp,
    /// PEM of what a peer trusts.
    pub(super) roots: String,
    /// PEM of what stands between a leaf and the roots; empty where nothing does.
    pub(super) intermediates: String,
}

impl Signer {
    /// The CA that a Secret holds. Whether it can sign is told when it has to.
    pub fn from_secret(secret: &Secret) -> Result<Self, ReadSigner> {
        let file = |name: &'static str| -> Result<Option<&str>, ReadSigner> {
            let bytes = secret.data.as_ref().and_then(|data| data.get(name));
            bytes
                .map(|ByteString(bytes)| std::str::from_utf8(bytes))
                .transpose()
                .map_err(|_| ReadSigner::FindFile(name))
        };
        let needed = |name| file(name)?.ok_or(ReadSigner::FindFile(name));
        Ok(Self {
            certificate: needed(CERTIFICATE_FILE)?.to_owned(),
            roots: file(CA_FILE)?.unwrap_or_default().to_owned(),
            key: Zeroizing::new(needed(KEY_FILE)?.to_owned()),
        })
    }

    /// The CA, if it can sign.
    pub fn authority(&self) -> Result<Authority, ReadSigner> {
        let pair = facts::pair(None, self.certificate.as_bytes(), self.key.as_bytes());
        if let Some(error) = pair.key_error {
            return Err(ReadSigner::MatchKey(error));
        }
        let read = |file, pem: &str| {
            certificates(file, pem.as_bytes())
                .map_err(|error| ReadSigner::ReadFile(error.to_string()))
        };
        let chain = read(CERTIFICATE_FILE, &self.certificate)?;
        let parsed_chain = parsed(CERTIFICATE_FILE, &chain)
            .map_err(|error| ReadSigner::ReadFile(error.to_string()))?;
        let (Some(own), Some(own_der)) = (parsed_chain.first(), chain.first()) else {
            return Err(ReadSigner::FindFile(CERTIFICATE_FILE));
        };
        if !may_sign(own) {
            return Err(ReadSigner::BeAuthority);
        }
        let handed_on = if self.roots.trim().is_empty() {
            Vec::new()
        } else {
            read(CA_FILE, &self.roots)?
        };
        let key = private_key(self.key.as_bytes())
            .map_err(|error| ReadSigner::MatchKey(error.to_string()))?;
        let key = KeyPair::try_from(&*key)
            .map_err(|error| ReadSigner::MatchKey(error.to_string()))
            .map(Zeroizing::new)?;
        let not_after = Timestamp::from_second(own.validity().not_after.timestamp())
            .map_err(|error| ReadSigner::ReadFile(error.to_string()))?;

        let (own_roots, between): (Vec<_>, Vec<_>) = chain
            .iter()
            .zip(&parsed_chain)
            .partition(|(_, parsed)| is_self_signed(parsed));
        let mut roots: Vec<&CertificateDer<'_>> = own_roots.iter().map(|(der, _)| *der).collect();
        for root in &handed_on {
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        if roots.is_empty() {
            // An intermediate whose root nobody has: its peers have to trust it directly.
            roots.extend(chain.last());
        }
        let roots = roots.into_iter().map(|der| pem::certificate(der)).collect();
        let intermediates = between
            .into_iter()
            .map(|(der, _)| pem::certificate(der))
            .collect();
        Ok(Authority {
            certificate: own_der.clone(),
            key,
            not_after,
            roots,
            intermediates,
        })
    }
}

impl Authority {
    /// Signs what the parameters say, for the public half of `subject`.
    pub(super) fn sign(
        &self,
        params: &CertificateParams,
        subject: &KeyPair,
    ) -> Result<Certificate, rcgen::Error> {
        params.signed_by(
            subject,
            &Issuer::from_ca_cert_der(&self.certificate, &*self.key)?,
        )
    }
}

fn may_sign(certificate: &X509Certificate<'_>) -> bool {
    certificate.is_ca()
        && certificate
            .key_usage()
            .is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()))
}
