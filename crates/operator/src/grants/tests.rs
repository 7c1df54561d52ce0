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

mod secrecy;

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
        let known = move |uid: &str| -> Option<AccessGrant> {
            let grant: AccessGrant = serde_json::from_value(grant()?).unwrap();
            (grant.metadata.uid.as_deref() == Some(uid)).then_some(grant)
        };
        let (code, grant) = (known.clone(), known);
        let (site, events) = (self.site.clone(), self.events.clone());
        let directory = Directory {
            code: Arc::new(move |uid| Some(Sha256::digest(code(uid)?.status?.code?).into())),
            grant: Arc::new(move |uid| {
                let offer = site.lock().unwrap().clone();
                Some((GrantRecord::of(&grant(uid)?), offer))
            }),
            announce: Arc::new(move |_, event| events.lock().unwrap().push(event.reason)),
        };
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

#[tokio::test]
async fn a_right_code_gets_a_credential_and_a_link() {
    let cluster = Cluster::new(1);
    let answer = redeem(&cluster.server(), CODE, "n").await.unwrap();
    assert!(!answer.is_repeated);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&answer.body).unwrap();
    assert_eq!(documents.len(), 2);
    assert!(answer.body.starts_with("---\n"));
    let [secret, link] = documents.as_slice() else {
        panic!()
    };
    assert_eq!(secret["kind"], "Secret");
    assert_eq!(secret["metadata"], json!({"name": "t"}));
    assert_eq!(secret["type"], "kubernetes.io/tls");
    let secret: k8s_openapi::api::core::v1::Secret =
        serde_json::from_value(secret.clone()).unwrap();
    let facts = crate::facts::secret_facts(&secret);
    assert_eq!(
        facts.pair.as_ref().and_then(|pair| pair.key_error.clone()),
        None
    );
    assert_eq!(
        facts
            .pair
            .as_ref()
            .and_then(|pair| pair.chain_error.clone()),
        None
    );
    let certificate = facts.certificate().unwrap();
    assert_eq!(certificate.subject, "site-uid");
    assert!(certificate.client && !certificate.server);
    assert_eq!(link["apiVersion"], "skupper.io/v2alpha1");
    assert_eq!(link["kind"], "Link");
    assert_eq!(link["metadata"], json!({"name": "t"}));
    assert_eq!(
        link["spec"],
        json!({
            "endpoints": [
                {"name": "inter-router", "host": "10.9.8.7", "port": "55671", "group": "skupper-router"},
                {"name": "edge", "host": "10.9.8.7", "port": "45671", "group": "skupper-router"},
            ],
            "tlsCredentials": "t",
        })
    );
    assert_eq!(cluster.counted(), 1);
    assert_eq!(*cluster.events.lock().unwrap(), ["Redeemed"]);
}

#[tokio::test]
async fn each_group_of_routers_gets_a_link() {
    let cluster = Cluster::new(2);
    if let Some(site) = cluster.site.lock().unwrap().as_mut() {
        for endpoint in site.endpoints.clone() {
            site.endpoints.push(Endpoint {
                group: "skupper-router-2".to_owned(),
                ..endpoint
            });
        }
    }
    let answer = redeem(&cluster.server(), CODE, "n").await.unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&answer.body).unwrap();
    let names: Vec<&Value> = documents
        .iter()
        .map(|document| &document["metadata"]["name"])
        .collect();
    assert_eq!(names, ["t", "t-1", "t-2"]);
    assert_eq!(documents[1]["spec"]["tlsCredentials"], "t");

    // A name that leaves no room for the number costs nothing.
    let server = cluster.server();
    let refused = async |length| {
        let mut request = request(CODE, "another");
        request.name = Some("t".repeat(length));
        let answer = server.redeem(SOURCE.parse().unwrap(), request).await;
        answer.err()
    };
    assert_eq!(refused(252).await, Some(Refusal::BadHeader("name")));
    assert_eq!(cluster.counted(), 1);
    assert_eq!(refused(251).await, None);
}

#[tokio::test]
async fn never_more_than_n() {
    let cluster = Cluster::new(3);
    // Two replicas, and stores that never hear of anything.
    let stale = cluster.api.get(GRANT);
    let servers = [
        cluster.server(),
        cluster.server_that_knows(move || stale.clone()),
        cluster.server(),
    ];
    let redeemers = (0..30).map(|n| {
        let server = servers[n % 3].clone();
        async move { redeem(&server, CODE, &n.to_string()).await }
    });
    let answers = join_all(redeemers).await;
    let granted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(granted, 3);
    for refusal in answers.into_iter().filter_map(Result::err) {
        assert_eq!(refusal, Refusal::UsedUp);
    }
    assert_eq!(cluster.counted(), 3);
}

