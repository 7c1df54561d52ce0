//! In which namespaces is there no sense in making anything?
//!
//! A namespace that is being deleted takes deletions and changes, and refuses whatever is new. Nothing of ours says that
//! it is: the first refusal does. It is remembered here for all who make objects, so that a namespace costs no more
//! refusals than there were requests under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{CALL, CallServer};

/// How long nothing is made after a refusal: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(5));
/// How many namespaces are remembered. Beyond, remembering begins anew.
const REMEMBERED: usize = 1024;

/// What is said of a namespace where nothing is made any more.
pub const GOING: &str = "the namespace is being deleted";

/// The namespaces that are being deleted. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Dying(Arc<Mutex<HashMap<String, Refused>>>);

#[derive(Debug)]
struct Refused {
    until: Instant,
    pause: Duration,
    /// Whether one request is under way to see how things stand now.
    is_tried: bool,
}

impl Dying {
    /// Whether an object may be made in the namespace. After a while, one may: who asks first.
    pub fn admits(&self, namespace: &str) -> bool {
        let now = Instant::now();
        match self.memory().get_mut(namespace) {
            None => true,
            Some(refused) if now < refused.until => false,
            Some(refused) => {
                refused.is_tried = true;
                refused.until = now + CALL;
                true
            }
        }
    }

    /// Whether the namespace has refused since somebody was admitted.
    pub fn has_refused(&self, namespace: &str) -> bool {
        let memory = self.memory();
        memory
            .get(namespace)
            .is_some_and(|refused| !refused.is_tried)
    }

    /// Whether anything is remembered of the namespace.
    pub fn knows(&self, namespace: &str) -> bool {
        self.memory().contains_key(namespace)
    }

    /// Takes in what became of a request to make an object.
    pub fn hear<T>(&self, namespace: &str, answer: &Result<T, CallServer>) {
        let mut memory = self.memory();
        match answer {
            Err(error) if error.is_of_dying() => {}
            Ok(_)
                if memory
                    .get(namespace)
                    .is_some_and(|refused| refused.is_tried) =>
            {
                memory.remove(namespace);
                return;
            }
            _ => return,
        }
        if memory.len() >= REMEMBERED && !memory.contains_key(namespace) {
            memory.clear();
        }
        let pause = match memory.get(namespace) {
            Some(refused) if refused.is_tried => PAUSE.1.min(refused.pause * 2),
            // One of those that were under way at the first refusal.
            Some(refused) => refused.pause,
            None => PAUSE.0,
        };
        let refused = Refused {
            until: Instant::now() + pause,
            pause,
            is_tried: false,
        };
        if memory.insert(namespace.to_owned(), refused).is_none() {
            tracing::info!(namespace, "Found a namespace that is being deleted");
        }
    }

    /// Forgets the namespace: nothing of ours is left in it, so what comes is of another one.
    pub fn forget(&self, namespace: &str) {
        self.memory().remove(namespace);
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<String, Refused>> {
        // Single inserts and removals: a panic elsewhere leaves none half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use spanwire_plan::Plan;
    use spanwire_plan::plan::{Act, Status};

    use super::*;
    use crate::lease::Leading;
    use crate::mock::{ApiServer, Fault};
    use crate::redeem::tests::redeem;
    use crate::telemetry::Metrics;

    /// A namespace that was deleted while a site was made in it got up to 74 refused requests.
    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_goes_costs_the_requests_under_way() {
        let (server, goes) = (ApiServer::new(), Arc::new(AtomicBool::new(true)));
        server.fault({
            let goes = goes.clone();
            move |call| match call.method.as_str() {
                "POST" if goes.load(Ordering::Relaxed) => Fault::NamespaceGoes,
                _ => Fault::None,
            }
        });
        let (_until, leading) = Leading::for_test();
        let (metrics, dying) = (Arc::new(Metrics::new("0")), Dying::default());
        let workshop = crate::mock::workshop(server.client(), leading, metrics, dying.clone());
        let mut plan = Plan::only(Status::default());
        for stage in [["a", "b", "c"], ["d", "e", "f"]] {
            let acts = stage.map(|name| Act::Create(redeem(name).secret));
            plan.push("Configured", false, acts.to_vec());
        }
        let posts = || server.count("POST", "/secrets");
        for _ in 0..20 {
            let outcome = workshop.carry_out(&plan).await;
            assert!(outcome.stale && outcome.failures.is_empty(), "{outcome:?}");
        }
        assert_eq!(posts(), 3);
        // One looks again, and the pause after that is longer.
        for seconds in [31, 31] {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            workshop.carry_out(&plan).await;
        }
        assert_eq!(posts(), 4);

        goes.store(false, Ordering::Relaxed);
        tokio::time::sleep(PAUSE.1).await;
        workshop.carry_out(&plan).await;
        assert!(!dying.knows("a"));
        workshop.carry_out(&plan).await;
        assert!(server.get("/api/v1/namespaces/a/secrets/c").is_some());
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let dying = Dying::default();
        let status = kube::core::Status::failure("because it is being terminated", "Forbidden");
        let refusal = kube::Error::Api(Box::new(status.with_code(403)));
        let refusal: Result<(), CallServer> = Err(refusal.into());
        for index in 0..=REMEMBERED {
            dying.hear(&index.to_string(), &refusal);
        }
        assert_eq!(dying.memory().len(), 1);
    }
}
