//! Does a key or a code get anywhere but where it belongs?

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use spanwire_api::{AccessToken, Certificate, Link, RouterAccess, SecuredAccess, Site};
use spanwire_plan::{Config, Env, Seen, World, kinds};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;
use crate::act::Workshop;
use crate::controllers::KINDS;
use crate::dying::Dying;
use crate::stores::{Bells, Reader, Scope, Stores, Watches};

/// A code that a person has chosen.
const CHOSEN: &str = "OpenSesameOpenSesameOpen";
/// A code that is a number by mistake, as unquoted YAML makes it.
const NUMBER: u64 = 918_273_645_546_372_819;
/// No key, and in the place of one.
const JUNK: &str =
    "-----BEGIN PRIVATE KEY-----\nThisIsNoKeyButSomebodyTookItForOneAndStoredItWithCare\n";

/// Everything that is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Listens, as closely as a user may ask for, for as long as the rest is held.
    fn begin() -> (Self, (DefaultGuard, tracing::Dispatch)) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish()
            .with(crate::telemetry::discreet("trace").unwrap());
        // With a second one about, no other test's thread can decide that a line is never logged.
        let second = tracing::Dispatch::new(
            tracing_subscriber::fmt()
                .with_writer(std::io::sink)
                .finish(),
        );
        (log, (tracing::subscriber::set_default(subscriber), second))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// How a key in PEM shows itself: as it is, as a Secret has it, and as bytes are printed.
fn traces(key: &str) -> Vec<String> {
    let lines = key
        .lines()
        .filter(|line| line.len() > 8 && !line.starts_with('-'));
    let bytes = format!("{:?}", &key.as_bytes()[40..60]);
    let bytes = bytes.trim_matches(['[', ']']).to_owned();
    let encoded = STANDARD.encode(key)[40..80].to_owned();
    lines.map(str::to_owned).chain([bytes, encoded]).collect()
}

/// The key in a Secret.
fn key(secret: &Value) -> String {
    let ByteString(pem) = serde_json::from_value(secret["data"]["tls.key"].clone()).unwrap();
    String::from_utf8(pem).unwrap()
}

/// An object with the copy of it that `kubectl apply` leaves behind.
fn applied(mut object: Value) -> Value {
    let copy = object.to_string();
    object["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": copy});
    object
}

fn secret(name: &str, [ca, certificate, key]: [&str; 3]) -> Value {
    let [ca, certificate, key] = [ca, certificate, key].map(|text| STANDARD.encode(text));
    applied(json!({
        "kind": "Secret", "metadata": {"name": name, "namespace": "east"},
        "data": {"ca.crt": ca, "tls.crt": certificate, "tls.key": key},
    }))
}

fn object(name: &str, mut object: Value) -> Value {
    object["metadata"] = json!({
        "name": name, "namespace": "east", "uid": format!("{name}-uid"), "generation": 1, "resourceVersion": "1",
    });
    applied(object)
}

fn grants() -> Vec<Value> {
    let astray = json!({"spec": {"redemptionsAllowed": CODE}, "status": {"code": CODE}});
    vec![
        object("minted", json!({"status": {"code": CODE}})),
        object("chosen", json!({"spec": {"code": CHOSEN}})),
        object("number", json!({"spec": {"code": NUMBER}})),
        object("list", json!({"status": {"code": [CODE]}})),
        object("astray", astray),
    ]
}

fn tokens(ca: &str) -> Vec<Value> {
    let token = |name: &str, code: Value, settings: Value| {
        let url = "https://127.0.0.1:9/grant-uid";
        let spec = json!({"url": url, "code": code, "ca": ca, "settings": settings});
        object(name, json!({"spec": spec}))
    };
    vec![
        token("t", json!(CODE), json!({})),
        token("number", json!(NUMBER), json!({})),
        token("astray", json!(CODE), json!(CODE)),
    ]
}

/// A namespace full of keys and codes, in good objects and in odd ones.
struct Treasury {
    api: ApiServer,
    /// What the watches find, by kind.
    lists: BTreeMap<&'static str, Vec<Value>>,
    /// What nobody may see of it.
    hidden: Vec<String>,
}

