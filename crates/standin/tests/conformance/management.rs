//! Live management: status codes, names, types, and what is left behind.

use std::fs;
use std::path::Path;
use std::time::Duration;

use fe2o3_amqp::types::messaging::MessageId;
use fe2o3_amqp::types::primitives::{SimpleValue, Value};
use fe2o3_amqp::{Connection, Sender, Session, sasl_profile::SaslProfile};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Client, amqp, rows};
use crate::link::{eventually, profile};
use crate::pki::{Ca, Leaf};
use crate::program::{Router, free_port, is_open, programs};

/// Files of a good certificate in a folder of the router's own.
fn issue(router: &Router, folder: &str) -> String {
    let path = router.path(folder);
    Ca::new("ca").issue(path.as_ref(), "server", Leaf::Good);
    path
}

fn listener(profile: &str) -> serde_json::Value {
    json!({"role": "inter-router", "host": "127.0.0.1", "port": free_port(),
        "sslProfile": profile, "saslMechanisms": "EXTERNAL", "authenticatePeer": true})
}

#[tokio::test]
async fn a_bootstrap_without_tls_lists_its_entities() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        assert!(
            client.address.starts_with("amqp:/_topo/0/site-a/temp."),
            "{}",
            client.address
        );
        assert_eq!(client.query("router").await[0]["id"], "site-a");
        assert_eq!(client.query("listener").await.len(), 2);
        assert_eq!(client.query("log").await.len(), 23);
        assert_eq!(client.query("site").await[0]["namespace"], "ns");
        assert!(client.query("sslProfile").await.is_empty());
        let nodes = client.query("router.node").await;
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes[0]["linkState"], json!([]));
    }
}

#[tokio::test]
async fn missing_files_refuse_the_user_of_a_profile_and_leave_nothing() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let folder = router.path("late");
        assert_eq!(
            client
                .create("sslProfile", "late", profile(&folder))
                .await
                .status,
            201
        );
        let wanted = format!(
            "CError: Configuration: Failed to configure TLS caCertFile '{folder}/ca.crt' from sslProfile 'late'"
        );
        let listener = listener("late");
        let connector = json!({"role": "inter-router", "host": "127.0.0.1",
            "port": free_port(), "sslProfile": "late"});
        for (kind, attributes) in [("listener", &listener), ("connector", &connector)] {
            let reply = client.create(kind, "user", attributes.clone()).await;
            assert_eq!((reply.status, &reply.description), (500, &wanted), "{kind}");
            assert!(client.entity(kind, "user").await.is_none(), "{kind}");
        }
        let port = u16::try_from(listener["port"].as_u64().unwrap()).unwrap();
        assert!(!is_open(port));

        issue(&router, "late");
        assert_eq!(
            client.create("listener", "user", listener).await.status,
            201
        );
        eventually("the port is open", 1000, async || is_open(port)).await;
    }
}

#[tokio::test]
async fn an_unknown_profile_refuses_its_user() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        for kind in ["listener", "connector", "tcpListener", "tcpConnector"] {
            let mut user = json!({"host": "127.0.0.1", "port": free_port().to_string(),
                "sslProfile": "nope"});
            if kind.starts_with("tcp") {
                user["address"] = "backend".into();
            }
            let reply = client.create(kind, "user", user).await;
            let wanted = (
                500,
                "CError: Not found: sslProfile 'nope' not found".to_owned(),
            );
            assert_eq!((reply.status, reply.description), wanted, "{kind}");
            assert!(client.entity(kind, "user").await.is_none(), "{kind}");
        }
    }
}

#[tokio::test]
async fn an_update_with_bad_files_is_refused_only_where_they_are_used_and_shows_all_the_same() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let folder = issue(&router, "good");
        client.create("sslProfile", "used", profile(&folder)).await;
        client
            .create("sslProfile", "unused", profile(&folder))
            .await;
        assert_eq!(
            client
                .create("listener", "user", listener("used"))
                .await
                .status,
            201
        );
        let nowhere = profile(&router.path("nowhere"));

        assert_eq!(
            client
                .update("sslProfile", "unused", nowhere.clone())
                .await
                .status,
            200
        );
        let reply = client.update("sslProfile", "used", nowhere.clone()).await;
        assert_eq!(reply.status, 500);
        let wanted = "CError: Configuration: Failed to configure TLS caCertFile '";
        assert!(
            reply.description.starts_with(wanted),
            "{}",
            reply.description
        );
        let shown = client.entity("sslProfile", "used").await.unwrap();
        assert_eq!(shown["caCertFile"], nowhere["caCertFile"]);
    }
}

