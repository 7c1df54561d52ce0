//! Links between two routers.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::pki::{Ca, Leaf};
use crate::program::{Router, free_port, programs};

/// Two routers with credentials of one CA, and a management client on each.
pub(crate) struct Pair {
    pub(crate) a: Router,
    pub(crate) b: Router,
    pub(crate) on_a: Client,
    pub(crate) on_b: Client,
    pub(crate) port: u16,
    pub(crate) ca: Ca,
}

/// Where a profile's files are.
pub(crate) fn profile(folder: &str) -> Value {
    json!({
        "caCertFile": format!("{folder}/ca.crt"),
        "certFile": format!("{folder}/tls.crt"),
        "privateKeyFile": format!("{folder}/tls.key"),
    })
}

impl Pair {
    /// Started, listening on `a`, not yet linked.
    pub(crate) async fn start(program: &crate::program::Program) -> Self {
        let ca = Ca::new("pair");
        let (a, b) = (program.start("site-a"), program.start("site-b"));
        ca.issue(a.path("server").as_ref(), "server", Leaf::Good);
        ca.issue(b.path("client").as_ref(), "skupper-client", Leaf::Good);
        let (mut on_a, on_b) = (Client::open(a.amqp).await, Client::open(b.amqp).await);
        let port = free_port();
        let reply = on_a
            .create("sslProfile", "server", profile(&a.path("server")))
            .await;
        assert_eq!(reply.status, 201, "{reply:?}");
        let listener = json!({"role": "inter-router", "host": "127.0.0.1", "port": port,
            "sslProfile": "server", "saslMechanisms": "EXTERNAL", "authenticatePeer": true});
        let reply = on_a.create("listener", "inter-router", listener).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        Self {
            a,
            b,
            on_a,
            on_b,
            port,
            ca,
        }
    }

    /// Makes profile and connector on `b`.
    pub(crate) async fn dial(&mut self) {
        let folder = self.b.path("client");
        let reply = self
            .on_b
            .create("sslProfile", "client", profile(&folder))
            .await;
        assert_eq!(reply.status, 201, "{reply:?}");
        let reply = self
            .on_b
            .create("connector", "to-a", self.connector())
            .await;
        assert_eq!(reply.status, 201, "{reply:?}");
    }

    pub(crate) fn connector(&self) -> Value {
        json!({"role": "inter-router", "host": "127.0.0.1", "port": self.port.to_string(),
            "cost": 1, "sslProfile": "client"})
    }
}

#[tokio::test]
async fn two_routers_link_over_tls_with_client_certificates() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        pair.dial().await;
        let took = pair
            .on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(5))
            .await;
        assert!(took > Duration::from_millis(300), "too quick: {took:?}");
        pair.on_a
            .wait_for_neighbours(&["site-b"], Duration::from_secs(2))
            .await;
    }
}

/// Waits until a claim is true, at most this many milliseconds.
pub(crate) async fn eventually(claim: &str, limit: u64, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_millis(limit);
    while !holds().await {
        assert!(
            std::time::Instant::now() < deadline,
            "not within {limit} ms: {claim}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