#[tokio::test]
async fn a_repeat_is_answered_and_not_counted_by_any_replica() {
    let cluster = Cluster::new(1);
    redeem(&cluster.server(), CODE, "mine").await.unwrap();
    let (one, other) = (cluster.server(), cluster.server());
    for server in [&one, &other, &one] {
        assert!(redeem(server, CODE, "mine").await.unwrap().is_repeated);
    }
    // The same nonce for another name is another claim.
    let mut stolen = request(CODE, "mine");
    stolen.name = Some("u".to_owned());
    assert_eq!(
        one.redeem(SOURCE.parse().unwrap(), stolen).await.err(),
        Some(Refusal::UsedUp)
    );
    // The time of a grant ends for new claims.
    cluster.edit(|grant| grant["status"]["expirationTime"] = json!(in_seconds(-1)));
    assert!(redeem(&one, CODE, "mine").await.unwrap().is_repeated);
    assert_eq!(cluster.counted(), 1);
}

#[tokio::test]
async fn a_record_whose_fate_is_unclear_is_read_back() {
    for fault in [
        Fault::LoseAnswer,
        Fault::DoAndRefuse(504),
        Fault::LoseRequest,
        Fault::Refuse(500),
        Fault::Refuse(409),
    ] {
        let cluster = Cluster::new(2);
        cluster.api.fault(move |call| {
            if call.method == "PATCH" && call.before < 3 {
                fault
            } else {
                Fault::None
            }
        });
        redeem(&cluster.server(), CODE, "n")
            .await
            .unwrap_or_else(|refusal| panic!("{fault:?}: {refusal:?}"));
        assert_eq!(cluster.counted(), 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_costs_nothing_but_time() {
    for fault in [Fault::LoseRequest, Fault::Refuse(503), Fault::Hang] {
        let cluster = Cluster::new(1);
        cluster.api.fault(move |_| fault);
        let server = cluster.server();
        let refused = refusal(&server, CODE, "n").await.unwrap();
        assert_eq!(refused, Refusal::Unavailable);
        assert_eq!(
            (refused.status(), refused.retry_after()),
            (StatusCode::SERVICE_UNAVAILABLE, Some(5))
        );
        cluster.api.fault(|_| Fault::None);
        assert_eq!(cluster.counted(), 0);
        redeem(&server, CODE, "n").await.unwrap();
        assert_eq!(cluster.counted(), 1);
    }
}

#[tokio::test]
async fn a_record_that_is_refused_for_good_leaves_no_trace() {
    let cluster = Cluster::new(1);
    cluster.api.fault(|call| {
        if call.method == "PATCH" {
            Fault::Refuse(403)
        } else {
            Fault::None
        }
    });
    let server = cluster.server();
    assert_eq!(
        refusal(&server, CODE, "n").await,
        Some(Refusal::Unavailable)
    );
    assert_eq!(cluster.api.count("PATCH", "g/status"), 1);
    cluster.api.fault(|_| Fault::None);
    assert_eq!(cluster.counted(), 0);
    redeem(&server, CODE, "other").await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_made_is_not_counted() {
    let cluster = Cluster::new(1);
    let server = cluster.server();
    let good = cluster.site.lock().unwrap().clone().unwrap();
    let with = |site: Option<Offer>| *cluster.site.lock().unwrap() = site;
    with(None);
    assert_eq!(
        refusal(&server, CODE, "n").await,
        Some(Refusal::NoSite("east".to_owned()))
    );
    with(Some(Offer {
        edge: true,
        ..good.clone()
    }));
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::EdgeSite));
    with(Some(Offer {
        endpoints: Vec::new(),
        ..good.clone()
    }));
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::NoEndpoint));
    for issuer in ["", "absent"] {
        with(Some(Offer {
            issuer: issuer.to_owned(),
            ..good.clone()
        }));
        assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::NoIssuer));
    }
    with(Some(good));
    let ca = cluster.api.get(CA).unwrap();
    let mut junk = ca.clone();
    junk["data"]["tls.key"] = json!("anVuaw==");
    cluster.api.put(CA, junk);
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::NoIssuer));
    cluster.api.put(CA, ca);
    assert_eq!(cluster.counted(), 0);
    redeem(&server, CODE, "n").await.unwrap();
}

