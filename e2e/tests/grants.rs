//! Is a grant redeemed exactly as often as it allows, whatever fails meanwhile?
//!
//! On a control plane of its own, with two operators that are killed again and again, an API server that refuses and
//! whose requests and answers are lost, and redeemers who are gone before their answer comes (`design.md` §6).

use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use spanwire_e2e::cluster::Cluster;
use spanwire_e2e::dice::Dice;
use spanwire_e2e::fault_proxy::{Asked, Fate, FaultProxy};
use spanwire_e2e::images::Profile;
use spanwire_e2e::kubectl::Kubectl;
use spanwire_e2e::operator::Operator;
use spanwire_e2e::redeemer::{self, Grant, Redeemer};
use spanwire_e2e::scene::{self, ours};
use spanwire_e2e::{bed, namespace};

const NAMESPACE: &str = "east";
const HERE: [&str; 2] = ["--namespace", NAMESPACE];
/// Grants that are redeemed at the same time.
const WAVE: usize = 50;
/// Redeemers at the same time.
const AT_ONCE: usize = 32;
/// How long one redeemer insists.
const PATIENCE: Duration = Duration::from_mins(2);
/// Redeemers who are gone before their answer comes, in a hundred tries.
const GONE: u64 = 10;
/// Operators are killed at most this far apart.
const KILLS: Duration = Duration::from_secs(3);
const USED_UP: &str = "No such access granted";

fn trials() -> usize {
    if scene::is_full() { 10_000 } else { 300 }
}

/// What is tried: a grant, and who redeems it.
#[derive(Clone, Copy, Debug)]
struct Trial {
    allowed: usize,
    redeemers: usize,
    /// Whether their repeats can be told from new requests.
    has_nonces: bool,
}

impl Trial {
    /// Mostly small ones, and a few crowds.
    fn new(number: usize) -> Trial {
        let (allowed, redeemers) = match number % 20 {
            0 if number.is_multiple_of(100) => (50, 200),
            0 => (50, 60),
            1..=4 => (5, 9),
            5..=10 => (2, 4),
            _ => (1, 3),
        };
        Trial {
            allowed,
            redeemers,
            has_nonces: number % 10 != 4,
        }
    }
}

/// How a redeemer ended.
#[derive(Debug)]
struct Ending {
    grant: usize,
    is_granted: bool,
    took: Duration,
}

/// What came of all trials.
#[derive(Debug, Default)]
struct Tally {
    trials: usize,
    redeemers: usize,
    delivered: usize,
    /// By `status.redemptions`, and by `status.claims` as well.
    counted: usize,
    /// Counted for clients without a nonce, who went before their answer came.
    lost: usize,
    longest: Duration,
    /// Whose redeemer insisted for the longest time.
    worst: Option<Trial>,
}

impl fmt::Display for Tally {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally {
            trials,
            redeemers,
            delivered,
            counted,
            lost,
            longest,
            worst,
        } = self;
        write!(
            to,
            "{trials} trials, {redeemers} redeemers: {counted} claimed and counted, {delivered} delivered, {lost} lost; \
             the worst case waited {longest:.1?}: {worst:?}"
        )
    }
}

/// A control plane, and what goes wrong on it.
struct Stage {
    // Dropped first: they would complain about the rest.
    operators: Mutex<Vec<Operator>>,
    servers: Vec<(Ipv4Addr, u16)>,
    _proxy: FaultProxy,
    cluster: Cluster,
    dice: Arc<Dice>,
    is_faulty: Arc<AtomicBool>,
    is_over: AtomicBool,
}

