//! How is a token redeemed at another site?
//!
//! Redemptions are remote, slow and at a stranger's mercy, so they run here, a few at a time, and never on a
//! reconcile. One for each token at most; what came of it is reported, and whether and when to try again is the
//! plan's affair. The answer is stored before anything is made of it: one Secret, named as the token, with the
//! Links that came with it in an annotation (`design.md` §6).

mod address;
mod answer;
mod api_server;
mod exchange;
mod store;
mod target;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use hyper::Uri;
use kube::{Api, Client};
use spanwire_api::AccessToken;
use spanwire_plan::Seen;
use spanwire_plan::plan::Redeem;
use spanwire_plan::world::{Attempt, Outcome};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use crate::clock::Clock;
use crate::dying::{Dying, GOING};
use crate::error::within;
use crate::lease::Leading;
use crate::telemetry::{Metrics, Redeemed};

use answer::Received;
use api_server::ApiServers;
use exchange::Exchange;
use target::Target;

#[cfg(any(test, fuzzing))]
use {
    crate::wiped::Wiped,
    hyper::http,
    kube::api::DynamicObject,
    tokio::io::{AsyncRead, AsyncWrite},
};

/// How many redemptions run at once: many, as each takes all of [`EXCHANGE`] where its peer never answers. Their answers, of
/// 64 KiB at most, are 8 MiB together.
const PLACES: usize = 128;
/// How many of them may be of one namespace: a quarter, so that three whose peers never answer leave as many to the others.
const NAMESPACE_PLACES: usize = 32;
/// How long the other site may take, from looking up its name to the last byte.
const EXCHANGE: Duration = Duration::from_secs(10);
/// The most tokens whose tries are counted. Beyond, counting begins anew, and with it the plan's back-off.
const COUNTED: usize = 4096;
/// The longest name of a token: a Link's is its name, with a dash and a digit where there are several.
const MAX_TOKEN: usize = 253 - "-8".len();
/// The longest message that is passed on, in characters.
const MAX_MESSAGE: usize = 256;

/// Who is told how a redemption went: uid of the token, and the attempt.
pub type Report = Arc<dyn Fn(String, Attempt) + Send + Sync>;

/// Where redemptions may go.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Whether a token may name this machine itself, for tests.
    pub allow_loopback: bool,
    /// Where the API server is: its host and port are nobody's grant server.
    pub api_server: Option<Uri>,
}

/// Redeems tokens. Clones share everything.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    client: Client,
    clock: Clock,
    policy: Policy,
    leading: Leading,
    metrics: Arc<Metrics>,
    report: Report,
    dying: Dying,
    api_servers: ApiServers,
    places: Semaphore,
    tasks: TaskTracker,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By uid of the token: what is under way, and what to do after that if the token has changed meanwhile.
    running: HashMap<String, Option<Redeem>>,
    /// By uid of the token: its generation, and how often that has been tried.
    tries: HashMap<String, (i64, u32)>,
    /// By namespace: its places.
    places: HashMap<String, Arc<Semaphore>>,
}

impl Pool {
    /// A pool with nothing to do. Redemptions are not begun once this replica does not lead any more. One that has sent its
    /// code is brought to its end, its answer stored included: a claim would be lost otherwise, and the next leader
    /// finds the Secret or makes the same.
    pub fn new(
        client: Client,
        clock: Clock,
        policy: Policy,
        leading: Leading,
        metrics: Arc<Metrics>,
        report: Report,
        dying: Dying,
    ) -> Self {
        Self(Arc::new(Shared {
            client,
            clock,
            policy,
            leading,
            metrics,
            report,
            dying,
            api_servers: ApiServers::default(),
            places: Semaphore::new(PLACES),
            tasks: TaskTracker::new(),
            state: Mutex::default(),
        }))
    }

    /// Sees to it that the token is redeemed, and comes back at once. A token that is being redeemed is not redeemed
    /// twice at a time; one that has changed since is tried again as it is then.
    pub fn submit(&self, redeem: Redeem) {
        match self.0.state().running.entry(redeem.uid.clone()) {
            Entry::Occupied(mut running) => {
                running.insert(Some(redeem));
                return;
            }
            Entry::Vacant(place) => {
                place.insert(None);
            }
        }
        self.0.tasks.spawn(self.0.clone().work(redeem));
    }

