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

#[tokio::test]
async fn a_link_is_three_connections_on_both_sides() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        pair.dial().await;
        let on_b = &mut pair.on_b;
        eventually("three connections", 3000, async || {
            on_b.links("inter-router").await.len() == 1
                && on_b.links("inter-router-data").await.len() == 2
        })
        .await;
        let out = pair.on_b.links("inter-router").await.remove(0);
        let host = format!("127.0.0.1:{}", pair.port);
        for (name, value) in [
            ("container", json!("site-a")),
            ("dir", json!("out")),
            ("host", json!(host)),
            ("name", json!(format!("connection/{host}"))),
            ("opened", json!(true)),
            ("operStatus", json!("up")),
            ("adminStatus", json!("enabled")),
            ("ssl", json!(true)),
            ("isEncrypted", json!(true)),
            ("isAuthenticated", json!(true)),
            ("sslProto", json!("TLSv1.3")),
            ("sslCipher", json!("TLS_AES_256_GCM_SHA384")),
            ("sasl", json!("EXTERNAL")),
            ("user", Value::Null),
            ("tlsOrdinal", json!(0)),
        ] {
            assert_eq!(out[name], value, "{name}");
        }
        assert_eq!(out["properties"]["product"], "skupper-router");
        assert!(out["properties"]["version"].is_string());
        assert!(out["properties"]["qd.access-id"].is_string());

        let into = pair.on_a.links("inter-router").await.remove(0);
        for (name, value) in [
            ("container", json!("site-b")),
            ("dir", json!("in")),
            ("user", json!("CN=skupper-client")),
            ("sasl", json!("EXTERNAL")),
            ("tlsOrdinal", json!(0)),
        ] {
            assert_eq!(into[name], value, "{name}");
        }
        let host = into["host"].as_str().unwrap();
        assert!(
            host.starts_with("127.0.0.1:") && !host.ends_with(&pair.port.to_string()),
            "{host}"
        );
        assert_eq!(pair.on_a.links("inter-router-data").await.len(), 2);
        let connector = pair.on_b.entity("connector", "to-a").await.unwrap();
        assert_eq!(connector["connectionStatus"], "SUCCESS");
        assert_eq!(
            connector["failoverUrls"],
            format!("amqp://127.0.0.1:{}", pair.port)
        );
        let message = connector["connectionMsg"].as_str().unwrap();
        assert!(message.contains("Connection Opened: dir=out"), "{message}");
        assert!(message.contains("container_id=site-a"), "{message}");
        let node = pair.on_b.query("router.node").await;
        assert!(
            node.iter()
                .all(|node| node["id"] != "site-a" || node["cost"] == 1),
            "{node:?}"
        );
    }
}

#[tokio::test]
async fn a_silent_port_counts_as_success() {
    for program in programs() {
        let router = program.start("site-b");
        let mut client = Client::open(router.amqp).await;
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let connector = json!({"role": "inter-router", "host": "127.0.0.1", "port": port});
        client.create("connector", "c", connector).await;
        let _accepted = silent.accept().await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let connector = client.entity("connector", "c").await.unwrap();
        assert_eq!(connector["connectionStatus"], "SUCCESS");
        assert_eq!(connector["connectionMsg"], "");
        assert!(client.links("inter-router").await.is_empty());
    }
}

/// `connectionMsg` once the connector between tries says CONNECTING.
async fn failure(client: &mut Client, name: &str) -> String {
    let mut message = String::new();
    eventually("it has failed", 4000, async || {
        let connector = client.entity("connector", name).await.unwrap();
        connector["connectionMsg"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut message);
        connector["connectionStatus"] == "CONNECTING" && !message.is_empty()
    })
    .await;
    message
}

#[tokio::test]
async fn a_port_without_a_listener_and_a_name_without_an_address_are_told_apart() {
    for program in programs() {
        let router = program.start("site-b");
        let mut client = Client::open(router.amqp).await;
        let port = free_port();
        let connector = json!({"role": "inter-router", "host": "127.0.0.1", "port": port});
        client.create("connector", "nobody", connector).await;
        let message = failure(&mut client, "nobody").await;
        let wanted = format!(
            "Connection to 127.0.0.1:{port} failed: proton:io Connection refused - disconnected 127.0.0.1:{port}"
        );
        assert_eq!(message, wanted);
        let connector = json!({"role": "inter-router", "host": "no.such.invalid", "port": port});
        client.create("connector", "nameless", connector).await;
        let message = failure(&mut client, "nameless").await;
        assert!(message.contains("failed: proton:io "), "{message}");
        assert!(
            message.contains(&format!(" - connect to  no.such.invalid:{port}")),
            "{message}"
        );
    }
}

