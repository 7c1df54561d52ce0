//! The operator's binary: what was asked of it?

use std::process::ExitCode;

use clap::Parser;
use spanwire_operator::args::{Cli, Command};
use spanwire_operator::run;

fn main() -> ExitCode {
    let answer = match Cli::parse().command {
        Command::Operator(args) => run::operator(*args),
        Command::Crds => run::print_crds(),
        Command::Version => run::print_version(),
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            run::complain(&error);
            ExitCode::FAILURE
        }
    }
}
