//! What does a fuzzer find? Builds the programs of `fuzz/` with libFuzzer in them, and runs each for a while.
//!
//! On the stable toolchain: LLVM's coverage pass is asked for by name, as `cargo fuzz` asks a nightly one for it. There is
//! no AddressSanitizer, since none of our code is unsafe; LeakSanitizer is that of gcc, which needs no support in rustc.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use spanwire_e2e::{command, workspace};

use crate::progress::Steps;
use crate::test::cargo;

/// A program of `fuzz/src/bin`, and the longest input that it is given.
struct Target {
    name: &'static str,
    max_len: usize,
}

const TARGETS: [Target; 3] = [
    // Headers of 8 KiB and a body of 1 KiB are the most that is read of one request.
    Target {
        name: "http_request",
        max_len: 16 * 1024,
    },
    // Files stand in it by name, so that the 64 KiB that are read of an answer are little more than a few of those.
    Target {
        name: "peer_answer",
        max_len: 8 * 1024,
    },
    // Fewer than the limits of a file, so that what is written anew with other line ends stays below them too.
    Target {
        name: "pem",
        max_len: 32 * 1024,
    },
];

/// What rustc is asked for: counters of each edge, and operands of comparisons, which libFuzzer learns from.
const FLAGS: [&str; 6] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// LeakSanitizer. It is loaded before libc, so that its `malloc` is the one that counts, and libFuzzer finds it there.
const LEAKS: &str = "liblsan.so.0";
/// Seconds that one input may take.
const LONGEST_INPUT: u32 = 10;
/// What a program may take of memory, in MiB, all that it has found included.
const MEMORY: u32 = 256;
const BUILD: Duration = Duration::from_hours(1);
/// How much longer than asked for a program may run: it loads what was found before, and ends with its last input.
const GRACE: Duration = Duration::from_mins(5);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which targets; none means all.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(TARGETS.map(|target| target.name)))]
    which: Vec<String>,
    /// For how long each is run.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            which: Vec::new(),
            seconds: 30,
        }
    }
}

/// Runs the targets that were asked for; one line each says what was tried.
pub(crate) fn run(args: &Args, steps: &Steps) -> Result<()> {
    let folder = workspace::target().join("fuzz");
    let programs = steps.run("fuzzers", |say| {
        build(&folder, say).map(|programs| (programs, "built".to_owned()))
    })?;
    let wants = |target: &&Target| {
        args.which.is_empty() || args.which.iter().any(|name| name == target.name)
    };
    for target in TARGETS.iter().filter(wants) {
        steps.run(target.name, |say| {
            let tried = target.run(&programs, &folder, args.seconds, say)?;
            Ok(((), tried.line(args.seconds)))
        })?;
    }
    Ok(())
}

/// Builds all programs, and returns where they are.
fn build(folder: &Path, say: spanwire_e2e::Say<'_>) -> Result<PathBuf> {
    let mut rustc = Command::new("rustc");
    rustc
        .current_dir(workspace::root())
        .args(["--print", "host-tuple"]);
    let host = command::output(&mut rustc, BUILD)?;
    let host = host.trim();
    let mut build = cargo();
    // With a target named, build scripts and macros are not instrumented.
    build
        .args([
            "build",
            "--package=spanwire-fuzz",
            "--bins",
            "--profile=fuzz",
            "--locked",
        ])
        .arg(format!("--target={host}"))
        .arg("--target-dir")
        .arg(folder)
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    command::watched(&mut build, BUILD, say)?;
    Ok(folder.join(host).join("fuzz"))
}