#[tokio::test]
async fn the_issuer_that_a_grant_names_signs() {
    let cluster = Cluster::new(1);
    cluster.edit(|grant| grant["spec"]["issuer"] = json!("another-ca"));
    let server = cluster.server();
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::NoIssuer));
    let mut ca = cluster.api.get(CA).unwrap();
    ca["metadata"]["name"] = json!("another-ca");
    cluster
        .api
        .put(&CA.replace("skupper-site-ca", "another-ca"), ca);
    redeem(&server, CODE, "n").await.unwrap();
}

#[tokio::test]
async fn nothing_is_told_to_those_who_do_not_know_the_code() {
    let cluster = Cluster::new(1);
    let server = cluster.server();
    let wrong = CODE.replace('X', "Y");
    assert_eq!(
        refusal(&server, &wrong, "n").await,
        Some(Refusal::WrongCode)
    );
    redeem(&server, CODE, "n").await.unwrap();
    assert_eq!(
        refusal(&server, &wrong, "n").await,
        Some(Refusal::WrongCode)
    );
    cluster.edit(|grant| grant["status"]["expirationTime"] = json!(in_seconds(-1)));
    assert_eq!(
        refusal(&server, &wrong, "n").await,
        Some(Refusal::WrongCode)
    );
    assert_eq!(refusal(&server, "", "n").await, Some(Refusal::WrongCode));
    let mut unknown = request(CODE, "n");
    unknown.grant = "another".to_owned();
    assert_eq!(
        server.redeem(SOURCE.parse().unwrap(), unknown).await.err(),
        Some(Refusal::UnknownGrant)
    );
    // A grant without a code, as every grant is for a moment.
    cluster.edit(|grant| {
        grant["status"].as_object_mut().unwrap().remove("code");
    });
    assert_eq!(refusal(&server, "", "n").await, Some(Refusal::UnknownGrant));
}

#[tokio::test]
async fn a_grant_that_has_nothing_left_says_why_to_those_who_know_its_code() {
    let cluster = Cluster::new(1);
    let server = cluster.server();
    cluster.edit(|grant| grant["status"]["redemptions"] = json!(1));
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::UsedUp));
    assert_eq!(*cluster.events.lock().unwrap(), ["UsedUpGrantTried"]);
    cluster.edit(|grant| grant["status"]["expirationTime"] = json!(in_seconds(-1)));
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::Expired));
    cluster.edit(|grant| grant["status"]["expirationTime"] = json!("soon"));
    assert_eq!(
        refusal(&server, CODE, "n").await,
        Some(Refusal::CorruptGrant)
    );
    assert_eq!(cluster.api.count("PATCH", "g/status"), 0);
}

#[tokio::test]
async fn wrong_codes_cost_their_source_and_never_lock_a_grant() {
    let cluster = Cluster::new(1);
    let server = cluster.server();
    let mut answers = Vec::new();
    for _ in 0..100 {
        answers.push(refusal(&server, "wrong", "n").await.unwrap());
    }
    assert_eq!(answers[0], Refusal::WrongCode);
    assert_eq!(answers[99], Refusal::TooMany);
    // From the same address, which may be that of many.
    redeem(&server, CODE, "n").await.unwrap();
}

#[tokio::test]
async fn a_grant_that_was_deleted_or_made_anew_gives_nothing() {
    let cluster = Cluster::new(1);
    let known = cluster.api.get(GRANT);
    let server = cluster.server_that_knows(move || known.clone());
    cluster.edit(|grant| grant["metadata"]["uid"] = json!("another"));
    assert_eq!(
        refusal(&server, CODE, "n").await,
        Some(Refusal::UnknownGrant)
    );
    assert_eq!(cluster.counted(), 0);
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

#[tokio::test]
async fn the_door_speaks_as_upstreams_does() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let answer = async |request: String| {
        let answer = said(&listening, &request).await;
        let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
        (
            status,
            answer.rsplit("\r\n").next().unwrap_or_default().to_owned(),
        )
    };
    let told = |status: &str, text: &str| (status.to_owned(), text.to_owned());
    assert_eq!(
        answer(post("/grant-uid", "", CODE).replace("POST", "GET")).await,
        told("405", "Only POST is supported")
    );
    assert_eq!(
        answer(post("/other", "", CODE)).await,
        told("404", "No such claim")
    );
    assert_eq!(
        answer(post("/", "", CODE)).await,
        told("404", "No such claim")
    );
    assert_eq!(
        answer(post("/grant-uid", "", "wrong")).await,
        told("403", "Redemption of access token refused")
    );
    assert_eq!(
        answer(post("/grant-uid", "", &"x".repeat(2000))).await,
        told("400", "Request body not valid")
    );
    assert_eq!(
        answer(post("/grant-uid", "name: A_b\r\n", CODE)).await,
        told("400", "Request header name not valid")
    );
    let huge = format!("x: {}\r\n", "y".repeat(9000));
    assert_eq!(answer(post("/grant-uid", &huge, CODE)).await.0, "431");
    assert_eq!(cluster.counted(), 0);
    // Upstream takes all slashes out.
    let (status, yaml) = answer(post("//grant-uid/", "name: t\r\nsubject: s\r\n", CODE)).await;
    assert_eq!(status, "200");
    assert!(yaml.contains("kind: Secret"));
    assert_eq!(
        answer(post("/grant-uid", "", CODE)).await,
        told("404", "No such access granted")
    );
}

