//! Does it matter where the operator dies, which of its writes goes wrong, or what the API server says for a while? Sweeps
//! faults over every write of what users do, and compares how each run ends with how it ends without a fault (F1 to F7 of
//! `faults.md`).
//!
//! On a control plane of its own. Each run has a namespace of its own, and an operator for that alone, so that several can
//! go on at once; the fault proxy is the operators' only road to the API server.

mod fault;
mod run;
mod workload;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use spanwire_e2e::dice::Dice;
use spanwire_e2e::scene;

use fault::{Fault, Plot, Weather};
use run::{Point, Record, Stage};
use workload::Workload;

/// Runs at the same time: most of the time each waits for nothing to happen.
const LANES: usize = 6;
/// Points of a run that is not a full one: single writes, and spells of bad weather.
const WRITES: usize = 150;
const SPELLS: usize = 12;

#[test]
fn each_run_ends_alike_whatever_fails() -> Result<()> {
    let stage = Stage::set()?;
    let workloads = Workload::all();
    let records = undisturbed(&stage, &workloads)?;
    let dice = Dice::new()?;
    println!("seed {}", dice.seed);
    let ended = [
        ("writes", writes(&workloads, &records), WRITES),
        ("spells", spells(&workloads), SPELLS),
    ]
    .map(|(what, mut points, sample)| {
        let possible = points.len();
        if !scene::is_full() {
            choose(&mut points, sample, &dice);
        }
        let (count, start) = (points.len(), Instant::now());
        let hits = sweep(&stage, &workloads, &records, points)?;
        let missed = count - hits;
        println!(
            "{count} of {possible} {what} in {:.0?}, {missed} of them not reached",
            start.elapsed(),
        );
        // How many writes a run has may vary by a few.
        ensure!(
            missed * 10 < count,
            "{missed} of {count} {what} not reached"
        );
        Ok(())
    });
    let ended = all_or_errors(ended.into()).map(drop);
    ended.with_context(|| format!("SPANWIRE_SEED={}", dice.seed))?;
    stage.end()
}

/// Runs through all points, and says how many were reached.
fn sweep(
    stage: &Stage,
    workloads: &[Workload],
    records: &[Record],
    points: Vec<Point>,
) -> Result<usize> {
    let ended = in_lanes(points, |point| {
        let workload = workloads.get(point.workload).context("a workload")?;
        let hit = stage.disturbed(workload, records, point);
        hit.with_context(|| format!("{} with {point:?}", workload.name))
    })?;
    let hits = all_or_errors(ended)?.into_iter().filter(|is_hit| *is_hit);
    Ok(hits.count())
}

/// How each workload ends without a fault, twice: what differs then is nothing to judge by.
fn undisturbed(stage: &Stage, workloads: &[Workload]) -> Result<Vec<Record>> {
    let records = in_lanes(workloads.iter(), |workload| stage.undisturbed(workload))?;
    let records = all_or_errors(records)?;
    let again = (0..workloads.len()).map(|workload| Point {
        workload,
        plot: None,
    });
    sweep(stage, workloads, &records, again.collect())?;
    Ok(records)
}

/// Each fault at each write.
fn writes(workloads: &[Workload], records: &[Record]) -> Vec<Point> {
    let numbered = workloads.iter().zip(records).enumerate();
    numbered
        .flat_map(|(workload, (_, record))| {
            (1..=record.writes).flat_map(move |write| {
                Fault::ALL.map(|fault| Point {
                    workload,
                    plot: Some(Plot::At(write, fault)),
                })
            })
        })
        .collect()
}

/// Each weather with each workload.
fn spells(workloads: &[Workload]) -> Vec<Point> {
    let period = if scene::is_full() { 60 } else { 10 };
    let of = |workload| {
        Weather::ALL.map(|weather| Point {
            workload,
            plot: Some(Plot::For(Duration::from_secs(period), weather)),
        })
    };
    (0..workloads.len()).flat_map(of).collect()
}

fn choose(points: &mut Vec<Point>, count: usize, dice: &Dice) {
    let mut sample = Vec::new();
    while sample.len() < count && !points.is_empty() {
        let place = usize::try_from(dice.below(points.len() as u64)).unwrap_or_default();
        sample.push(points.swap_remove(place));
    }
    *points = sample;
}

/// Does some work on each, several at the same time, and gives back the results in their order.
fn in_lanes<T: Send, R: Send>(
    all: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Result<Vec<R>> {
    let queue: Mutex<VecDeque<(usize, T)>> = Mutex::new(all.into_iter().enumerate().collect());
    let lane = || {
        let mut results = Vec::new();
        loop {
            let Some((number, next)) = lock(&queue).pop_front() else {
                return results;
            };
            results.push((number, work(next)));
        }
    };
    let mut results = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        let ended = lanes.into_iter().map(|lane| {
            let ended = lane.join();
            ended.map_err(|_| anyhow::anyhow!("a lane panicked"))
        });
        let ended: Result<Vec<_>> = ended.collect();
        Ok::<_, anyhow::Error>(ended?.into_iter().flatten().collect::<Vec<_>>())
    })?;
    results.sort_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// All results, or all errors.
fn all_or_errors<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let count = results.len();
    let (good, bad): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let bad = bad.into_iter().filter_map(Result::err);
    let bad: Vec<String> = bad.map(|error| format!("{error:#}")).collect();
    ensure!(
        bad.is_empty(),
        "{} of {count} failed:\n{}",
        bad.len(),
        bad.join("\n\n")
    );
    good.into_iter().collect()
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
