//! Does what others suffered from at either end of a redemption stay away? `docs/field-reports.md` says which test holds
//! which report.

use std::io::ErrorKind;
use std::net::TcpListener as Unserved;

use rustls::version::{TLS12, TLS13};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::facts::{certificates, private_key};

/// A grant server that gives every request this answer, over this version of TLS, and what it has heard so far.
async fn stranger(
    answer: String,
    version: &'static rustls::SupportedProtocolVersion,
) -> (Listening, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ca = authority("grant ca");
    let credential = signed(&ca, &["127.0.0.1"]);
    let chain = certificates("tls.crt", credential.certificate.as_bytes()).unwrap();
    let key = private_key(credential.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key.clone_key())
        .unwrap();
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let (tls, told) = (TlsAcceptor::from(Arc::new(tls)), heard.clone());
    let mut task = JoinSet::new();
    task.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = tls.accept(stream).await else {
                continue;
            };
            let mut request = vec![0; 4096];
            let mut length = 0;
            while !request[..length].ends_with(CODE.as_bytes()) {
                let read = stream.read(&mut request[length..]).await.unwrap_or(0);
                if read == 0 {
                    break;
                }
                length += read;
            }
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            told.lock().unwrap().push(request);
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let listening = Listening {
        address,
        served: Served::nothing().unwrap(),
        ca,
        stop: CancellationToken::new(),
        task,
    };
    (listening, heard)
}

/// Somebody who would be noticed to be called, and whom nobody serves.
fn unserved() -> (Unserved, std::net::SocketAddr) {
    let listener = Unserved::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn assert_uncalled(listener: &Unserved, context: &str) {
    let called = listener.accept().map(drop);
    let error = called.expect_err(context);
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{context}");
}

/// skupper#2087.
#[tokio::test]
async fn a_grant_that_says_nothing_is_redeemed_once() {
    let cluster = Cluster::new(1);
    cluster.edit(|grant| grant["spec"] = json!({}));
    let listening = listening(cluster.server()).await;
    let request = post("/grant-uid", "name: t\r\n", CODE);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let answer = said(&listening, &request).await;
        statuses.push(answer.split(' ').nth(1).unwrap_or_default().to_owned());
    }
    assert_eq!(statuses, ["200", "404", "404"]);
    assert_eq!(cluster.counted(), 1);
    // Its status is all that was written.
    assert_eq!(cluster.api.get(GRANT).unwrap()["spec"], json!({}));
}

/// skupper PR 1823.
#[tokio::test]
async fn a_site_without_an_address_costs_time_and_no_redemption() {
    let cluster = Cluster::new(1);
    let endpoints = {
        let mut site = cluster.site.lock().unwrap();
        std::mem::take(&mut site.as_mut().unwrap().endpoints)
    };
    let listening = listening(cluster.server()).await;
    let answer = said(&listening, &post("/grant-uid", "name: t\r\n", CODE)).await;
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert!(
        answer.ends_with("No valid endpoints found for site"),
        "{answer}"
    );
    let mut west = west(&listening, CODE);
    assert!(matches!(
        west.attempt().await.outcome,
        Outcome::Unreachable(_)
    ));
    assert_eq!(cluster.counted(), 0);

    cluster.site.lock().unwrap().as_mut().unwrap().endpoints = endpoints;
    assert_eq!(west.attempt().await.outcome, Outcome::Stored);
    assert_eq!(cluster.counted(), 1);
}

/// skupper PR 2497.
#[tokio::test]
async fn a_code_is_not_sent_without_a_ca_or_without_tls() {
    let (listener, address) = unserved();
    let mut listening = listening(Cluster::new(1).server()).await;
    listening.address = address;
    for (field, value) in [
        ("ca", json!("")),
        ("ca", json!(" \n")),
        ("ca", json!("junk")),
        ("url", json!(format!("http://{address}/grant-uid"))),
        ("url", json!(format!("HTTP://{address}/grant-uid"))),
        ("url", json!(format!("//{address}/grant-uid"))),
    ] {
        let mut west = west(&listening, CODE);
        let mut token = west.api.get(TOKEN).unwrap();
        token["spec"][field] = value.clone();
        west.api.put(TOKEN, token);
        let outcome = west.attempt().await.outcome;
        assert!(
            matches!(outcome, Outcome::Invalid(_)),
            "{value}: {outcome:?}"
        );
        assert_uncalled(&listener, &value.to_string());
    }
}

