//! Which Secrets and ConfigMaps are read, and when?

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use spanwire_plan::credential::is_coherent;
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, ConfigMapFacts, KEY_FILE, SecretFacts};
use spanwire_plan::kinds::Changed;
use spanwire_plan::names;
use spanwire_plan::plan::ObjectKind;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use super::{Space, Stores};
use crate::error::{CallServer, within};
use crate::facts::{config_map_facts, secret_facts};
use crate::telemetry::Hold;
use crate::wiped::Wiped;

/// How many bodies are read at once.
const READERS: usize = 16;
/// How long a failed read waits: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// One body to read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Body {
    pub(super) namespace: String,
    pub(super) kind: ObjectKind,
    pub(super) name: String,
    /// What its watch said when the read was asked for.
    pub(super) revision: String,
}

/// A read that is asked for, and what is held until it has been tried once.
struct Request {
    body: Body,
    hold: Option<Arc<Hold>>,
}

/// What a read brought.
pub enum Facts {
    /// A Secret.
    Secret(SecretFacts),
    /// A ConfigMap.
    ConfigMap(ConfigMapFacts),
}

/// What the grant server serves with: its certificate and key in PEM, as the Secret in the operator's own namespace
/// has them.
#[derive(Clone)]
pub struct GrantCredentials {
    /// Certificate chain, leaf first.
    pub certificate: String,
    /// Private key.
    pub key: Zeroizing<String>,
}

/// The way from the stores to the reader.
pub(super) struct Bodies {
    requests: UnboundedSender<Request>,
    queue: Mutex<Option<UnboundedReceiver<Request>>>,
    /// What those hold that are asked for from now on.
    hold: Mutex<Option<Arc<Hold>>>,
    pub(super) grant_credentials: watch::Sender<Option<GrantCredentials>>,
}

impl Default for Bodies {
    fn default() -> Self {
        let (requests, queue) = unbounded_channel();
        Self {
            requests,
            queue: Mutex::new(Some(queue)),
            hold: Mutex::default(),
            grant_credentials: watch::Sender::new(None),
        }
    }
}

impl Stores {
    /// A change of what the grant server should serve with.
    pub fn grant_credentials(&self) -> watch::Receiver<Option<GrantCredentials>> {
        self.bodies.grant_credentials.subscribe()
    }

    /// Holds this until every read that is asked for before [`Stores::let_go`] has been tried once: who does not know what
    /// is in the Secrets and ConfigMaps that the objects name would send clients away that are right.
    pub fn hold(&self, hold: Hold) {
        *self.held() = Some(Arc::new(hold));
    }

    /// Reads that are asked for from now on hold nothing.
    pub fn let_go(&self) {
        self.held().take();
    }

    fn held(&self) -> MutexGuard<'_, Option<Arc<Hold>>> {
        // Single assignments: there is no half-done state to be afraid of.
        let hold = self.bodies.hold.lock();
        hold.unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch has seen a Secret or ConfigMap.
    pub(super) fn see_body(&self, kind: ObjectKind, metadata: &ObjectMeta) {
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let name = metadata.name.clone().unwrap_or_default();
        let revision = metadata.resource_version.clone().unwrap_or_default();
        let changed = Changed::Object(kind, &name);
        self.change(&namespace, &changed, |space| {
            space.see((kind, name.clone()), revision)
        });
    }

    /// A Secret or ConfigMap is gone, by its watch or because a read did not find it.
    pub(super) fn lose_body(&self, kind: ObjectKind, namespace: &str, name: &str) {
        let changed = Changed::Object(kind, name);
        self.change(namespace, &changed, |space| {
            space.lose(&(kind, name.to_owned()))
        });
        self.leave(namespace);
    }

    /// Names of the Secrets or ConfigMaps that the watch has told of.
    pub(super) fn seen_bodies(&self, kind: ObjectKind) -> Vec<(String, String)> {
        let spaces = self.read();
        let of_space = |(namespace, space): (&String, &Space)| -> Vec<(String, String)> {
            let names = space.seen(kind);
            names
                .map(|name| (namespace.clone(), name.clone()))
                .collect()
        };
        spaces.by_name.iter().flat_map(of_space).collect()
    }

    /// Takes in what a read brought.
    pub(super) fn learn(&self, body: &Body, facts: Facts) {
        let changed = Changed::Object(body.kind, &body.name);
        self.change(&body.namespace, &changed, |space| space.learn(body, facts));
    }

