//! Can a test of another crate run stand-ins inside itself?

#![allow(
    clippy::unwrap_used,
    reason = "all of this is a test, helpers included"
)]

use std::time::{Duration, Instant};

use serde_json::json;
use spanwire_standin::{Config, Standin};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A stand-in with a management listener and a listener for other routers, each on a port of its
/// own choice.
fn start(id: &str, connector_to: Option<u16>) -> Standin {
    let mut entities = vec![
        json!(["router", {"id": id, "mode": "interior"}]),
        json!(["listener", {"name": "amqp", "host": "127.0.0.1", "port": 0}]),
        json!(["listener", {"name": "links", "host": "127.0.0.1", "port": 0,
            "role": "inter-router"}]),
        json!(["listener", {"name": "health", "host": "127.0.0.1", "port": 0, "http": true}]),
    ];
    if let Some(port) = connector_to {
        entities.push(
            json!(["connector", {"name": "out", "host": "127.0.0.1", "port": port,
            "role": "inter-router"}]),
        );
    }
    let config = Config::parse(&json!(entities).to_string(), "test").unwrap();
    Standin::start(config, |_| {}).unwrap()
}

async fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    page
}

#[tokio::test]
async fn two_stand_ins_link_inside_one_test() {
    let a = start("a", None);
    let b = start("b", a.port("links"));
    let health = b.port("health").unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while !get(health, "/metrics")
        .await
        .contains("qdr_connections_total 3\n")
    {
        assert!(
            Instant::now() < deadline,
            "{}",
            get(health, "/metrics").await
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    a.stop().await;
    while !get(health, "/metrics")
        .await
        .contains("qdr_connections_total 0\n")
    {
        assert!(
            Instant::now() < deadline,
            "the links of a stopped stand-in are closed"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_stopped_stand_in_gives_its_port_back() {
    let first = start("a", None);
    let port = first.port("amqp").unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    first.stop().await;
    assert_eq!(
        client.read(&mut [0; 8]).await.unwrap_or(0),
        0,
        "clients are cut off"
    );
    let entities = json!([
        ["router", {"id": "a", "mode": "interior"}],
        ["listener", {"name": "amqp", "host": "127.0.0.1", "port": port}],
    ]);
    let config = Config::parse(&entities.to_string(), "test").unwrap();
    let second = Standin::start(config, |_| {}).unwrap();
    assert_eq!(second.port("amqp"), Some(port));
}

#[tokio::test]
async fn junk_costs_one_connection() {
    let standin = start("a", None);
    for listener in ["amqp", "links", "health"] {
        let port = standin.port(listener).unwrap();
        for junk in [
            &b"\x16\x03\x01\x00\x05hello"[..],
            b"AMQP\x03\x01\x00\x00\x00\x00\x00\x03",
            b"AMQP\x00\x01\x00\x00\x00\x00\x00\x08\x02\x00\x00\x00",
            b"AMQP\x00\x01\x00\x00\xff\xff\xff\xff\x02\x00\x00\x00",
            b"AMQP\x00\x01\x00\x00\x00\x00\x00\x09\xff\x00\x00\x00\x00",
            b"AMQP\x00\x01\x00\x00\x00\x00\x00\x11\x02\x00\x00\x00\x00\x53\x10\xc0\xff\xff\xff\xff\xff",
        ] {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(junk).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            let end = stream.read_to_end(&mut answer);
            let end = tokio::time::timeout(Duration::from_secs(5), end).await;
            assert!(end.is_ok(), "{listener} {junk:?}");
        }
    }
    let health = standin.port("health").unwrap();
    assert!(get(health, "/healthz").await.ends_with("OK\n"));
}
