//! Which addresses may the operator be made to dial?
//!
//! Whoever may write an AccessToken chooses an address that the operator then connects to, from where the operator
//! stands. Private networks have to be allowed, since sites are linked over them. What is never a grant server is not
//! dialled: this machine, its link, groups, no address at all, and the API server's own addresses *and ports* (an
//! address alone is the node's in small clusters). The check is made on addresses, after the look-up, and the
//! address that was checked is the one that is dialled.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hyper::Uri;
use tokio::net::lookup_host;

use super::Policy;
use super::api_server::look_up;
use super::target::{Target, TargetHost};

/// The most addresses of one name that are tried.
const ADDRESSES: usize = 8;

/// Why there is nothing to dial.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FindAddress {
    /// The name has no address now.
    LookUp,
    /// All its addresses are refused.
    Refuse,
}

/// The addresses to dial, in the order of the look-up.
pub(super) async fn addresses(
    target: &Target,
    policy: &Policy,
    api_servers: &[Uri],
) -> Result<Vec<SocketAddr>, FindAddress> {
    let found: Vec<SocketAddr> = match &target.host {
        TargetHost::Address(address) => vec![SocketAddr::new(*address, target.port)],
        TargetHost::Name(name) => lookup_host((name.as_str(), target.port))
            .await
            .map_err(|_| FindAddress::LookUp)?
            .take(ADDRESSES)
            .collect(),
    };
    if found.is_empty() {
        return Err(FindAddress::LookUp);
    }
    let mut taken = Vec::new();
    for uri in policy.api_server.iter().chain(api_servers) {
        taken.extend(look_up(uri).await);
    }
    let allowed: Vec<SocketAddr> = found
        .into_iter()
        .filter(|address| {
            is_allowed(address.ip(), policy.allow_loopback)
                && !taken.iter().any(|taken| is_same(*taken, *address))
        })
        .collect();
    if allowed.is_empty() {
        Err(FindAddress::Refuse)
    } else {
        Ok(allowed)
    }
}

fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    one.ip().to_canonical() == other.ip().to_canonical() && one.port() == other.port()
}

fn is_allowed(address: IpAddr, allow_loopback: bool) -> bool {
    match address {
        IpAddr::V4(address) => is_allowed_v4(address, allow_loopback),
        IpAddr::V6(address) => match inner(address) {
            Some(inner) => is_allowed_v4(inner, allow_loopback),
            None => {
                (allow_loopback || !address.is_loopback())
                    && !address.is_unicast_link_local()
                    && !address.is_multicast()
                    && !address.is_unspecified()
            }
        },
    }
}

fn is_allowed_v4(address: Ipv4Addr, allow_loopback: bool) -> bool {
    let [first, ..] = address.octets();
    (allow_loopback || !address.is_loopback())
        && !address.is_link_local()
        && !address.is_multicast()
        && !address.is_broadcast()
        // "This network" (RFC 1122 §3.2.1.3), which some systems take for this machine.
        && first != 0
}

/// The IPv4 address that an IPv6 address stands for: mapped (RFC 4291 §2.5.5), by NAT64 (RFC 6052) or 6to4
/// (RFC 3056).
fn inner(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let of = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(of(high, low))
        }
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn what_is_never_a_grant_server_is_not_dialled() {
        for refused in [
            "127.0.0.1",
            "127.8.9.1",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(!is_allowed(refused.parse().unwrap(), false), "{refused}");
        }
        for allowed in [
            "10.0.0.1",
            "192.168.1.1",
            "203.0.113.7",
            "fd00::1",
            "2001:db8::1",
        ] {
            assert!(is_allowed(allowed.parse().unwrap(), false), "{allowed}");
        }
        assert!(is_allowed("127.0.0.1".parse().unwrap(), true));
        assert!(!is_allowed("169.254.0.1".parse().unwrap(), true));
    }

    #[tokio::test]
    async fn the_api_server_is_refused_by_address_and_port() {
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = rcgen::CertificateParams::new([])
            .unwrap()
            .self_signed(&key)
            .unwrap()
            .pem();
        let found = async |url: &str, api_server: &str| {
            let target = Target::parse(url, &ca, "c", &Clock::default()).unwrap();
            let api_server = Some(api_server.parse().unwrap());
            addresses(
                &target,
                &Policy {
                    allow_loopback: false,
                    api_server,
                },
                &["https://10.9.9.9:6443".parse().unwrap()],
            )
            .await
        };
        let api_server = "https://10.1.2.3:6443";
        assert_eq!(
            found("https://10.1.2.3:6443/u", api_server).await,
            Err(FindAddress::Refuse)
        );
        assert_eq!(
            found("https://[::ffff:10.1.2.3]:6443/u", api_server).await,
            Err(FindAddress::Refuse)
        );
        let other = "10.1.2.3:9090".parse().unwrap();
        assert_eq!(
            found("https://10.1.2.3:9090/u", api_server).await,
            Ok(vec![other])
        );
        // Behind that one is another.
        assert_eq!(
            found("https://10.9.9.9:6443/u", api_server).await,
            Err(FindAddress::Refuse)
        );
        assert!(found("https://10.9.9.9/u", api_server).await.is_ok());
        assert_eq!(
            found("https://10.1.2.3/u", "https://10.1.2.3").await,
            Err(FindAddress::Refuse)
        );
    }

    #[tokio::test]
    async fn a_name_is_judged_by_its_addresses() {
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = rcgen::CertificateParams::new([])
            .unwrap()
            .self_signed(&key)
            .unwrap()
            .pem();
        let target = Target::parse("https://localhost:1/u", &ca, "c", &Clock::default()).unwrap();
        assert_eq!(
            addresses(&target, &Policy::default(), &[]).await,
            Err(FindAddress::Refuse)
        );
        let open = Policy {
            allow_loopback: true,
            api_server: None,
        };
        assert!(!addresses(&target, &open, &[]).await.unwrap().is_empty());
    }
}
