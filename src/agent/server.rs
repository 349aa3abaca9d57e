//! The process that serves connections and runs steps.

use super::{
    AgentError, SOCKET,
    connection::{self, Shutdown},
    log::LogSink,
    reaper::{self, Side},
    steps::Steps,
};
use std::{fs, io, os::unix::fs::PermissionsExt, path::Path, process::ExitCode, time::Duration};
use tokio::{
    net::UnixListener,
    runtime,
    signal::unix::{SignalKind, signal},
    task,
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;

/// How long the last events and log lines may take when the agent ends.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);
/// After accepting has failed, as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// As a shell has it: 128 and the signal's number.
const ENDED_BY_SIGTERM: u8 = 143;
const ENDED_BY_SIGINT: u8 = 130;

/// Is PID 1 of a step pod's container, until it is told to exit.
///
/// Must be called while the process has but one thread: it makes a second process, the server, and stays behind as its
/// parent. Returns in both.
pub fn serve(dir: &Path) -> Result<ExitCode, AgentError> {
    match reaper::split()? {
        Side::Reaper(reaper) => Ok(ExitCode::from(reaper.watch())),
        Side::Server => run(dir).map(ExitCode::from),
    }
}

fn run(dir: &Path) -> Result<u8, AgentError> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| AgentError::Process { what: "start the agent's runtime", source })?;
    let code = runtime.block_on(async {
        let shutdown = Shutdown::default();
        let signalled = on_signal(shutdown.clone())?;
        let listener = listen(dir)?;
        let (sink, written) = LogSink::new(io::stdout());
        accept(listener, Steps::new(dir.to_owned(), sink), shutdown).await;
        written.wait(LAST_WORDS_WITHIN).await;
        Ok(if signalled.is_finished() { signalled.await.unwrap_or(ENDED_BY_SIGTERM) } else { 0 })
    });
    // Threads that wait for a script's end or its files are not worth waiting for.
    runtime.shutdown_background();
    code
}

/// Begins to watch for signals that ask the agent to end. The task ends with the exit code that the first one means.
fn on_signal(shutdown: Shutdown) -> Result<task::JoinHandle<u8>, AgentError> {
    let fault = |source| AgentError::Process { what: "watch for signals", source };
    let mut terminate = signal(SignalKind::terminate()).map_err(fault)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(fault)?;
    Ok(task::spawn(async move {
        let code = tokio::select! {
            _ = terminate.recv() => ENDED_BY_SIGTERM,
            _ = interrupt.recv() => ENDED_BY_SIGINT,
        };
        shutdown.exit.cancel();
        code
    }))
}

/// Opens the socket, for this user only, in the place of one that an earlier agent left.
pub(super) fn listen(dir: &Path) -> Result<UnixListener, AgentError> {
    let path = dir.join(SOCKET);
    let opened = match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(&path),
    };
    opened
        .and_then(|listener| {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        })
        .map_err(|source| AgentError::Listen { path, source })
}

/// Serves connections until one is told `Exit` or a signal comes; then ends all steps.
pub(super) async fn accept(listener: UnixListener, steps: std::sync::Arc<Steps>, shutdown: Shutdown) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.exit.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection::serve(stream, steps.clone(), shutdown.clone()));
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
    drop(listener);
    steps.end_all().await;
    shutdown.close.cancel();
    connections.close();
    let _ = timeout(LAST_WORDS_WITHIN, connections.wait()).await;
}
