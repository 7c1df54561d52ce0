//! Where does a token lead, and whom does it trust?

use std::net::IpAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::version::TLS13;
use rustls_pki_types::{InvalidDnsNameError, ServerName};
use thiserror::Error;
use url::{Host, Url};

use crate::clock::Clock;
use crate::facts::certificates;

/// The longest address.
const MAX_URL: usize = 2048;
/// The longest code: what a server of ours reads.
const MAX_CODE: usize = 1024;

/// A checked address with the TLS that it asks for.
#[derive(Debug)]
pub(super) struct Target {
    /// For the header `host`.
    pub(super) authority: String,
    pub(super) host: TargetHost,
    pub(super) port: u16,
    /// Path and query.
    pub(super) path: String,
    /// Whose certificate is wanted.
    pub(super) server_name: ServerName<'static>,
    pub(super) tls: Arc<ClientConfig>,
}

/// A name to look up, or an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TargetHost {
    Name(String),
    Address(IpAddr),
}

/// Why a token cannot be used. The texts are shown to its owner, who wrote all that is in them.
#[derive(Debug, Error)]
pub(super) enum ReadToken {
    #[error("the token's url is longer than {MAX_URL} characters")]
    LimitUrl,
    #[error("the token's url cannot be read: {0}")]
    ParseUrl(#[from] url::ParseError),
    #[error("token url scheme must be https")]
    RequireHttps,
    #[error("the token's url may hold no user name and no password")]
    RefuseUser,
    #[error("the token's url names no host that could have a certificate")]
    NameHost(#[from] InvalidDnsNameError),
    #[error("token does not have a CA")]
    FindCa,
    #[error("the token's ca cannot be used: {0}")]
    ReadCa(String),
    #[error("the token has no code, or one longer than {MAX_CODE} bytes")]
    LimitCode,
    #[error("TLS cannot be had: {0}")]
    StartTls(#[from] rustls::Error),
}

impl Target {
    /// Reads what a token says; certificates are judged by `clock`.
    pub(super) fn parse(url: &str, ca: &str, code: &str, clock: &Clock) -> Result<Self, ReadToken> {
        if code.is_empty() || code.len() > MAX_CODE {
            return Err(ReadToken::LimitCode);
        }
        if url.len() > MAX_URL {
            return Err(ReadToken::LimitUrl);
        }
        let url = Url::parse(url)?;
        if url.scheme() != "https" {
            return Err(ReadToken::RequireHttps);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(ReadToken::RefuseUser);
        }
        let (host, server_name) = match url.host().ok_or(url::ParseError::EmptyHost)? {
            Host::Domain(name) => {
                let server_name = ServerName::try_from(name.to_owned())?;
                (TargetHost::Name(name.to_owned()), server_name)
            }
            Host::Ipv4(address) => of_address(address.into()),
            Host::Ipv6(address) => of_address(address.into()),
        };
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        Ok(Self {
            authority: url.authority().to_owned(),
            host,
            port: url.port().unwrap_or(443),
            path,
            server_name,
            tls: Arc::new(tls(ca, clock)?),
        })
    }
}

fn of_address(address: IpAddr) -> (TargetHost, ServerName<'static>) {
    (
        TargetHost::Address(address),
        ServerName::IpAddress(address.into()),
    )
}

/// TLS 1.3, and the token's CA is the only one there is.
fn tls(ca: &str, clock: &Clock) -> Result<ClientConfig, ReadToken> {
    if ca.trim().is_empty() {
        return Err(ReadToken::FindCa);
    }
    let mut roots = RootCertStore::empty();
    let found =
        certificates("ca", ca.as_bytes()).map_err(|error| ReadToken::ReadCa(error.to_string()))?;
    for certificate in found {
        roots.add(certificate).map_err(|_| {
            ReadToken::ReadCa("one of its certificates cannot be a trust anchor".to_owned())
        })?;
    }
    let (provider, clock) = (Arc::new(default_provider()), Arc::new(clock.clone()));
    let mut tls = ClientConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Each redemption is a conversation of its own.
    tls.resumption = Resumption::disabled();
    Ok(tls)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn ca() -> String {
        let key = KeyPair::generate().unwrap();
        CertificateParams::new([])
            .unwrap()
            .self_signed(&key)
            .unwrap()
            .pem()
    }

    fn error(url: &str, ca: &str, code: &str) -> String {
        Target::parse(url, ca, code, &Clock::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_url_of_a_grant_is_taken_apart() {
        let target = Target::parse(
            "https://a.example:9090/the-uid?x=1#y",
            &ca(),
            "c",
            &Clock::default(),
        )
        .unwrap();
        assert_eq!(target.authority, "a.example:9090");
        assert_eq!(target.host, TargetHost::Name("a.example".to_owned()));
        assert_eq!((target.port, target.path.as_str()), (9090, "/the-uid?x=1"));
        let target =
            Target::parse("https://[2001:db8::1]/u", &ca(), "c", &Clock::default()).unwrap();
        assert_eq!(
            target.host,
            TargetHost::Address("2001:db8::1".parse().unwrap())
        );
        assert_eq!(
            (target.port, target.authority.as_str()),
            (443, "[2001:db8::1]")
        );
    }

    #[test]
    fn what_is_wrong_with_a_token_is_said() {
        let ca = ca();
        assert_eq!(
            error("http://a/u", &ca, "c"),
            "token url scheme must be https"
        );
        assert_eq!(
            error("https://", &ca, "c"),
            "the token's url cannot be read: empty host"
        );
        assert_eq!(
            error("https://u:p@a/u", &ca, "c"),
            "the token's url may hold no user name and no password"
        );
        assert_eq!(error("https://a/u", " ", "c"), "token does not have a CA");
        assert_eq!(
            error("https://a/u", "junk", "c"),
            "the token's ca cannot be used: ca holds no certificate in PEM"
        );
        assert_eq!(
            error("https://a/u", &ca, ""),
            "the token has no code, or one longer than 1024 bytes"
        );
        assert!(error(&format!("https://a/{}", "x".repeat(3000)), &ca, "c").contains("2048"));
    }

    #[test]
    fn an_address_in_disguise_is_an_address() {
        for disguise in ["https://2130706433/", "https://0x7f.1/", "https://127.1/"] {
            let target = Target::parse(disguise, &ca(), "c", &Clock::default()).unwrap();
            assert_eq!(
                target.host,
                TargetHost::Address("127.0.0.1".parse().unwrap()),
                "{disguise}"
            );
        }
    }
}
