//! How does one object's pass go?
//!
//! Take the World, plan, act stage by stage, report, publish if something is news, look again. Nothing here knows
//! what a kind is about, and nothing is remembered from one pass to the next but how often an object failed.

mod object;

use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use futures::FutureExt;
use kube::core::PartialObjectMeta;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use spanwire_plan::env::Config;
use spanwire_plan::plan::{Event, ObjectKind};
use spanwire_plan::report::{Cut, Report, cut_short, report};
use spanwire_plan::world::controls;
use spanwire_plan::{Env, Kind, Plan, Seen, World};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::act::{Outcome, Workshop};
use crate::clock::Clock;
use crate::error::CallServer;
use crate::lease::Leading;
use crate::publish::Publisher;
use crate::stores::Stores;
use crate::telemetry::{Done, Metrics, OfKind, Pass, Write};

pub use object::{Held, Object};

/// How long one pass may take.
const PASS: Duration = Duration::from_secs(30);
/// How many passes run at once.
const CONCURRENCY: usize = 16;
/// How long an object waits after a failed pass: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(5));
/// When to look again after the World had moved on, should the news be late.
const NEWS: Duration = Duration::from_secs(5);

/// How long a state on the way to Ready has to last before it is told: a site is made in a second, and a status for each
/// step of it would be read by nobody.
const LASTING: Duration = Duration::from_millis(300);

/// How many passes in a row may write before the status is told although more news is on its way.
const BUSY: u32 = 12;
/// How many objects are remembered.
const REMEMBERED: usize = 16 * 1024;
/// How soon a replica that does not lead looks whether it does.
const TURN: Duration = Duration::from_secs(30);

/// An object, as the shell remembers it between passes.
type Key = (ObjectKind, String, String);

/// What every pass uses.
pub struct Shell {
    /// What is known.
    pub stores: Arc<Stores>,
    /// Carries acts out.
    pub workshop: Workshop,
    /// Tells.
    pub publisher: Arc<Publisher>,
    /// What the operator was started with.
    pub config: Config,
    /// What time it is.
    pub clock: Clock,
    /// Whether this replica is the one that acts.
    pub leading: Leading,
    /// Where passes are counted.
    pub metrics: Arc<Metrics>,
    places: Semaphore,
    /// How often objects failed in a row.
    failures: Mutex<HashMap<Key, u32>>,
    /// Since when objects have had a status to tell that is on the way to Ready.
    untold: Mutex<HashMap<Key, Instant>>,
    /// How often objects had something to write in a row.
    busy: Mutex<HashMap<Key, u32>>,
}

