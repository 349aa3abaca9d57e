//! `sluice agent`: what an init container, PID 1 and the engine's exec call in a step pod.

use crate::agent;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Copy this program into the step pod's volume
    Install(AgentArgs),
    /// Run steps as PID 1
    Serve(AgentArgs),
    /// Connect standard input and output to the agent
    Connect(AgentArgs),
}

#[derive(Debug, Args)]
pub struct AgentArgs {
    /// The volume of the agent
    #[arg(long, default_value = agent::AGENT_DIR)]
    dir: PathBuf,
}

pub fn run(command: &AgentCommand) -> anyhow::Result<ExitCode> {
    match command {
        AgentCommand::Install(args) => agent::install(&args.dir)?,
        AgentCommand::Connect(args) => agent::connect(&args.dir)?,
        AgentCommand::Serve(args) => return Ok(agent::serve(&args.dir)?),
    }
    Ok(ExitCode::SUCCESS)
}
