//! How does the grant server hear of the world, and the world of it?
//!
//! The server asks a directory; here the directory's answers come from the stores, and what it has to tell becomes
//! events. Any ready replica serves; only the leader reconciles.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Client, Resource};
use serde_json::{Map, Value};
use spanwire_api::AccessGrant;
use spanwire_plan::Env;
use spanwire_plan::env::Config;
use spanwire_plan::offer::{granted, told};
use spanwire_plan::plan::Event;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bucket::Bucket;
use crate::clock::Clock;
use crate::grants::{Directory, GrantRecord, Granted, ServeCertificate, Served, Server, Terms};
use crate::publish::Publisher;
use crate::stores::{GrantCredentials, Stores};
use crate::telemetry::{Health, Metrics};

/// How many events wait to be published: beyond that they are lost, as events may be.
const WAITING: usize = 256;
/// Events of each kind, notes and warnings: this many at once …
const EVENT_BURST: f64 = 50.0;
/// … and this many a second. Each is a write, and what it says of a grant the grant's status says too.
const EVENT_RATE: f64 = 10.0;

/// Everything that the grant server is made from.
pub struct Door {
    /// For the reads and writes of a redemption.
    pub client: Client,
    /// What is known.
    pub stores: Arc<Stores>,
    /// Whether all of that is known yet.
    pub health: Health,
    /// What the operator was started with.
    pub config: Config,
    /// What time it is.
    pub clock: Clock,
    /// Publishes events.
    pub publisher: Arc<Publisher>,
    /// Where redemptions are counted.
    pub metrics: Arc<Metrics>,
}

impl Door {
    /// Serves grants on `listener` until `stop`: in `serving` what has to come to its end, in `tasks` what has not.
    pub fn open(
        self,
        listener: TcpListener,
        stop: CancellationToken,
        serving: &mut JoinSet<()>,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), ServeCertificate> {
        let (events, waiting) = channel(WAITING);
        let terms = Terms {
            leaf_seconds: self.config.leaf_seconds,
            rsa: self.config.rsa,
        };
        let directory = directory(&self, events);
        let served = Served::nothing()?;
        let credentials = self.stores.grant_credentials();
        tasks.spawn(announce(self.publisher, waiting));
        tasks.spawn(follow(credentials, served.clone()));
        let grants = Arc::new(Server::new(
            self.client,
            self.clock,
            directory,
            terms,
            self.metrics,
        ));
        serving.spawn(async move { grants.run(listener, &served, stop).await });
        Ok(())
    }
}

/// What the stores know of grants, as the plan has it now.
#[derive(Clone)]
struct View {
    stores: Arc<Stores>,
    config: Config,
    clock: Clock,
}

impl View {
    fn env(&self) -> Env<'_> {
        Env {
            now: self.clock.now(),
            nonce: 0,
            config: &self.config,
        }
    }

    fn granted(&self, uid: &str) -> Option<Granted> {
        let (namespace, name) = self.stores.codes.place_of_grant(uid)?;
        let world = self.stores.world(&namespace);
        let (grant, offer) = granted((&name, uid), &world, &self.env())?;
        let issuer = offer
            .as_ref()
            .map(|offer| offer.issuer(grant.spec.issuer.as_deref()));
        let issuer = issuer.and_then(|issuer| world.secrets.get(issuer));
        Some(Granted {
            issuer_revision: issuer.and_then(|secret| secret.metadata.resource_version.clone()),
            grant: GrantRecord::of(grant),
            offer,
        })
    }

    fn told(&self, record: &GrantRecord) -> Option<Map<String, Value>> {
        let world = self.stores.world(&record.namespace);
        let live = world.access_grants.get(&record.name)?.fits()?;
        let is_known = live.metadata.resource_version.as_ref() == Some(&record.resource_version);
        is_known.then(|| told(live, &record.counted(live), &world, &self.env()))
    }
}

fn directory(door: &Door, events: Sender<(ObjectReference, Event)>) -> Directory {
    let view = View {
        stores: door.stores.clone(),
        config: door.config.clone(),
        clock: door.clock.clone(),
    };
    let (health, stores, telling) = (door.health.clone(), door.stores.clone(), view.clone());
    let announce = move |grant: &GrantRecord, event: Event| {
        let about = ObjectReference {
            api_version: Some(AccessGrant::api_version(&()).into_owned()),
            kind: Some(AccessGrant::kind(&()).into_owned()),
            namespace: Some(grant.namespace.clone()),
            name: Some(grant.name.clone()),
            uid: Some(grant.uid.clone()),
            resource_version: Some(grant.resource_version.clone()),
            ..ObjectReference::default()
        };
        if events.try_send((about, event)).is_err() {
            tracing::debug!(grant = grant.name, "Lost an event: too many wait");
        }
    };
    Directory {
        is_complete: Arc::new(move || health.is_complete()),
        code: Arc::new(move |uid| stores.codes.digest(uid)),
        grant: Arc::new(move |uid| view.granted(uid)),
        told: Arc::new(move |record| telling.told(record).unwrap_or_default()),
        announce: Arc::new(announce),
    }
}

async fn announce(publisher: Arc<Publisher>, mut waiting: Receiver<(ObjectReference, Event)>) {
    let full = || Bucket::new(EVENT_BURST, EVENT_RATE, Instant::now());
    let (mut notes, mut warnings) = (full(), full());
    while let Some((about, event)) = waiting.recv().await {
        let bucket = if event.warning {
            &mut warnings
        } else {
            &mut notes
        };
        if bucket.take(Instant::now()) {
            publisher.announce(&about, &event).await;
        } else {
            tracing::debug!(
                grant = about.name,
                reason = event.reason,
                "Lost an event: there are too many"
            );
        }
    }
}

/// Serves each certificate that the Secret in the operator's own namespace brings, from the next connection on.
async fn follow(
    mut credentials: tokio::sync::watch::Receiver<Option<GrantCredentials>>,
    served: Served,
) {
    loop {
        let current = credentials.borrow_and_update().clone();
        if let Some(GrantCredentials { certificate, key }) = current {
            match served.set(&certificate, &key) {
                Ok(()) => tracing::info!("Serves grants with a new certificate"),
                Err(error) => tracing::warn!(%error, "Kept the certificate before"),
            }
        }
        if credentials.changed().await.is_err() {
            return;
        }
    }
}
