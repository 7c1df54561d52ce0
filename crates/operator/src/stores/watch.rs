//! How does news from the API server come in?

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::Api;
use kube::core::{PartialObjectMeta, Resource};
use kube::runtime::reflector::{Store, store::Writer};
use kube::runtime::watcher as watch_objects;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;
use spanwire_api::{
    AccessGrant, AccessToken, Certificate, Link, RouterAccess, SecuredAccess, Site,
};
use spanwire_plan::plan::ObjectKind;
use spanwire_plan::{Kind, Seen, labels};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{Stored, Stores};
use crate::facts;

/// How long a watch runs before everything is listed again, which heals what it might have lost: an hour, plus or
/// minus a fifth, so that the kinds do not list together.
const RELIST: Duration = Duration::from_hours(1);

/// How long a watch waits that failed: at first, and at most, plus or minus a fifth. So all kinds together ask an API server
/// that is not well twice a second, and none of them waits ten seconds once it is.
const PAUSE: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(8));

/// How long a watch waits after a panic, which would most likely come again at once.
const PANICKED: Duration = Duration::from_secs(5);

/// Where the operator looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every namespace.
    Cluster,
    /// One.
    Namespace(String),
}

/// Whether every store has been filled once.
#[derive(Default)]
pub struct Filled {
    missing: AtomicUsize,
    done: Notify,
}

impl Filled {
    /// Whether every store has been filled once.
    pub fn is_complete(&self) -> bool {
        self.missing.load(Ordering::Acquire) == 0
    }

    /// Waits until every store has been filled once.
    pub async fn complete(&self) {
        loop {
            let done = self.done.notified();
            if self.is_complete() {
                return;
            }
            done.await;
        }
    }

    fn expect(&self) {
        self.missing.fetch_add(1, Ordering::AcqRel);
    }

    fn fill(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_waiters();
        }
    }
}

/// One watch a kind, each a task, which end with the set.
pub struct Watches {
    client: Client,
    scope: Scope,
    stores: Arc<Stores>,
    filled: Arc<Filled>,
    tasks: JoinSet<()>,
}

impl Watches {
    /// No watch yet.
    pub fn new(client: Client, scope: Scope, stores: Arc<Stores>) -> Self {
        Self {
            client,
            scope,
            stores,
            filled: Arc::default(),
            tasks: JoinSet::new(),
        }
    }

    /// What tells when every store is filled.
    pub fn filled(&self) -> Arc<Filled> {
        self.filled.clone()
    }

    /// Watches a kind of ours; gives back which objects there are, for its controller.
    pub fn reconciled<K: Kind>(&mut self) -> Store<PartialObjectMeta<K>>
    where
        Seen<K>: Heard,
    {
        let writer = Writer::<PartialObjectMeta<K>>::default();
        let store = writer.as_reader();
        self.follow::<Seen<K>>(watcher::Config::default(), Some(names_into(writer)));
        store
    }

    /// Watches the operator's own Deployment and those that it makes.
    pub fn deployments(&mut self) -> Store<PartialObjectMeta<Deployment>> {
        let writer = Writer::<PartialObjectMeta<Deployment>>::default();
        let store = writer.as_reader();
        self.follow::<Deployment>(ours(), Some(names_into(writer)));
        store
    }

    /// Watches what is only read.
    pub fn children(&mut self) {
        self.follow::<Service>(ours(), None);
        self.follow::<ServiceAccount>(ours(), None);
        self.follow::<Role>(ours(), None);
        self.follow::<RoleBinding>(ours(), None);
        let routers = format!("{}={}", labels::COMPONENT, labels::COMPONENT_ROUTER);
        self.follow::<Pod>(watcher::Config::default().labels(&routers), None);
        self.follow::<PartialObjectMeta<ReplicaSet>>(
            watcher::Config::default().labels(&routers),
            None,
        );
        self.follow::<PartialObjectMeta<Secret>>(watcher::Config::default(), None);
        self.follow::<PartialObjectMeta<ConfigMap>>(watcher::Config::default(), None);
    }

    fn follow<K>(&mut self, config: watcher::Config, mirror: Option<Mirror>)
    where
        K: Heard
            + Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let api = self.api::<K>();
        let (stores, filled) = (self.stores.clone(), self.filled.clone());
        filled.expect();
        self.tasks.spawn(async move {
            let mut ear = Ear {
                stores,
                filled: Some(filled),
                listed: BTreeSet::new(),
                mirror,
            };
            loop {
                let stream = watch_objects(api.clone(), config.clone());
                // A watch that panics begins anew, with a list: a kind that nobody hears of is worse.
                if AssertUnwindSafe(ear.listen(stream))
                    .catch_unwind()
                    .await
                    .is_err()
                {
                    tracing::error!(kind = %K::kind(&()), "Panicked while listening; listens anew");
                    tokio::time::sleep(PANICKED).await;
                }
            }
        });
    }

    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        match &self.scope {
            Scope::Cluster => Api::all(self.client.clone()),
            Scope::Namespace(namespace) => Api::namespaced(self.client.clone(), namespace),
        }
    }
}

