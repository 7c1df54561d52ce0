//! Does the door let in who may come in, as often as he may, and nobody else?

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{StatusCode, http};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use spanwire_api::Endpoint;
use spanwire_plan::plan::{Child, Issue, Legacy, ObjectKind, Redeem, Source};
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
use crate::mock::{ApiServer, Fault};
use crate::pki::{self, Credential, Signer};
use crate::redeem::{Policy, Pool};

const GRANT: &str = "/apis/skupper.io/v2alpha1/namespaces/east/accessgrants/g";
const CA: &str = "/api/v1/namespaces/east/secrets/skupper-site-ca";
const TOKEN: &str = "/apis/skupper.io/v2alpha1/namespaces/west/accesstokens/t";
const STORED: &str = "/api/v1/namespaces/west/secrets/t";
const CODE: &str = "AbcdefghijklmnopqrstuvwX";
const SOURCE: &str = "10.0.0.1";

fn order(subject: &str, hosts: &[&str], is_signed: bool) -> Issue {
    let clock = Clock::default().now();
    Issue {
        secret: Child {
            kind: ObjectKind::Secret,
            object: Value::Null,
            data: BTreeMap::new(),
            unwanted: Vec::new(),
        },
        live: None,
        subject: subject.to_owned(),
        hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
        client: false,
        server: true,
        signer: is_signed.then(|| Source {
            secret: String::new(),
            uid: String::new(),
            resource_version: String::new(),
        }),
        not_before: clock,
        not_after: Timestamp::from_second(clock.as_second() + 3600).unwrap(),
        rsa: false,
        legacy: Legacy::default(),
        event: Event {
            warning: false,
            reason: String::new(),
            note: String::new(),
        },
    }
}

fn authority(subject: &str) -> Credential {
    pki::issue(&order(subject, &[], false), None).unwrap()
}

fn signed(by: &Credential, hosts: &[&str]) -> Credential {
    let signer = Signer {
        certificate: by.certificate.clone(),
        roots: by.ca.clone(),
        key: by.key.clone(),
    };
    pki::issue(&order("server", hosts, true), Some(&signer)).unwrap()
}

/// A cluster with a site in `east` and a grant for it.
struct Cluster {
    api: ApiServer,
    site: Arc<Mutex<Option<Offer>>>,
    events: Arc<Mutex<Vec<String>>>,
}

impl Cluster {
    fn new(allowed: i64) -> Self {
        let api = ApiServer::new();
        let ca = authority("site ca");
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        api.put(
            CA,
            json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": "skupper-site-ca", "namespace": "east"},
                "data": {"tls.crt": bytes(&ca.certificate), "tls.key": bytes(&ca.key), "ca.crt": bytes(&ca.ca)},
            }),
        );
        api.put(
            GRANT,
            json!({
                "apiVersion": "skupper.io/v2alpha1", "kind": "AccessGrant",
                "metadata": {"name": "g", "namespace": "east", "uid": "grant-uid"},
                "spec": {"redemptionsAllowed": allowed},
                "status": {"code": CODE, "expirationTime": in_seconds(900)},
            }),
        );
        let endpoint = |name: &str, port: &str| Endpoint {
            name: name.to_owned(),
            host: "10.9.8.7".to_owned(),
            port: port.to_owned(),
            group: "skupper-router".to_owned(),
        };
        let site = Offer {
            edge: false,
            issuer: "skupper-site-ca".to_owned(),
            endpoints: vec![
                endpoint("inter-router", "55671"),
                endpoint("edge", "45671"),
                endpoint("normal", "1"),
            ],
        };
        Self {
            api,
            site: Arc::new(Mutex::new(Some(site))),
            events: Arc::default(),
        }
    }

    /// A replica whose stores know everything at once.
    fn server(&self) -> Arc<Server> {
        let api = self.api.clone();
        self.server_that_knows(move || api.get(GRANT))
    }

    fn server_that_knows(
        &self,
        grant: impl Fn() -> Option<Value> + Clone + Send + Sync + 'static,
    ) -> Arc<Server> {
        self.server_with(self.directory(grant))
    }

    fn directory(
        &self,
        grant: impl Fn() -> Option<Value> + Clone + Send + Sync + 'static,
    ) -> Directory {
        let known = move |uid: &str| -> Option<AccessGrant> {
            let grant: AccessGrant = serde_json::from_value(grant()?).unwrap();
            (grant.metadata.uid.as_deref() == Some(uid)).then_some(grant)
        };
        let (code, grant) = (known.clone(), known);
        let (site, events) = (self.site.clone(), self.events.clone());
        let api = self.api.clone();
        let revision = move |issuer: &str| {
            let secret = api.get(&CA.replace("skupper-site-ca", issuer))?;
            Some(secret["metadata"]["resourceVersion"].as_str()?.to_owned())
        };
        Directory {
            is_complete: Arc::new(|| true),
            code: Arc::new(move |uid| {
                let code = code(uid).and_then(|grant| grant.status?.code);
                let is_known = u8::from(code.is_some()).into();
                (Sha256::digest(code.unwrap_or_default()).into(), is_known)
            }),
            grant: Arc::new(move |uid| {
                let offer = site.lock().unwrap().clone();
                let grant = grant(uid)?;
                let issuer = offer
                    .as_ref()
                    .map(|offer| offer.issuer(grant.spec.issuer.as_deref()));
                Some(Granted {
                    issuer_revision: issuer.and_then(&revision),
                    grant: GrantRecord::of(&grant),
                    offer,
                })
            }),
            told: Arc::new(|_| Map::new()),
            announce: Arc::new(move |_, event| events.lock().unwrap().push(event.reason)),
        }
    }

    fn server_with(&self, directory: Directory) -> Arc<Server> {
        let terms = Terms {
            leaf_seconds: 3600,
            rsa: false,
        };
        let metrics = Arc::new(Metrics::new("0"));
        Arc::new(Server::new(
            self.api.client(),
            Clock::default(),
            directory,
            terms,
            metrics,
        ))
    }

    fn edit(&self, change: impl FnOnce(&mut Value)) {
        let mut grant = self.api.get(GRANT).unwrap();
        change(&mut grant);
        self.api.put(GRANT, grant);
    }

    fn counted(&self) -> i64 {
        let grant = self.api.get(GRANT).unwrap();
        let claims = grant
            .pointer("/status/claims")
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        let count = grant
            .pointer("/status/redemptions")
            .and_then(Value::as_i64)
            .unwrap_or_default();
        assert_eq!(i64::try_from(claims).unwrap(), count);
        count
    }
}

fn in_seconds(seconds: i64) -> String {
    let now = Clock::default().now().as_second();
    Timestamp::from_second(now + seconds).unwrap().to_string()
}

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

fn act(generation: i64) -> Redeem {
    Redeem {
        namespace: "west".to_owned(),
        token: "t".to_owned(),
        uid: "token-uid".to_owned(),
        generation,
        subject: "site-uid".to_owned(),
        secret: Child {
            kind: ObjectKind::Secret,
            object: json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {
                    "name": "t", "namespace": "west", "annotations": {"internal.spanwire.io/token": "token-uid"},
                    "ownerReferences": [{"apiVersion": "skupper.io/v2alpha1", "kind": "Site", "name": "s", "uid": "site-uid"}],
                },
            }),
            data: BTreeMap::new(),
            unwanted: Vec::new(),
        },
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
