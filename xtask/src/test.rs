//! Do the tests pass? Runs tiers and test programs, each by the least that it needs, and counts.

mod batch;
mod count;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use spanwire_e2e::bed::{self, Bed};
use spanwire_e2e::cluster::Cluster;
use spanwire_e2e::images::Profile;
use spanwire_e2e::{command, tools, workspace};

use self::batch::{Batch, Ended, Ground, Shown};
use self::count::Count;
use crate::progress::Steps;
use crate::raise::{self, Built};

const TIERS: [&str; 6] = ["case", "law", "shell", "api", "pod", "story"];
/// The test programs of `e2e/tests` that tell what a user does, start to end.
const STORIES: [&str; 6] = ["walk", "order", "grants", "survive", "operate", "pod_late"];
/// The test programs of `e2e/tests` that make clusters of their own.
const OWN: [&str; 8] = [
    "clock", "grants", "hostile", "late", "peer", "pod_late", "survive", "upstream",
];
/// The package whose tests stand on a cluster.
const BEDDED: &str = "spanwire-e2e";
/// The folder below `target`; not `bed`, where Cargo keeps the build scripts of the profile of that name.
const BED: &str = "shared";
const WITHIN: Duration = Duration::from_hours(2);

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Tiers (case, law, shell, api, pod, story) or test programs (any file in e2e/tests, such as walk); none means all.
    which: Vec<String>,
    /// The long versions.
    #[arg(long)]
    full: bool,
    /// Accept what the case tests see now as what they expect.
    #[arg(long)]
    bless: bool,
}

/// Runs what was asked for, the cheapest first, and says whether all of it passed; the last line that it prints counts.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let targets = targets()?;
    are_known(&targets, &args.which)?;
    let batches = batches(&targets, &args.which);
    let of = |ground| batches.iter().filter(move |batch| batch.ground == ground);
    let mut counts = Counts::default();
    for batch in of(Ground::Machine) {
        counts.add(batch, batch.run(args, None, Shown::AtOnce)?.count);
    }
    let shared: Vec<&Batch> = of(Ground::Bed).collect();
    let own: Vec<&Batch> = of(Ground::Own).collect();
    let ended = if shared.is_empty() && own.is_empty() {
        Ok(())
    } else if tools::is_root() {
        let steps = Steps::default();
        let built = raise::build(&steps, false, Profile::Bed)?;
        on_clusters(args, &shared, &own, (&steps, &built), &mut counts)
    } else {
        for batch in shared.into_iter().chain(own) {
            counts.add(
                batch,
                batch.skip("only root can make the namespaces of a cluster"),
            );
        }
        Ok(())
    };

    println!();
    let total = counts.total();
    ended?;
    Ok(total.failed == 0 && total.passed > 0)
}

/// Runs what shares the bed, and beside it, if there is such, what makes clusters of its own: the one waits for kubelets
/// most of the time, and so do the others.
fn on_clusters(
    args: &Args,
    shared: &[&Batch],
    own: &[&Batch],
    made_of: (&Steps, &Built),
    counts: &mut Counts,
) -> Result<()> {
    if shared.is_empty() {
        for batch in own {
            counts.add(batch, batch.run(args, None, Shown::AtOnce)?.count);
        }
        return Ok(());
    }
    std::thread::scope(|scope| {
        let (sender, ended) = mpsc::channel();
        scope.spawn(move || {
            for &batch in own {
                // Nobody listens any more once the others have come to a bad end.
                if sender
                    .send((batch, batch.run(args, None, Shown::Later)))
                    .is_err()
                {
                    return;
                }
            }
        });
        let mut show = |(batch, ended): (&Batch, Result<Ended>)| -> Result<()> {
            let ended = ended?;
            print!("{}", ended.output);
            counts.add(batch, ended.count);
            Ok(())
        };
        let (cluster, file) = make_bed(made_of)?;
        for batch in shared {
            show((batch, batch.run(args, Some(&file), Shown::AtOnce)))?;
            ended.try_iter().try_for_each(&mut show)?;
        }
        let bed = cluster.end();
        ended.into_iter().try_for_each(show)?;
        bed
    })
}

/// The cluster that the test programs share, and the file that says where it is.
fn make_bed((steps, built): (&Steps, &Built)) -> Result<(Cluster, PathBuf)> {
    let cluster = raise::raise(steps, built, BED)?;
    steps.run("toolbox", |_| {
        bed::equip(&cluster).map(|()| ((), "imported for the tests".to_owned()))
    })?;
    let file = cluster.dir().join("state/bed.json");
    Bed::of(&cluster).write(&file)?;
    Ok((cluster, file))
}

/// What was counted, by tier.
#[derive(Debug, Default)]
struct Counts(BTreeMap<usize, Count>);

impl Counts {
    fn add(&mut self, batch: &Batch, count: Count) {
        let order = TIERS.iter().position(|tier| *tier == batch.tier);
        *self.0.entry(order.unwrap_or_default()).or_default() += count;
    }

    /// Says what was counted in each tier, and in all.
    fn total(self) -> Count {
        let mut total = Count::default();
        for (order, count) in self.0 {
            println!("{:<6} {}", TIERS[order], count.line());
            total += count;
        }
        println!("{}", total.line());
        total
    }
}

/// Test programs by package, as Cargo knows them.
type Targets = BTreeMap<String, Vec<String>>;

