//! One change is one run, however long it takes, whoever else asks for it and whether anybody waits for it.

use crate::cluster::{EDITOR, Outcome, Space, apply, eventually, kubectl, kubectl_file, step_image};
use serde_json::Value;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A sandbox `name` whose pre-create sleeps for so long.
fn sleeper(space: &Space, name: &str, seconds: u32) -> String {
    let plugin = space.plugin(
        &format!("sleeps-{seconds}"),
        &format!(
            "  runner: {{image: {}}}
  preCreate:
  - name: sleep
    script: |
      #!/bin/sh
      sleep {seconds}",
            step_image()
        ),
    );
    space.sandbox(name, &format!("  resources: [{{name: r, plugin: {plugin}}}]"))
}

/// Runs `kubectl ARGUMENTS -f -` with each of these manifests at the same time.
fn at_once(arguments: &'static [&'static str], manifests: Vec<String>) -> Vec<Outcome> {
    let threads: Vec<_> =
        manifests.into_iter().map(|manifest| std::thread::spawn(move || kubectl_file(arguments, &manifest))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// `kubectl apply -f -` that nobody waits for.
fn begin(manifest: &str) -> Child {
    let mut child = Command::new("kubectl")
        .args(["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
    child
}

/// The one pre-create of a sandbox, which is its first attempt and that of the sandbox that is stored.
#[track_caller]
fn ran_once(space: &Space, name: &str) -> Value {
    let run = space.settled_run(name, "PreCreate", "Committed");
    assert_eq!(space.run(name, "PreCreate")["spec"]["attempt"], 1);
    assert_eq!(run["status"]["admitted"]["uid"], space.get("sandbox", name).unwrap()["metadata"]["uid"]);
    run
}

#[test]
fn a_pre_create_of_75_seconds_succeeds_under_one_plain_apply() {
    let space = Space::new("long");
    let applied = apply(&sleeper(&space, "x", 75)).ok();
    assert_eq!(applied.stderr, "", "nothing is said of the waiting");
    assert!(applied.took >= Duration::from_secs(75), "apply was over after {:?}", applied.took);
    ran_once(&space, "x");
}

#[test]
fn two_server_side_applies_of_a_new_sandbox_join_one_run_and_both_succeed() {
    let space = Space::new("pair");
    let manifest = sleeper(&space, "x", 3);
    for applied in at_once(&["apply", "--server-side"], vec![manifest.clone(), manifest]) {
        applied.ok();
    }
    ran_once(&space, "x");
}

#[test]
fn of_two_plain_applies_of_a_new_sandbox_one_may_come_too_late_but_the_run_is_the_stored_sandboxs() {
    let space = Space::new("race");
    let manifest = sleeper(&space, "x", 3);
    let applied = at_once(&["apply"], vec![manifest.clone(), manifest]);
    assert!(applied.iter().any(|one| one.success), "{applied:?}");
    for late in applied.iter().filter(|one| !one.success) {
        // Plain apply creates what it has not found; that another was faster is the API server's own word.
        assert!(late.stderr.contains("AlreadyExists"), "{late:?}");
    }
    ran_once(&space, "x");
    let run = space.run("x", "PreCreate");
    assert_eq!(space.settle("x")["status"]["routingKey"], run["spec"]["routingKey"], "its key is the run's");
}

#[test]
fn a_client_that_gives_up_loses_nothing() {
    let space = Space::new("gone");
    let manifest = sleeper(&space, "x", 10);
    let mut client = begin(&manifest);
    eventually(Duration::from_secs(30), "the step runs", || {
        space.runs("x").pop().filter(|run| run["status"]["steps"][0]["state"] == "Running")
    });
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(space.get("sandbox", "x").is_none());
    let applied = apply(&manifest).ok();
    assert_eq!(applied.stderr, "");
    ran_once(&space, "x");
}

#[test]
fn the_result_that_nobody_waited_for_is_the_next_applys() {
    let space = Space::new("late");
    let manifest = sleeper(&space, "x", 2);
    let mut client = begin(&manifest);
    eventually(Duration::from_secs(30), "the run is there", || space.runs("x").pop());
    client.kill().unwrap();
    client.wait().unwrap();
    space.settled_run("x", "PreCreate", "Succeeded");
    let applied = apply(&manifest).ok();
    assert!(applied.took < Duration::from_secs(2), "nothing ran again: {:?}", applied.took);
    ran_once(&space, "x");
}

#[test]
fn more_requests_than_can_be_held_all_succeed_with_a_run_each() {
    let space = Space::new("many");
    let names: Vec<String> = (0..12).map(|n| format!("x{n}")).collect();
    let manifests = names.iter().map(|name| sleeper(&space, name, 15)).collect();
    for applied in at_once(&["apply"], manifests) {
        assert_eq!(applied.ok().stderr, "");
    }
    for name in &names {
        ran_once(&space, name);
    }
}

#[test]
fn a_sandbox_that_takes_up_a_name_begins_when_its_predecessor_has_been_cleaned_up_after() {
    let space = Space::new("renew");
    let plugin = space.plugin(
        "p",
        &format!(
            "  runner: {{image: '{}', serviceAccountName: {EDITOR}}}
  preCreate:
  - name: config
    apply:
      manifests:
      - {{apiVersion: v1, kind: ConfigMap, metadata: {{name: x-config, namespace: {}}}}}
  postDelete:
  - name: slow
    script: |
      #!/bin/sh
      sleep 3",
            step_image(),
            space.namespace
        ),
    );
    let manifest = space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"));
    apply(&manifest).ok();
    space.settle("x");
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    assert_eq!(apply(&manifest).ok().stderr, "");
    space.settle("x");
    let runs = space.runs("x");
    let phases: Vec<_> = runs.iter().map(|run| run["spec"]["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["PreCreate", "PostDelete", "PreCreate"]);
    assert!(runs[1]["status"]["finishedAt"].as_str() < runs[2]["status"]["startedAt"].as_str());
    assert!(space.get("configmap", "x-config").is_some(), "what the new sandbox stands on is there");
}