/// skupper PR 2497.
#[tokio::test]
async fn a_code_is_sent_to_nobody_whom_its_ca_does_not_vouch_for() {
    let (mut listening, heard) = stranger(String::new(), &TLS13).await;
    listening.ca = authority("another ca");
    let outcome = west(&listening, CODE).attempt().await.outcome;
    assert!(matches!(outcome, Outcome::Untrusted(_)), "{outcome:?}");
    assert!(heard.lock().unwrap().is_empty());
}

/// skupper PR 2497.
#[tokio::test]
async fn a_code_is_sent_over_tls_13_alone() {
    for (version, is_heard) in [(&TLS12, false), (&TLS13, true)] {
        let (listening, heard) = stranger(String::new(), version).await;
        let outcome = west(&listening, CODE).attempt().await.outcome;
        assert!(matches!(outcome, Outcome::Unreachable(_)), "{outcome:?}");
        assert_eq!(!heard.lock().unwrap().is_empty(), is_heard, "{version:?}");
    }
}

/// skupper PR 2497.
#[tokio::test]
async fn a_code_follows_no_redirection() {
    for status in [301, 302, 303, 307, 308] {
        let (elsewhere, address) = unserved();
        let (listening, heard) = stranger(format!(
            "HTTP/1.1 {status} x\r\nlocation: https://{address}/grant-uid\r\ncontent-length: 0\r\n\r\n"
        ), &TLS13)
        .await;
        let outcome = west(&listening, CODE).attempt().await.outcome;
        assert!(
            matches!(outcome, Outcome::AnswerRefused(_)),
            "{status}: {outcome:?}"
        );
        assert_uncalled(&elsewhere, &status.to_string());
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert!(heard[0].starts_with("POST /grant-uid HTTP/1.1\r\n"));
    }
}

/// skupper PR 2497.
#[tokio::test(start_paused = true)]
async fn who_never_answers_has_ten_seconds() {
    let (silent, address) = unserved();
    let mut listening = listening(Cluster::new(1).server()).await;
    listening.address = address;
    let mut west = west(&listening, CODE);
    let begun = Instant::now();
    let outcome = west.attempt().await.outcome;
    assert!(matches!(outcome, Outcome::Unreachable(_)), "{outcome:?}");
    assert_eq!(begun.elapsed().as_secs(), 10);
    assert!(silent.accept().is_ok(), "nobody was called");
}

/// skupper#863, skupper#806, skupper#1415.
#[tokio::test]
async fn a_refusal_costs_one_request() {
    for (status, text) in [
        (403, "Redemption of access token refused"),
        (404, "No such claim"),
        (404, "No such access granted"),
        (405, "Only POST is supported"),
        (200, "no answer of a grant server"),
    ] {
        let length = text.len();
        let (listening, heard) = stranger(
            format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{text}"),
            &TLS13,
        )
        .await;
        let attempt = west(&listening, CODE).attempt().await;
        assert_eq!(attempt.tries, 1);
        assert!(
            !matches!(attempt.outcome, Outcome::Stored | Outcome::Unreachable(_)),
            "{:?}",
            attempt.outcome
        );
        assert_eq!(heard.lock().unwrap().len(), 1, "{status} {text}");
    }
}

/// skupper#2112.
#[tokio::test]
async fn an_answer_that_died_with_its_operator_is_given_again() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    // What the first has stored is lost with it: the second finds only the token.
    for _ in ["the first", "the second"] {
        let mut west = west(&listening, CODE);
        assert_eq!(west.attempt().await.outcome, Outcome::Stored);
        assert!(west.api.get(STORED).is_some());
        assert_eq!(cluster.counted(), 1);
    }
}
