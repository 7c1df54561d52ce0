//! Where is the API server, so that nobody is made to dial it?
//!
//! Behind the address that we reach it at are others, at which it listens itself. It says which to any client that may
//! ask for its versions, and nobody else does without a further right. Where there are several API servers, the one that
//! answers tells of itself, so what was learned before is kept.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Uri;
use kube::Client;
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::lookup_host;
use tokio::time::Instant;

use crate::error::{CallServer, within};

/// After what time it is asked again.
const AGAIN: Duration = Duration::from_mins(10);
/// The most addresses that are remembered. The oldest go first.
const REMEMBERED: usize = 32;
/// What every API server's certificate is for: the name by which pods reach it. No grant server has it.
const NAME: &str = "kubernetes.default.svc";

/// What is known of the API server's addresses.
#[derive(Default)]
pub(super) struct ApiServers(Mutex<Known>);

#[derive(Default)]
struct Known {
    asked: Option<Instant>,
    addresses: Vec<Uri>,
}

impl ApiServers {
    /// Its addresses by what it says itself: asked for if that was long ago. A refusal is an answer: then nothing more can
    /// be known.
    pub(super) async fn addresses(&self, client: &Client) -> Result<Vec<Uri>, CallServer> {
        {
            let known = self.known();
            if known.asked.is_some_and(|asked| asked.elapsed() < AGAIN) {
                return Ok(known.addresses.clone());
            }
        }
        let answer = within(client.list_core_api_versions()).await;
        let mut known = self.known();
        match answer {
            Ok(versions) => {
                for told in versions.server_address_by_client_cidrs {
                    known.learn(&told.server_address);
                }
            }
            Err(error) if matches!(error.code(), Some(403 | 404)) => {
                tracing::debug!(%error, "The API server does not say where it is");
            }
            // What was known is good enough.
            Err(_) if known.asked.is_some() => return Ok(known.addresses.clone()),
            Err(error) => return Err(error),
        }
        known.asked = Some(Instant::now());
        Ok(known.addresses.clone())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Takes in an address: a host or an IP address, with or without a port.
    fn learn(&mut self, told: &str) {
        let bracketed = told
            .parse::<std::net::Ipv6Addr>()
            .map(|address| format!("[{address}]"));
        let told = bracketed.as_deref().unwrap_or(told);
        let Ok(uri) = format!("https://{told}").parse::<Uri>() else {
            return;
        };
        self.addresses.retain(|known| *known != uri);
        if self.addresses.len() >= REMEMBERED {
            self.addresses.remove(0);
        }
        self.addresses.push(uri);
    }
}

/// The addresses and the port behind this one, as far as its name can be looked up now.
pub(super) async fn look_up(uri: &Uri) -> Vec<SocketAddr> {
    let Some(host) = uri.host() else {
        return Vec::new();
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = uri
        .port_u16()
        .unwrap_or(if uri.scheme_str() == Some("http") {
            80
        } else {
            443
        });
    if let Ok(address) = host.parse::<IpAddr>() {
        return vec![SocketAddr::new(address, port)];
    }
    lookup_host((host, port))
        .await
        .map(Iterator::collect)
        .unwrap_or_default()
}

/// Whether this is the certificate of an API server, whatever the address it was met at.
pub(super) fn is_certificate_of_one(certificate: &CertificateDer<'_>) -> bool {
    let (Ok(certificate), Ok(name)) = (
        ParsedCertificate::try_from(certificate),
        ServerName::try_from(NAME),
    ) else {
        return false;
    };
    verify_server_name(&certificate, &name).is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;

    use super::*;
    use crate::mock::{ApiServer, Fault};

    fn server(addresses: &[&str]) -> ApiServer {
        let server = ApiServer::new();
        let told = addresses
            .iter()
            .map(|address| json!({"clientCIDR": "0.0.0.0/0", "serverAddress": address}));
        let told: Vec<_> = told.collect();
        server.put(
            "/api",
            json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": told}),
        );
        server
    }

    #[tokio::test(start_paused = true)]
    async fn the_api_server_is_asked_now_and_then_where_it_is() {
        let server = server(&["10.1.2.3:6443", "fd00::1", "10.1.2.3:6443", "no address"]);
        let (client, known) = (server.client(), ApiServers::default());
        let mut found = Vec::new();
        for _ in 0..3 {
            found = known.addresses(&client).await.unwrap();
        }
        assert_eq!(server.count("GET", "/api"), 1);
        let mut addresses = Vec::new();
        for uri in &found {
            addresses.extend(look_up(uri).await);
        }
        let wanted = ["[fd00::1]:443", "10.1.2.3:6443"].map(|address| address.parse().unwrap());
        assert_eq!(addresses, wanted);

        tokio::time::advance(AGAIN).await;
        server.fault(|_| Fault::Refuse(503));
        assert_eq!(known.addresses(&client).await.unwrap(), found);
        assert_eq!(server.count("GET", "/api"), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_no_answer_yet_waits_for_one_and_a_refusal_is_one() {
        let (server, is_away) = (server(&[]), std::sync::Arc::new(AtomicBool::new(true)));
        server.fault({
            let is_away = is_away.clone();
            move |_| {
                Fault::Refuse(if is_away.load(Ordering::Relaxed) {
                    429
                } else {
                    403
                })
            }
        });
        let (client, known) = (server.client(), ApiServers::default());
        assert!(known.addresses(&client).await.is_err());
        is_away.store(false, Ordering::Relaxed);
        assert_eq!(known.addresses(&client).await.unwrap(), Vec::<Uri>::new());
    }
}