#[tokio::test]
async fn ordinals_must_be_in_order_and_a_refused_one_shows() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let mut attributes = profile(&router.path("x"));
        attributes["ordinal"] = "3".into();
        client.create("sslProfile", "p", attributes.clone()).await;
        assert_eq!(
            client.entity("sslProfile", "p").await.unwrap()["ordinal"],
            3
        );
        let reply = client
            .update("sslProfile", "p", json!({"oldestValidOrdinal": 5}))
            .await;
        assert_eq!(reply.status, 500);
        let wanted = "ordinal must be >= oldestValidOrdinal (sslProfile 'p')";
        assert!(reply.description.contains(wanted), "{}", reply.description);
        assert_eq!(
            client.entity("sslProfile", "p").await.unwrap()["oldestValidOrdinal"],
            5
        );

        attributes["oldestValidOrdinal"] = 4.into();
        let reply = client.create("sslProfile", "q", attributes).await;
        assert_eq!(reply.status, 500, "{reply:?}");
        assert!(client.entity("sslProfile", "q").await.is_none());
    }
}

#[tokio::test]
async fn what_cannot_be_updated_says_so() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let port = free_port().to_string();
        let connector = json!({"host": "127.0.0.1", "port": port});
        assert_eq!(client.create("connector", "c", connector).await.status, 201);
        for (kind, name) in [("connector", "c"), ("listener", "amqp")] {
            let reply = client.update(kind, name, json!({"cost": 2})).await;
            assert_eq!(reply.status, 501, "{kind}: {reply:?}");
            let wanted = "Operation 'UPDATE' not implemented";
            assert!(
                reply.description.starts_with(wanted),
                "{}",
                reply.description
            );
        }
        let name = client.query("router").await[0]["name"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(
            client
                .update("router", &name, json!({"id": "x"}))
                .await
                .status,
            501
        );
        assert_eq!(client.delete("router", &name).await.status, 501);
        assert_eq!(
            client
                .update("log", "log/SERVER", json!({"enable": "debug+"}))
                .await
                .status,
            200
        );

        let service = json!({"host": "127.0.0.1", "port": port, "address": "backend"});
        assert_eq!(
            client
                .create("tcpListener", "t", service.clone())
                .await
                .status,
            201
        );
        let reply = client
            .update("tcpListener", "t", json!({"observer": "none"}))
            .await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let reply = client
            .update("tcpListener", "t", json!({"port": "1"}))
            .await;
        assert_eq!(reply.status, 400, "{reply:?}");
        let wanted = "Cannot update attribute 'port' in UPDATE";
        assert_eq!(reply.description, wanted);
        assert_eq!(
            client.create("tcpConnector", "tc", service).await.status,
            201
        );
        assert_eq!(
            client
                .update("tcpConnector", "tc", json!({"port": "1"}))
                .await
                .status,
            501
        );
    }
}

#[tokio::test]
async fn a_name_in_the_body_only_is_thrown_away() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let properties = [
            ("operation", "CREATE"),
            ("type", "io.skupper.router.sslProfile"),
        ];
        let reply = client
            .request(&properties, amqp(json!({"name": "lost"})))
            .await;
        assert_eq!(reply.status, 201, "{reply:?}");
        let profiles = client.query("sslProfile").await;
        assert_eq!(profiles[0]["name"], "sslProfile/None");

        let properties = [
            ("operation", "CREATE"),
            ("type", "io.skupper.router.sslProfile"),
            ("name", "a"),
        ];
        let reply = client
            .request(&properties, amqp(json!({"name": "b"})))
            .await;
        assert_eq!(reply.status, 400, "{reply:?}");
    }
}

#[tokio::test]
async fn names_are_unique_over_all_types() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        assert_eq!(
            client.create("sslProfile", "x", json!({})).await.status,
            201
        );
        let connector = json!({"host": "127.0.0.1", "port": free_port()});
        let reply = client.create("connector", "x", connector).await;
        assert_eq!(reply.status, 400, "{reply:?}");
        let wanted = "duplicates unique attribute 'name' from existing";
        assert!(reply.description.contains(wanted), "{}", reply.description);

        let reply = client.update("connector", "x", json!({})).await;
        assert_eq!(reply.status, 400, "{reply:?}");
        let wanted = "Entity type 'io.skupper.router.sslProfile' does not extend requested type 'io.skupper.router.connector'";
        assert_eq!(reply.description, wanted);
    }
}