/// What is wrong, and what the connector says of it.
#[tokio::test]
async fn faults_of_tls_in_the_words_of_the_connector() {
    const UNTRUSTED: &str = "0A000086:SSL routines::certificate verify failed";
    for program in programs() {
        for (fault, wanted) in [
            ("connector trusts another CA", UNTRUSTED),
            ("server certificate expired", UNTRUSTED),
            ("host name does not match", UNTRUSTED),
            ("address in the certificate is no name", UNTRUSTED),
            (
                "client certificate of another CA",
                "0A000418:SSL routines::tlsv1 alert unknown ca",
            ),
            (
                "client certificate expired",
                "0A000415:SSL routines::sslv3 alert certificate expired",
            ),
            (
                "no client certificate",
                "0A00045C:SSL routines::tlsv13 alert certificate required",
            ),
        ] {
            let mut pair = Pair::start(&program).await;
            let other = Ca::new("other");
            let (server, client) = (pair.a.path("server"), pair.b.path("client"));
            let reissue = |leaf| pair.ca.issue(server.as_ref(), "server", leaf);
            let mut connector = pair.connector();
            match fault {
                "connector trusts another CA" => {
                    std::fs::write(format!("{client}/ca.crt"), other.pem()).unwrap();
                }
                "client certificate of another CA" => {
                    other.issue(client.as_ref(), "skupper-client", Leaf::Good);
                    std::fs::write(format!("{client}/ca.crt"), pair.ca.pem()).unwrap();
                }
                "client certificate expired" => {
                    pair.ca
                        .issue(client.as_ref(), "skupper-client", Leaf::Expired);
                }
                "server certificate expired" => reissue(Leaf::Expired),
                "host name does not match" => reissue(Leaf::ForHost("elsewhere.example")),
                "address in the certificate is no name" => reissue(Leaf::ForAddressOnly),
                _ => {}
            }
            pair.on_a.update("sslProfile", "server", json!({})).await;
            let files = match fault {
                "no client certificate" => json!({"caCertFile": format!("{client}/ca.crt")}),
                _ => profile(&client),
            };
            pair.on_b.create("sslProfile", "client", files).await;
            connector["sslProfile"] = "client".into();
            pair.on_b.create("connector", "to-a", connector).await;
            let message = failure(&mut pair.on_b, "to-a").await;
            let wanted = format!(
                "Connection to 127.0.0.1:{} failed: amqp:connection:framing-error SSL Failure: error:{wanted}",
                pair.port
            );
            assert_eq!(message, wanted, "{fault}");
            assert!(pair.on_b.links("inter-router").await.is_empty(), "{fault}");
        }
    }
}

#[tokio::test]
async fn without_host_verification_the_chain_alone_counts() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        pair.ca.issue(
            pair.a.path("server").as_ref(),
            "server",
            Leaf::ForAddressOnly,
        );
        pair.on_a.update("sslProfile", "server", json!({})).await;
        pair.on_b
            .create("sslProfile", "client", profile(&pair.b.path("client")))
            .await;
        let mut connector = pair.connector();
        connector["verifyHostname"] = false.into();
        pair.on_b.create("connector", "to-a", connector).await;
        pair.on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(5))
            .await;
    }
}

#[tokio::test]
async fn an_address_as_common_name_is_a_host_name() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        pair.ca.issue(
            pair.a.path("server").as_ref(),
            "127.0.0.1",
            Leaf::ForAddressOnly,
        );
        pair.on_a.update("sslProfile", "server", json!({})).await;
        pair.dial().await;
        pair.on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(5))
            .await;
    }
}

