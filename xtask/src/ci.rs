//! What does a change have to pass? The same here and on the machine that checks it.

use std::time::Duration;

use anyhow::Result;
use spanwire_e2e::{command, workspace};

use crate::progress::Steps;
use crate::test::{self, cargo};
use crate::{codegen, fuzz, tidy};

const WITHIN: Duration = Duration::from_hours(1);

/// Runs every check; the tests come last, and their count is the last line.
pub(crate) fn run() -> Result<bool> {
    let steps = Steps::default();
    let root = workspace::root();
    steps.run("format", |_| cargo_passes(&["fmt", "--all", "--check"]))?;
    steps.run("lints", |say| {
        say("cargo clippy");
        cargo_passes(&[
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "--deny=warnings",
        ])
    })?;
    steps.run("generated files", |_| {
        codegen::run(true, root).map(|()| ((), "current".to_owned()))
    })?;
    steps.run("tidiness", |_| {
        tidy::run(root).map(|()| ((), "clean".to_owned()))
    })?;
    fuzz::run(&fuzz::Args::default(), &steps)?;
    // What the README calls `cargo xtask test`.
    test::run(&test::Args::default())
}

fn cargo_passes(args: &[&str]) -> Result<((), String)> {
    command::output(cargo().args(args), WITHIN).map(|_| ((), "clean".to_owned()))
}