impl Shell {
    /// A shell with all its places free.
    pub fn new(
        stores: Arc<Stores>,
        workshop: Workshop,
        publisher: Arc<Publisher>,
        config: Config,
        clock: Clock,
        leading: Leading,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            stores,
            workshop,
            publisher,
            config,
            clock,
            leading,
            metrics,
            places: Semaphore::new(CONCURRENCY),
            failures: Mutex::default(),
            untold: Mutex::default(),
            busy: Mutex::default(),
        }
    }

    /// One pass over one object. It never fails: what went wrong is told in the status and tried again.
    pub async fn reconcile<K: Held>(&self, namespace: &str, name: &str) -> Action {
        let Ok(_place) = self.places.acquire().await else {
            return Action::await_change();
        };
        let began = Instant::now();
        // Nothing of a pass is done past the deadline of the lease: no act, no status, no event.
        let pass = Box::pin(self.pass::<K>(namespace, name));
        let pass = self.leading.within(guarded(pass));
        let Some(answer) = pass.await else {
            return Action::requeue(TURN);
        };
        self.count(
            K::KIND,
            began,
            matches!(answer, Ok(_) | Err(Trouble::Moved)),
        );
        let key = (K::KIND, namespace.to_owned(), name.to_owned());
        let trouble = match answer {
            Ok(next) => {
                bounded(&self.failures).remove(&key);
                return next.map_or_else(Action::await_change, Action::requeue);
            }
            Err(Trouble::Moved) => return Action::requeue(NEWS),
            Err(trouble) => trouble,
        };
        let wait = self.back_off(key);
        // What failed waits; what else the plan wanted to see to does not.
        let wait = match &trouble {
            Trouble::Act { again, .. } => again.map_or(wait, |again| wait.min(again)),
            _ => wait,
        };
        tracing::warn!(kind = ?K::KIND, namespace, name, error = %trouble, again = ?wait, "Failed");
        if let Some(cut) = trouble.cut() {
            let telling = Box::pin(self.tell_of_cut::<K>(namespace, name, cut));
            if let Some(Err(error)) = self.leading.within(guarded(telling)).await {
                tracing::debug!(kind = ?K::KIND, namespace, name, %error, "Could not tell of it");
            }
        }
        Action::requeue(wait)
    }

    async fn pass<K: Held>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Duration>, Trouble> {
        let dying = &self.workshop.dying;
        if dying.knows(namespace) && is_bare(&self.stores.world(namespace)) {
            dying.forget(namespace);
        }
        let Some(world) = self.stores.world_for(K::KIND, namespace, name) else {
            return Ok(None);
        };
        let env = self.env();
        if !controls(&world, &env) {
            return Ok(None);
        }
        let Some(object) = K::held(&world, name) else {
            return Ok(None);
        };
        let plan = object.plan(&world, &env);
        let outcome = self.workshop.carry_out(&plan).await;
        let stub = object.stub();
        self.announce(&stub, &outcome.events).await;
        if outcome.is_all_news() {
            if self.expects_rest(key(&stub)) {
                // What was written walks in by its watch at once, and the pass that it starts tells what is true then: a
                // status for the moment between would be told to nobody.
                return Ok(Some(NEWS));
            }
        } else {
            bounded(&self.busy).remove(&key(&stub));
        }
        let lasting = self.tell(&stub, &object.status(), &plan, &outcome).await?;
        let again = verdict(&plan, outcome)?;
        Ok(again.into_iter().chain(lasting).min())
    }

    /// Whether this object may still come to rest by its own writes. A site takes half a dozen passes; what is written over
    /// and over is changed back by somebody else, and then the status has to be told all the same.
    fn expects_rest(&self, key: Key) -> bool {
        let mut busy = bounded(&self.busy);
        let count = busy.entry(key).or_default();
        *count += 1;
        *count <= BUSY
    }

    async fn announce<K: Kind>(&self, object: &PartialObjectMeta<K>, events: &[Event]) {
        for event in events {
            self.publisher
                .announce(&object.object_ref(&()), event)
                .await;
        }
    }

    /// Status is always told, on the good and on the bad path, once, and only if it is news. Gives back when to look
    /// again where it has not lasted yet.
    async fn tell<K: Kind>(
        &self,
        object: &PartialObjectMeta<K>,
        live: &Value,
        plan: &Plan,
        outcome: &Outcome,
    ) -> Result<Option<Duration>, Trouble> {
        let Some(status) = &plan.status else {
            return Ok(None);
        };
        let key = key(object);
        let told = report(
            live,
            generation(object),
            status,
            &outcome.failures,
            self.clock.now(),
        );
        let Some(told) = told else {
            bounded(&self.untold).remove(&key);
            return Ok(None);
        };
        let is_ready = |status: Option<&Value>| status.and_then(Value::as_str) == Some("Ready");
        let is_on_the_way = !is_ready(live.get("status")) && !is_ready(told.status.get("status"));
        if is_on_the_way && outcome.failures.is_empty() {
            let since = *bounded(&self.untold)
                .entry(key.clone())
                .or_insert_with(Instant::now);
            if since.elapsed() < LASTING {
                return Ok(Some(LASTING));
            }
        }
        self.publish(object, told).await?;
        // Not before: a pass that waited anew would count as a good one, and the next failure as the first.
        bounded(&self.untold).remove(&key);
        Ok(None)
    }

    /// What a pass that was cut short could not tell itself.
    async fn tell_of_cut<K: Held>(
        &self,
        namespace: &str,
        name: &str,
        cut: Cut,
    ) -> Result<(), Trouble> {
        let world = self.stores.world(namespace);
        let is_ours = K::CONDITION.is_some() && controls(&world, &self.env());
        let Some(object) = K::held(&world, name).filter(|_| is_ours) else {
            return Ok(());
        };
        let (stub, live, now) = (object.stub(), object.status(), self.clock.now());
        match cut_short(&live, generation(&stub), (K::KIND, name), cut, now) {
            Some(told) => self.publish(&stub, told).await,
            None => Ok(()),
        }
    }

    async fn publish<K: Kind>(
        &self,
        object: &PartialObjectMeta<K>,
        told: Report,
    ) -> Result<(), Trouble> {
        let events = told.events.clone();
        let answer = self.publisher.publish(object, told).await;
        let result = if answer.is_ok() {
            Done::ok
        } else {
            Done::failed
        };
        self.metrics
            .writes
            .get_or_create(&Write {
                verb: "status",
                result,
            })
            .inc();
        match answer {
            Ok(()) => {}
            Err(error) if error.is_stale() => return Err(Trouble::Moved),
            Err(error) => return Err(Trouble::Publish(error)),
        }
        self.announce(object, &events).await;
        Ok(())
    }

    fn env(&self) -> Env<'_> {
        Env {
            now: self.clock.now(),
            nonce: nonce(),
            config: &self.config,
        }
    }

    fn count(&self, kind: ObjectKind, began: Instant, is_done: bool) {
        let kind = kind.name();
        let result = if is_done { Done::ok } else { Done::failed };
        self.metrics
            .passes
            .get_or_create(&Pass { kind, result })
            .inc();
        self.metrics
            .pass_time
            .get_or_create(&OfKind { kind })
            .observe(began.elapsed().as_secs_f64());
    }

    /// How long this object waits: doubled at each failure in a row, capped, with jitter.
    fn back_off(&self, key: Key) -> Duration {
        let mut failures = bounded(&self.failures);
        let count = failures.entry(key).or_default();
        let wait = PAUSE
            .1
            .min(PAUSE.0.saturating_mul(2_u32.saturating_pow(*count)));
        *count = (*count + 1).min(16);
        let jitter = u32::try_from(nonce() % 256).unwrap_or_default();
        wait + wait / 1024 * jitter
    }
}