#[tokio::test]
async fn a_plain_connector_gets_nowhere_with_a_tls_listener() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        let mut connector = pair.connector();
        connector.as_object_mut().unwrap().remove("sslProfile");
        pair.on_b.create("connector", "to-a", connector).await;
        let message = failure(&mut pair.on_b, "to-a").await;
        let wanted = "failed: amqp:unauthorized-access Authentication failed [mech=none]";
        assert!(message.ends_with(wanted), "{message}");
    }
}

#[tokio::test]
async fn a_dead_peer_is_gone_at_once_and_dialled_after_two_seconds() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        pair.dial().await;
        pair.on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(5))
            .await;
        let message = async |client: &mut Client| {
            let connector = client.entity("connector", "to-a").await.unwrap();
            connector["connectionMsg"].as_str().unwrap().to_owned()
        };
        pair.a.signal("KILL");
        let took = pair
            .on_b
            .wait_for_neighbours(&[], Duration::from_secs(1))
            .await;
        assert!(took < Duration::from_millis(500), "{took:?}");
        assert!(pair.on_b.links("inter-router").await.is_empty());
        let nodes = pair.on_b.query("router.node").await;
        assert!(
            nodes.iter().any(|node| node["id"] == "site-a"),
            "its node stays: {nodes:?}"
        );
        let first = message(&mut pair.on_b).await;
        assert!(first.contains("unexpected eof while reading"), "{first}");
        let begun = std::time::Instant::now();
        let on_b = &mut pair.on_b;
        eventually("it is dialled", 4000, async || {
            message(on_b).await.contains("Connection refused")
        })
        .await;
        let took = begun.elapsed();
        assert!(took > Duration::from_millis(1300), "dialled after {took:?}");
    }
}

#[tokio::test]
async fn a_silent_peer_is_no_neighbour_after_three_seconds_and_closed_after_sixteen() {
    let at_once = programs().into_iter().map(|program| async move {
        let mut pair = Pair::start(&program).await;
        pair.dial().await;
        pair.on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(5))
            .await;
        pair.a.signal("STOP");
        let took = pair
            .on_b
            .wait_for_neighbours(&[], Duration::from_secs(6))
            .await;
        assert!(took > Duration::from_millis(1500), "{took:?}");
        assert_eq!(
            pair.on_b.links("inter-router").await.len(),
            1,
            "its row stays"
        );
        let begun = std::time::Instant::now();
        let on_b = &mut pair.on_b;
        eventually("the row goes", 20_000, async || {
            on_b.links("inter-router").await.is_empty()
        })
        .await;
        assert!(
            begun.elapsed() > Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
        let connector = pair.on_b.entity("connector", "to-a").await.unwrap();
        let message = connector["connectionMsg"].as_str().unwrap();
        assert!(
            message.ends_with("amqp:resource-limit-exceeded local-idle-timeout expired"),
            "{message}"
        );
        pair.a.signal("CONT");
    });
    futures::future::join_all(at_once).await;
}

#[tokio::test]
async fn a_router_of_the_same_id_is_no_neighbour() {
    for program in programs() {
        let (a, b) = (program.start("twin"), program.start("twin"));
        let (mut on_a, mut on_b) = (Client::open(a.amqp).await, Client::open(b.amqp).await);
        let port = free_port();
        let listener = json!({"role": "inter-router", "host": "127.0.0.1", "port": port});
        on_a.create("listener", "l", listener).await;
        let connector = json!({"role": "inter-router", "host": "127.0.0.1", "port": port});
        on_b.create("connector", "c", connector).await;
        let wanted = "ROUTER_HELLO (critical) Detected Neighbor Router with a Duplicate ID - twin";
        eventually("it is logged", 4000, async || b.log().contains(wanted)).await;
        let connector = on_b.entity("connector", "c").await.unwrap();
        assert_eq!(connector["connectionStatus"], "SUCCESS");
        assert!(on_b.link_state().await.is_empty());
    }
}

#[tokio::test]
async fn two_connectors_to_one_router_are_accepted() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        pair.dial().await;
        let reply = pair
            .on_b
            .create("connector", "again", pair.connector())
            .await;
        assert_eq!(reply.status, 201, "{reply:?}");
        let on_b = &mut pair.on_b;
        eventually("both are open", 3000, async || {
            on_b.links("inter-router").await.len() == 2
        })
        .await;
        pair.on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(5))
            .await;
    }
}

