//! Are grants redeemed while the operator is rolled out anew? By redeemers outside, at the Service that their urls name.
//!
//! In a program of its own: Cargo runs one after the other, and no other test may miss its operator.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use spanwire_e2e::install::{self, DEPLOYMENT, NAMESPACE};
use spanwire_e2e::redeemer::{Grant, Redeemer};
use spanwire_e2e::scene::{self, Scene, ours};
use spanwire_e2e::{network, wait};

/// The Service of the grant server.
const SERVICE: &str = "skupper-grant-server";
/// What a ReplicaSet adds to the labels of its pods.
const HASH: &str = "pod-template-hash";
const GRANTS: usize = 8;
/// How often each may be redeemed: more than it will be, so that what is counted twice is seen, and no more than the
/// claims that are kept.
const ALLOWED: usize = 256;
/// Who redeem at the same time, one grant after the other.
const REDEEMERS: usize = 3;
const PAUSE: Duration = Duration::from_millis(20);
/// Redemptions before the rollout begins, and after it has ended.
const MARGIN: usize = 20;
/// How long one redeemer insists.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long one may have to insist at most, though every ready operator serves: until the node knows which are ready.
const READINESS_GAP: Duration = Duration::from_secs(3);

/// What redeemers met with.
#[derive(Debug, Default)]
struct Tally {
    /// How many redeemed each grant.
    granted: BTreeMap<usize, usize>,
    /// Requests that were put off.
    put_off: usize,
    /// What became of requests that got no answer, and how often.
    unanswered: BTreeMap<String, usize>,
    /// The longest that a redeemer had to insist.
    longest: Duration,
}

#[test]
fn grants_are_redeemed_while_the_operator_is_rolled_out() -> Result<()> {
    scene::play("rollout", |scene| {
        scene.apply([ours("Site", "west", &json!({"linkAccess": "default"}))])?;
        let tried = [1, 2].into_iter().try_for_each(|replicas| {
            install::scale(&scene.kubectl, replicas)?;
            selector_outlives_a_rollout(scene)?;
            let tally = roll_out(scene, replicas);
            let tally = tally.with_context(|| format!("with {replicas} replicas"))?;
            println!("{replicas} replicas: {tally:?}");
            ensure!(tally.unanswered.is_empty(), "{tally:?}");
            ensure!(tally.longest < READINESS_GAP, "{tally:?}");
            Ok(())
        });
        let restored = install::scale(&scene.kubectl, 1);
        tried.and(restored)
    })
}

/// The Service of the grant server picks pods as the Deployment does, not as one of its `ReplicaSets`.
fn selector_outlives_a_rollout(scene: &Scene) -> Result<()> {
    let here = |kind, name| [kind, name, "--namespace", NAMESPACE];
    let kubectl = &scene.kubectl;
    let service = kubectl.find(&here("service", SERVICE))?;
    let deployment = kubectl.find(&here("deployment", DEPLOYMENT))?;
    let selector = &service.context("the Service")?["spec"]["selector"];
    let labels = &deployment.context("the Deployment")?["spec"]["selector"]["matchLabels"];
    ensure!(selector == labels, "it picks {selector}");
    ensure!(selector[HASH].is_null(), "it picks {selector}");
    let pods = install::pods(kubectl)?;
    let has_hash = pods
        .iter()
        .all(|pod| pod["metadata"]["labels"][HASH].is_string());
    ensure!(
        has_hash && !pods.is_empty(),
        "no pod could be told by its hash"
    );
    Ok(())
}

/// Has grants redeemed before, during and after a rollout of so many replicas.
fn roll_out(scene: &Scene, replicas: usize) -> Result<Tally> {
    let names: Vec<String> = (0..GRANTS)
        .map(|number| format!("grant-{replicas}-{number}"))
        .collect();
    let wanted = names.iter().map(|name| (name.as_str(), ALLOWED));
    let grants = Grant::make(&scene.kubectl, &scene.namespace, wanted)?;
    let (done, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = |who| redeem(who, &grants, &done, &is_over);
    let tallies = thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..REDEEMERS)
            .map(|who| scope.spawn(move || work(who)))
            .collect();
        let rolled = restart(scene, &done);
        is_over.store(true, Ordering::Relaxed);
        let tallies = workers.into_iter().map(|worker| {
            let ended = worker.join();
            ended.map_err(|_| anyhow::anyhow!("a redeemer panicked"))?
        });
        let tallies = tallies.collect::<Result<Vec<Tally>>>()?;
        rolled.map(|()| tallies)
    })?;
    let tally = tallies.into_iter().fold(Tally::default(), Tally::and);
    for (number, grant) in grants.iter().enumerate() {
        let granted = tally.granted.get(&number).copied().unwrap_or_default();
        let counted = grant.redemptions(&scene.kubectl)?;
        ensure!(
            counted == granted,
            "{granted} granted, {counted} counted of {}",
            grant.name
        );
    }
    Ok(tally)
}

/// Replaces the operators once redemptions are under way, and waits until they are again.
fn restart(scene: &Scene, done: &AtomicUsize) -> Result<()> {
    let more = || {
        let wanted = done.load(Ordering::Relaxed) + MARGIN;
        wait::until("redemptions", scene::WITHIN, || {
            Ok((done.load(Ordering::Relaxed) >= wanted).then_some(()))
        })
    };
    more()?;
    install::restart(&scene.kubectl)?;
    more()
}

/// Redeems one grant after the other until it is over, always as somebody new; and asks once more each time, as somebody
/// does whose answer was lost.
fn redeem(who: usize, grants: &[Grant], done: &AtomicUsize, is_over: &AtomicBool) -> Result<Tally> {
    let mut tally = Tally::default();
    for turn in 0..ALLOWED * GRANTS / REDEEMERS {
        if is_over.load(Ordering::Relaxed) {
            return Ok(tally);
        }
        let number = turn % grants.len();
        let redeemer = Redeemer {
            source: network::MACHINE,
            subject: format!("site-{who}-{turn}"),
            nonce: Some(format!("nonce-{who}-{turn}")),
        };
        for _ in 0..2 {
            tally.insist(&redeemer, &grants[number])?;
            thread::sleep(PAUSE);
        }
        *tally.granted.entry(number).or_default() += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    bail!("there were too few grants")
}

impl Tally {
    fn and(mut self, other: Self) -> Self {
        for (grant, count) in other.granted {
            *self.granted.entry(grant).or_default() += count;
        }
        for (error, count) in other.unanswered {
            *self.unanswered.entry(error).or_default() += count;
        }
        self.put_off += other.put_off;
        self.longest = self.longest.max(other.longest);
        self
    }

    /// Asks until the grant is given.
    fn insist(&mut self, redeemer: &Redeemer, grant: &Grant) -> Result<()> {
        let start = Instant::now();
        loop {
            match redeemer.redeem(grant.server, grant) {
                Ok(said) if said.status == 200 => {
                    let is_whole = ["kind: Secret", "tls.key: ", "kind: Link"]
                        .iter()
                        .all(|part| said.body.contains(part));
                    ensure!(is_whole, "half an answer");
                    self.longest = self.longest.max(start.elapsed());
                    return Ok(());
                }
                Ok(said) if [429, 503].contains(&said.status) => self.put_off += 1,
                Ok(said) => bail!("{} {}", said.status, said.body),
                Err(error) => *self.unanswered.entry(format!("{error:#}")).or_default() += 1,
            }
            ensure!(start.elapsed() < PATIENCE, "insisted in vain: {self:?}");
            thread::sleep(PAUSE);
        }
    }
}
