//! Is a listener's port open?
//!
//! The router answers 201 to a listener whose port it cannot have, and lists it; only its log
//! tells. So the port is looked at before, when it must be closed, and after, when it must be open
//! (`facts/router.md` §2).

use spanwire_router::entity::Listener;
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
    let host = match listener.host.as_deref() {
        None | Some("" | "0.0.0.0") => "127.0.0.1",
        Some("::" | "[::]") => "::1",
        Some(host) => host,
    };
    matches!(
        timeout(DEADLINE, TcpStream::connect((host, listener.port))).await,
        Ok(Ok(_))
    )
}
