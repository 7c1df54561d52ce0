//! Which replica acts?
//!
//! Leader election on one Lease, by the rules of client-go: a lease is another's until it has not changed for as long
//! as it says, by this process's own steady clock; the holder renews it every 2 s, and stops acting 10 s after it
//! last asked for a renewal that was granted, 5 s before anybody else may begin. Wall clocks are written and never
//! read. Losing the lease is no reason to exit: the replica waits for its next turn.

mod election;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use spanwire_plan::settle::FIELD_MANAGER;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::error::CallServer;

use election::{Election, Step};

/// How often the lease is looked at or renewed.
const RETRY: Duration = Duration::from_secs(2);
/// How long one turn may take, reading and writing.
const TURN: Duration = Duration::from_secs(5);
/// How long letting go may take when the operator stops.
const RELEASE: Duration = Duration::from_secs(3);

/// This replica's part in the election.
pub struct Lease {
    api: Api<LeaseObject>,
    clock: Clock,
    name: String,
    election: Election,
    until: watch::Sender<Option<Instant>>,
    leads: watch::Sender<bool>,
}

/// Whether this replica leads; clones see the same.
#[derive(Clone, Debug)]
pub struct Leading(watch::Receiver<Option<Instant>>);

impl Leading {
    /// Whether it leads at this very moment. A process that was stopped and goes on after its time is up sees that here
    /// before anything else has run.
    pub fn is_leading(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// What comes of work that is done while this replica leads; none where its time was over before the work was: what
    /// is not sent by then is not sent. Each step of the work asks anew, before anything else.
    pub async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let step = poll_fn(|context| {
            if self.is_leading() {
                work.as_mut().poll(context).map(Some)
            } else {
                Poll::Ready(None)
            }
        });
        tokio::select! {
            biased;
            answer = step => answer,
            () = self.over() => None,
        }
    }

    /// Waits until this replica does not lead any more.
    async fn over(&self) {
        let mut told = self.0.clone();
        loop {
            let until = *told.borrow_and_update();
            let Some(until) = until.filter(|until| Instant::now() < *until) else {
                return;
            };
            let renewed = timeout_at(until, told.changed()).await;
            if !matches!(renewed, Ok(Ok(()))) {
                // Either it is time, or nobody is left to renew it.
                return sleep_until(until).await;
            }
        }
    }
}

#[cfg(any(test, fuzzing))]
impl Leading {
    /// Leads for an hour, or until it is told otherwise.
    pub(crate) fn for_test() -> (watch::Sender<Option<Instant>>, Self) {
        let until = watch::Sender::new(Some(Instant::now() + Duration::from_hours(1)));
        let leading = Self(until.subscribe());
        (until, leading)
    }
}

impl Lease {
    /// A part in the election for the Lease of this name. `identity` tells this replica from the others; a replica that
    /// restarts under the same goes on where it was.
    pub fn new(client: Client, clock: Clock, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            clock,
            name: name.to_owned(),
            election: Election::new(identity),
            until: watch::Sender::new(None),
            leads: watch::Sender::new(false),
        }
    }

    /// Tells when this replica begins to lead, and when it stops.
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.leads.subscribe()
    }

    /// Tells whether this replica leads now.
    pub fn leading(&self) -> Leading {
        Leading(self.until.subscribe())
    }

    /// Takes part until `stop`, and lets go of the lease then. It never gives up before.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let began = Instant::now();
            let limit = self.election.no_later(began, began + TURN);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                turn = timeout_at(limit, self.turn()) => match turn {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(lease = self.name, %error, "Lease not renewed"),
                    Err(_) => tracing::debug!(lease = self.name, "Lease not renewed in time"),
                },
            }
            self.tell();
            let next = began + jittered(RETRY);
            let wake = self.election.no_later(Instant::now(), next);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = sleep_until(wake) => {}
            }
            self.tell();
        }
        // Nobody acts any more once the lease is free.
        let held = self.election.let_go();
        self.tell();
        if let Some(lease) = held {
            let released = timeout(RELEASE, self.replace(lease)).await;
            if matches!(released, Ok(Ok(_))) {
                tracing::info!(lease = self.name, "Released the lease");
            }
        }
    }

    /// One look at the lease, and one write if it is this replica's or free.
    async fn turn(&mut self) -> Result<(), CallServer> {
        // The holder knows what is there, and finds out by the conflict if not.
        if !self.election.is_leading(Instant::now()) {
            let live = self.api.get_opt(&self.name).await?;
            self.election.observe(live, Instant::now());
        }
        let asked = Instant::now();
        let answer = match self.election.step(asked, self.clock.now()) {
            Step::Wait => return Ok(()),
            Step::Create(spec) => {
                let lease = LeaseObject {
                    metadata: ObjectMeta {
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(spec),
                };
                self.api
                    .create(&params(), &lease)
                    .await
                    .map_err(CallServer::from)
            }
            Step::Replace(lease) => self.replace(*lease).await,
        };
        match answer {
            Ok(granted) => {
                self.election.granted(granted, asked);
                Ok(())
            }
            Err(error) => {
                if error.code() == Some(409) || error.code() == Some(404) {
                    // Somebody else has written: what do they say?
                    let live = self.api.get_opt(&self.name).await?;
                    self.election.observe(live, Instant::now());
                }
                Err(error)
            }
        }
    }

    async fn replace(&self, lease: LeaseObject) -> Result<LeaseObject, CallServer> {
        Ok(self.api.replace(&self.name, &params(), &lease).await?)
    }

    /// Tells who wants to know, if it is news.
    fn tell(&mut self) {
        let now = Instant::now();
        let leads = self.election.is_leading(now);
        self.until.send_replace(self.election.until());
        self.leads.send_if_modified(|told| {
            let is_news = *told != leads;
            *told = leads;
            is_news
        });
    }
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

/// Up to a fifth longer, so that replicas do not ask in step.
fn jittered(time: Duration) -> Duration {
    let mut lot = [0];
    // Without chance they ask in step, which is harmless.
    let _ = aws_lc_rs::rand::fill(&mut lot);
    let [lot] = lot;
    time.mul_f64(1.0 + f64::from(lot) / 255.0 / 5.0)
}

#[cfg(test)]
mod tests;
