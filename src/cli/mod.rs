//! The command line: one file for each command.

pub mod agent;
mod follow;
mod log;
mod probes;
pub mod runs;
pub mod server;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Lifecycle phases for sandboxes.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the admission webhooks and reconcile sandboxes; what the chart starts
    Server(Box<server::ServerArgs>),
    /// What runs inside step pods
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Print the CustomResourceDefinitions
    Crds,
    /// Show the phases that have run for a sandbox, with their steps, in the order in which they happened
    Runs(runs::RunsArgs),
}

/// Runs a command to its end.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Crds => {
            print!("{}", crate::api::crds::yaml()?);
            Ok(ExitCode::SUCCESS)
        }
        // Before any thread exists: the agent forks.
        Command::Agent(command) => agent::run(&command),
        Command::Server(args) => server::run(*args),
        Command::Runs(args) => runs::run(args),
    }
}
