//! Why the agent itself, not one of its steps, cannot go on.

use std::{io, path::PathBuf};

/// A fault of the agent's surroundings. A step's own faults are told in its result.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot copy the agent to {}: the folder must be a volume that this user may write", path.display())]
    Install { path: PathBuf, source: io::Error },
    #[error("the agent must be started before its process has threads, but it has {count}")]
    Threads { count: usize },
    #[error("cannot {what}")]
    Process { what: &'static str, source: io::Error },
    #[error("cannot listen on {}: the folder must be a volume that this user may write", path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error(
        "no agent listens on {} after {waited_seconds} s: look at the pod's log, its first process should be `sluice agent serve`",
        path.display()
    )]
    NoAgent { path: PathBuf, waited_seconds: u64, source: io::Error },
    #[error("cannot reach the agent on {}: run this as the user that the container runs as", path.display())]
    Connect { path: PathBuf, source: io::Error },
}