/// Objects that carry the label by which we know our own: see [`labels::PART_OF`].
fn ours() -> watcher::Config {
    watcher::Config::default().labels(&format!("{}={}", labels::PART_OF, labels::PART_OF_SKUPPER))
}

/// Takes names to a controller's own store.
type Mirror = Box<dyn FnMut(Event<ObjectMeta>) + Send>;

fn names_into<K>(mut writer: Writer<PartialObjectMeta<K>>) -> Mirror
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let stub = |metadata: ObjectMeta| PartialObjectMeta::<K> {
        types: None,
        metadata: ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            ..ObjectMeta::default()
        },
        _phantom: std::marker::PhantomData,
    };
    Box::new(move |event| {
        let event = match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(metadata) => Event::InitApply(stub(metadata)),
            Event::Apply(metadata) => Event::Apply(stub(metadata)),
            Event::Delete(metadata) => Event::Delete(stub(metadata)),
        };
        writer.apply_watcher_event(&event);
    })
}

/// What one watch does with what it hears.
struct Ear {
    stores: Arc<Stores>,
    filled: Option<Arc<Filled>>,
    /// What the list that is under way has named so far.
    listed: BTreeSet<(String, String)>,
    mirror: Option<Mirror>,
}

impl Ear {
    async fn listen<K: Heard + Resource<DynamicType = ()>>(
        &mut self,
        stream: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    ) {
        let mut stream = pin!(stream);
        let until = tokio::time::Instant::now() + jittered(RELIST);
        let mut pause = PAUSE.0;
        loop {
            match tokio::time::timeout_at(until, stream.next()).await {
                Ok(Some(Ok(event))) => {
                    // A list that has begun may fail like the one before.
                    if !matches!(event, Event::Init | Event::InitApply(_)) {
                        pause = PAUSE.0;
                    }
                    self.hear(event);
                }
                // The watcher goes on where it was; for how long is the API server's affair.
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "Watch failed");
                    tokio::time::sleep(jittered(pause)).await;
                    pause = PAUSE.1.min(pause * 2);
                }
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn hear<K: Heard + Resource<DynamicType = ()>>(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.begin(),
            Event::InitApply(object) => {
                self.listed.insert(name(object.meta()));
                // The controller's store takes a list in at its end: an object that is heard of here for the first time
                // has to be in it before the doorbell rings.
                self.mirror(Event::Apply, object.meta());
                self.mirror(Event::InitApply, object.meta());
                object.seen(&self.stores);
            }
            Event::InitDone => {
                for (namespace, name) in K::known(&self.stores) {
                    if !self.listed.contains(&(namespace.clone(), name.clone())) {
                        K::gone(&self.stores, &namespace, &name);
                    }
                }
                self.end();
            }
            Event::Apply(object) => {
                self.mirror(Event::Apply, object.meta());
                object.seen(&self.stores);
            }
            Event::Delete(object) => {
                let (namespace, name) = name(object.meta());
                self.mirror(Event::Delete, object.meta());
                K::gone(&self.stores, &namespace, &name);
            }
        }
    }

    fn begin(&mut self) {
        self.listed.clear();
        if let Some(mirror) = &mut self.mirror {
            mirror(Event::Init);
        }
    }

    fn end(&mut self) {
        self.listed.clear();
        if let Some(mirror) = &mut self.mirror {
            mirror(Event::InitDone);
        }
        if let Some(filled) = self.filled.take() {
            filled.fill();
        }
    }

    fn mirror(&mut self, event: fn(ObjectMeta) -> Event<ObjectMeta>, metadata: &ObjectMeta) {
        if let Some(mirror) = &mut self.mirror {
            mirror(event(ObjectMeta {
                name: metadata.name.clone(),
                namespace: metadata.namespace.clone(),
                uid: metadata.uid.clone(),
                ..ObjectMeta::default()
            }));
        }
    }
}

fn jittered(time: Duration) -> Duration {
    let lot = f64::from(
        aws_lc_rs::rand::generate(&aws_lc_rs::rand::SystemRandom::new())
            .map_or(128, |bytes: aws_lc_rs::rand::Random<[u8; 1]>| {
                bytes.expose()[0]
            }),
    );
    time.mul_f64(0.8 + 0.4 * lot / 255.0)
}

fn name(metadata: &ObjectMeta) -> (String, String) {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    (part(&metadata.namespace), part(&metadata.name))
}

/// What can be heard of, and what the stores do about it.
pub trait Heard: Sized {
    /// It is there.
    fn seen(self, stores: &Stores);
    /// It is gone.
    fn gone(stores: &Stores, namespace: &str, name: &str);
    /// Namespaces and names of all that are known.
    fn known(stores: &Stores) -> Vec<(String, String)>;
}