    /// Waits until nothing is under way any more. What is submitted later is not waited for.
    pub async fn drain(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Shared {
    /// Redeems a token, and again as long as it has changed meanwhile.
    async fn work(self: Arc<Self>, mut redeem: Redeem) {
        loop {
            let attempt = {
                // In this order: who waits for his namespace holds up no other.
                let places = self.places_of(&redeem.namespace);
                let (Ok(_own), Ok(_place)) = (places.acquire().await, self.places.acquire().await)
                else {
                    return;
                };
                // What is odd enough to make us panic is that token's fault alone.
                AssertUnwindSafe(self.attempt(&redeem)).catch_unwind().await
            };
            let is_told = attempt.unwrap_or_else(|_| {
                let (token, namespace) = (&redeem.token, &redeem.namespace);
                tracing::error!(token, namespace, "Panicked while redeeming");
                true
            });
            let Some(later) = self.later(&redeem, is_told) else {
                return;
            };
            redeem = later;
        }
    }

    /// The places of a namespace. Those that nobody uses any more are forgotten.
    fn places_of(&self, namespace: &str) -> Arc<Semaphore> {
        let all = &mut self.state().places;
        all.retain(|_, places| Arc::strong_count(places) > 1);
        all.entry(namespace.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(NAMESPACE_PLACES)))
            .clone()
    }

    /// What was submitted meanwhile, unless what was told of `redeem` answers it. Where that is nothing, the token is
    /// free for the next redemption.
    fn later(&self, redeem: &Redeem, is_told: bool) -> Option<Redeem> {
        let mut state = self.state();
        let later = state
            .running
            .get_mut(&redeem.uid)
            .and_then(Option::take)
            .filter(|later| !is_told || later.generation != redeem.generation);
        if later.is_none() {
            state.running.remove(&redeem.uid);
        }
        later
    }

    /// Redeems a token once; gives back whether there was an outcome to tell.
    async fn attempt(&self, redeem: &Redeem) -> bool {
        let outcome = if self.leading.is_leading() {
            self.outcome(redeem).await
        } else {
            None
        };
        let (token, namespace) = (&redeem.token, &redeem.namespace);
        let Some(outcome) = outcome else {
            tracing::debug!(
                token,
                namespace,
                "Not redeemed: the token or the leader is another"
            );
            return false;
        };
        let result = result(&outcome);
        self.metrics
            .redeemed
            .get_or_create(&Redeemed { result })
            .inc();
        let tries = self.count(redeem);
        match &outcome {
            Outcome::Stored => tracing::info!(token, namespace, tries, "Redeemed"),
            Outcome::Unreachable(why) => {
                tracing::debug!(token, namespace, tries, why, "Could not redeem yet");
            }
            _ => tracing::info!(token, namespace, tries, result, "Could not redeem"),
        }
        let attempt = Attempt {
            generation: redeem.generation,
            at: self.clock.now(),
            tries,
            outcome,
        };
        (self.report)(redeem.uid.clone(), attempt);
        true
    }

    /// How it went; none where there is nothing to tell: the token is another one now, or gone, or this replica does not
    /// lead any more and has not sent the code.
    async fn outcome(&self, redeem: &Redeem) -> Option<Outcome> {
        // The answer could not be stored, and a claim would be lost with it.
        if self.dying.knows(&redeem.namespace) {
            return Some(unreachable_now(GOING));
        }
        let api: Api<Seen<AccessToken>> = Api::namespaced(self.client.clone(), &redeem.namespace);
        let token = match within(api.get(&redeem.token)).await {
            Ok(token) => token,
            Err(error) if error.code() == Some(404) => return None,
            Err(error) => {
                tracing::debug!(token = redeem.token, namespace = redeem.namespace, %error, "Token not read");
                return Some(unreachable_now(
                    "the API server could not be asked for the token",
                ));
            }
        };
        if redeem.token.len() > MAX_TOKEN {
            return Some(Outcome::Invalid(format!(
                "its name is longer than {MAX_TOKEN} characters, and links are named after it: give it a shorter one"
            )));
        }
        // Nothing of an odd one is repeated: its code may be in it.
        let Seen::Fits(token) = token else {
            return Some(Outcome::Invalid(message("the token does not fit its type")));
        };
        let is_same = token.metadata.uid.as_ref() == Some(&redeem.uid)
            && token.metadata.generation == Some(redeem.generation);
        if !is_same {
            return None;
        }
        let spec = token.spec;
        let code = Zeroizing::new(spec.code);
        let target = match Target::parse(&spec.url, &spec.ca, &code, &self.clock) {
            Ok(target) => target,
            Err(error) => return Some(Outcome::Invalid(message(&error.to_string()))),
        };
        let Ok(api_servers) = self.api_servers.addresses(&self.client).await else {
            return Some(unreachable_now(
                "the API server could not be asked where it is",
            ));
        };
        let (policy, leading) = (&self.policy, &self.leading);
        let exchange = exchange::exchange(&target, &code, redeem, policy, &api_servers, leading);
        let received = match received(&redeem.token, exchange).await {
            Ok(received) => received,
            Err(outcome) => return outcome,
        };
        Some(
            match store::store(&self.client, redeem, &received, &self.dying).await {
                Ok(()) => Outcome::Stored,
                Err(error) => unreachable_now(&error.to_string()),
            },
        )
    }

    /// How often this generation of the token has been tried, this time included.
    fn count(&self, redeem: &Redeem) -> u32 {
        let mut state = self.state();
        if state.tries.len() >= COUNTED && !state.tries.contains_key(&redeem.uid) {
            state.tries.clear();
        }
        let (generation, tries) = state.tries.entry(redeem.uid.clone()).or_default();
        if *generation != redeem.generation {
            (*generation, *tries) = (redeem.generation, 0);
        }
        *tries = tries.saturating_add(1);
        *tries
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Single inserts and removals: a panic elsewhere leaves none half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is kept of the other site's answer, or else how it went, as [`Shared::outcome`] has it.
async fn received(
    token: &str,
    exchange: impl Future<Output = Result<Zeroizing<Vec<u8>>, Exchange>>,
) -> Result<Received, Option<Outcome>> {
    let answer = match timeout(EXCHANGE, exchange).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(error.outcome()),
        Err(_) => return Err(Some(unreachable_now(exchange::NO_ANSWER))),
    };
    Received::parse(token, &answer)
        .map_err(|error| Some(Outcome::AnswerRefused(message(&error.to_string()))))
}

/// The Secret that would be stored of what a peer at the other end of `stream` says, past TLS and whatever it is asked.
#[cfg(any(test, fuzzing))]
pub(crate) async fn secret<S>(
    redeem: &Redeem,
    stream: S,
) -> Result<Wiped<DynamicObject>, Option<Outcome>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (_until, leading) = Leading::for_test();
    let exchange = exchange::converse(stream, http::Request::default(), &leading);
    let received = received(&redeem.token, exchange).await?;
    store::secret(redeem, &received).map_err(|error| Some(unreachable_now(&error.to_string())))
}

fn unreachable_now(why: &str) -> Outcome {
    Outcome::Unreachable(message(why))
}

/// A message fit for a status. Nothing in it was written by the peer.
fn message(text: &str) -> String {
    crate::text::printable(text, MAX_MESSAGE)
}

/// The word for it in the metrics.
fn result(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Stored => "stored",
        Outcome::Unreachable(_) => "unreachable",
        Outcome::Untrusted(_) => "untrusted",
        Outcome::Invalid(_) => "invalid",
        Outcome::UsedUp => "used_up",
        Outcome::Expired => "expired",
        Outcome::CodeRefused => "code_refused",
        Outcome::AnswerRefused(_) => "answer_refused",
    }
}

#[cfg(test)]
pub(crate) mod tests;