impl Stage {
    fn set() -> Result<Stage> {
        let (cluster, programs) = bed::without_operator(Profile::Bed)?;
        let dice = Arc::new(Dice::new()?);
        let is_faulty = Arc::new(AtomicBool::new(false));
        let (chance, faulty) = (dice.clone(), is_faulty.clone());
        let (proxy, kubeconfig) = cluster.divert_admin(move |asked| {
            if faulty.load(Ordering::Relaxed) {
                fate(asked, &chance)
            } else {
                Fate::Pass
            }
        })?;
        let logs = cluster.dir().join("logs");
        let operators = (0..2)
            .map(|number| Operator::start(&programs, &kubeconfig, number, &logs))
            .collect::<Result<Vec<_>>>()?;
        let servers = operators.iter().map(Operator::grants).collect();
        Ok(Stage {
            operators: Mutex::new(operators),
            servers,
            _proxy: proxy,
            cluster,
            dice,
            is_faulty,
            is_over: AtomicBool::new(false),
        })
    }

    fn kubectl(&self) -> Kubectl {
        self.cluster.kubectl()
    }

    /// Kills one operator after the other, until it is over.
    fn kill_operators(&self) -> Result<usize> {
        let mut kills = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            thread::sleep(KILLS.mul_f64(self.chance()));
            if self.is_faulty.load(Ordering::Relaxed) {
                let mut operators = lock(&self.operators);
                let which = usize::try_from(self.dice.below(operators.len() as u64))?;
                operators[which].restart()?;
                kills += 1;
            }
        }
        Ok(kills)
    }

    /// A share of one.
    fn chance(&self) -> f64 {
        f64::from(u32::try_from(self.dice.below(1000)).unwrap_or_default()) / 1000.0
    }

    /// Makes the grants of a wave, and waits until they can be redeemed.
    fn grants(&self, wave: usize, trials: &[Trial]) -> Result<Vec<Grant>> {
        let names: Vec<String> = (0..trials.len())
            .map(|number| format!("grant-{wave}-{number}"))
            .collect();
        let wanted = names.iter().map(String::as_str);
        let wanted = wanted.zip(trials.iter().map(|trial| trial.allowed));
        Grant::make(&self.kubectl(), NAMESPACE, wanted)
    }

    /// Has everybody redeem, in disorder, while all may fail that can.
    fn redeem(&self, trials: &[Trial], grants: &[Grant]) -> Result<Vec<Ending>> {
        let mut queue = Vec::new();
        for (number, trial) in trials.iter().enumerate() {
            for who in 0..trial.redeemers {
                let redeemer = Redeemer {
                    source: redeemer::source(number * 200 + who),
                    subject: format!("site-{who}"),
                    nonce: trial.has_nonces.then(|| format!("nonce-{who}")),
                };
                let place = usize::try_from(self.dice.below(queue.len() as u64 + 1))?;
                queue.push((number, redeemer));
                let last = queue.len() - 1;
                queue.swap(place, last);
            }
        }
        let queue = Mutex::new(VecDeque::from(queue));
        let work = || {
            let mut endings = Vec::new();
            loop {
                let Some((number, redeemer)) = lock(&queue).pop_front() else {
                    return Ok(endings);
                };
                let start = Instant::now();
                let is_granted = self.insist(&redeemer, &grants[number])?;
                endings.push(Ending {
                    grant: number,
                    is_granted,
                    took: start.elapsed(),
                });
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
            let endings = workers.into_iter().map(|worker| {
                let ended = worker.join();
                ended.map_err(|_| anyhow::anyhow!("a redeemer panicked"))?
            });
            let endings: Vec<Vec<Ending>> = endings.collect::<Result<_>>()?;
            Ok(endings.into_iter().flatten().collect())
        })
    }

    /// Asks either server until one says what is final: whether something was granted.
    fn insist(&self, redeemer: &Redeemer, grant: &Grant) -> Result<bool> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let server = usize::try_from(self.dice.below(self.servers.len() as u64))?;
            let server = self.servers[server];
            if self.dice.happens(GONE) {
                let _ = redeemer.ask_and_go(server, grant);
            } else if let Ok(said) = redeemer.redeem(server, grant) {
                match said.status {
                    200 => {
                        ensure!(said.body.contains("kind: Secret"), "{}", said.body);
                        return Ok(true);
                    }
                    404 if said.body == USED_UP => return Ok(false),
                    429 | 503 => {}
                    status => bail!("{status} {}", said.body),
                }
            }
            thread::sleep(Duration::from_millis(20 + self.dice.below(80)));
        }
        bail!("{redeemer:?} got no answer within {PATIENCE:?}")
    }
}

