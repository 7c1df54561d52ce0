//! Is a listener's port open?
//!
//! The router answers 201 to a listener whose port it cannot have, and lists it; only its log
//! tells. So the port is looked at before, when it must be closed, and after, when it must be open
//! (`facts/router.md` §2). Router and adaptor share a network namespace, so its table of sockets
//! tells; to connect would leave an error in the router's log for each listener with TLS.

use spanwire_router::entity::Listener;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// A connection on this machine is made or refused sooner.
const DEADLINE: Duration = Duration::from_millis(250);

/// Pauses before each look at a port that should open: a router opens it before it answers.
const PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(40),
    Duration::from_millis(150),
    Duration::from_millis(300),
];

/// Whether somebody listens there already.
pub(crate) async fn is_taken(listener: &Listener) -> bool {
    is_open(listener).await
}

/// Whether the router listens there now.
pub(crate) async fn opens(listener: &Listener) -> bool {
    for pause in PAUSES {
        sleep(pause).await;
        if is_open(listener).await {
            return true;
        }
    }
    false
}

async fn is_open(listener: &Listener) -> bool {
    match Ports::read() {
        Some(ports) => ports.have(listener),
        None => connects(listener).await,
    }
}

/// The ports on which somebody listens, as the kernel's tables tell.
pub(crate) struct Ports(Vec<(IpAddr, u16)>);

impl Ports {
    /// None where the tables cannot be read.
    pub(crate) fn read() -> Option<Self> {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
        if tables.iter().all(Result::is_err) {
            return None;
        }
        let tables = tables.iter().flatten();
        Some(Self(
            tables
                .flat_map(|table| table.lines().filter_map(listening))
                .collect(),
        ))
    }

    /// Whether somebody listens where a listener is to.
    pub(crate) fn have(&self, listener: &Listener) -> bool {
        let host = host(listener);
        self.0.iter().any(|(address, port)| {
            let is_there = address.is_unspecified() || host.is_none_or(|host| host == *address);
            *port == listener.port && is_there
        })
    }
}

/// The address that a listener asks for, if it asks for one.
fn host(listener: &Listener) -> Option<IpAddr> {
    let host = listener.host.as_deref()?.trim_matches(['[', ']']);
    let address = host.parse::<IpAddr>().ok()?.to_canonical();
    (!address.is_unspecified()).then_some(address)
}

/// A line of the kernel's table, if it is of a socket that listens:
/// `0: 0100007F:1F90 00000000:0000 0A …`, each word of the address in this machine's byte order.
fn listening(line: &str) -> Option<(IpAddr, u16)> {
    const LISTEN: &str = "0A";
    let mut words = line.split_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    if words.nth(1)? != LISTEN {
        return None;
    }
    let words = address.as_bytes().chunks(8).map(|word| {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        Some(word.to_ne_bytes())
    });
    let words: Vec<[u8; 4]> = words.collect::<Option<_>>()?;
    let address: IpAddr = match words.as_flattened() {
        [a, b, c, d] => Ipv4Addr::new(*a, *b, *c, *d).into(),
        bytes => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
    };
    Some((address.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

/// Whether somebody takes a connection there, where the kernel's tables cannot be read.
async fn connects(listener: &Listener) -> bool {
    let host = host(listener).unwrap_or(Ipv4Addr::LOCALHOST.into());
    let connection = TcpStream::connect((host, listener.port));
    matches!(timeout(DEADLINE, connection).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    #[test]
    fn a_socket_that_listens_is_told_from_others() {
        let line =
            |address: &str, state: &str| format!("0: {address} 00000000:0000 {state} 00000000");
        let found = |line: String| listening(&line);
        let loopback = (IpAddr::from(Ipv4Addr::LOCALHOST), 8080);
        assert_eq!(found(line("0100007F:1F90", "0A")), Some(loopback));
        assert_eq!(found(line("0100007F:1F90", "01")), None);
        let mapped = "0000000000000000FFFF00000100007F:1F90";
        assert_eq!(found(line(mapped, "0A")), Some(loopback));
        let any = (IpAddr::from(Ipv6Addr::UNSPECIFIED), 8080);
        assert_eq!(
            found(line("00000000000000000000000000000000:1F90", "0A")),
            Some(any)
        );
        assert_eq!(listening("  sl  local_address rem_address   st"), None);
    }

    #[tokio::test]
    async fn a_port_is_open_where_somebody_listens_for_this_address() {
        let somebody = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = somebody.local_addr().unwrap().port();
        let at = |host: Option<&str>| Listener {
            host: host.map(str::to_owned),
            port,
            ..Listener::default()
        };
        for host in [
            None,
            Some(""),
            Some("0.0.0.0"),
            Some("::"),
            Some("127.0.0.1"),
        ] {
            assert!(is_taken(&at(host)).await, "{host:?}");
        }
        assert!(!is_taken(&at(Some("127.0.0.2"))).await);
        assert!(connects(&at(None)).await);

        // A port that is somebody's who does not listen yet.
        let quiet = TcpSocket::new_v4().unwrap();
        quiet.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = quiet.local_addr().unwrap().port();
        let there = Listener {
            port,
            ..Listener::default()
        };
        assert!(!is_taken(&there).await && !connects(&there).await);
    }
}