    pub(super) fn send_for(
        &self,
        namespace: &str,
        (kind, name): (ObjectKind, String),
        revision: String,
    ) {
        let body = Body {
            namespace: namespace.to_owned(),
            kind,
            name,
            revision,
        };
        // Nobody at the other end means that the operator is stopping.
        let hold = self.held().clone();
        let _ = self.bodies.requests.send(Request { body, hold });
    }

    fn awaits(&self, body: &Body) -> bool {
        let spaces = self.read();
        let space = spaces.by_name.get(&body.namespace);
        space.is_some_and(|space| space.awaits(&(body.kind, body.name.clone())))
    }
}

/// Reads the bodies that the stores ask for, a few at a time, until they are in.
pub struct Reader {
    /// With which to read.
    pub client: Client,
    /// Who asks.
    pub stores: Arc<Stores>,
}

impl Reader {
    /// Serves the stores' requests for as long as they exist.
    pub async fn run(self) {
        let taken = self
            .stores
            .bodies
            .queue
            .lock()
            .map_or(None, |mut queue| queue.take());
        let Some(mut queue) = taken else { return };
        let places = Arc::new(Semaphore::new(READERS));
        let mut reads = JoinSet::new();
        loop {
            tokio::select! {
                request = queue.recv() => match request {
                    Some(request) => {
                        let (client, stores) = (self.client.clone(), self.stores.clone());
                        reads.spawn(read(client, stores, places.clone(), request));
                    }
                    None => return,
                },
                Some(_) = reads.join_next(), if !reads.is_empty() => {}
            }
        }
    }
}

/// Reads one body until it is in. A place is held for the call alone: one namespace that may not be read keeps no other
/// waiting.
async fn read(client: Client, stores: Arc<Stores>, places: Arc<Semaphore>, request: Request) {
    let Request { body, mut hold } = request;
    let mut tries = 0;
    while stores.awaits(&body) {
        let answer = {
            let Ok(_place) = places.acquire().await else {
                return;
            };
            // What is odd enough to make us panic is that body's fault alone.
            AssertUnwindSafe(fetch(&client, &stores, &body))
                .catch_unwind()
                .await
        };
        match answer {
            Ok(Ok(facts)) => return stores.learn(&body, facts),
            Ok(Err(error)) if error.code() == Some(404) => {
                return stores.lose_body(body.kind, &body.namespace, &body.name);
            }
            Ok(Err(error)) => {
                tracing::debug!(namespace = body.namespace, name = body.name, kind = ?body.kind, %error, "Read failed");
            }
            Err(_) => {
                tracing::error!(namespace = body.namespace, name = body.name, kind = ?body.kind, "Panicked while reading");
            }
        }
        // What cannot be read may never be.
        hold.take();
        tokio::time::sleep(PAUSE.1.min(PAUSE.0 * 2_u32.saturating_pow(tries))).await;
        tries = (tries + 1).min(16);
    }
}

async fn fetch(client: &Client, stores: &Stores, body: &Body) -> Result<Facts, CallServer> {
    if body.kind == ObjectKind::ConfigMap {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), &body.namespace);
        return Ok(Facts::ConfigMap(config_map_facts(
            &within(api.get(&body.name)).await?,
        )));
    }
    let api: Api<Secret> = Api::namespaced(client.clone(), &body.namespace);
    let secret = Wiped::from(within(api.get(&body.name)).await?);
    let facts = secret_facts(&secret);
    if body.namespace == stores.home && body.name == names::GRANT_SERVER {
        offer_credentials(stores, &secret, &facts);
    }
    Ok(Facts::Secret(facts))
}

/// The grant server serves with the Secret of its name in the operator's own namespace, and with no other. The CA that grants
/// tell changes together with what is served, and only to one that vouches for it.
pub(super) fn offer_credentials(stores: &Stores, secret: &Secret, facts: &SecretFacts) {
    if !is_coherent(facts) {
        tracing::warn!(
            name = names::GRANT_SERVER,
            "What the Secret of the grant server holds does not belong together: what it held before is served"
        );
        return;
    }
    let text = |file: &str| std::str::from_utf8(&secret.data.as_ref()?.get(file)?.0).ok();
    let ca = text(CA_FILE).map(str::to_owned);
    if let Some((certificate, key)) = text(CERTIFICATE_FILE).zip(text(KEY_FILE)) {
        let (certificate, key) = (certificate.to_owned(), Zeroizing::new(key.to_owned()));
        stores
            .bodies
            .grant_credentials
            .send_replace(Some(GrantCredentials { certificate, key }));
    }
    stores.offer(|server| server.ca = ca);
}
