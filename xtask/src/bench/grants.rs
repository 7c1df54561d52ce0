//! How many redemptions a second, how soon is each, and how near is that to what the control plane can do?

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use spanwire_e2e::cluster::Cluster;
use spanwire_e2e::images::Profile;
use spanwire_e2e::null_writer::NullWriter;
use spanwire_e2e::operator::Operator;
use spanwire_e2e::redeemer::{self, Grant, Redeemer};
use spanwire_e2e::scene::ours;
use spanwire_e2e::{bed, namespace};

use super::percentile;

const NAMESPACE: &str = "east";
const HERE: [&str; 2] = ["--namespace", NAMESPACE];
const CLIENTS: [usize; 4] = [1, 4, 16, 64];
/// Redemptions, or writes, of each row.
const COUNT: usize = 400;
/// A row at a given rate: so many a second, for so long.
const RATE: u32 = 50;
const LONG: Duration = Duration::from_secs(10);
/// Who tries wrong codes, and how often each does in a second.
const GUESSERS: usize = 50;
const GUESSES: u32 = 20;

struct Stage {
    operator: Operator,
    cluster: Cluster,
    made: AtomicUsize,
}

pub(super) fn run() -> Result<()> {
    let (cluster, programs) = bed::without_operator(Profile::Release)?;
    namespace::make(&cluster.kubectl(), &[NAMESPACE])?;
    println!("\n── single writes of a status, by a client that does nothing else");
    for clients in CLIENTS {
        ceiling(&cluster, clients)?;
    }

    let logs = cluster.dir().join("logs");
    let operator = Operator::start(&programs, &cluster.kubeconfig(), 0, &logs)?;
    let site = ours("Site", "east", &json!({"linkAccess": "default"}));
    cluster.kubectl().apply(&site.to_string(), &HERE)?;
    let stage = Stage {
        operator,
        cluster,
        made: AtomicUsize::new(0),
    };
    for (what, keeps) in [("TLS anew each time", false), ("kept alive", true)] {
        println!("\n── a grant for each redemption, {what}");
        for clients in CLIENTS {
            let grants = stage.grants(COUNT, 1)?;
            stage.race(clients, keeps, &grants.iter().collect::<Vec<_>>())?;
        }
    }
    println!("\n── one grant of 1,000, TLS anew each time");
    for clients in CLIENTS {
        let grants = stage.grants(1, 1_000)?;
        stage.race(clients, false, &vec![&grants[0]; COUNT])?;
    }
    println!("\n── {RATE} a second, a grant for each");
    stage.pace("alone", &stage.paced()?)?;
    stage.besides_guesses()?;

    let Stage {
        operator, cluster, ..
    } = stage;
    drop(operator);
    cluster.end()
}

/// How many status writes the control plane takes.
fn ceiling(cluster: &Cluster, clients: usize) -> Result<()> {
    let names: Vec<String> = (0..clients)
        .map(|client| format!("null-{client}"))
        .collect();
    let endpoint = json!({"name": "inter-router", "host": "a.example", "port": "55671"});
    let spec = json!({"endpoints": [endpoint]});
    let links = names.iter().map(|name| ours("Link", name, &spec));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": links.collect::<Vec<_>>()});
    cluster.kubectl().apply(&list.to_string(), &HERE)?;
    let kubeconfig = cluster.kubeconfig();
    let times = crowd(clients, COUNT, |client| {
        let mut writer = NullWriter::open(&kubeconfig)?;
        let name = names[client].clone();
        Ok(move |_| writer.write("links", NAMESPACE, &name))
    })?;
    line(&format!("{clients} clients"), times);
    let delete = ["delete", "links.skupper.io", "--all"];
    cluster
        .kubectl()
        .run(&[&delete[..], &HERE].concat())
        .map(drop)
}

impl Stage {
    /// New grants, once all can be redeemed.
    fn grants(&self, count: usize, allowed: usize) -> Result<Vec<Grant>> {
        let first = self.made.fetch_add(count, Ordering::Relaxed);
        let names: Vec<String> = (first..first + count)
            .map(|number| format!("g-{number}"))
            .collect();
        let wanted = names.iter().map(|name| (name.as_str(), allowed));
        Grant::make(&self.cluster.kubectl(), NAMESPACE, wanted)
    }

