//! The agent as a step pod has it: the built binary is the first process, and reached through `agent connect`.

// Clippy takes only the test functions themselves for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use sluice::agent::{
    client::Session,
    protocol::{RunStep, StepId},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::process::{Child, Command};

fn sluice(binary: impl AsRef<Path>, command: &str, dir: &Path) -> Command {
    let mut sluice = Command::new(binary.as_ref());
    sluice.args(["agent", command, "--dir"]).arg(dir).kill_on_drop(true);
    sluice
}

/// A step pod's container.
struct Container {
    dir: TempDir,
    first: Child,
}

impl Container {
    async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        // Twice, as an init container that is started again does.
        for _ in 0..2 {
            let installed = sluice(env!("CARGO_BIN_EXE_sluice"), "install", dir.path()).status().await.unwrap();
            assert!(installed.success());
        }
        let first = sluice(dir.path().join("sluice"), "serve", dir.path()).stdout(Stdio::null()).spawn().unwrap();
        Self { dir, first }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn session(&self) -> (Session, Child) {
        let mut exec = sluice(self.path("sluice"), "connect", self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let session = Session::start(exec.stdout.take().unwrap(), exec.stdin.take().unwrap()).await.unwrap();
        (session, exec)
    }

    fn signal(&self, signal: i32) {
        let pid = self.first.id().unwrap().cast_signed();
        // SAFETY: it is our child, which was not collected yet.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    async fn exit_code(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(Duration::from_secs(10), self.first.wait()).await;
        ended.expect("the agent has ended").unwrap().code()
    }
}

fn step(name: &str, script: &str) -> RunStep {
    RunStep {
        id: StepId { step: name.to_owned(), attempt: 1 },
        script: format!("#!/bin/sh\n{script}\n"),
        env: Default::default(),
        files: Vec::new(),
        outputs: Vec::new(),
        timeout_seconds: 20,
    }
}

/// The state letter of a process, absent once it is collected.
fn state(pid: &Path) -> Option<char> {
    let pid = fs::read_to_string(pid).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_step_runs_and_the_pod_ends_with_success() {
    let mut container = Container::start().await;
    let (session, mut exec) = container.session().await;
    let result = session.run(step("hello", "echo hello")).await.unwrap();
    assert!(result.succeeded() && result.log == "hello\n", "{result:?}");
    session.exit().await.unwrap();
    assert!(exec.wait().await.unwrap().success());
    assert_eq!(container.exit_code().await, Some(0));
}

#[tokio::test]
async fn orphans_are_collected_and_end_with_the_pod() {
    let mut container = Container::start().await;
    let (session, _exec) = container.session().await;
    let (short, long) = (container.path("short"), container.path("long"));
    let script = format!(
        "setsid sh -c 'echo $$ >{0}; exec sleep 0.2' >/dev/null 2>&1 &\n\
         setsid sh -c 'echo $$ >{1}; exec sleep 60' >/dev/null 2>&1 &\n\
         while ! test -s {0} || ! test -s {1}; do :; done",
        short.display(),
        long.display()
    );
    assert!(session.run(step("orphans", &script)).await.unwrap().succeeded());
    let lives = state(&long).filter(|state| !matches!(state, 'Z' | 'X'));
    assert!(lives.is_some(), "an orphan goes on when its step has ended");
    eventually("the short orphan is collected", || state(&short).is_none()).await;
    session.exit().await.unwrap();
    assert_eq!(container.exit_code().await, Some(0));
    assert_eq!(state(&long), None);
}

#[tokio::test]
async fn a_signal_ends_steps_and_the_pod() {
    for (signal, code) in [(libc::SIGTERM, 143), (libc::SIGINT, 130)] {
        let mut container = Container::start().await;
        let (session, _exec) = container.session().await;
        let begun = container.path("begun");
        let signalled = async {
            eventually("the step has begun", || begun.exists()).await;
            container.signal(signal);
        };
        let (result, ()) =
            tokio::join!(session.run(step("long", &format!("touch {}; sleep 60", begun.display()))), signalled);
        assert_eq!(result.unwrap().error.as_deref(), Some("the step was cancelled"));
        assert_eq!(container.exit_code().await, Some(code));
    }
}

#[tokio::test]
async fn a_closed_exec_ends_connect_and_nothing_else() {
    let container = Container::start().await;
    let (session, mut exec) = container.session().await;
    drop(session);
    let ended = tokio::time::timeout(Duration::from_secs(5), exec.wait()).await;
    assert!(ended.expect("connect has ended").unwrap().success());
    let (session, _exec) = container.session().await;
    assert!(session.run(step("after", "true")).await.unwrap().succeeded());
}

#[tokio::test]
async fn connect_says_that_no_agent_is_there() {
    let dir = TempDir::new().unwrap();
    let output = sluice(env!("CARGO_BIN_EXE_sluice"), "connect", dir.path()).stdin(Stdio::piped()).output();
    let output = output.await.unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("no agent listens on") && message.contains("agent.sock"), "{message}");
}