#[tokio::test]
async fn status_codes_of_what_is_not_there() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let reply = client.read("sslProfile", "nobody").await;
        assert_eq!(
            (reply.status, reply.description.as_str()),
            (404, "No entity with name=nobody")
        );
        assert_eq!(client.delete("connector", "nobody").await.status, 404);
        assert_eq!(
            client
                .update("sslProfile", "nobody", json!({}))
                .await
                .status,
            404
        );
        assert_eq!(client.create("nonsense", "x", json!({})).await.status, 400);
        let reply = client
            .create("sslProfile", "x", json!({"nonsense": 1}))
            .await;
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(
            reply.description.contains("Unknown attribute 'nonsense'"),
            "{reply:?}"
        );
        let reply = client
            .create("connector", "x", json!({"connectionStatus": "up"}))
            .await;
        assert_eq!(reply.status, 400, "{reply:?}");
        let reply = client
            .create("listener", "x", json!({"role": "nonsense"}))
            .await;
        assert_eq!(reply.status, 400, "{reply:?}");

        let query = async |client: &mut Client, kind: &str, names: serde_json::Value| {
            let properties = [("operation", "QUERY"), ("entityType", kind)];
            client
                .request(&properties, amqp(json!({"attributeNames": names})))
                .await
                .status
        };
        assert_eq!(
            query(&mut client, "io.skupper.router.nonsense", json!([])).await,
            400
        );
        assert_eq!(
            query(&mut client, "io.skupper.router.router", json!(["nonsense"])).await,
            404
        );
        assert_eq!(
            query(&mut client, "router", json!(["id"])).await,
            200,
            "a short type name"
        );
    }
}

#[tokio::test]
async fn a_deletion_answers_an_empty_map() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        client.create("sslProfile", "x", json!({})).await;
        let reply = client.delete("sslProfile", "x").await;
        assert_eq!(reply.status, 204);
        assert!(matches!(reply.body, Value::Map(map) if map.is_empty()));
        assert_eq!(client.delete("sslProfile", "x").await.status, 404);
    }
}

#[tokio::test]
async fn a_tcp_connector_has_a_standing_row_among_the_connections() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let service =
            json!({"host": "127.0.0.1", "port": free_port().to_string(), "address": "backend"});
        assert_eq!(
            client.create("tcpConnector", "t", service).await.status,
            201
        );
        let rows = client.query("connection").await;
        let row = rows.iter().find(|row| row["protocol"] == "tcp").unwrap();
        assert_eq!(row["container"], "TcpAdaptor");
        assert_eq!(row["role"], "normal");
        assert_eq!(row["host"], "egress-dispatch");
    }
}

#[tokio::test]
async fn a_query_takes_several_kinds_of_body() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        for (kind, body, status) in [
            ("router", amqp(json!({})), 200),
            ("router", Value::Null, 500),
            ("router", amqp(json!([])), 500),
            ("connection", amqp(json!({})), 200),
            ("connection", Value::Null, 200),
            ("connection", amqp(json!([])), 200),
        ] {
            let kind = format!("io.skupper.router.{kind}");
            let properties = [("operation", "QUERY"), ("entityType", kind.as_str())];
            let reply = client.request(&properties, body.clone()).await;
            assert_eq!(
                reply.status, status,
                "{kind} {body:?}: {}",
                reply.description
            );
        }
    }
}

#[tokio::test]
async fn only_connections_come_in_pages() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let _second = Client::open(router.amqp).await;
        let all = client.query("connection").await;
        assert_eq!(all.len(), 2, "{all:?}");
        let mut page = async |kind: &str, offset: i32, count: i32| {
            let properties = vec![
                ("operation", SimpleValue::from("QUERY")),
                ("entityType", format!("io.skupper.router.{kind}").into()),
                ("offset", SimpleValue::from(offset)),
                ("count", SimpleValue::from(count)),
            ];
            let id = MessageId::String("page".to_owned());
            client
                .send(
                    Some(client.address.clone()),
                    id,
                    properties,
                    amqp(json!({})),
                )
                .await;
            rows(&client.receive().await.unwrap().1.body)
        };
        let second = page("connection", 1, 10).await;
        assert_eq!(second.len(), 1);
        assert_eq!(second[0]["identity"], all[1]["identity"]);
        assert_eq!(page("connection", 0, 1).await.len(), 1);
        assert_eq!(page("listener", 1, 1).await.len(), 2);
    }
}

