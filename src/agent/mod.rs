//! What runs inside a step pod, and how the engine talks to it.
//!
//! The agent is the `sluice` binary itself, copied into the pod by an init container ([`install`]). It is PID 1 of a
//! container of any image ([`serve`]): nothing may be taken for granted there, no shell, no libc, no user name, no
//! writable root. The engine reaches it by executing [`connect`] in the container and speaks [`protocol`] over that
//! command's stdin and stdout, with [`client`].
//!
//! Nothing here knows of Kubernetes, plugins or runs: only of scripts, files and processes.

pub mod client;
mod connect;
mod connection;
mod error;
mod files;
mod heard;
mod install;
mod lines;
mod log;
mod process;
pub mod protocol;
mod reaper;
mod server;
mod step;
mod steps;
#[cfg(test)]
mod tests;
pub mod workspace;

pub use connect::connect;
pub use error::AgentError;
pub use install::install;
pub use server::serve;

/// Where the agent lives in a step pod: a volume of its own, writable for the container's user.
pub const AGENT_DIR: &str = "/.sluice";
/// The agent's file in [`AGENT_DIR`].
pub const BINARY: &str = "sluice";
/// The socket in [`AGENT_DIR`] on which it listens.
const SOCKET: &str = "agent.sock";
/// The folder in [`AGENT_DIR`] that holds each step's working directory.
const WORK: &str = "work";
