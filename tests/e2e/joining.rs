//! One change is one run, however long it takes, whoever else asks for it and whether anybody waits for it.

use crate::cluster::{EDITOR, Outcome, Space, apply, eventually, kubectl, kubectl_file, list, run_in, step_image};
use crate::raw::Proxy;
use serde_json::Value;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
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
fn s04_w14_a_phase_longer_than_any_request_succeeds_under_one_command_of_each_client() {
    let space = Space::new("long");
    let names = ["applied", "server-side", "released"];
    // Longer than the API server gives one request (34 s); the first so long that it takes three.
    let manifests: Vec<String> = names.iter().zip([75, 40, 40]).map(|(name, s)| sleeper(&space, name, s)).collect();
    let chart = tempfile::tempdir().unwrap();
    std::fs::write(chart.path().join("Chart.yaml"), "apiVersion: v2\nname: long\nversion: 0.1.0\n").unwrap();
    std::fs::create_dir(chart.path().join("templates")).unwrap();
    std::fs::write(chart.path().join("templates/sandbox.yaml"), &manifests[2]).unwrap();
    let argo = ["apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller"];
    let install = ["-n", &space.namespace, "install", "long", chart.path().to_str().unwrap()];
    let proxy = Proxy::start();
    std::thread::scope(|scope| {
        let applied = scope.spawn(|| apply(&manifests[0]).ok());
        let others = [
            scope.spawn(|| kubectl_file(&argo, &manifests[1]).ok()),
            scope.spawn(|| run_in(std::path::Path::new("."), "helm", &install, "").ok()),
        ];
        // Whoever has no more patience, as after client-go's last attempt, reads what is going on.
        let begun = eventually(Duration::from_secs(60), "the step runs", || {
            space.runs("applied").pop().filter(|run| run["status"]["steps"][0]["state"] == "Running")
        });
        let told = proxy.create(&space, &manifests[0], "?timeout=15s");
        let pause = told.come_again().unwrap_or_else(|| panic!("{told:?}"));
        assert!(pause >= Duration::from_secs(1), "{told:?}");
        assert!(told.message().len() <= 1024 + 100, "the API server puts the webhook's name before it: {told:?}");
        says_what_goes_on(told.message(), &begun);
        let event = eventually(Duration::from_secs(90), "an event says the same", || {
            let events = list(&["-n", &space.namespace, "events", "--field-selector", "reason=PreCreateRunning"]);
            let event = events.iter().find(|event| event["involvedObject"]["name"] == "applied")?;
            Some(event["message"].as_str()?.to_owned())
        });
        says_what_goes_on(&event, &begun);

        let applied = applied.join().unwrap();
        assert_eq!(applied.stderr, "", "nothing is said of the waiting");
        assert!(applied.took >= Duration::from_secs(75), "apply was over after {:?}", applied.took);
        for other in others {
            assert_eq!(other.join().unwrap().stderr.trim_end().lines().filter(|l| l.contains("rror")).count(), 0);
        }
    });
    for name in names {
        ran_once(&space, name);
    }
}

/// Phase, target, step, place, run, time and what to do, in one message.
#[track_caller]
fn says_what_goes_on(message: &str, run: &Value) {
    let name = run["metadata"]["name"].as_str().unwrap();
    let follow = format!("kubectl get phaserun {name} -w");
    let words = ["pre-create of Sandbox", "/applied", "step r/sleep (1 of 1)", "still running", " s now", &follow];
    for word in words.iter().chain(&["make the same change again to join it"]) {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

#[test]
fn s01_an_update_in_conflict_with_a_status_that_is_written_meanwhile_runs_once() {
    let space = Space::new("conflicts");
    let plugin = space.plugin(
        "slow",
        &format!(
            "  runner: {{image: {}}}\n  preUpdate: [{{name: slow, script: \"#!/bin/sh\\nsleep 5\"}}]",
            step_image()
        ),
    );
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    let before = space.settle("x");
    let (proxy, done) = (Proxy::start(), AtomicBool::new(false));
    let written = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut written = 0;
            while !done.load(Ordering::Relaxed) {
                let status =
                    format!(r#"{{"phases": [{{"phase": "PreCreate", "state": "Committed", "run": "n-{written}"}}]}}"#);
                assert_eq!(proxy.patch_status(&space, "x", &status).code, 200);
                written += 1;
                std::thread::sleep(Duration::from_secs(1));
            }
            written
        });
        let patch = r#"{"spec": {"description": "two"}}"#;
        let patched = kubectl(&["-n", &space.namespace, "patch", "sandbox", "x", "--type=merge", "-p", patch]);
        done.store(true, Ordering::Relaxed);
        let written = writing.join().unwrap();
        patched.ok();
        written
    });
    assert!(written > 3, "the status was written {written} times while the phase ran");
    let after = space.settle("x");
    assert_eq!(after["spec"]["description"], "two");
    assert_eq!(after["metadata"]["generation"].as_i64(), before["metadata"]["generation"].as_i64().map(|g| g + 1));
    let run = space.settled_run("x", "PreUpdate", "Committed");
    assert_eq!(run["metadata"]["uid"], space.run("x", "PreUpdate")["metadata"]["uid"]);
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
fn s03_a_client_that_gives_up_loses_nothing() {
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
fn s03_the_result_that_nobody_waited_for_is_the_next_applys() {
    let space = Space::new("late");
    let manifest = sleeper(&space, "x", 2);
    let mut client = begin(&manifest);
    eventually(Duration::from_secs(30), "the run is there", || space.runs("x").pop());
    client.kill().unwrap();
    client.wait().unwrap();
    let alone = space.settled_run("x", "PreCreate", "Succeeded");
    apply(&manifest).ok();
    let run = ran_once(&space, "x");
    assert_eq!(run["metadata"]["uid"], alone["metadata"]["uid"]);
    assert_eq!(run["status"]["steps"], alone["status"]["steps"], "nothing ran again");
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
