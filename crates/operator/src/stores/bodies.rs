//! Which Secrets and ConfigMaps are read, and when?

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, ConfigMapFacts, KEY_FILE, SecretFacts};
use spanwire_plan::kinds::Changed;
use spanwire_plan::names;
use spanwire_plan::plan::ObjectKind;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use super::Stores;
use crate::error::{CallServer, within};
use crate::facts::{config_map_facts, secret_facts};

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
    pub(super) tries: u32,
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
    requests: UnboundedSender<Body>,
    queue: std::sync::Mutex<Option<UnboundedReceiver<Body>>>,
    pub(super) grant_credentials: watch::Sender<Option<GrantCredentials>>,
}

impl Default for Bodies {
    fn default() -> Self {
        let (requests, queue) = unbounded_channel();
        let queue = std::sync::Mutex::new(Some(queue));
        Self {
            requests,
            queue,
            grant_credentials: watch::Sender::new(None),
        }
    }
}

impl Stores {
    /// A change of what the grant server should serve with.
    pub fn grant_credentials(&self) -> watch::Receiver<Option<GrantCredentials>> {
        self.bodies.grant_credentials.subscribe()
    }

    /// Sets which bodies a namespace depends on: reads those that are new, lets go of those that are not wanted.
    pub(super) fn want_bodies(&self, namespace: &str, wanted: BTreeSet<(ObjectKind, String)>) {
        let mut spaces = self.write();
        let Some(space) = spaces.by_name.get_mut(namespace) else {
            return;
        };
        if space.wanted == wanted {
            return;
        }
        let gone: Vec<_> = space.wanted.difference(&wanted).cloned().collect();
        let new: Vec<_> = wanted.difference(&space.wanted).cloned().collect();
        space.wanted = wanted;
        let world = Arc::make_mut(&mut space.world);
        for (kind, name) in gone {
            match kind {
                ObjectKind::Secret => world.secrets.0.remove(&name).is_some(),
                _ => world.config_maps.0.remove(&name).is_some(),
            };
        }
        for key in new {
            if let Some(revision) = space.revisions.get(&key).cloned() {
                space.reading.insert(key.clone());
                self.request(namespace, key, revision);
            }
        }
    }

    /// A watch has seen a Secret or ConfigMap.
    pub(super) fn see_body(&self, kind: ObjectKind, metadata: &ObjectMeta) {
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let key = (kind, metadata.name.clone().unwrap_or_default());
        let revision = metadata.resource_version.clone().unwrap_or_default();
        let mut spaces = self.write();
        let space = spaces.space(&namespace);
        space.revisions.insert(key.clone(), revision.clone());
        let known = match kind {
            ObjectKind::Secret => space.world.secrets.get(&key.1).map(|facts| &facts.metadata),
            _ => space
                .world
                .config_maps
                .get(&key.1)
                .map(|facts| &facts.metadata),
        };
        let is_known =
            known.is_some_and(|known| known.resource_version.as_ref() == Some(&revision));
        if space.wanted.contains(&key) && !is_known && space.reading.insert(key.clone()) {
            self.request(&namespace, key, revision);
        }
    }

    /// A Secret or ConfigMap is gone, by its watch or because a read did not find it.
    pub(super) fn lose_body(&self, kind: ObjectKind, namespace: &str, name: &str) {
        let key = (kind, name.to_owned());
        let known = {
            let mut spaces = self.write();
            let Some(space) = spaces.by_name.get_mut(namespace) else {
                return;
            };
            space.revisions.remove(&key);
            space.reading.remove(&key);
            let world = Arc::make_mut(&mut space.world);
            match kind {
                ObjectKind::Secret => world.secrets.0.remove(name).is_some(),
                _ => world.config_maps.0.remove(name).is_some(),
            }
        };
        self.settle_reading(kind, namespace, name, known);
        self.leave(namespace);
    }

    /// Names of the Secrets or ConfigMaps that the watch has told of.
    pub(super) fn seen_bodies(&self, kind: ObjectKind) -> Vec<(String, String)> {
        let spaces = self.read();
        let of_space = |(namespace, space): (&String, &super::Space)| -> Vec<(String, String)> {
            let of_kind = space.revisions.keys().filter(|(seen, _)| *seen == kind);
            of_kind
                .map(|(_, name)| (namespace.clone(), name.clone()))
                .collect()
        };
        spaces.by_name.iter().flat_map(of_space).collect()
    }