#[test]
fn exactly_n_whatever_fails() -> Result<()> {
    let stage = Stage::set()?;
    namespace::make(&stage.kubectl(), &[NAMESPACE])?;
    let site = ours("Site", "east", &json!({"linkAccess": "default"}));
    stage.kubectl().apply(&site.to_string(), &HERE)?;

    let mut tally = Tally::default();
    let kills = thread::scope(|scope| {
        let killer = scope.spawn(|| stage.kill_operators());
        let played = play(&stage, &mut tally);
        stage.is_over.store(true, Ordering::Relaxed);
        let kills = killer.join();
        let kills = kills.map_err(|_| anyhow::anyhow!("the killer panicked"))?;
        played.and(kills)
    });
    let kills = kills.with_context(|| format!("SPANWIRE_SEED={}", stage.dice.seed))?;
    println!("{tally}; {kills} kills, seed {}", stage.dice.seed);
    let Stage {
        operators, cluster, ..
    } = stage;
    drop(operators);
    cluster.end()
}

fn play(stage: &Stage, tally: &mut Tally) -> Result<()> {
    let all: Vec<Trial> = (0..trials()).map(Trial::new).collect();
    for (wave, trials) in all.chunks(WAVE).enumerate() {
        let grants = stage.grants(wave, trials)?;
        stage.is_faulty.store(true, Ordering::Relaxed);
        let endings = stage.redeem(trials, &grants)?;
        stage.is_faulty.store(false, Ordering::Relaxed);
        let counted = Grant::count(&stage.kubectl(), NAMESPACE)?;
        for (number, (trial, grant)) in trials.iter().zip(&grants).enumerate() {
            let endings = endings.iter().filter(|ending| ending.grant == number);
            let counted = counted.get(&grant.name).context("the grant is gone")?;
            judge(*trial, *counted, &endings.collect::<Vec<_>>(), tally)
                .with_context(|| format!("{trial:?} of {}", grant.name))?;
        }
        let delete = ["delete", "accessgrants.skupper.io", "--all", "--wait=false"];
        stage.kubectl().run(&[&delete[..], &HERE].concat())?;
    }
    Ok(())
}

fn judge(trial: Trial, counted: usize, endings: &[&Ending], tally: &mut Tally) -> Result<()> {
    let delivered = endings.iter().filter(|ending| ending.is_granted).count();
    ensure!(counted == trial.allowed, "{counted} counted");
    ensure!(endings.len() == trial.redeemers);
    let lost = counted.checked_sub(delivered);
    let lost = lost.with_context(|| format!("{delivered} delivered, {counted} counted"))?;
    ensure!(lost == 0 || !trial.has_nonces, "{lost} lost");
    tally.trials += 1;
    tally.redeemers += trial.redeemers;
    tally.delivered += delivered;
    tally.counted += counted;
    tally.lost += lost;
    let longest = endings.iter().map(|ending| ending.took).max();
    if let Some(longest) = longest.filter(|longest| *longest > tally.longest) {
        tally.longest = longest;
        tally.worst = Some(trial);
    }
    Ok(())
}

/// What becomes of the writes that count.
fn fate(asked: &Asked, dice: &Dice) -> Fate {
    if asked.resource != "accessgrants" || asked.verb != "patch" {
        return Fate::Pass;
    }
    match dice.below(100) {
        0..5 => Fate::Refuse(409),
        5..10 => Fate::Refuse(503),
        10..15 => Fate::DoAndRefuse(504),
        15..18 => Fate::LoseRequest,
        18..21 => Fate::LoseAnswer,
        _ => Fate::Pass,
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
