//! What if the API server asks to be left alone for a while? Then one request at a time asks whether that is over, and the
//! rest wait.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::header::RETRY_AFTER;
use hyper::{Request, Response};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};
use tower::{Layer, Service};

/// The longest time that is asked for in earnest.
const LONGEST: Duration = Duration::from_mins(1);
/// How long the others wait for what the one is told.
const TURN: Duration = Duration::from_secs(10);

/// Has the API server's `Retry-After` heeded by all that is asked by one client (`faults.md` F4): a hundred queues that each
/// have patience of their own would still be a crowd. A Lease is asked for whatever is said: it is counted apart there, and
/// who waited for it would lose it.
#[derive(Clone, Debug, Default)]
pub struct Patience(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Until when nothing is to be asked; nothing once an answer was good again.
    until: Lock<Option<Instant>>,
    turn: Mutex<()>,
}

impl Shared {
    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear<B>(&self, answer: &Response<B>) {
        let wish = matches!(answer.status().as_u16(), 429 | 503)
            .then(|| {
                answer
                    .headers()
                    .get(RETRY_AFTER)?
                    .to_str()
                    .ok()?
                    .parse()
                    .ok()
            })
            .flatten();
        let now = Instant::now();
        let mut until = self.until();
        match wish {
            Some(seconds) => *until = Some(now + Duration::from_secs(seconds).min(LONGEST)),
            // What was asked before it said so may be answered well after that.
            None => *until = until.filter(|until| *until > now),
        }
    }
}

impl<S> Layer<S> for Patience {
    type Service = Patient<S>;

    fn layer(&self, service: S) -> Patient<S> {
        Patient {
            service,
            patience: self.0.clone(),
        }
    }
}

/// A client with [`Patience`].
#[derive(Debug)]
pub struct Patient<S> {
    service: S,
    patience: Arc<Shared>,
}

impl<S, A, B> Service<Request<A>> for Patient<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    /// Nothing is sent before the future is polled.
    fn call(&mut self, request: Request<A>) -> Self::Future {
        let is_of_lease = request.uri().path().contains("/leases");
        let answer = self.service.call(request);
        if is_of_lease {
            return Box::pin(answer);
        }
        let patience = self.patience.clone();
        Box::pin(async move {
            let mut answer = pin!(answer);
            if patience.until().is_some() {
                let _turn = patience.turn.lock().await;
                // Whoever had the turn before may have been told that it is over, or to wait for longer.
                let until = *patience.until();
                if let Some(until) = until {
                    sleep_until(until).await;
                    if let Ok(answer) = timeout(TURN, &mut answer).await {
                        return answer.inspect(|answer| patience.hear(answer));
                    }
                }
            }
            answer.await.inspect(|answer| patience.hear(answer))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::JoinSet;
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// Asks `paths` at the same time of a server that refuses the first `refusals`, for two seconds each. Gives back how
    /// long that took and how often it was asked.
    async fn ask(paths: &[&'static str], refusals: usize) -> (Duration, usize) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let server = service_fn(move |_: Request<()>| {
            let counted = counted.clone();
            async move {
                let mut answer = Response::new(());
                if counted.fetch_add(1, Ordering::Relaxed) < refusals {
                    *answer.status_mut() = hyper::StatusCode::TOO_MANY_REQUESTS;
                    answer.headers_mut().insert(RETRY_AFTER, 2.into());
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let patience = Patience::default();
        let start = Instant::now();
        let mut all = JoinSet::new();
        for &path in paths {
            let (patience, server) = (patience.clone(), server.clone());
            all.spawn(async move {
                for _ in 0..4 {
                    let request = Request::get(path).body(()).unwrap();
                    let client = patience.layer(server.clone());
                    let answer = client.oneshot(request).await.unwrap();
                    if answer.status().is_success() {
                        return;
                    }
                }
                panic!("refused for ever");
            });
        }
        all.join_all().await;
        (start.elapsed(), asked.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_told_to_wait_waits_and_the_others_with_him() {
        // One is refused, then six who ask in turn whether it is over; it is, and the others have not asked in vain.
        let (took, asked) = ask(&["/api/v1/pods"; 5], 7).await;
        assert_eq!((took, asked), (Duration::from_secs(14), 12));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_waits_for_nobody() {
        let (took, asked) = ask(&["/apis/coordination.k8s.io/v1/namespaces/a/leases/b"], 1).await;
        assert_eq!((took, asked), (Duration::ZERO, 2));
    }
}
