//! Why do both sides trust the proxy? What it shows them is issued by the cluster's own CA.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::pki::{self, Pki};

/// A watch of HTTP/2 could share its connection with other requests, and with them its fate.
const PROTOCOL: &[u8] = b"http/1.1";

/// The side that clients see.
pub(super) fn acceptor(pki: &Pki) -> Result<TlsAcceptor> {
    let (chain, key) = pair(pki, pki::FAULT_PROXY)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The side that the API server sees.
pub(super) fn connector(pki: &Pki, caller: Option<&str>) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(pki, "ca.crt")? {
        roots.add(authority)?;
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match caller {
        Some(caller) => {
            let (chain, key) = pair(pki, caller)?;
            config.with_client_auth_cert(chain, key)?
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

fn pair(pki: &Pki, name: &str) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let chain = certificates(pki, &format!("{name}.crt"))?;
    let path = pki.path(&format!("{name}.key"));
    let key = PrivateKeyDer::from_pem_file(&path);
    Ok((
        chain,
        key.with_context(|| format!("read {}", path.display()))?,
    ))
}

fn certificates(pki: &Pki, file: &str) -> Result<Vec<CertificateDer<'static>>> {
    let path = pki.path(file);
    let all = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect);
    all.with_context(|| format!("read {}", path.display()))
}
