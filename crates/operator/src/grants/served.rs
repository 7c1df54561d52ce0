//! Which certificate is served?

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use spanwire_plan::facts::CERTIFICATE_FILE;
use thiserror::Error;

use crate::facts::{certificates, private_key};

/// The certificate that new connections get. Clones share it, and it may change at any time.
#[derive(Clone)]
pub struct Served {
    current: Arc<Current>,
    tls: Arc<ServerConfig>,
}

/// Why a certificate is not served. The one before stays.
#[derive(Debug, Error)]
pub enum ServeCertificate {
    /// The certificate does not parse.
    #[error("the certificate to serve cannot be used: {0}")]
    ReadCertificate(String),
    /// The key does not parse, or belongs to another certificate.
    #[error("the key to serve with cannot be used: {0}")]
    ReadKey(String),
    /// The TLS library cannot do what is asked of it.
    #[error("TLS cannot be served: {0}")]
    StartTls(#[from] rustls::Error),
}

struct Current(ArcSwapOption<CertifiedKey>);

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current")
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}

impl Served {
    /// Nothing yet.
    pub fn nothing() -> Result<Self, ServeCertificate> {
        let current = Arc::new(Current(ArcSwapOption::empty()));
        let mut tls = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(current.clone());
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // A client comes once, so there is no session to resume, and none to keep.
        tls.session_storage = Arc::new(NoServerSessionStorage {});
        tls.send_tls13_tickets = 0;
        Ok(Self {
            current,
            tls: Arc::new(tls),
        })
    }

    /// Serves this certificate with its chain, and this key, from the next connection on.
    pub fn set(&self, certificate: &str, key: &str) -> Result<(), ServeCertificate> {
        let chain = certificates(CERTIFICATE_FILE, certificate.as_bytes())
            .map_err(|error| ServeCertificate::ReadCertificate(error.to_string()))?;
        let key = private_key(key.as_bytes())
            .map_err(|error| ServeCertificate::ReadKey(error.to_string()))?;
        let signer = any_supported_type(&key)
            .map_err(|error| ServeCertificate::ReadKey(error.to_string()))?;
        let certified = CertifiedKey::new(chain, signer);
        certified
            .keys_match()
            .map_err(|error| ServeCertificate::ReadKey(error.to_string()))?;
        self.current.0.store(Some(Arc::new(certified)));
        Ok(())
    }

    /// Whether there is a certificate, so that a client can get in.
    pub fn is_set(&self) -> bool {
        self.current.0.load().is_some()
    }

    pub(super) fn tls(&self) -> Arc<ServerConfig> {
        self.tls.clone()
    }
}
