//! Does the door let in who may come in, as often as he may, and nobody else?

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{StatusCode, http};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::ByteString;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use spanwire_api::Endpoint;
use spanwire_plan::world::{Attempt, Outcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

mod claims;
mod client;
mod door;
mod reports;
mod secrecy;
mod timing;

use super::*;
use crate::dying::Dying;
use crate::lease::Leading;
use crate::mock::cluster::{CA, CODE, Cluster, GRANT, act, authority, in_seconds, signed};
use crate::mock::{ApiServer, Fault};
use crate::pki::Credential;
use crate::redeem::{Policy, Pool};

const TOKEN: &str = "/apis/skupper.io/v2alpha1/namespaces/west/accesstokens/t";
const STORED: &str = "/api/v1/namespaces/west/secrets/t";
const SOURCE: &str = "10.0.0.1";

fn request(code: &str, nonce: &str) -> Request {
    Request {
        grant: "grant-uid".to_owned(),
        code: Zeroizing::new(code.as_bytes().to_vec()),
        name: Some("t".to_owned()),
        subject: Some("site-uid".to_owned()),
        nonce: nonce.to_owned(),
    }
}

async fn redeem(server: &Server, code: &str, nonce: &str) -> Result<Answer, Refusal> {
    server
        .redeem(SOURCE.parse().unwrap(), request(code, nonce))
        .await
}

async fn refusal(server: &Server, code: &str, nonce: &str) -> Option<Refusal> {
    redeem(server, code, nonce).await.err()
}

/// A replica that listens.
struct Listening {
    address: std::net::SocketAddr,
    served: Served,
    ca: Credential,
    stop: CancellationToken,
    task: JoinSet<()>,
}

async fn listening(server: Arc<Server>) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ca = authority("grant ca");
    let live = Served::nothing().unwrap();
    let credential = signed(&ca, &["127.0.0.1", "localhost"]);
    live.set(&credential.certificate, &credential.key).unwrap();
    let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
    let (stopped, shared) = (stop.clone(), live.clone());
    task.spawn(async move { server.run(listener, &live, stopped).await });
    Listening {
        address,
        served: shared,
        ca,
        stop,
        task,
    }
}

fn client_tls(
    ca: &Credential,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ClientConfig {
    use rustls_pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(rustls_pki_types::CertificateDer::from_pem_slice(ca.ca.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

async fn connected(
    listening: &Listening,
    tls: rustls::ClientConfig,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(listening.address).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(tls))
        .connect(name, stream)
        .await
}

/// What the door says to this, over HTTP/1.1.
async fn said(listening: &Listening, request: &str) -> String {
    let tls = client_tls(&listening.ca, &[&rustls::version::TLS13]);
    let mut stream = connected(listening, tls).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

/// The other side: a token in `west`.
struct West {
    api: ApiServer,
    pool: Pool,
    attempts: mpsc::UnboundedReceiver<Attempt>,
}

fn west(listening: &Listening, code: &str) -> West {
    let api = ApiServer::new();
    let ca = &listening.ca.ca;
    let port = listening.address.port();
    api.put(
        TOKEN,
        json!({
            "apiVersion": "skupper.io/v2alpha1", "kind": "AccessToken",
            "metadata": {"name": "t", "namespace": "west", "uid": "token-uid", "generation": 1},
            "spec": {"url": format!("https://127.0.0.1:{port}/grant-uid"), "code": code, "ca": ca},
        }),
    );
    let (sender, attempts) = mpsc::unbounded_channel();
    let report = Arc::new(move |uid: String, attempt| {
        assert_eq!(uid, "token-uid");
        sender.send(attempt).unwrap();
    });
    let policy = Policy {
        allow_loopback: true,
        api_server: None,
    };
    let metrics = Arc::new(Metrics::new("0"));
    let (_until, leading) = Leading::for_test();
    let pool = Pool::new(
        api.client(),
        Clock::default(),
        policy,
        leading,
        metrics,
        report,
        Dying::default(),
    );
    West {
        api,
        pool,
        attempts,
    }
}

impl West {
    async fn attempt(&mut self) -> Attempt {
        self.pool.submit(act(1));
        timeout(Duration::from_secs(20), self.attempts.recv())
            .await
            .unwrap()
            .unwrap()
    }
}
