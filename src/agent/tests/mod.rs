//! A real server, real scripts, and the engine's own client.

mod endings;
mod files;
mod hostile;
mod sessions;

use super::{
    client::Session,
    connection::Shutdown,
    log::LogSink,
    protocol::{InputFile, OutputFile, RunStep, StepId, StepResult},
    server,
    steps::Steps,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{net::UnixStream, task::JoinHandle};

/// An agent in this process.
struct Agent {
    dir: TempDir,
    pod_log: PodLog,
    served: JoinHandle<()>,
}

#[derive(Clone, Default)]
struct PodLog(Arc<Mutex<Vec<u8>>>);

impl Write for PodLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Agent {
    fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let pod_log = PodLog::default();
        let (sink, _) = LogSink::new(pod_log.clone());
        let listener = server::listen(dir.path()).unwrap();
        let steps = Steps::new(dir.path().to_owned(), sink);
        let served = tokio::spawn(server::accept(listener, steps, Shutdown::default()));
        Self { dir, pod_log, served }
    }

    async fn stream(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("agent.sock")).await.unwrap()
    }

    async fn session(&self) -> Session {
        let (reader, writer) = self.stream().await.into_split();
        Session::start(reader, writer).await.unwrap()
    }

    /// Runs one step over a connection of its own.
    async fn run(&self, step: RunStep) -> StepResult {
        self.session().await.run(step).await.unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pod_log(&self) -> String {
        String::from_utf8(self.pod_log.0.lock().unwrap().clone()).unwrap()
    }
}

/// A step of this name; `script` is for sh.
fn step(name: &str, script: &str) -> RunStep {
    RunStep {
        id: id(name),
        script: format!("#!/bin/sh\n{script}\n"),
        env: Default::default(),
        files: Vec::new(),
        outputs: Vec::new(),
        timeout_seconds: 20,
    }
}

fn id(name: &str) -> StepId {
    StepId { step: name.to_owned(), attempt: 1 }
}

fn output(name: &str, path: &Path) -> OutputFile {
    OutputFile { name: name.to_owned(), path: path.to_str().unwrap().to_owned() }
}

fn input(path: &Path, content: &[u8]) -> InputFile {
    InputFile { path: path.to_str().unwrap().to_owned(), content: BASE64_STANDARD.encode(content) }
}

fn output_bytes(result: &StepResult, name: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(&result.outputs[name]).unwrap()
}

#[track_caller]
fn assert_error(result: &StepResult, parts: &[&str]) {
    let error = result.error.as_deref().unwrap_or_default();
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}; {result:?}");
    }
    assert!(!result.succeeded() && result.outputs.is_empty(), "{result:?}");
}

async fn appears(path: &Path) {
    eventually(&format!("{} appears", path.display()), || path.exists()).await;
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether the process whose id is in `file` runs.
fn runs(file: &Path) -> bool {
    let pid = std::fs::read_to_string(file).unwrap();
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
}