#[tokio::test]
async fn http2_is_spoken() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let mut tls = client_tls(&listening.ca, &[&rustls::version::TLS13]);
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let stream = connected(&listening, tls).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let mut task = JoinSet::new();
    task.spawn(connection);
    let request = http::Request::post("https://127.0.0.1/grant-uid")
        .header("name", "t")
        .body(Full::new(Bytes::from(CODE)))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"---\n"));
}

#[tokio::test]
async fn only_tls_13_is_spoken() {
    let listening = listening(Cluster::new(1).server()).await;
    let tls = client_tls(&listening.ca, &[&rustls::version::TLS12]);
    assert!(connected(&listening, tls).await.is_err());
    let mut plain = TcpStream::connect(listening.address).await.unwrap();
    plain
        .write_all(post("/grant-uid", "", CODE).as_bytes())
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"));
}

#[tokio::test]
async fn a_new_certificate_is_served_to_the_next_client() {
    let mut listening = listening(Cluster::new(1).server()).await;
    assert!(
        said(&listening, &post("/other", "", ""))
            .await
            .contains("404")
    );
    let ca = authority("another ca");
    let credential = signed(&ca, &["127.0.0.1"]);
    assert!(
        listening
            .served
            .set(&credential.certificate, &ca.key)
            .is_err()
    );
    assert!(listening.served.set("junk", "junk").is_err());
    assert!(
        said(&listening, &post("/other", "", ""))
            .await
            .contains("404")
    );
    listening
        .served
        .set(&credential.certificate, &credential.key)
        .unwrap();
    let tls = client_tls(&listening.ca, &[&rustls::version::TLS13]);
    assert!(connected(&listening, tls).await.is_err());
    listening.ca = ca;
    assert!(
        said(&listening, &post("/other", "", ""))
            .await
            .contains("404")
    );
}

#[tokio::test]
async fn without_a_certificate_nobody_gets_in() {
    let mut listening = listening(Cluster::new(1).server()).await;
    let empty = Served::nothing().unwrap();
    assert!(!empty.is_set() && listening.served.is_set());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listening.address = listener.local_addr().unwrap();
    let (server, stop) = (Cluster::new(1).server(), listening.stop.clone());
    listening
        .task
        .spawn(async move { server.run(listener, &empty, stop).await });
    let tls = client_tls(&listening.ca, &[&rustls::version::TLS13]);
    assert!(connected(&listening, tls).await.is_err());
}