impl Treasury {
    fn new() -> Self {
        let Cluster { api, .. } = Cluster::new(1);
        let ca = api.get(CA).unwrap();
        let good = authority("good");
        let mixed = good.key.to_string() + &good.certificate;
        let secrets = [
            secret("good", [&good.ca, &good.certificate, &good.key]),
            secret("swapped", [&good.key, &mixed, &good.certificate]),
            secret("junk", [&good.ca, &good.certificate, JUNK]),
        ];
        let mut heads = vec![json!({"metadata": ca["metadata"]})];
        let mut links = Vec::new();
        for secret in secrets {
            let name = secret["metadata"]["name"].as_str().unwrap();
            let path = format!("/api/v1/namespaces/east/secrets/{name}");
            let endpoint = json!({"name": "inter-router", "host": name, "port": "55671"});
            let spec = json!({"endpoints": [endpoint], "tlsCredentials": name});
            links.push(object(name, json!({"spec": spec})));
            api.put(&path, secret);
            heads.push(json!({"metadata": api.get(&path).unwrap()["metadata"]}));
        }
        let tokens = tokens(&good.ca);
        api.put(&TOKEN.replace("west", "east"), tokens[0].clone());
        let site = object("s", json!({"spec": {"linkAccess": "default"}}));
        let leaf = json!({"spec": {"ca": "skupper-site-ca", "subject": "leaf"}});
        let lists = BTreeMap::from([
            ("sites", vec![site]),
            ("links", links),
            ("certificates", vec![object("leaf", leaf)]),
            ("accessgrants", grants()),
            ("accesstokens", tokens),
            ("secrets", heads),
        ]);
        let codes = [CODE.to_owned(), CHOSEN.to_owned(), NUMBER.to_string()];
        let keys = [key(&ca), good.key.to_string(), JUNK.to_owned()];
        let hidden = codes
            .into_iter()
            .chain(keys.iter().flat_map(|key| traces(key)));
        Self {
            api,
            lists,
            hidden: hidden.collect(),
        }
    }

    /// Answers lists and reads; the watches that follow hang.
    fn open(&self) {
        let groups = [
            (
                "/apis/skupper.io/v2alpha1",
                "sites links routeraccesses securedaccesses certificates accessgrants accesstokens",
            ),
            ("/apis/apps/v1", "deployments replicasets"),
            ("/apis/rbac.authorization.k8s.io/v1", "roles rolebindings"),
            (
                "/api/v1",
                "pods services serviceaccounts secrets configmaps",
            ),
        ];
        let mut collections = Vec::new();
        for (group, kinds) in groups {
            for kind in kinds.split(' ') {
                let path = format!("{group}/namespaces/east/{kind}");
                let items = self.lists.get(kind).cloned().unwrap_or_default();
                self.api.put(
                    &path,
                    json!({"kind": "List", "metadata": {}, "items": items}),
                );
                collections.push(path);
            }
        }
        self.api.fault(move |call| {
            let is_watch =
                call.method == "GET" && call.before > 0 && collections.contains(&call.path);
            if is_watch { Fault::Hang } else { Fault::None }
        });
    }