impl Target {
    /// Tries what libFuzzer makes up, and then once more what it kept, for leaks: LeakSanitizer takes more memory than all
    /// else together, so nothing could be said of ours beside it.
    ///
    /// What is worth keeping goes to `corpus/<name>`, where the next run begins; an input that breaks something goes to
    /// `artifacts/<name>`.
    fn run(
        &self,
        programs: &Path,
        folder: &Path,
        seconds: u32,
        say: spanwire_e2e::Say<'_>,
    ) -> Result<Tried> {
        let name = self.name;
        let make = |kind: &str| {
            let made = folder.join(kind).join(name);
            std::fs::create_dir_all(&made).with_context(|| format!("make {}", made.display()))?;
            anyhow::Ok(made)
        };
        let (corpus, seeds, artifacts) = (make("corpus")?, make("seeds")?, make("artifacts")?);
        let program = |limits: &[String]| {
            let mut program = Command::new(programs.join(name));
            program
                .arg(format!("-timeout={LONGEST_INPUT}"))
                .arg(format!("-max_len={}", self.max_len))
                .arg(format!("-artifact_prefix={}/", artifacts.display()))
                .args(limits)
                .args([&corpus, &seeds])
                .env(spanwire_fuzz::SEEDS, &seeds);
            program
        };
        let within = Duration::from_secs(seconds.into()) + GRACE;
        let said = |mut program: Command| {
            let answer = command::answer(&mut program, None, within)?;
            let said = answer.stderr.clone();
            answer.ok(name).with_context(|| {
                format!(
                    "what broke it, if that was an input, is in {}",
                    artifacts.display()
                )
            })?;
            anyhow::Ok(said)
        };

        say("making up input");
        let dictionary = workspace::root().join(format!("fuzz/dictionaries/{name}.dict"));
        let made_up = said(program(&[
            format!("-max_total_time={seconds}"),
            format!("-rss_limit_mb={MEMORY}"),
            format!("-dict={}", dictionary.display()),
            "-detect_leaks=0".to_owned(),
            "-print_final_stats=1".to_owned(),
        ]))?;
        say("looking for leaks");
        let mut again = program(&["-runs=0".to_owned(), "-rss_limit_mb=0".to_owned()]);
        again.env("LD_PRELOAD", LEAKS);
        said(again)?;
        Tried::read(&made_up, std::fs::read_dir(&corpus)?.count())
    }
}

/// What libFuzzer has done.
#[derive(Debug, PartialEq, Eq)]
struct Tried {
    executions: u64,
    edges: u64,
    corpus: usize,
}

impl Tried {
    /// Reads the last of what libFuzzer said. A program that was not instrumented, or did nothing, is none that passed.
    fn read(said: &str, corpus: usize) -> Result<Self> {
        let executions = said
            .lines()
            .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
            .and_then(|number| number.trim().parse().ok())
            .unwrap_or_default();
        let edges = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words.iter().position(|word| *word == "cov:")?;
            words.get(at + 1)?.parse().ok()
        };
        let edges = said
            .lines()
            .filter_map(edges)
            .next_back()
            .unwrap_or_default();
        if executions == 0 || edges == 0 {
            bail!("nothing was tried:\n{}", command::last_lines(said));
        }
        Ok(Self {
            executions,
            edges,
            corpus,
        })
    }

    fn line(&self, seconds: u32) -> String {
        let Self {
            executions,
            edges,
            corpus,
        } = self;
        let rate = executions / u64::from(seconds.max(1));
        format!("{executions} runs · {rate}/s · {edges} edges · corpus {corpus}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_did_is_read_from_its_last_lines() {
        let said = "#12\tNEW    cov: 9 ft: 9 corp: 2/5b\n#4096\tDONE   cov: 11 ft: 11 corp: 4/13b\n\
                    stat::number_of_executed_units: 4096\nstat::average_exec_per_sec:     136\n";
        let tried = Tried::read(said, 4).unwrap();
        assert_eq!(tried.line(30), "4096 runs · 136/s · 11 edges · corpus 4");
    }

    #[test]
    fn a_program_without_counters_has_tried_nothing() {
        let said = "#2\tINITED cov: 0 ft: 0\nstat::number_of_executed_units: 2\n";
        assert!(Tried::read(said, 0).is_err());
        assert!(Tried::read("", 0).is_err());
    }

    #[test]
    fn every_program_is_a_target_with_a_dictionary() {
        let fuzz = workspace::root().join("fuzz");
        let names = |folder: &str| {
            let files = std::fs::read_dir(fuzz.join(folder)).unwrap();
            let stem = |file: std::io::Result<std::fs::DirEntry>| {
                let path = file.unwrap().path();
                path.file_stem().unwrap().to_string_lossy().into_owned()
            };
            let mut names: Vec<String> = files.map(stem).collect();
            names.sort();
            names
        };
        let mut targets = TARGETS.map(|target| target.name.to_owned());
        targets.sort();
        assert_eq!(names("src/bin"), targets);
        assert_eq!(names("dictionaries"), targets);
    }
}
