//! Is trouble of one object's pass told in its status, once, and is nobody left asleep?

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use hyper::{Request, Response};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::client::Body;
use serde::{Deserialize, Serialize};
use serde_json::json;
use spanwire_api::Site;
use spanwire_plan::kinds::Changed;
use spanwire_plan::plan::{Act, Nudge, Status, Verdict};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::service_fn;

use super::*;
use crate::controllers::{self, KINDS};
use crate::dying::Dying;
use crate::stores::{Bells, Queues, Scope, Watches};

/// What nobody may read in a status.
const SECRET: &str = "AbcdefghijklmnopqrstuvwX";

/// A Site whose pass goes as its settings say.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct Fragile(Site);

impl Resource for Fragile {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Site::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Site::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Site::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Site::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

impl Kind for Fragile {
    const KIND: ObjectKind = ObjectKind::Site;
    const CONDITION: Option<&'static str> = Some("Configured");

    fn plan(&self, _: &World, _: &Env<'_>) -> Plan {
        let mut plan = Plan::only(Status {
            verdicts: vec![Verdict::ready("Configured")],
            sum_of: &["Configured"],
            ..Status::default()
        });
        match self.0.spec.settings.get("pass").map(String::as_str) {
            Some("panics") => panic!("{SECRET} is odd"),
            Some("hangs") => {
                // One call each, which nobody answers.
                for pod in ["a", "b", "c", "d"] {
                    let nudge = Nudge {
                        namespace: "a".to_owned(),
                        pod: pod.to_owned(),
                        uid: pod.to_owned(),
                        value: String::new(),
                    };
                    plan.push("Configured", false, vec![Act::Nudge(nudge)]);
                }
            }
            Some("waits") => {
                if let Some(status) = &mut plan.status {
                    status.verdicts = vec![Verdict::pending("Configured", "Waits", "it waits")];
                }
            }
            _ => {}
        }
        plan
    }

    fn wakes(_: &Changed<'_>, _: &World) -> Vec<String> {
        Vec::new()
    }
}

impl Held for Fragile {
    fn held<'w>(world: &'w World, name: &str) -> Option<Object<'w, Self>> {
        let site = world.sites.get(name)?.fits()?.clone();
        Some(Object::Fits(Box::leak(Box::new(Self(site)))))
    }
}

/// An API server that has some objects, takes statuses and never answers a watch or a nudge.
#[derive(Clone, Default)]
struct Server {
    /// Objects by the end of the path that lists them.
    lists: Arc<BTreeMap<&'static str, Value>>,
    statuses: Arc<Mutex<Vec<Value>>>,
    /// How many statuses are refused before one is taken.
    refusals: Arc<AtomicU32>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| server.clone().serve(request));
        Client::new(service, "default")
    }

    async fn serve(self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let (head, body) = request.into_parts();
        let body: Value =
            serde_json::from_slice(&body.collect_bytes().await?).unwrap_or(Value::Null);
        let path = head.uri.path();
        let is_watch = head
            .uri
            .query()
            .is_some_and(|query| query.contains("watch"));
        let answer = match head.method.as_str() {
            "GET" if !is_watch => {
                let items = self.lists.iter().find(|(kind, _)| path.ends_with(*kind));
                let items = items.map_or(json!([]), |(_, items)| items.clone());
                json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})
            }
            "PATCH" if path.ends_with("/status") && self.refuses() => {
                return Err(kube::Error::Service("out of space".into()));
            }
            "PATCH" if path.ends_with("/status") => {
                self.statuses.lock().unwrap().push(body["status"].clone());
                json!({"metadata": {}})
            }
            "POST" => body,
            _ => std::future::pending().await,
        };
        Ok(Response::new(Body::from(answer.to_string().into_bytes())))
    }

    fn refuses(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        let (order, refusals) = (Ordering::Relaxed, &self.refusals);
        refusals.fetch_update(order, order, less).is_ok()
    }

    fn statuses(&self) -> Vec<Value> {
        self.statuses.lock().unwrap().clone()
    }
}

/// A shell that talks to this server, and until when it leads: for an hour, at first.
fn shell(server: &Server) -> (Arc<Shell>, watch::Sender<Option<Instant>>, Queues) {
    let (bells, queues) = Bells::new(&KINDS);
    let (until, leading) = Leading::for_test();
    let (client, clock) = (server.client(), Clock::default());
    let metrics = Arc::new(Metrics::new("0"));
    let workshop = crate::mock::workshop(
        client.clone(),
        leading.clone(),
        metrics.clone(),
        Dying::default(),
    );
    let shell = Shell::new(
        Arc::new(Stores::new("home", bells)),
        workshop,
        Arc::new(Publisher::new(client, "spanwire", "me", Dying::default())),
        Config::default(),
        clock,
        leading,
        metrics,
    );
    (Arc::new(shell), until, queues)
}

/// A Site whose pass goes like this, with what its status says by now.
fn keep(shell: &Shell, pass: &str, statuses: &[Value]) {
    let revision = format!("{pass}-{}", statuses.len());
    let site: Seen<Site> = serde_json::from_value(json!({
        "metadata": {
            "name": "west", "namespace": "a", "uid": "1", "generation": 1, "resourceVersion": revision,
        },
        "spec": {"settings": {"pass": pass}},
        "status": statuses.last(),
    }))
    .unwrap();
    shell.stores.keep(site);
}

