//! New credentials, old connections.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::link::{Pair, eventually, profile};
use crate::pki::{Ca, Leaf};
use crate::program::programs;

/// The ordinals of all connections between routers, in order.
async fn ordinals(client: &mut Client) -> Vec<u64> {
    let mut found = Vec::new();
    for role in ["inter-router", "inter-router-data"] {
        let rows = client.links(role).await;
        found.extend(rows.iter().map(|row| row["tlsOrdinal"].as_u64().unwrap()));
    }
    found.sort_unstable();
    found
}

/// Linked, with all three connections open.
async fn linked(program: &crate::program::Program) -> Pair {
    let mut pair = Pair::start(program).await;
    pair.dial().await;
    pair.on_b
        .wait_for_neighbours(&["site-a"], Duration::from_secs(5))
        .await;
    let on_b = &mut pair.on_b;
    eventually("three connections", 3000, async || {
        ordinals(on_b).await == [0, 0, 0]
    })
    .await;
    pair
}

#[tokio::test]
async fn a_raised_ordinal_adds_a_set_of_connections_and_keeps_the_old() {
    for program in programs() {
        let mut pair = linked(&program).await;
        let before: Vec<Value> = pair.on_b.links("inter-router").await;

        let reply = pair
            .on_b
            .update("sslProfile", "client", json!({"ordinal": 0}))
            .await;
        assert_eq!(reply.status, 200, "the same ordinal: {reply:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(ordinals(&mut pair.on_b).await, [0, 0, 0]);

        pair.ca
            .issue(pair.b.path("next").as_ref(), "next-client", Leaf::Good);
        let mut next = profile(&pair.b.path("next"));
        next["ordinal"] = 1.into();
        assert_eq!(
            pair.on_b.update("sslProfile", "client", next).await.status,
            200
        );
        let on_b = &mut pair.on_b;
        let all = [0, 0, 0, 1, 1, 1];
        eventually("two sets", 3000, async || ordinals(on_b).await == all).await;
        let after = pair.on_b.links("inter-router").await;
        assert!(
            after
                .iter()
                .any(|row| row["identity"] == before[0]["identity"]),
            "{after:?}"
        );
        assert_eq!(pair.on_b.link_state().await, ["site-a"]);
        let users = pair.on_a.links("inter-router").await;
        assert!(
            users.iter().any(|row| row["user"] == "CN=next-client"),
            "{users:?}"
        );

        // Both numbers may be raised at once.
        let both = json!({"ordinal": 2, "oldestValidOrdinal": 2});
        assert_eq!(
            pair.on_b.update("sslProfile", "client", both).await.status,
            200
        );
        let on_b = &mut pair.on_b;
        eventually("one set", 3000, async || ordinals(on_b).await == [2, 2, 2]).await;
    }
}

#[tokio::test]
async fn raising_the_oldest_valid_ordinal_of_a_connector_leaves_no_gap() {
    for program in programs() {
        let mut pair = linked(&program).await;
        pair.on_b
            .update("sslProfile", "client", json!({"ordinal": 1}))
            .await;
        let on_b = &mut pair.on_b;
        let all = [0, 0, 0, 1, 1, 1];
        eventually("two sets", 3000, async || ordinals(on_b).await == all).await;
        // The new set must have made the neighbour too.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let oldest = json!({"oldestValidOrdinal": 1});
        assert_eq!(
            pair.on_b
                .update("sslProfile", "client", oldest)
                .await
                .status,
            200
        );
        let on_b = &mut pair.on_b;
        eventually("one set", 1000, async || ordinals(on_b).await == [1, 1, 1]).await;
        for _ in 0..20 {
            assert_eq!(pair.on_b.link_state().await, ["site-a"]);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn on_the_listener_a_raised_ordinal_is_for_new_connections() {
    for program in programs() {
        let mut pair = linked(&program).await;
        let reply = pair
            .on_a
            .update("sslProfile", "server", json!({"ordinal": 3}))
            .await;
        assert_eq!(reply.status, 200, "{reply:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(ordinals(&mut pair.on_a).await, [0, 0, 0]);
        let mut second = pair.connector();
        second["role"] = "inter-router".into();
        pair.on_b.create("connector", "second", second).await;
        let on_a = &mut pair.on_a;
        let all = [0, 0, 0, 3, 3, 3];
        eventually("new ones are marked", 3000, async || {
            ordinals(on_a).await == all
        })
        .await;
    }
}

#[tokio::test]
async fn raising_the_oldest_valid_ordinal_of_a_listener_cuts_the_link_for_two_seconds() {
    for program in programs() {
        let mut pair = linked(&program).await;
        let both = json!({"ordinal": 1, "oldestValidOrdinal": 1});
        assert_eq!(
            pair.on_a.update("sslProfile", "server", both).await.status,
            200
        );
        pair.on_b
            .wait_for_neighbours(&[], Duration::from_secs(1))
            .await;
        let took = pair
            .on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(8))
            .await;
        assert!(took > Duration::from_millis(1500), "back after {took:?}");
        let on_a = &mut pair.on_a;
        eventually("only new ones", 3000, async || {
            ordinals(on_a).await == [1, 1, 1]
        })
        .await;
    }
}

#[tokio::test]
async fn credentials_that_the_peer_does_not_trust_fail_beside_a_link_that_works() {
    for program in programs() {
        let mut pair = linked(&program).await;
        let stranger = pair.b.path("stranger");
        Ca::new("stranger").issue(stranger.as_ref(), "stranger", Leaf::Good);
        // It still trusts the right CA; only its own certificate is a stranger's.
        std::fs::write(format!("{stranger}/ca.crt"), pair.ca.pem()).unwrap();
        let mut next = profile(&stranger);
        next["ordinal"] = 1.into();
        assert_eq!(
            pair.on_b.update("sslProfile", "client", next).await.status,
            200
        );
        let on_b = &mut pair.on_b;
        eventually("it fails", 8000, async || {
            let connector = on_b.entity("connector", "to-a").await.unwrap();
            connector["connectionStatus"] == "CONNECTING"
                && connector["connectionMsg"]
                    .as_str()
                    .unwrap()
                    .contains("SSL Failure")
        })
        .await;
        assert_eq!(pair.on_b.link_state().await, ["site-a"]);
        assert_eq!(ordinals(&mut pair.on_b).await, [0, 0, 0]);
    }
}

#[tokio::test]
async fn files_are_read_again_only_by_an_update() {
    for program in programs() {
        let mut pair = Pair::start(&program).await;
        // A client certificate that is loaded without complaint and that the peer refuses.
        let folder = pair.b.path("client");
        pair.ca
            .issue(folder.as_ref(), "skupper-client", Leaf::Expired);
        pair.dial().await;
        let on_b = &mut pair.on_b;
        eventually("refused", 3000, async || {
            let connector = on_b.entity("connector", "to-a").await.unwrap();
            connector["connectionStatus"] == "CONNECTING"
        })
        .await;
        pair.ca.issue(folder.as_ref(), "skupper-client", Leaf::Good);
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(
            pair.on_b.link_state().await.is_empty(),
            "the repair alone does not help"
        );
        assert_eq!(
            pair.on_b
                .update("sslProfile", "client", json!({}))
                .await
                .status,
            200
        );
        pair.on_b
            .wait_for_neighbours(&["site-a"], Duration::from_secs(9))
            .await;
    }
}

#[tokio::test]
async fn an_old_set_is_not_dialled_again() {
    for program in programs() {
        let mut pair = linked(&program).await;
        pair.on_b
            .update("sslProfile", "client", json!({"ordinal": 1}))
            .await;
        let on_b = &mut pair.on_b;
        let all = [0, 0, 0, 1, 1, 1];
        eventually("two sets", 3000, async || ordinals(on_b).await == all).await;
        let both = json!({"ordinal": 1, "oldestValidOrdinal": 1});
        pair.on_a.update("sslProfile", "server", both).await;
        let on_b = &mut pair.on_b;
        eventually("all closed", 1000, async || ordinals(on_b).await.is_empty()).await;
        eventually("the new set is back", 4000, async || {
            ordinals(on_b).await == [1, 1, 1]
        })
        .await;
    }
}

#[tokio::test]
async fn an_orphan_keeps_its_old_credentials() {
    for program in programs() {
        let mut pair = linked(&program).await;
        pair.on_a.delete("sslProfile", "server").await;
        assert_eq!(pair.on_b.link_state().await, ["site-a"]);
        let mut again = profile(&pair.a.path("server"));
        again["ordinal"] = 7.into();
        assert_eq!(
            pair.on_a.create("sslProfile", "server", again).await.status,
            201
        );
        let reply = pair
            .on_a
            .update("sslProfile", "server", json!({"ordinal": 8}))
            .await;
        assert_eq!(reply.status, 200);
        pair.on_b
            .create("connector", "second", pair.connector())
            .await;
        let on_a = &mut pair.on_a;
        eventually("six connections", 3000, async || {
            ordinals(on_a).await == [0; 6]
        })
        .await;
    }
}
