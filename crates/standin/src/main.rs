//! What runs in the router's container when no real router does?

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};
use spanwire_standin::{Standin, StartError, prepare, read_config};
use tokio::signal::unix::{SignalKind, signal};

/// A segmentation fault, as a shell tells it.
const CRASHED: u8 = 139;

/// A stand-in for skupper-router, for tests.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Run on this configuration file as it is.
    #[arg(short, long)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// Expand the file named by QDROUTERD_CONF into a copy and run on the copy (the default).
    Launch {
        /// Another router to run on the copy, and its arguments.
        #[arg(last = true)]
        program: Vec<String>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let program = match args.command {
        Some(Task::Launch { program }) => program,
        None => Vec::new(),
    };
    let path = match args.config.map_or_else(prepare, Ok) {
        Ok(path) => path,
        Err(fault) => {
            log(format_args!(
                "the configuration could not be prepared: {fault}"
            ));
            return ExitCode::FAILURE;
        }
    };
    if let Some((program, arguments)) = program.split_first() {
        let fault = Command::new(program)
            .args(arguments)
            .arg("-c")
            .arg(path)
            .exec();
        log(format_args!("{program} could not be run: {fault}"));
        return ExitCode::FAILURE;
    }
    match run(&path) {
        Ok(code) => code,
        Err(fault) => {
            log(format_args!("{fault}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs until a signal ends it.
fn run(path: &Path) -> std::io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut quit = signal(SignalKind::quit())?;
        let started = read_config(path).and_then(|config| Standin::start(config, log));
        let standin = match started {
            Ok(standin) => standin,
            Err(fault) => {
                log(format_args!("{fault}"));
                let code = if fault == StartError::Crashed {
                    CRASHED
                } else {
                    1
                };
                return Ok(ExitCode::from(code));
            }
        };
        tokio::select! {
            _ = terminate.recv() => Ok(ExitCode::SUCCESS),
            _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
            _ = quit.recv() => Ok(ExitCode::SUCCESS),
            () = standin.crashed() => Ok(ExitCode::from(CRASHED)),
        }
    })
}

fn log(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