#[tokio::test]
async fn values_are_taken_leniently_and_given_in_the_types_of_the_router() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let port = free_port();
        let connector = json!({"host": "127.0.0.1", "port": port, "cost": "7",
            "verifyHostname": "no", "role": "inter-router"});
        let reply = client.create("connector", "c", connector).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        let Value::Map(body) = &reply.body else {
            panic!("{:?}", reply.body)
        };
        let get = |name: &str| body.get(&Value::String(name.to_owned())).cloned();
        assert_eq!(get("port"), Some(Value::String(port.to_string())));
        assert_eq!(get("cost"), Some(Value::Int(7)));
        assert_eq!(get("verifyHostname"), Some(Value::Bool(false)));
        let identity = format!("connector/127.0.0.1:{port}:c");
        assert_eq!(get("identity"), Some(Value::String(identity)));
        let wanted = Value::String("io.skupper.router.connector".to_owned());
        assert_eq!(get("type"), Some(wanted));

        let properties = vec![
            ("operation", SimpleValue::from("CREATE")),
            ("type", SimpleValue::from("io.skupper.router.sslProfile")),
            ("name", SimpleValue::from("p")),
        ];
        let map = [(Value::String("ordinal".to_owned()), Value::Ulong(2))];
        let body = Value::Map(map.into_iter().collect());
        let id = MessageId::String("1".to_owned());
        client
            .send(Some(client.address.clone()), id, properties, body)
            .await;
        assert_eq!(client.receive().await.unwrap().1.status, 201);
        let profile = client.entity("sslProfile", "p").await.unwrap();
        assert_eq!(
            profile,
            json!({"name": "p", "identity": "sslProfile/p", "ordinal": 2,
            "type": "io.skupper.router.sslProfile"})
        );
    }
}

#[tokio::test]
async fn a_listener_on_a_taken_port_is_created_and_listed() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let busy = json!({"host": "127.0.0.1", "port": port});
        assert_eq!(client.create("listener", "busy", busy).await.status, 201);
        assert!(client.entity("listener", "busy").await.is_some());
        let wanted = format!("SERVER (error) Listener error on 127.0.0.1:{port}: ");
        eventually("it is logged", 1000, async || {
            router.log().contains(&wanted)
        })
        .await;
    }
}

/// Otherwise the real router dies about every second time, of memory that it has given back.
#[tokio::test]
async fn a_listener_whose_port_was_taken_must_be_deleted_before_the_next_creation() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = json!({"host": "127.0.0.1", "port": taken.local_addr().unwrap().port()});
        let free = json!({"host": "127.0.0.1", "port": free_port()});
        assert_eq!(client.create("listener", "busy", busy).await.status, 201);
        assert_eq!(client.delete("listener", "busy").await.status, 204);
        assert_eq!(client.create("listener", "next", free).await.status, 201);
        assert_eq!(client.query("listener").await.len(), 3);
    }
}

/// What the real router does by chance, the stand-in does always.
#[tokio::test]
async fn the_stand_in_dies_of_a_creation_beside_a_listener_whose_port_was_taken() {
    let mut router = programs().remove(0).start("site-a");
    let mut client = Client::open(router.amqp).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = json!({"host": "127.0.0.1", "port": taken.local_addr().unwrap().port()});
    assert_eq!(client.create("listener", "busy", busy).await.status, 201);
    let properties = vec![
        ("operation", SimpleValue::from("CREATE")),
        ("type", SimpleValue::from("io.skupper.router.connector")),
        ("name", SimpleValue::from("next")),
    ];
    let address = Some(client.address.clone());
    let id = MessageId::String("1".to_owned());
    let sent = client.send(address, id, properties, amqp(json!({})));
    let _ = tokio::time::timeout(Duration::from_secs(1), sent).await;
    assert_eq!(router.exit_status().code(), Some(139));
}

