//! What can be done with this source tree? `cargo xtask TASK`: the only task runner.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program speaks on its standard output"
)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use spanwire_e2e::{interrupt, workspace};

mod bench;
mod ci;
mod codegen;
mod demo;
mod fuzz;
mod progress;
mod raise;
mod test;
mod tidy;
mod up;

/// Tasks of the Spanwire source tree.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Show two sites link, end to end, on a real cluster that is made for it.
    Demo(demo::Args),
    /// Start a cluster with the operator in it, and leave it running until Ctrl-C.
    Up(up::Args),
    /// End a cluster that was left running.
    Down(up::DownArgs),
    /// Run the tests: all of them, or some tiers or test programs.
    Test(test::Args),
    /// Measure.
    Bench(bench::Args),
    /// Try what strangers may send: all targets, or some.
    Fuzz(fuzz::Args),
    /// All that a change has to pass: format, lints, generated files, tidiness, fuzzers, tests.
    Ci,
    /// Write the generated files.
    Codegen {
        /// Write nothing; fail if a file would change.
        #[arg(long)]
        check: bool,
    },
    /// Check what no compiler does.
    Tidy,
}

fn main() -> ExitCode {
    let task = Cli::parse().task;
    let done = interrupt::listen().and_then(|()| match task {
        Task::Demo(args) => demo::run(&args).map(|()| true),
        Task::Up(args) => up::run(&args).map(|()| true),
        Task::Down(args) => up::down(&args).map(|()| true),
        Task::Test(args) => test::run(&args),
        Task::Bench(args) => bench::run(&args).map(|()| true),
        Task::Fuzz(args) => fuzz::run(&args, &progress::Steps::default()).map(|()| true),
        Task::Ci => ci::run(),
        Task::Codegen { check } => codegen::run(check, workspace::root()).map(|()| true),
        Task::Tidy => tidy::run(workspace::root()).map(|()| true),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        // What failed has been counted, on the last line.
        Ok(false) => ExitCode::FAILURE,
        Err(_) if interrupt::is_asked() => {
            // Whatever did not end has complained on its way out.
            eprintln!("interrupted");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
