//! The one binary: server, agent and command line.

use clap::Parser;
use std::process::ExitCode;

// The C library's takes ever longer to find room between the pieces of tens of thousands of objects that stay.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match sluice::cli::run(sluice::cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("sluice: {}", sluice::plan::shown::lines(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}
