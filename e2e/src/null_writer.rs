//! What can the control plane do by itself? Writes of one status after the other, by a client that does nothing else.

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use url::Url;

use crate::http::{self, Line};
use crate::kubectl::text;

const WITHIN: Duration = Duration::from_secs(15);

/// A connection to the API server, as the user of a kubeconfig in JSON.
#[derive(Debug)]
pub struct NullWriter {
    line: Line,
    writes: usize,
}

impl NullWriter {
    pub fn open(kubeconfig: &Path) -> Result<NullWriter> {
        let config: Value = serde_json::from_slice(&std::fs::read(kubeconfig)?)?;
        let (cluster, user) = (
            &config["clusters"][0]["cluster"],
            &config["users"][0]["user"],
        );
        let pem = |value: &Value| STANDARD.decode(text(value)).context("no base64");
        let mut roots = RootCertStore::empty();
        let authority = pem(&cluster["certificate-authority-data"])?;
        roots.add(CertificateDer::from_pem_slice(&authority)?)?;
        let certificate = CertificateDer::from_pem_slice(&pem(&user["client-certificate-data"])?)?;
        let key = PrivateKeyDer::from_pem_slice(&pem(&user["client-key-data"])?)?;
        let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)?;
        let server = Url::parse(text(&cluster["server"]))?;
        let host = server.host_str().context("no host")?.to_owned();
        let stream = TcpStream::connect((host.as_str(), server.port().context("no port")?))?;
        stream.set_read_timeout(Some(WITHIN))?;
        stream.set_write_timeout(Some(WITHIN))?;
        stream.set_nodelay(true)?;
        let tls = ClientConnection::new(Arc::new(tls), ServerName::try_from(host)?)?;
        Ok(NullWriter {
            line: StreamOwned::new(tls, stream),
            writes: 0,
        })
    }

    /// Writes the status of an object of ours, another one each time.
    pub fn write(&mut self, resource: &str, namespace: &str, name: &str) -> Result<()> {
        self.writes += 1;
        let body = json!({"status": {"message": self.writes.to_string()}}).to_string();
        let request = format!(
            "PATCH /apis/skupper.io/v2alpha1/namespaces/{namespace}/{resource}/{name}/status HTTP/1.1\r\nhost: \
             x\r\ncontent-type: application/merge-patch+json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let said = http::exchange(&mut self.line, &request)?;
        ensure!(said.status == 200, "{} {}", said.status, said.body);
        Ok(())
    }
}