/// What comes of this work, if it takes no longer than a pass may. A panic is the error of the object that it is about,
/// and of no other.
async fn guarded<T>(work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let work = AssertUnwindSafe(work).catch_unwind();
    match tokio::time::timeout(PASS, work).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(panic)) => Err(Trouble::Panic(words(panic.as_ref()))),
        Err(_) => Err(Trouble::TooLong(PASS)),
    }
}

/// Whether nobody asks for anything in this namespace.
fn is_bare(world: &World) -> bool {
    world.sites.is_empty()
        && world.links.is_empty()
        && world.router_accesses.is_empty()
        && world.secured_accesses.is_empty()
        && world.certificates.is_empty()
        && world.access_grants.is_empty()
        && world.access_tokens.is_empty()
}

fn key<K: Kind>(object: &PartialObjectMeta<K>) -> Key {
    let namespace = object.namespace().unwrap_or_default();
    (K::KIND, namespace, object.name_any())
}

fn generation<K: Kind>(object: &PartialObjectMeta<K>) -> i64 {
    object.metadata.generation.unwrap_or_default()
}

/// What is remembered between passes. Objects that are gone are not taken out one by one: beyond so many, counting begins
/// anew.
fn bounded<T>(memory: &Mutex<HashMap<Key, T>>) -> MutexGuard<'_, HashMap<Key, T>> {
    let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
    if memory.len() > REMEMBERED {
        memory.clear();
    }
    memory
}

/// Why a pass did not get through.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("the World had moved on")]
    Moved,
    #[error("could not publish the status: {0}")]
    Publish(CallServer),
    #[error("{message}")]
    Act {
        message: String,
        /// When the plan wanted to look again in any case.
        again: Option<Duration>,
    },
    #[error("the pass took longer than {0:?}")]
    TooLong(Duration),
    #[error("panicked: {0}")]
    Panic(String),
}

impl Trouble {
    /// How the pass was cut short, if it could not tell its own trouble.
    fn cut(&self) -> Option<Cut> {
        match self {
            Self::Panic(_) => Some(Cut::Panicked),
            Self::TooLong(limit) => Some(Cut::TimedOut(*limit)),
            Self::Moved | Self::Publish(_) | Self::Act { .. } => None,
        }
    }
}

fn verdict(plan: &Plan, outcome: Outcome) -> Result<Option<Duration>, Trouble> {
    if let Some(failure) = outcome.failures.into_iter().next() {
        return Err(Trouble::Act {
            message: failure.message,
            again: plan.again,
        });
    }
    if outcome.stale {
        return Err(Trouble::Moved);
    }
    Ok(plan.again)
}

fn nonce() -> u64 {
    let mut bytes = [0_u8; 8];
    // Without randomness there is no jitter, and nothing else is lost.
    let _ = SystemRandom::new().fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

macro_rules! held {
    ($($type:ident, $field:ident;)*) => {$(
        impl Held for spanwire_api::$type {
            fn held<'w>(world: &'w World, name: &str) -> Option<Object<'w, Self>> {
                world.$field.get(name).map(|seen| match seen {
                    Seen::Fits(object) => Object::Fits(object),
                    Seen::Odd(odd) => Object::Odd(odd),
                })
            }
        }
    )*};
}

held! {
    Site, sites;
    Link, links;
    RouterAccess, router_accesses;
    SecuredAccess, secured_accesses;
    Certificate, certificates;
    AccessGrant, access_grants;
    AccessToken, access_tokens;
}

impl Held for k8s_openapi::api::apps::v1::Deployment {
    fn held<'w>(world: &'w World, name: &str) -> Option<Object<'w, Self>> {
        world.deployments.get(name).map(Object::Fits)
    }
}

#[cfg(test)]
mod tests;
