//! Sandboxes whose phases are scripts that take a while, to be interrupted, and what is asked of their runs.

use crate::cluster::{Outcome, RUNNERS, Space, eventually, kubectl, step_image};
use crate::server::SOON;
use serde_json::Value;
use std::thread::JoinHandle;

/// A phase and its steps: name, seconds, needs.
pub type Phase = (&'static str, &'static [(&'static str, u32, &'static str)]);

/// A sandbox `x` of a plugin with these phases, each of their steps a script that says that it began and sleeps.
pub fn sandbox_with(space: &Space, phases: &[Phase]) -> String {
    sandbox_of(space, "p", phases)
}

/// The same of a plugin with this name, where a test needs more than one.
pub fn sandbox_of(space: &Space, plugin: &str, phases: &[Phase]) -> String {
    sandbox_in(space, plugin, "", phases)
}

/// The same with more fields of the runner.
pub fn sandbox_in(space: &Space, plugin: &str, runner: &str, phases: &[Phase]) -> String {
    let mut spec = format!("  runner: {{image: '{}', {runner}}}\n", step_image());
    for (phase, steps) in phases {
        spec += &format!("  {phase}:\n");
        for (name, seconds, needs) in *steps {
            spec += &format!(
                "  - name: {name}
    needs: [{needs}]
    script: |
      #!/bin/sh
      echo begin $SLUICE_IDEMPOTENCY_KEY
      sleep {seconds}
      echo end
"
            );
        }
    }
    let plugin = space.plugin(plugin, &spec);
    space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))
}

/// Three scripts one after the other, the second long enough to be interrupted.
pub const THREE: &[(&str, u32, &str)] = &[("first", 1, ""), ("second", 10, "first"), ("third", 1, "second")];

pub fn begin(command: impl FnOnce() -> Outcome + Send + 'static) -> JoinHandle<Outcome> {
    std::thread::spawn(command)
}

/// Waits until this step of the one run of a phase of `x` runs.
#[track_caller]
pub fn running(space: &Space, phase: &str, step: usize) -> Value {
    running_of(space, "x", phase, step)
}

/// Waits until this step of the one run of a phase of a sandbox runs.
#[track_caller]
pub fn running_of(space: &Space, name: &str, phase: &str, step: usize) -> Value {
    eventually(SOON, &format!("step {step} of {phase} runs"), || {
        let run = space.runs(name).into_iter().find(|run| run["spec"]["phase"] == phase)?;
        let log = kubectl(&["-n", RUNNERS, "logs", "-l", &of_run(&run), "--tail=-1"]).stdout;
        // The status tells it first; the script's own word is that it has begun.
        let begun = run["status"]["steps"][step]["state"] == "Running" && log.matches("begin").count() > step;
        begun.then_some(run)
    })
}

pub fn of_run(run: &Value) -> String {
    format!("sluice.dev/run={}", run["metadata"]["name"].as_str().unwrap())
}

/// What a step was when it was begun: the same where it was not begun again.
pub fn begun(run: &Value, step: usize) -> (Value, Value, Value) {
    let step = &run["status"]["steps"][step];
    (step["step"].clone(), step["attempt"].clone(), step["startedAt"].clone())
}

/// Every phase ran once, each of its steps at the first attempt, and no script was begun twice.
#[track_caller]
pub fn once(run: &Value) {
    assert_eq!(run["spec"]["attempt"], 1);
    for step in run["status"]["steps"].as_array().unwrap() {
        assert_eq!((&step["state"], &step["attempt"]), (&"Succeeded".into(), &1.into()), "{step}");
        assert_eq!(step["log"].as_str().unwrap().matches("begin").count(), 1, "{step}");
    }
}
