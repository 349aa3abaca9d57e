//! One attempt of one step, from its files to its result.

use super::{
    files::{self, FileError},
    log::{self, LogSink, Tail},
    process::{self, Group, LaunchError},
    protocol::{LOG_LIMIT, RunStep, StepResult},
    workspace::{Workspace, WorkspaceError},
};
use std::{
    collections::BTreeMap,
    error::Error,
    io::{self, PipeReader},
    os::fd::OwnedFd,
    path::Path,
    process::ExitStatus,
    time::Duration,
};
use tokio::{
    net::unix::pipe,
    task,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Between SIGTERM and SIGKILL.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// How long output is still read when all that was to write it has ended. What escaped from the group may hold the pipe.
const LAST_OUTPUT_WITHIN: Duration = Duration::from_millis(500);

/// Why a step failed where its exit code does not say so.
#[derive(Debug, thiserror::Error)]
enum StepFault {
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("the time limit of {seconds} s was reached")]
    TimeLimit { seconds: u32 },
    #[error("the step was cancelled")]
    Cancelled,
    #[error("the script was ended by {signal}")]
    Signal { signal: String },
    #[error("the script's processes cannot be followed")]
    Follow(#[source] io::Error),
    #[error("the agent failed in this step")]
    Agent(#[source] task::JoinError),
}

/// Why a running script is to end.
enum Ending {
    ByItself,
    TimeLimit,
    Cancelled,
}

/// Runs a step to its end. What goes wrong is in the result.
pub async fn run(step: RunStep, agent: &Path, sink: &LogSink, cancel: &CancellationToken) -> StepResult {
    let mut result = failed(&step, String::new());
    result.error = match attempt(&step, agent, sink, cancel, &mut result).await {
        Ok(()) => None,
        Err(fault) => Some(told(&fault)),
    };
    result
}

/// The result of a step that did not start.
pub fn failed(step: &RunStep, error: String) -> StepResult {
    StepResult {
        id: step.id.clone(),
        exit_code: None,
        error: Some(error),
        interrupted: false,
        outputs: BTreeMap::new(),
        log: String::new(),
    }
}

async fn attempt(
    step: &RunStep,
    agent: &Path,
    sink: &LogSink,
    cancel: &CancellationToken,
    result: &mut StepResult,
) -> Result<(), StepFault> {
    if cancel.is_cancelled() {
        return Err(StepFault::Cancelled);
    }
    let (workspace, group, output) = {
        let (step, agent) = (step.clone(), agent.to_owned());
        task::spawn_blocking(move || begin(&step, &agent)).await.map_err(StepFault::Agent)??
    };
    let (ending, status, tail) = follow(step, group, output, sink, cancel).await?;
    result.exit_code = status.code();
    result.log = tail.into_text();
    match ending {
        Ending::TimeLimit => return Err(StepFault::TimeLimit { seconds: step.timeout_seconds }),
        Ending::Cancelled => return Err(StepFault::Cancelled),
        Ending::ByItself => {}
    }
    if let Some(signal) = process::ending_signal(status) {
        return Err(StepFault::Signal { signal });
    }
    if status.success() {
        let outputs = step.outputs.clone();
        result.outputs = task::spawn_blocking(move || files::read_outputs(workspace.directory(), &outputs))
            .await
            .map_err(StepFault::Agent)??;
    }
    Ok(())
}

/// Everything up to the running script; blocks.
fn begin(step: &RunStep, agent: &Path) -> Result<(Workspace, Group, PipeReader), StepFault> {
    let workspace = Workspace::create(agent, &step.id)?;
    // In this order, so that one path can be an input and an output.
    files::clear_outputs(workspace.directory(), &step.outputs)?;
    files::write_inputs(workspace.directory(), &step.files)?;
    let launch = workspace.prepare(&step.script, &step.env)?;
    let (group, output) = process::launch(&launch)?;
    Ok((workspace, group, output))
}

/// Waits for the script, ends it where it has to be, and leaves none of its processes behind.
async fn follow(
    step: &RunStep,
    group: Group,
    output: PipeReader,
    sink: &LogSink,
    cancel: &CancellationToken,
) -> Result<(Ending, ExitStatus, Tail), StepFault> {
    let ended = group.ended();
    tokio::pin!(ended);
    let output = pipe::Receiver::from_owned_fd(OwnedFd::from(output)).map_err(StepFault::Follow)?;
    let stop = CancellationToken::new();
    let mut copying = {
        let (name, sink, stop) = (step.id.step.clone(), sink.clone(), stop.clone());
        task::spawn(async move { log::copy(output, &name, LOG_LIMIT, &sink, &stop).await })
    };

    let ending = tokio::select! {
        biased;
        () = &mut ended => Ending::ByItself,
        () = cancel.cancelled() => Ending::Cancelled,
        () = sleep(Duration::from_secs(step.timeout_seconds.into())) => Ending::TimeLimit,
    };
    if !matches!(ending, Ending::ByItself) {
        group.terminate();
        // The script's own process may be done with; its group is ended all the same.
        let _ = timeout(ENDS_WITHIN, &mut ended).await;
    }
    let status = task::spawn_blocking(move || group.end()).await.map_err(StepFault::Agent)?;

    let tail = match timeout(LAST_OUTPUT_WITHIN, &mut copying).await {
        Ok(tail) => tail,
        Err(_) => {
            stop.cancel();
            copying.await
        }
    };
    Ok((ending, status.map_err(StepFault::Follow)?, tail.map_err(StepFault::Agent)?))
}

/// A fault with its causes, in one line.
fn told(fault: &StepFault) -> String {
    let mut text = fault.to_string();
    let mut cause = fault.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