fn targets() -> Result<Targets> {
    let mut cargo = cargo();
    cargo.args(["metadata", "--no-deps", "--format-version=1"]);
    let metadata: Value = serde_json::from_str(&command::output(&mut cargo, WITHIN)?)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata names no packages")?;
    let tests = |package: &Value| {
        let targets = package["targets"].as_array().into_iter().flatten();
        let tests = targets.filter(|target| target["kind"][0] == "test");
        tests
            .filter_map(|target| Some(target["name"].as_str()?.to_owned()))
            .collect()
    };
    Ok(packages
        .iter()
        .filter_map(|package| Some((package["name"].as_str()?.to_owned(), tests(package))))
        .collect())
}

/// Refuses a name that is neither a tier's nor a test program's.
fn are_known(targets: &Targets, which: &[String]) -> Result<()> {
    let programs = targets.get(BEDDED).into_iter().flatten();
    let known: Vec<&str> = TIERS
        .into_iter()
        .chain(programs.map(String::as_str))
        .collect();
    match which.iter().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => bail!(
            "{unknown} is neither a tier nor a test program of e2e/tests: name one of {}",
            known.join(", ")
        ),
        None => Ok(()),
    }
}

/// What to call for the tiers and test programs that were asked for.
fn batches(targets: &Targets, which: &[String]) -> Vec<Batch> {
    let wants = |name: &str| which.is_empty() || which.iter().any(|wanted| wanted == name);
    let tests = |package: &str| targets.get(package).cloned().unwrap_or_default();
    let mut batches = Vec::new();
    let mut add = |tier, arguments: Vec<String>| {
        batches.push(Batch {
            tier,
            ground: Ground::Machine,
            arguments,
        });
    };

    let plan = tests("spanwire-plan");
    if wants("case") && plan.iter().any(|test| test == "cases") {
        add(
            "case",
            strings(&["--package=spanwire-plan", "--test=cases"]),
        );
    }
    if wants("law") {
        let laws = plan
            .iter()
            .filter(|test| *test != "cases")
            .map(|test| format!("--test={test}"));
        add(
            "law",
            strings(&["--package=spanwire-plan", "--lib"])
                .into_iter()
                .chain(laws)
                .collect(),
        );
        add(
            "law",
            strings(&["--package=spanwire-api", "--package=spanwire-router"]),
        );
    }
    if wants("shell") {
        let packages =
            ["operator", "adaptor", "standin"].map(|name| format!("--package=spanwire-{name}"));
        add("shell", packages.into());
        add("shell", strings(&["--package=xtask"]));
        add("shell", strings(&["--package=spanwire-e2e", "--lib"]));
    }
    let bedded = tests(BEDDED);
    let bedded = bedded
        .iter()
        .filter(|test| wants(tier_of(test)) || wants(test));
    let (own, shared): (Vec<&String>, Vec<&String>) =
        bedded.partition(|test| OWN.contains(&test.as_str()));
    let of_tests = |tier, ground, tests: &[&String]| {
        let tests = tests.iter().map(|test| format!("--test={test}"));
        let package = std::iter::once(format!("--package={BEDDED}"));
        Batch {
            tier,
            ground,
            arguments: package.chain(tests).collect(),
        }
    };
    for tier in ["api", "pod", "story"] {
        let of_tier = shared.iter().copied().filter(|test| tier_of(test) == tier);
        let of_tier: Vec<&String> = of_tier.collect();
        if !of_tier.is_empty() {
            batches.push(of_tests(tier, Ground::Bed, &of_tier));
        }
    }
    // Each by itself, so that what it says is shown as soon as it has ended.
    batches.extend(
        own.into_iter()
            .map(|test| of_tests(tier_of(test), Ground::Own, &[test])),
    );
    batches
}

/// The tier of a test program in `e2e/tests`.
fn tier_of(test: &str) -> &'static str {
    match test {
        test if STORIES.contains(&test) => "story",
        test if test.starts_with("pod") => "pod",
        _ => "api",
    }
}

fn strings(all: &[&str]) -> Vec<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

/// Cargo, as it called us.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_is_chosen_by_its_name() {
        let targets = Targets::from([(
            "spanwire-e2e".to_owned(),
            strings(&["walk", "order", "contract"]),
        )]);
        let batches = batches(&targets, &strings(&["order"]));
        assert_eq!(batches.len(), 1);
        assert_eq!(
            batches[0].arguments,
            strings(&["--package=spanwire-e2e", "--test=order"])
        );
    }

    #[test]
    fn who_makes_a_cluster_of_its_own_is_called_by_itself() {
        let targets = Targets::from([(BEDDED.to_owned(), strings(&["walk", "grants", "order"]))]);
        let batches = batches(&targets, &strings(&["story"]));
        let calls = batches
            .iter()
            .map(|batch| (batch.ground, batch.arguments.join(" ")));
        assert_eq!(
            calls.collect::<Vec<_>>(),
            [
                (
                    Ground::Bed,
                    "--package=spanwire-e2e --test=walk --test=order".to_owned()
                ),
                (
                    Ground::Own,
                    "--package=spanwire-e2e --test=grants".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn an_unknown_name_is_refused_with_those_that_are_known() {
        let targets = Targets::from([(BEDDED.to_owned(), strings(&["walk", "settled"]))]);
        assert!(are_known(&targets, &strings(&["law", "settled"])).is_ok());
        assert_eq!(
            are_known(&targets, &strings(&["walk", "wlak"]))
                .unwrap_err()
                .to_string(),
            "wlak is neither a tier nor a test program of e2e/tests: \
             name one of case, law, shell, api, pod, story, walk, settled"
        );
    }
}