    /// Takes in what a read brought.
    pub(super) fn learn(&self, body: &Body, facts: Facts) {
        let key = (body.kind, body.name.clone());
        {
            let mut spaces = self.write();
            let Some(space) = spaces.by_name.get_mut(&body.namespace) else {
                return;
            };
            if !space.wanted.contains(&key) {
                space.reading.remove(&key);
                return;
            }
            let world = Arc::make_mut(&mut space.world);
            let read = match facts {
                Facts::Secret(facts) => {
                    let revision = facts.metadata.resource_version.clone();
                    world.secrets.insert(facts);
                    revision
                }
                Facts::ConfigMap(facts) => {
                    let revision = facts.metadata.resource_version.clone();
                    world.config_maps.insert(facts);
                    revision
                }
            };
            let seen = space.revisions.get(&key);
            let has_moved_on =
                seen.is_some_and(|seen| *seen != body.revision && Some(seen) != read.as_ref());
            if has_moved_on {
                let revision = seen.cloned().unwrap_or_default();
                self.request(&body.namespace, key, revision);
                return;
            }
            space.reading.remove(&key);
        }
        self.settle_reading(body.kind, &body.namespace, &body.name, true);
    }

    /// Rings for what was read, and for the passes that waited once nothing is being read any more.
    fn settle_reading(&self, kind: ObjectKind, namespace: &str, name: &str, is_news: bool) {
        let (world, deferred) = {
            let mut spaces = self.write();
            let Some(space) = spaces.by_name.get_mut(namespace) else {
                return;
            };
            let is_quiet = space.reading.is_empty();
            let deferred = if is_quiet {
                std::mem::take(&mut space.deferred)
            } else {
                BTreeSet::new()
            };
            (space.world.clone(), deferred)
        };
        if is_news {
            self.bells.ring(&Changed::Object(kind, name), &world);
        }
        for (kind, name) in deferred {
            self.bells.wake(kind, namespace, &name);
        }
    }

    fn request(&self, namespace: &str, (kind, name): (ObjectKind, String), revision: String) {
        let body = Body {
            namespace: namespace.to_owned(),
            kind,
            name,
            revision,
            tries: 0,
        };
        // Nobody at the other end means that the operator is stopping.
        let _ = self.bodies.requests.send(body);
    }

    fn is_wanted(&self, body: &Body) -> bool {
        self.read()
            .by_name
            .get(&body.namespace)
            .is_some_and(|space| space.reading.contains(&(body.kind, body.name.clone())))
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
        let mut reads = JoinSet::new();
        loop {
            tokio::select! {
                body = queue.recv(), if reads.len() < READERS => match body {
                    Some(body) => {
                        reads.spawn(read(self.client.clone(), self.stores.clone(), body));
                    }
                    None => return,
                },
                Some(_) = reads.join_next(), if !reads.is_empty() => {}
            }
        }
    }
}

async fn read(client: Client, stores: Arc<Stores>, mut body: Body) {
    while stores.is_wanted(&body) {
        match fetch(&client, &stores, &body).await {
            Ok(facts) => return stores.learn(&body, facts),
            Err(error) if error.code() == Some(404) => {
                return stores.lose_body(body.kind, &body.namespace, &body.name);
            }
            Err(error) => {
                tracing::debug!(namespace = body.namespace, name = body.name, kind = ?body.kind, %error, "Read failed");
                tokio::time::sleep(PAUSE.1.min(PAUSE.0 * 2_u32.saturating_pow(body.tries))).await;
                body.tries = (body.tries + 1).min(16);
            }
        }
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
    let secret = within(api.get(&body.name)).await?;
    if body.namespace == stores.home && body.name == names::GRANT_SERVER {
        offer_credentials(stores, &secret);
    }
    Ok(Facts::Secret(secret_facts(&secret)))
}

/// The grant server serves with the Secret of its name in the operator's own namespace, and with no other.
fn offer_credentials(stores: &Stores, secret: &Secret) {
    let text = |file: &str| {
        let bytes = &secret.data.as_ref()?.get(file)?.0;
        String::from_utf8(bytes.clone()).ok()
    };
    let ca = text(CA_FILE);
    if let (Some(certificate), Some(key)) =
        (text(CERTIFICATE_FILE), text(KEY_FILE).map(Zeroizing::new))
    {
        stores
            .bodies
            .grant_credentials
            .send_replace(Some(GrantCredentials { certificate, key }));
    }
    stores.offer(|server| server.ca = ca);
}