    /// What the operator knows once it has heard and read everything.
    async fn world(&self) -> Arc<World> {
        self.open();
        let stores = Arc::new(Stores::new("home", Bells::new(&KINDS).0));
        let scope = Scope::Namespace("east".to_owned());
        let mut watches = Watches::new(self.api.client(), scope, stores.clone());
        watches.reconciled::<Site>();
        watches.reconciled::<Link>();
        watches.reconciled::<RouterAccess>();
        watches.reconciled::<SecuredAccess>();
        watches.reconciled::<Certificate>();
        watches.reconciled::<AccessGrant>();
        watches.reconciled::<AccessToken>();
        watches.deployments();
        watches.children();
        let reader = Reader {
            client: self.api.client(),
            stores: stores.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(reader.run());
        let all_known = async {
            watches.filled().complete().await;
            while stores.world("east").secrets.0.len() < self.lists["secrets"].len() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(20), all_known).await.unwrap();
        stores.world("east")
    }

    fn assert_hidden(&self, shown: &str, text: &str) {
        for trace in &self.hidden {
            assert!(!text.contains(trace), "{shown}: {trace}");
        }
    }
}

#[tokio::test]
async fn no_key_or_code_leaves_its_secret() {
    let (log, _here) = Log::begin();
    let treasury = Treasury::new();
    let world = treasury.world().await;
    assert_eq!(world.access_grants.0.len(), grants().len());
    assert_eq!(world.access_tokens.0.len(), tokens("").len());
    treasury.assert_hidden("World", &serde_saphyr::to_string(&*world).unwrap());
    treasury.assert_hidden("World for a log", &format!("{world:?}"));

    let config = Config::default();
    let env = Env {
        now: Clock::default().now(),
        nonce: 7,
        config: &config,
    };
    let plans = kinds::plans(&world, &env);
    for plan in plans.values() {
        treasury.assert_hidden("Plan", &serde_saphyr::to_string(plan).unwrap());
        treasury.assert_hidden("Plan for a log", &format!("{plan:?}"));
    }

    let (client, clock) = (treasury.api.client(), Clock::default());
    let metrics = Arc::new(Metrics::new("0"));
    let (attempted, mut attempts) = mpsc::unbounded_channel();
    let report = Arc::new(move |_, attempt| attempted.send(attempt).unwrap());
    let pool = Pool::new(
        client.clone(),
        clock,
        Policy::default(),
        Leading::for_test().1,
        metrics.clone(),
        report,
        Dying::default(),
    );
    let workshop = Workshop {
        client,
        pool,
        metrics: metrics.clone(),
        dying: Dying::default(),
    };
    for plan in plans.values() {
        let outcome = workshop.carry_out(plan).await;
        treasury.assert_hidden("failures", &format!("{:?}", outcome.failures));
    }
    let attempt = timeout(Duration::from_secs(20), attempts.recv()).await;
    treasury.assert_hidden("attempt", &format!("{:?}", attempt.unwrap()));
    treasury.assert_hidden("metrics", &metrics.text());
    let log = log.text();
    assert!(log.contains("issue Secret"), "nothing was logged");
    treasury.assert_hidden("log", &log);
}

#[test]
fn no_code_shows_where_an_object_is_printed_for_a_log() {
    let bare = |objects: Vec<Value>| -> Value {
        let objects = objects.into_iter().map(|mut object| {
            object["metadata"]["annotations"] = Value::Null;
            object
        });
        objects.collect()
    };
    let grants: Vec<Seen<AccessGrant>> = serde_json::from_value(bare(grants())).unwrap();
    let tokens: Vec<Seen<AccessToken>> = serde_json::from_value(bare(tokens(""))).unwrap();
    Treasury::new().assert_hidden("objects", &format!("{grants:?}{tokens:?}"));
}

#[tokio::test]
async fn no_key_and_no_code_is_logged() {
    let (log, _here) = Log::begin();
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let mut west = west(&listening, CODE);
    // Answers that are lost, refused and not understood are when libraries talk.
    west.api
        .fault(|call| match (call.method.as_str(), call.before) {
            ("GET", 0) => Fault::Refuse(500),
            ("POST", 0) => Fault::DoAndRefuse(504),
            _ => Fault::None,
        });
    for _ in ["the token", "where the API server is"] {
        west.attempt().await;
    }
    assert_eq!(west.attempt().await.outcome, Outcome::Stored);
    assert_eq!(
        refusal(&cluster.server(), CODE, "other").await,
        Some(Refusal::UsedUp)
    );
    let token = west.api.get(TOKEN).unwrap();
    west.api.fault(|_| Fault::None);
    let mut odd = token.clone();
    odd["spec"]["settings"] = json!(7);
    west.api.put(TOKEN, odd);
    assert!(matches!(west.attempt().await.outcome, Outcome::Invalid(_)));

    let log = log.text();
    assert!(log.contains("Redeemed"), "nothing was logged");
    assert!(!log.contains(CODE), "a code was logged");
    for secret in [west.api.get(STORED), cluster.api.get(CA)] {
        for trace in traces(&key(&secret.unwrap())) {
            assert!(!log.contains(&trace), "a key was logged");
        }
    }
}
