//! The one binary: server, agent and command line.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match sluice::cli::run(sluice::cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("sluice: {error:#}");
            ExitCode::FAILURE
        }
    }
}