#[tokio::test]
async fn deleting_a_listener_closes_its_port_and_nothing_else() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        assert_eq!(client.delete("listener", "amqp").await.status, 204);
        eventually("the port is closed", 1000, async || !is_open(router.amqp)).await;
        assert_eq!(
            client.query("listener").await.len(),
            1,
            "the connection lives on"
        );
    }
}

#[tokio::test]
async fn a_request_without_a_reply_to_is_ignored() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let properties = vec![
            ("operation", SimpleValue::from("CREATE")),
            ("type", SimpleValue::from("io.skupper.router.sslProfile")),
            ("name", SimpleValue::from("p")),
        ];
        client
            .send(
                None,
                MessageId::String("1".to_owned()),
                properties,
                amqp(json!({})),
            )
            .await;
        assert!(client.query("sslProfile").await.is_empty());
    }
}

#[tokio::test]
async fn a_reply_to_a_numbered_request_cannot_be_read_though_it_was_carried_out() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let properties = vec![
            ("operation", SimpleValue::from("CREATE")),
            ("type", SimpleValue::from("io.skupper.router.sslProfile")),
            ("name", SimpleValue::from("p")),
        ];
        let address = client.address.clone();
        client
            .send(
                Some(address),
                MessageId::Ulong(1),
                properties,
                amqp(json!({})),
            )
            .await;
        assert!(client.receive().await.is_none());
        let mut second = Client::open(router.amqp).await;
        assert!(second.entity("sslProfile", "p").await.is_some());
    }
}

#[tokio::test]
async fn a_sender_to_nobody_gets_no_credit() {
    for program in programs() {
        let router = program.start("site-a");
        let mut connection = Connection::builder()
            .container_id("conformance")
            .open(format!("amqp://127.0.0.1:{}", router.amqp).as_str())
            .await
            .unwrap();
        let mut session = Session::begin(&mut connection).await.unwrap();
        let mut sender = Sender::attach(&mut session, "lost", "nobody")
            .await
            .unwrap();
        let sent = tokio::time::timeout(Duration::from_secs(1), sender.send("hello")).await;
        assert!(sent.is_err(), "{sent:?}");
    }
}

#[tokio::test]
async fn a_client_may_speak_sasl_anonymous() {
    for program in programs() {
        let router = program.start("site-a");
        let mut connection = Connection::builder()
            .container_id("conformance")
            .sasl_profile(SaslProfile::Anonymous)
            .open(format!("amqp://127.0.0.1:{}", router.amqp).as_str())
            .await
            .unwrap();
        Session::begin(&mut connection).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_is_silent_for_16_seconds_is_dropped_and_one_that_sends_heartbeats_stays() {
    let at_once = programs().into_iter().map(|program| async move {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let mut silent = TcpStream::connect(("127.0.0.1", router.amqp))
            .await
            .unwrap();
        // Header, and an open frame with nothing but a container id.
        silent.write_all(b"AMQP\x00\x01\x00\x00").await.unwrap();
        let open = b"\x00\x00\x00\x11\x02\x00\x00\x00\x00\x53\x10\xc0\x04\x01\xa1\x01x";
        silent.write_all(open).await.unwrap();
        let begun = std::time::Instant::now();
        let mut said = Vec::new();
        let ended = silent.read_to_end(&mut said);
        let ended = tokio::time::timeout(Duration::from_secs(25), ended).await;
        assert!(ended.is_ok(), "still open");
        let took = begun.elapsed().as_secs();
        assert!((15..20).contains(&took), "after {took} s");
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.contains("local-idle-timeout expired"), "{said}");

        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(client.query("router").await.len(), 1);
    });
    futures::future::join_all(at_once).await;
}

#[tokio::test]
async fn a_deleted_profile_leaves_orphans() {
    for program in programs() {
        let router = program.start("site-a");
        let mut client = Client::open(router.amqp).await;
        let folder = issue(&router, "good");
        client.create("sslProfile", "p", profile(&folder)).await;
        client.create("listener", "user", listener("p")).await;
        assert_eq!(client.delete("sslProfile", "p").await.status, 204);
        assert!(client.entity("listener", "user").await.is_some());
        fs::remove_dir_all(Path::new(&folder)).unwrap();
        // An orphan is not asked: with a user, this update would be refused.
        assert_eq!(
            client
                .create("sslProfile", "p", profile(&folder))
                .await
                .status,
            201
        );
        assert_eq!(
            client
                .update("sslProfile", "p", json!({"ordinal": 1}))
                .await
                .status,
            200
        );
    }
}
