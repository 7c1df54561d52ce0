//! What does another site answer? A TLS server of a test's own, which may do as it should, mean no good, or be out of
//! its mind.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::credential::{Authority, Files, Holder};
use crate::http;

/// A caller that does not go on is given up.
const WITHIN: Duration = Duration::from_mins(1);

/// A caller, to whom anything may be written.
pub type Caller = StreamOwned<ServerConnection, TcpStream>;

/// What was asked.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    /// Without the slash that it begins with.
    pub path: String,
    pub body: String,
    head: String,
}

impl Request {
    /// A header, if it is there.
    pub fn header(&self, name: &str) -> Option<&str> {
        http::header(&self.head, name)
    }
}

/// A server on loopback that answers each path in its own way.
#[derive(Debug)]
pub struct Peer {
    address: SocketAddr,
    ca: String,
    hits: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Peer {
    /// Starts one, which runs as long as the process. `answer` is called once a request has been read, on a thread of
    /// its own.
    pub fn start(answer: impl Fn(&Request, &mut Caller) + Send + Sync + 'static) -> Result<Peer> {
        let authority = Authority::new("peer")?;
        let holder = Holder::Router(vec![Ipv4Addr::LOCALHOST.to_string()]);
        let Files {
            ca,
            certificate,
            key,
        } = authority.files("peer", &holder)?;
        let chain: Vec<_> =
            CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let tls = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let hits = Arc::new(Mutex::new(BTreeMap::new()));
        let (tls, answer, counted) = (Arc::new(tls), Arc::new(answer), hits.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (tls, answer, hits) = (tls.clone(), answer.clone(), counted.clone());
                thread::spawn(move || {
                    // A caller that breaks off is no news.
                    if let Ok((request, mut caller)) = receive(stream, tls) {
                        let mut hits = hits.lock().unwrap_or_else(PoisonError::into_inner);
                        *hits.entry(request.path.clone()).or_default() += 1;
                        drop(hits);
                        answer(&request, &mut caller);
                        caller.conn.send_close_notify();
                        let _ = caller.flush();
                    }
                });
            }
        });
        Ok(Peer { address, ca, hits })
    }

    /// Where a path is.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}/{path}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> (Ipv4Addr, u16) {
        (Ipv4Addr::LOCALHOST, self.address.port())
    }

    /// By whom it is to be trusted, in PEM.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// How often a path was asked for.
    pub fn hits(&self, path: &str) -> usize {
        let hits = self.hits.lock().unwrap_or_else(PoisonError::into_inner);
        hits.get(path).copied().unwrap_or_default()
    }
}

/// Reads one request.
fn receive(stream: TcpStream, tls: Arc<ServerConfig>) -> Result<(Request, Caller)> {
    stream.set_read_timeout(Some(WITHIN))?;
    stream.set_write_timeout(Some(WITHIN))?;
    let mut caller = StreamOwned::new(ServerConnection::new(tls)?, stream);
    let (head, body) = http::receive(&mut caller)?;
    let mut words = head.split(' ').map(str::to_owned);
    let (method, path) = words.next().zip(words.next()).context("no path")?;
    let request = Request {
        method,
        path: path.trim_start_matches('/').to_owned(),
        body,
        head,
    };
    Ok((request, caller))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::redeemer::{Grant, Redeemer};

    #[test]
    fn a_redeemer_hears_what_a_peer_answers() -> Result<()> {
        let peer = Peer::start(|_, caller| {
            let _ = caller.write_all(b"HTTP/1.1 404 gone\r\ncontent-length: 2\r\n\r\nno");
        })?;
        let grant = Grant::of(&json!({
            "metadata": {"name": "g", "uid": "grant-uid"},
            "status": {"url": peer.url("grant-uid"), "ca": peer.ca(), "code": "code"},
        }))?;
        let redeemer = Redeemer {
            source: Ipv4Addr::LOCALHOST,
            subject: "site".to_owned(),
            nonce: None,
        };
        let said = redeemer.redeem(peer.address(), &grant)?;
        assert_eq!((said.status, said.body.as_str()), (404, "no"));
        assert_eq!(peer.hits("grant-uid"), 1);
        Ok(())
    }
}
