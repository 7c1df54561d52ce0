//! What did the test programs say that one call of `cargo test` runs?

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::Result;
use spanwire_e2e::{bed, command, scene, skip, workspace};

use super::count::Count;
use super::{Args, WITHIN, cargo};

/// How many tests of the shell tier run at the same time, on however few processors: most of the time they wait for
/// timers and sockets.
const SHELL_THREADS: &str = "8";

/// A call of `cargo test`.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) tier: &'static str,
    pub(super) ground: Ground,
    pub(super) arguments: Vec<String>,
}

/// What test programs stand on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ground {
    /// On nothing but this machine.
    Machine,
    /// On the bed that they share, one after the other.
    Bed,
    /// On clusters that they make for themselves.
    Own,
}

/// When a batch's output is shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Shown {
    /// Line by line, as it comes.
    AtOnce,
    /// In one piece, by whoever asked: others are speaking.
    Later,
}

/// How a batch ended, and what of its output is not shown yet.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) count: Count,
    pub(super) output: String,
}

impl Batch {
    /// Counts each of its test programs as skipped.
    pub(super) fn skip(&self, reason: &str) -> Count {
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

    /// Runs it to its end; `bed` says where the shared bed is.
    pub(super) fn run(&self, args: &Args, bed: Option<&Path>, shown: Shown) -> Result<Ended> {
        let mut ended = Ended::default();
        let arguments = self.arguments.join(" ");
        ended.say(
            shown,
            &format!("\n── {} ── cargo test {arguments}", self.tier),
        );
        let skips = self.skips();
        let _ = std::fs::remove_file(&skips);
        let (output, input) = std::io::pipe()?;
        let mut cargo = cargo();
        cargo
            .args(["test", "--no-fail-fast"])
            .args(&self.arguments)
            .env(skip::VARIABLE, &skips)
            // An error says what was attempted; where it was made is of no use to who reads it.
            .env("RUST_LIB_BACKTRACE", "0");
        if self.ground != Ground::Machine {
            // What they measured is told, though they passed.
            cargo.args(["--", "--show-output"]);
        }
        if self.tier == "shell" {
            cargo.env("RUST_TEST_THREADS", SHELL_THREADS);
        }
        if let Some(file) = bed {
            cargo.env(bed::VARIABLE, file);
        }
        if args.full {
            cargo.env(scene::FULL, "1");
        }
        if args.bless {
            cargo.env("BLESS", "1");
        }
        if shown == Shown::Later {
            cargo.stderr(input.try_clone()?);
        }
        let start = Instant::now();
        let child = cargo
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(input)
            .spawn()?;
        // Its ends of the pipe go with it: the output ends when the last program that holds one does.
        drop(cargo);
        let status = std::thread::scope(|scope| {
            scope.spawn(|| {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    ended.count += Count::from_line(&line);
                    ended.say(shown, &line);
                }
            });
            command::wait(child, "cargo test", WITHIN)
        })?;
        let skipped = std::fs::read_to_string(&skips).unwrap_or_default();
        for line in skipped.lines() {
            ended.say(shown, &format!("skipped: {line}"));
        }
        let count = &mut ended.count;
        count.skipped += skipped.lines().count();
        count.passed = count.passed.saturating_sub(skipped.lines().count());
        if !status.success() && count.failed == 0 {
            // It did not even compile, or a test program died.
            count.failed = 1;
        }
        let line = format!(
            "── {} ── {} in {:.1} s",
            self.tier,
            count.line(),
            start.elapsed().as_secs_f64()
        );
        ended.say(shown, &line);
        Ok(ended)
    }

    /// Where its tests write down which of them did not run, and no other batch's do.
    fn skips(&self) -> std::path::PathBuf {
        let lane = match self.ground {
            Ground::Machine | Ground::Bed => "skips",
            Ground::Own => "skips-of-own-clusters",
        };
        workspace::target().join(lane)
    }
}

impl Ended {
    fn say(&mut self, shown: Shown, line: &str) {
        match shown {
            Shown::AtOnce => println!("{line}"),
            Shown::Later => self.output.extend([line, "\n"]),
        }
    }
}