/// What is written in four passes of this kind, each after the news of the one before.
async fn told(shell: &Shell, server: &Server, pass: &str) -> Vec<Value> {
    let before = server.statuses().len();
    for _ in 0..4 {
        keep(shell, pass, &server.statuses());
        shell.reconcile::<Fragile>("a", "west").await;
    }
    server.statuses().split_off(before)
}

fn ready(status: &Value) -> &Value {
    let conditions = status["conditions"].as_array().unwrap();
    conditions
        .iter()
        .find(|condition| condition["type"] == "Ready")
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_is_cut_short_is_told_once_until_one_is_not() {
    for (pass, reason) in [("panics", "InternalError"), ("hangs", "TimedOut")] {
        let server = Server::default();
        let (shell, _until, _queues) = shell(&server);
        assert_eq!(told(&shell, &server, "goes well").await.len(), 1);

        let bad = told(&shell, &server, pass).await;
        assert_eq!(bad.len(), 1, "{pass}: {bad:?}");
        assert_eq!(bad[0]["status"], "Error");
        assert_eq!(ready(&bad[0])["reason"], reason);
        let message = bad[0]["message"].as_str().unwrap();
        assert!(message.contains("Site \"west\""), "{message}");
        assert!(!bad[0].to_string().contains(SECRET), "{message}");

        let good = told(&shell, &server, "goes well").await;
        assert_eq!(good.len(), 1, "{pass}: {good:?}");
        assert_eq!(ready(&good[0])["status"], "True");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_cut_short_is_tried_again_less_and_less_often() {
    let server = Server::default();
    let (shell, _until, _queues) = shell(&server);
    keep(&shell, "panics", &[]);
    let key = (ObjectKind::Site, "a".to_owned(), "west".to_owned());
    for count in 1..4 {
        let action = shell.reconcile::<Fragile>("a", "west").await;
        assert_ne!(action, Action::await_change());
        assert_eq!(bounded(&shell.failures).get(&key), Some(&count));
    }
    keep(&shell, "goes well", &[]);
    shell.reconcile::<Fragile>("a", "west").await;
    assert_eq!(bounded(&shell.failures).get(&key), None);
}

/// The wait of a status that is not Ready began anew after each failure, and counted as success: the pauses stayed at half
/// a second for ever.
#[tokio::test(start_paused = true)]
async fn a_status_that_is_not_taken_is_told_less_and_less_often() {
    let server = Server::default();
    server.refusals.store(8, Ordering::Relaxed);
    let (shell, _until, _queues) = shell(&server);
    keep(&shell, "waits", &[]);
    let begun = Instant::now();
    let mut passes = 0;
    while server.statuses().is_empty() {
        shell.reconcile::<Fragile>("a", "west").await;
        passes += 1;
        assert!(passes < 12, "after {:?}", begun.elapsed());
        tokio::time::sleep(LASTING).await;
    }
    assert_eq!(passes, 10);
    let key = (ObjectKind::Site, "a".to_owned(), "west".to_owned());
    assert_eq!(bounded(&shell.failures).get(&key), None);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_went_is_forgotten_with_the_last_object_in_it() {
    let (shell, _until, _queues) = shell(&Server::default());
    let dying = &shell.workshop.dying;
    let status = kube::core::Status::failure("because it is being terminated", "Forbidden");
    let refusal = kube::Error::Api(Box::new(status.with_code(403)));
    dying.hear("a", &Err::<(), _>(refusal.into()));
    keep(&shell, "goes well", &[]);
    shell.reconcile::<Fragile>("a", "west").await;
    assert!(dying.knows("a"));
    shell.stores.forget::<Seen<Site>>("a", "west");
    shell.reconcile::<Fragile>("a", "west").await;
    assert!(!dying.knows("a"));
}

#[tokio::test(start_paused = true)]
async fn who_does_not_control_a_namespace_tells_nothing_of_it() {
    let server = Server::default();
    let (mut shell, _until, _queues) = shell(&server);
    Arc::get_mut(&mut shell).unwrap().config.explicit_control = true;
    keep(&shell, "panics", &[]);
    let cut = Cut::Panicked;
    shell
        .tell_of_cut::<Fragile>("a", "west", cut)
        .await
        .unwrap();
    assert_eq!(server.statuses(), Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn who_wins_the_lease_wakes_every_object_at_once() {
    let grant = json!({
        "metadata": {"name": "g", "namespace": "a", "uid": "1", "generation": 1, "resourceVersion": "1"},
    });
    let server = Server {
        lists: Arc::new(BTreeMap::from([("/accessgrants", json!([grant]))])),
        ..Server::default()
    };
    let (shell, until, queues) = shell(&server);
    until.send_replace(None);
    let leads = watch::Sender::new(false);
    let mut watches = Watches::new(server.client(), Scope::Cluster, shell.stores.clone());
    let mut tasks = JoinSet::new();
    controllers::start(&shell, leads.subscribe(), &mut watches, queues, &mut tasks);
    watches.filled().complete().await;
    // Its passes have found that another replica leads, and come again in half a minute.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(server.statuses(), Vec::<Value>::new());

    let now = Instant::now();
    until.send_replace(Some(now + Duration::from_hours(1)));
    leads.send_replace(true);
    while server.statuses().is_empty() && now.elapsed() < TURN {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(now.elapsed() < 3 * LASTING, "{:?}", now.elapsed());
}