    /// Redeems each grant once, as fast as so many clients can.
    fn race(&self, clients: usize, keeps: bool, grants: &[&Grant]) -> Result<()> {
        let server = self.operator.grants();
        let times = crowd(clients, grants.len(), |_| {
            let mut kept = None;
            Ok(move |turn: usize| {
                let grant = grants[turn];
                let redeemer = redeemer(turn);
                let said = if keeps {
                    let line = match &mut kept {
                        Some(line) => line,
                        none => none.insert(grant.call(redeemer.source, server)?),
                    };
                    redeemer.redeem_on(line, grant)?
                } else {
                    redeemer.redeem(server, grant)?
                };
                ensure!(said.status == 200, "{} {}", said.status, said.body);
                Ok(())
            })
        })?;
        line(&format!("{clients} clients"), times);
        Ok(())
    }

    fn paced(&self) -> Result<Vec<Grant>> {
        self.grants(usize::try_from(RATE * u32::try_from(LONG.as_secs())?)?, 1)
    }

    /// Redeems grants at a rate, whether or not the ones before are done.
    fn pace(&self, what: &str, grants: &[Grant]) -> Result<()> {
        let start = Instant::now();
        let server = self.operator.grants();
        let times = thread::scope(|scope| {
            let all: Vec<_> = (0u32..)
                .zip(grants)
                .map(|(turn, grant)| {
                    scope.spawn(move || {
                        let due = Duration::from_secs(1) / RATE * turn;
                        thread::sleep(due.saturating_sub(start.elapsed()));
                        let begun = Instant::now();
                        let said = redeemer(usize::try_from(turn)?).redeem(server, grant)?;
                        ensure!(said.status == 200, "{} {}", said.status, said.body);
                        Ok(begun.elapsed())
                    })
                })
                .collect();
            let times = all.into_iter().map(|one| one.join().map_err(panicked)?);
            times.collect::<Result<Vec<_>>>()
        })?;
        line(what, (times, start.elapsed()));
        Ok(())
    }

    /// The same while others try wrong codes.
    fn besides_guesses(&self) -> Result<()> {
        let grants = self.paced()?;
        let mut target = self.grants(1, 1)?.pop().context("a grant")?;
        target.code = "x".repeat(24);
        let (is_over, guesses) = (AtomicBool::new(false), AtomicUsize::new(0));
        let server = self.operator.grants();
        let guess = |guesser: usize| {
            while !is_over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                // A limit is an answer too.
                let _ = redeemer(10_000 + guesser).redeem(server, &target);
                guesses.fetch_add(1, Ordering::Relaxed);
                let pause = Duration::from_secs(1) / GUESSES;
                thread::sleep(pause.saturating_sub(begun.elapsed()));
            }
        };
        let start = Instant::now();
        thread::scope(|scope| {
            for guesser in 0..GUESSERS {
                scope.spawn(move || guess(guesser));
            }
            let paced = self.pace("besides guesses", &grants);
            is_over.store(true, Ordering::Relaxed);
            paced
        })?;
        let rate = per_second(guesses.into_inner(), start.elapsed());
        println!("                      {rate:.0} wrong codes a second");
        Ok(())
    }
}

fn redeemer(number: usize) -> Redeemer {
    Redeemer {
        source: redeemer::source(number),
        subject: format!("site-{number}"),
        nonce: Some(format!("nonce-{number}")),
    }
}

/// How long each of so many turns took, and all of them, with so many clients; `make` makes one client.
fn crowd<Client>(
    clients: usize,
    turns: usize,
    make: impl Fn(usize) -> Result<Client> + Sync,
) -> Result<(Vec<Duration>, Duration)>
where
    Client: FnMut(usize) -> Result<()>,
{
    let queue = Mutex::new((0..turns).collect::<VecDeque<usize>>());
    let start = Instant::now();
    let work = |client| {
        let mut client = make(client)?;
        let mut times = Vec::new();
        loop {
            let turn = queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front();
            let Some(turn) = turn else {
                return Ok(times);
            };
            let begun = Instant::now();
            client(turn)?;
            times.push(begun.elapsed());
        }
    };
    let times = thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = (0..clients)
            .map(|client| scope.spawn(move || work(client)))
            .collect();
        let times = all.into_iter().map(|one| one.join().map_err(panicked)?);
        times.collect::<Result<Vec<Vec<Duration>>>>()
    })?;
    Ok((times.into_iter().flatten().collect(), start.elapsed()))
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> anyhow::Error {
    anyhow::anyhow!("a client panicked")
}

fn line(name: &str, (mut times, took): (Vec<Duration>, Duration)) {
    let rate = per_second(times.len(), took);
    let mut at = |percent| percentile(&mut times, percent).as_secs_f64() * 1000.0;
    let (half, most) = (at(50), at(99));
    println!("{name:<16} {rate:>7.1} a second   p50 {half:>7.1} ms   p99 {most:>7.1} ms");
}

fn per_second(count: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / took.as_secs_f64()
}