#[tokio::test]
async fn deleting_a_connector_closes_its_connections_at_once() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        pair.dial().await;
        pair.on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(5))
            .await;
        assert_eq!(pair.on_b.delete("connector", "to-a").await.status, 204);
        let on_b = &mut pair.on_b;
        eventually("its rows go", 1000, async || {
            on_b.links("inter-router").await.is_empty()
        })
        .await;
        pair.on_b
            .wait_for_neighbours(&[], Duration::from_secs(1))
            .await;
        let reply = pair
            .on_b
            .create("connector", "to-a", pair.connector())
            .await;
        assert_eq!(reply.status, 201, "{reply:?}");
        let on_b = &mut pair.on_b;
        eventually("it is open again", 1000, async || {
            !on_b.links("inter-router").await.is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn deleting_a_listener_leaves_its_links() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        pair.dial().await;
        pair.on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(5))
            .await;
        assert_eq!(
            pair.on_a.delete("listener", "inter-router").await.status,
            204
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(pair.on_b.link_state().await, ["site-a"]);
        assert!(!crate::program::is_open(pair.port));
    }
}

#[tokio::test]
async fn an_edge_router_has_a_row_and_no_neighbour() {
    for program in programs() {
        let a = program.start("site-a");
        let edge = program.start_with("edge-1", "edge", |_, _| {});
        let (mut on_a, mut on_edge) = (Client::open(a.amqp).await, Client::open(edge.amqp).await);
        let port = free_port();
        let listener = json!({"role": "edge", "host": "127.0.0.1", "port": port});
        assert_eq!(
            on_a.create("listener", "edge", listener.clone())
                .await
                .status,
            201
        );
        let reply = on_edge.create("connector", "up", listener).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        eventually("a row on each side", 3000, async || {
            on_a.links("edge").await.len() == 1 && on_edge.links("edge").await.len() == 1
        })
        .await;
        assert_eq!(on_edge.links("edge").await[0]["container"], "site-a");
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert!(on_edge.query("router.node").await.is_empty());
        assert!(on_a.link_state().await.is_empty());
        let refused = json!({"role": "inter-router", "host": "127.0.0.1", "port": port});
        assert_eq!(
            on_edge.create("connector", "wrong", refused).await.status,
            400
        );
    }
}

#[tokio::test]
async fn a_connection_between_routers_may_not_be_closed_by_management() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        pair.dial().await;
        let on_b = &mut pair.on_b;
        eventually("it is open", 3000, async || {
            !on_b.links("inter-router").await.is_empty()
        })
        .await;
        let row = pair.on_b.links("inter-router").await.remove(0);
        let identity = row["identity"].as_str().unwrap();
        let properties = [
            ("operation", "UPDATE"),
            ("type", "io.skupper.router.connection"),
            ("identity", identity),
        ];
        let body = crate::client::amqp(json!({"adminStatus": "deleted"}));
        let reply = pair.on_b.request(&properties, body).await;
        assert_eq!(reply.status, 403, "{reply:?}");
        assert_eq!(
            reply.description,
            "You are not allowed to perform this operation."
        );
    }
}

#[tokio::test]
async fn external_demands_a_client_certificate_even_where_no_authentication_is_asked_for() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        let port = free_port();
        let listener = json!({"role": "inter-router", "host": "127.0.0.1", "port": port,
            "sslProfile": "server", "saslMechanisms": "EXTERNAL", "authenticatePeer": false});
        pair.on_a.create("listener", "lax", listener).await;
        let bare = json!({"caCertFile": pair.b.path("client/ca.crt")});
        pair.on_b.create("sslProfile", "bare", bare).await;
        let mut connector = pair.connector();
        connector["port"] = port.into();
        connector["sslProfile"] = "bare".into();
        pair.on_b
            .create("connector", "without", connector.clone())
            .await;
        let message = failure(&mut pair.on_b, "without").await;
        assert!(
            message.ends_with("tlsv13 alert certificate required"),
            "{message}"
        );
        let folder = pair.b.path("client");
        pair.on_b
            .create("sslProfile", "client", profile(&folder))
            .await;
        connector["sslProfile"] = "client".into();
        pair.on_b.create("connector", "with", connector).await;
        pair.on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(5))
            .await;
    }
}
