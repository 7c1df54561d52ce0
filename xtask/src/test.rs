//! Do the tests pass? Runs tiers and test programs, each by the least that it needs, and counts.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use spanwire_e2e::bed::{self, Bed};
use spanwire_e2e::cluster::Cluster;
use spanwire_e2e::images::Profile;
use spanwire_e2e::{command, scene, skip, tools, workspace};

use crate::progress::Steps;
use crate::raise;

const TIERS: [&str; 6] = ["case", "law", "shell", "api", "pod", "story"];
/// The test programs of `e2e/tests` that tell what a user does, start to end.
const STORIES: [&str; 6] = ["walk", "order", "grants", "survive", "operate", "pod_late"];
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

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// A call of `cargo test`.
#[derive(Debug)]
struct Batch {
    tier: &'static str,
    arguments: Vec<String>,
}

/// Runs what was asked for, the cheapest first, and says whether all of it passed; the last line that it prints counts.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let targets = targets()?;
    are_known(&targets, &args.which)?;
    let mut counts: BTreeMap<usize, Count> = BTreeMap::new();
    let mut bed = None;
    for batch in batches(&targets, &args.which) {
        let count = if !batch.needs_bed() {
            batch.run(args, None)?
        } else if tools::is_root() {
            if bed.is_none() {
                bed = Some(make_bed()?);
            }
            batch.run(args, bed.as_ref().map(|(_, file)| file.as_path()))?
        } else {
            batch.skip("only root can make the namespaces of a cluster")
        };
        let order = TIERS
            .iter()
            .position(|tier| *tier == batch.tier)
            .unwrap_or_default();
        *counts.entry(order).or_default() += count;
    }
    let ended = bed.map_or(Ok(()), |(cluster, _)| cluster.end());

    println!();
    let mut total = Count::default();
    for (order, count) in counts {
        println!("{:<6} {}", TIERS[order], count.line());
        total += count;
    }
    println!("{}", total.line());
    ended?;
    Ok(total.failed == 0 && total.passed > 0)
}

/// The cluster that the test programs share, and the file that says where it is.
fn make_bed() -> Result<(Cluster, PathBuf)> {
    let steps = Steps::default();
    let built = raise::build(&steps, false, Profile::Bed)?;
    let cluster = raise::raise(&steps, &built, BED)?;
    steps.run("toolbox", |_| {
        bed::equip(&cluster).map(|()| ((), "imported for the tests".to_owned()))
    })?;
    let file = cluster.dir().join("state/bed.json");
    Bed::of(&cluster).write(&file)?;
    Ok((cluster, file))
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
    let mut add = |tier, arguments: Vec<String>| batches.push(Batch { tier, arguments });

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
    for tier in ["api", "pod", "story"] {
        let all = tests(BEDDED);
        let of_tier = all.iter().filter(|test| tier_of(test) == tier);
        let chosen = of_tier
            .filter(|test| wants(tier) || wants(test))
            .map(|test| format!("--test={test}"));
        let chosen: Vec<String> = chosen.collect();
        if !chosen.is_empty() {
            add(
                tier,
                std::iter::once(format!("--package={BEDDED}"))
                    .chain(chosen)
                    .collect(),
            );
        }
    }
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

impl Batch {
    fn needs_bed(&self) -> bool {
        matches!(self.tier, "api" | "pod" | "story")
    }

    /// Counts each of its test programs as skipped.
    fn skip(&self, reason: &str) -> Count {
        let programs = self
            .arguments
            .iter()
            .filter(|argument| argument.starts_with("--test="))
            .count();
        println!("\n── {} ── skipped: {reason}", self.tier);
        Count {
            skipped: programs,
            ..Count::default()
        }
    }

    fn run(&self, args: &Args, bed: Option<&Path>) -> Result<Count> {
        println!(
            "\n── {} ── cargo test {}",
            self.tier,
            self.arguments.join(" ")
        );
        let skips = workspace::target().join("skips");
        let _ = std::fs::remove_file(&skips);
        let mut cargo = cargo();
        cargo
            .args(["test", "--no-fail-fast"])
            .args(&self.arguments)
            .env(skip::VARIABLE, &skips)
            // An error says what was attempted; where it was made is of no use to who reads it.
            .env("RUST_LIB_BACKTRACE", "0");
        if let Some(file) = bed {
            cargo.env(bed::VARIABLE, file);
        }
        if args.full {
            cargo.env(scene::FULL, "1");
        }
        if args.bless {
            cargo.env("BLESS", "1");
        }
        let start = Instant::now();
        let mut child = cargo
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("read from cargo test")?;
        let (status, mut count) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut count = Count::default();
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    count += Count::from_line(&line);
                    println!("{line}");
                }
                count
            });
            let status = command::wait(child, "cargo test", WITHIN);
            (status, reader.join().unwrap_or_default())
        });
        let status = status?;
        let skipped = std::fs::read_to_string(&skips).unwrap_or_default();
        skipped.lines().for_each(|line| println!("skipped: {line}"));
        count.skipped += skipped.lines().count();
        count.passed = count.passed.saturating_sub(skipped.lines().count());
        if !status.success() && count.failed == 0 {
            // It did not even compile, or a test program died.
            count.failed = 1;
        }
        println!(
            "── {} ── {} in {:.1} s",
            self.tier,
            count.line(),
            start.elapsed().as_secs_f64()
        );
        Ok(count)
    }
}

impl Count {
    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …`; any other line counts nothing.
    fn from_line(line: &str) -> Count {
        let Some(result) = line.strip_prefix("test result:") else {
            return Count::default();
        };
        let number = |what: &str| {
            let part = result
                .split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(what));
            part.and_then(|number| number.trim().parse().ok())
                .unwrap_or_default()
        };
        Count {
            passed: number("passed"),
            failed: number("failed"),
            skipped: number("ignored"),
        }
    }

    fn line(self) -> String {
        let Count {
            passed,
            failed,
            skipped,
        } = self;
        let counted = format!("{passed} passed, {failed} failed");
        if skipped == 0 {
            counted
        } else {
            format!("{counted}, {skipped} skipped")
        }
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
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
    fn a_result_line_is_counted() {
        let count = Count::from_line(
            "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; finished in 0.1s",
        );
        assert_eq!(count.line(), "3 passed, 1 failed, 2 skipped");
        assert_eq!(
            Count::from_line("test a ... ok").line(),
            "0 passed, 0 failed"
        );
    }

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
