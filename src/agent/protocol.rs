//! What the engine and the agent say to each other: one JSON object a line, in both directions.
//!
//! A step is named by its name and attempt. `Run` for one that the agent knows already joins it, whatever connection
//! began it; its `Ended` is sent again until `Forget`. So a connection may break anywhere and nothing is lost or run
//! twice. A step that has been forgotten is never run again: asking for it once more is answered with an error.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What one step's outputs may have together, in bytes.
pub const OUTPUT_LIMIT: usize = 512 * 1024;
/// What is kept of the end of a script's output, in bytes.
pub const LOG_LIMIT: usize = 16 * 1024;

/// The longest command that is sent and accepted, in bytes: a script with all its inputs.
pub const LINE_LIMIT: usize = 4 * 1024 * 1024;
/// The longest event that is sent and accepted, in bytes: a result with all its outputs in Base64.
pub const EVENT_LIMIT: usize = 1024 * 1024;
/// How often the agent says that it is there.
pub const ALIVE_SECONDS: u64 = 10;
/// How long the engine believes in a connection that says nothing.
pub const SILENCE_SECONDS: u64 = 45;

/// From the engine to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum Command {
    /// Run a step, or join it.
    Run(Box<RunStep>),
    /// End a step's processes; its `Ended` says so. Changes nothing for a step that ended, or never began.
    Cancel(StepId),
    /// The result is kept elsewhere; drop it, and the step's working directory. Changes nothing while the step runs.
    Forget(StepId),
    /// No step follows: PID 1 may end, with success.
    Exit,
}

/// From the agent to the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum Event {
    /// The first line of every connection.
    Hello { version: String },
    /// A step that this connection asked for has ended.
    Ended(Box<StepResult>),
    /// A command could not be understood; the connection goes on.
    Error { message: String },
    /// Nothing has happened, but the agent is there. Sent every [`ALIVE_SECONDS`], because a connection through the API
    /// server can be gone without either end being told, and balancers on its way cut those that are idle.
    Alive,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepId {
    pub step: String,
    pub attempt: u32,
}

/// One attempt of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunStep {
    pub id: StepId,
    /// Begins with `#!`.
    pub script: String,
    /// Added to the environment of the container.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Files written before the script starts.
    #[serde(default)]
    pub files: Vec<InputFile>,
    /// Files read after it ended with 0.
    #[serde(default)]
    pub outputs: Vec<OutputFile>,
    /// After this the step's processes are ended: SIGTERM, then SIGKILL after two seconds.
    pub timeout_seconds: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputFile {
    pub path: String,
    /// Base64.
    pub content: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputFile {
    pub name: String,
    pub path: String,
}

/// How an attempt of a step ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepResult {
    pub id: StepId,
    /// Absent where the script did not start or was ended by a signal.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Why the step failed where the exit code alone does not say: the interpreter is missing, the time limit was
    /// reached, an output file is not there or is too large.
    #[serde(default)]
    pub error: Option<String>,
    /// Whether the attempt was cut short because the pod is ending: no fault of the step's, which another pod may do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// By name, Base64.
    #[serde(default)]
    pub outputs: BTreeMap<String, String>,
    /// The end of stdout and stderr together, as UTF-8, at most [`LOG_LIMIT`] bytes.
    #[serde(default)]
    pub log: String,
}

impl StepResult {
    /// Whether the step did what it should.
    pub fn succeeded(&self) -> bool {
        self.exit_code == Some(0) && self.error.is_none()
    }
}