impl<K: Tidy> Heard for K {
    fn seen(mut self, stores: &Stores) {
        self.tidy(stores);
        stores.keep(self);
    }

    fn gone(stores: &Stores, namespace: &str, name: &str) {
        stores.forget::<K>(namespace, name);
    }

    fn known(stores: &Stores) -> Vec<(String, String)> {
        stores.known::<K>()
    }
}

/// What is left out of an object before it is kept: what no decision depends on, and what may not be kept.
pub trait Tidy: Stored + Resource {
    /// Leaves it out.
    fn tidy(&mut self, _: &Stores) {
        tidy_metadata(self.meta_mut());
    }
}

/// Managers stay, the fields that they manage do not: they are most of an object's size.
fn tidy_metadata(metadata: &mut ObjectMeta) {
    *metadata = ObjectMeta {
        generation: metadata.generation,
        ..facts::metadata(metadata)
    };
}

impl Tidy for Seen<Site> {}
impl Tidy for Seen<Link> {}
impl Tidy for Seen<RouterAccess> {}
impl Tidy for Seen<SecuredAccess> {}
impl Tidy for Seen<Certificate> {}
impl Tidy for Service {}
impl Tidy for ServiceAccount {}
impl Tidy for Role {}
impl Tidy for RoleBinding {}
impl Tidy for Deployment {}
impl Tidy for Pod {}
impl Tidy for PartialObjectMeta<ReplicaSet> {}

impl Tidy for Seen<AccessGrant> {
    fn tidy(&mut self, stores: &Stores) {
        tidy_metadata(self.meta_mut());
        stores.codes.take_from_grant(self);
    }
}

impl Tidy for Seen<AccessToken> {
    fn tidy(&mut self, stores: &Stores) {
        tidy_metadata(self.meta_mut());
        stores.codes.take_from_token(self);
    }
}

impl Heard for PartialObjectMeta<Secret> {
    fn seen(self, stores: &Stores) {
        stores.see_body(ObjectKind::Secret, &self.metadata);
    }

    fn gone(stores: &Stores, namespace: &str, name: &str) {
        stores.lose_body(ObjectKind::Secret, namespace, name);
    }

    fn known(stores: &Stores) -> Vec<(String, String)> {
        stores.seen_bodies(ObjectKind::Secret)
    }
}

impl Heard for PartialObjectMeta<ConfigMap> {
    fn seen(self, stores: &Stores) {
        stores.see_body(ObjectKind::ConfigMap, &self.metadata);
    }

    fn gone(stores: &Stores, namespace: &str, name: &str) {
        stores.lose_body(ObjectKind::ConfigMap, namespace, name);
    }

    fn known(stores: &Stores) -> Vec<(String, String)> {
        stores.seen_bodies(ObjectKind::ConfigMap)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::controllers::KINDS;
    use crate::mock::{ApiServer, Fault};
    use crate::stores::Bells;

    const GRANTS: &str = "/apis/skupper.io/v2alpha1/namespaces/east/accessgrants";
    const SITES: &str = "/apis/skupper.io/v2alpha1/namespaces/east/sites";

    /// skupper#1906.
    #[tokio::test(start_paused = true)]
    async fn a_definition_that_comes_late_costs_only_time() {
        let server = ApiServer::new();
        let list = |items| json!({"kind": "List", "metadata": {}, "items": items});
        let grant =
            json!({"metadata": {"name": "g", "namespace": "east", "uid": "grant-uid"}, "spec": {}});
        server.put(GRANTS, list(json!([grant])));
        server.put(SITES, list(json!([])));
        // At first nothing works, then one kind is not known yet, then all is as it should be.
        let (works, knows) = (Duration::from_mins(1), Duration::from_mins(10));
        let begun = Instant::now();
        let listed = std::sync::Mutex::new(BTreeSet::new());
        server.fault(move |call| match begun.elapsed() {
            now if now < works => Fault::Refuse(503),
            now if now < knows && call.path == GRANTS => Fault::Refuse(404),
            // What comes after a list is the watch.
            _ if listed.lock().unwrap().insert(call.path.clone()) => Fault::None,
            _ => Fault::Hang,
        });
        let stores = Arc::new(Stores::new("home", Bells::new(&KINDS).0));
        let scope = Scope::Namespace("east".to_owned());
        let mut watches = Watches::new(server.client(), scope, stores.clone());
        watches.reconciled::<Site>();
        watches.reconciled::<AccessGrant>();
        sleep(knows).await;
        assert!(!watches.filled().is_complete());
        // It waits longer each time, and never very long.
        let asked = server.count("GET", "/accessgrants");
        assert!((60..100).contains(&asked), "asked {asked} times");

        watches.filled().complete().await;
        assert!(begun.elapsed() < knows + Duration::from_secs(10));
        assert!(stores.world("east").access_grants.get("g").is_some());
    }
}