#[tokio::test]
async fn a_crowd_of_idle_clients_holds_up_nobody() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let mut crowd = Vec::new();
    for _ in 0..400 {
        crowd.push(TcpStream::connect(listening.address).await.unwrap());
    }
    let request = post("/grant-uid", "name: t\r\n", CODE);
    let answer = timeout(Duration::from_secs(3), said(&listening, &request));
    assert!(answer.await.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_server_that_stops_finishes_what_it_has_begun() {
    let cluster = Cluster::new(1);
    let mut listening = listening(cluster.server()).await;
    assert!(
        said(&listening, &post("/grant-uid", "name: t\r\n", CODE))
            .await
            .contains("200")
    );
    listening.stop.cancel();
    timeout(Duration::from_secs(2), listening.task.join_next())
        .await
        .unwrap();
    assert!(TcpStream::connect(listening.address).await.is_err());
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

#[tokio::test]
async fn a_token_is_redeemed_and_its_answer_stored() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let mut west = west(&listening, CODE);
    let attempt = west.attempt().await;
    assert_eq!(attempt.outcome, Outcome::Stored);
    assert_eq!((attempt.generation, attempt.tries), (1, 1));
    let stored = west.api.get(STORED).unwrap();
    assert_eq!(stored["metadata"]["ownerReferences"][0]["uid"], "site-uid");
    assert_eq!(
        stored["metadata"]["annotations"]["internal.spanwire.io/token"],
        "token-uid"
    );
    let links: Value = serde_json::from_str(
        stored["metadata"]["annotations"]["internal.spanwire.io/links"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    assert_eq!(links[0]["name"], "t");
    assert_eq!(links[0]["endpoints"][0]["host"], "10.9.8.7");
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(stored).unwrap();
    let facts = crate::facts::secret_facts(&secret);
    assert_eq!(facts.certificate().unwrap().subject, "site-uid");
    assert_eq!(facts.pair.unwrap().chain_error, None);
    assert_eq!(cluster.counted(), 1);

    // Killed before anybody heard of it: the same claim, the same end.
    let again = west.attempt().await;
    assert_eq!(again.outcome, Outcome::Stored);
    assert_eq!(cluster.counted(), 1);
}

#[tokio::test]
async fn refusals_are_told_apart() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    assert_eq!(
        west(&listening, "wrong").attempt().await.outcome,
        Outcome::CodeRefused
    );
    cluster.edit(|grant| grant["status"]["redemptions"] = json!(1));
    assert_eq!(
        west(&listening, CODE).attempt().await.outcome,
        Outcome::UsedUp
    );
    cluster.edit(|grant| grant["status"]["expirationTime"] = json!(in_seconds(-1)));
    assert_eq!(
        west(&listening, CODE).attempt().await.outcome,
        Outcome::Expired
    );
    *cluster.site.lock().unwrap() = None;
    cluster.edit(|grant| {
        grant["status"]["redemptions"] = json!(0);
        grant["status"]["expirationTime"] = json!(in_seconds(60));
    });
    let mut west = west(&listening, CODE);
    assert!(matches!(
        west.attempt().await.outcome,
        Outcome::Unreachable(_)
    ));
    assert_eq!(west.attempt().await.tries, 2);
    assert_eq!(west.api.get(STORED), None);
}

#[tokio::test]
async fn only_the_tokens_ca_is_trusted() {
    let listening = listening(Cluster::new(1).server()).await;
    let with = |ca: &str| {
        let west = west(&listening, CODE);
        let mut token = west.api.get(TOKEN).unwrap();
        token["spec"]["ca"] = json!(ca);
        west.api.put(TOKEN, token);
        west
    };
    let Outcome::Untrusted(message) = with(&authority("x").ca).attempt().await.outcome else {
        panic!()
    };
    assert_eq!(
        message,
        "the certificate at the token's url is not vouched for by the token's ca"
    );
    let Outcome::Invalid(message) = with("junk").attempt().await.outcome else {
        panic!()
    };
    assert_eq!(
        message,
        "the token's ca cannot be used: ca holds no certificate in PEM"
    );
    let Outcome::Invalid(message) = with("").attempt().await.outcome else {
        panic!()
    };
    assert_eq!(message, "token does not have a CA");
    let elsewhere = signed(&listening.ca, &["elsewhere.example"]);
    listening
        .served
        .set(&elsewhere.certificate, &elsewhere.key)
        .unwrap();
    let Outcome::Untrusted(message) = west(&listening, CODE).attempt().await.outcome else {
        panic!()
    };
    assert_eq!(
        message,
        "the certificate at the token's url is not for the host that the url names"
    );
}

#[tokio::test]
async fn nobody_is_dialled_who_may_not_be() {
    let listening = listening(Cluster::new(1).server()).await;
    let mut west = west(&listening, CODE);
    let (sender, attempts) = mpsc::unbounded_channel();
    west.attempts = attempts;
    let report = Arc::new(move |_, attempt| sender.send(attempt).unwrap());
    let metrics = Arc::new(Metrics::new("0"));
    west.pool = Pool::new(
        west.api.client(),
        Clock::default(),
        Policy::default(),
        Leading::for_test().1,
        metrics,
        report,
        Dying::default(),
    );
    let Outcome::Invalid(message) = west.attempt().await.outcome else {
        panic!()
    };
    assert_eq!(
        message,
        "the token's url leads to an address that may not be dialled"
    );
}

#[tokio::test]
async fn a_closed_port_and_a_silent_one_look_the_same() {
    let mut listening = listening(Cluster::new(1).server()).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listening.address = closed.local_addr().unwrap();
    let mut silent = west(&listening, CODE);
    let waiting = {
        silent.pool.submit(act(1));
        let (stream, _) = closed.accept().await.unwrap();
        drop(stream);
        silent.attempts.recv().await.unwrap().outcome
    };
    drop(closed);
    let refused = west(&listening, CODE).attempt().await.outcome;
    assert_eq!(waiting, refused);
    assert!(matches!(refused, Outcome::Unreachable(_)));
}

#[tokio::test]
async fn a_token_is_redeemed_once_at_a_time_and_again_when_it_has_changed() {
    let cluster = Cluster::new(5);
    let listening = listening(cluster.server()).await;
    let mut west = west(&listening, CODE);
    for _ in 0..5 {
        west.pool.submit(act(1));
    }
    assert_eq!(west.attempts.recv().await.unwrap().outcome, Outcome::Stored);
    assert_eq!(west.api.count("POST", "/secrets"), 1);

    // While the first is under way, the token changes.
    let api = west.api.clone();
    west.api.fault(move |call| {
        if call.method == "GET" && call.path == TOKEN && call.before == 1 {
            let mut token = api.get(TOKEN).unwrap();
            token["metadata"]["generation"] = json!(2);
            api.put(TOKEN, token);
        }
        Fault::None
    });
    west.pool.submit(act(1));
    west.pool.submit(act(2));
    let attempt = west.attempts.recv().await.unwrap();
    assert_eq!((attempt.generation, attempt.tries), (2, 1));
}

#[tokio::test]
async fn an_answer_is_stored_whatever_becomes_of_the_write() {
    for fault in [
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::Refuse(503),
        Fault::DoAndRefuse(504),
    ] {
        let cluster = Cluster::new(1);
        let listening = listening(cluster.server()).await;
        let mut west = west(&listening, CODE);
        west.api.fault(move |call| {
            if call.method == "POST" && call.before == 0 {
                fault
            } else {
                Fault::None
            }
        });
        assert_eq!(west.attempt().await.outcome, Outcome::Stored, "{fault:?}");
        assert!(west.api.get(STORED).is_some());
        assert_eq!(cluster.counted(), 1);
    }
}

#[tokio::test]
async fn a_strangers_secret_is_left_alone() {
    let listening = listening(Cluster::new(1).server()).await;
    let mut west = west(&listening, CODE);
    west.api.put(
        STORED,
        json!({"metadata": {"name": "t", "namespace": "west"}, "kind": "Secret"}),
    );
    let Outcome::Unreachable(message) = west.attempt().await.outcome else {
        panic!()
    };
    assert!(message.contains("is not this token's"));
    assert_eq!(west.api.get(STORED).unwrap().get("data"), None);
}

#[tokio::test]
async fn a_token_that_is_gone_or_another_now_is_not_redeemed() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let west = west(&listening, CODE);
    let mut token = west.api.get(TOKEN).unwrap();
    token["metadata"]["uid"] = json!("another");
    west.api.put(TOKEN, token);
    west.pool.submit(act(1));
    let mut attempts = west.attempts;
    assert!(
        timeout(Duration::from_millis(300), attempts.recv())
            .await
            .is_err()
    );
    assert_eq!(cluster.counted(), 0);
}

/// The address that is looked up is not the only one: a balancer's, another replica's, one by a detour.
#[tokio::test]
async fn an_api_server_is_known_by_its_certificate_wherever_it_is_met() {
    let listening = listening(Cluster::new(1).server()).await;
    let hosts = ["127.0.0.1", "kubernetes", "kubernetes.default.svc"];
    let api_server = signed(&listening.ca, &hosts);
    listening
        .served
        .set(&api_server.certificate, &api_server.key)
        .unwrap();
    let Outcome::Invalid(message) = west(&listening, CODE).attempt().await.outcome else {
        panic!()
    };
    assert_eq!(
        message,
        "the token's url leads to an address that may not be dialled"
    );
}

#[tokio::test]
async fn the_api_server_is_not_dialled_where_it_says_it_is() {
    let listening = listening(Cluster::new(1).server()).await;
    let mut west = west(&listening, CODE);
    let told = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": listening.address.to_string()}]);
    west.api.put(
        "/api",
        json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": told}),
    );
    let Outcome::Invalid(message) = west.attempt().await.outcome else {
        panic!()
    };
    assert_eq!(
        message,
        "the token's url leads to an address that may not be dialled"
    );
}
