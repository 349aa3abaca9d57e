//! Sluice's processes and pods are taken away in the middle of the work, and Sluice itself from under its sandboxes.

use crate::chart::answers;
use crate::cluster::{Outcome, SLUICE, Space, apply, condition, eventually, get, kubectl, run_in, step_image};
use serde_json::Value;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// A phase and its steps: name, seconds, needs.
type Phase = (&'static str, &'static [(&'static str, u32, &'static str)]);

/// A sandbox `x` of a plugin with these phases, each of their steps a script that says that it began and sleeps.
fn sandbox_with(space: &Space, phases: &[Phase]) -> String {
    let mut spec = format!("  runner: {{image: '{}'}}\n", step_image());
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
    let plugin = space.plugin("p", &spec);
    space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))
}

/// Three scripts one after the other, the second long enough to be interrupted.
const THREE: &[(&str, u32, &str)] = &[("first", 1, ""), ("second", 10, "first"), ("third", 1, "second")];

fn begin(command: impl FnOnce() -> Outcome + Send + 'static) -> JoinHandle<Outcome> {
    std::thread::spawn(command)
}

/// Waits until this step of the one run of a phase runs.
#[track_caller]
fn running(space: &Space, phase: &str, step: usize) -> Value {
    eventually(SOON, &format!("step {step} of {phase} runs"), || {
        let run = space.runs("x").into_iter().find(|run| run["spec"]["phase"] == phase)?;
        let log = kubectl(&["-n", SLUICE, "logs", "-l", &of_run(&run), "--tail=-1"]).stdout;
        // The status tells it first; the script's own word is that it has begun.
        let begun = run["status"]["steps"][step]["state"] == "Running" && log.matches("begin").count() > step;
        begun.then_some(run)
    })
}

fn of_run(run: &Value) -> String {
    format!("sluice.dev/run={}", run["metadata"]["name"].as_str().unwrap())
}

/// What a step was when it was begun: the same where it was not begun again.
fn begun(run: &Value, step: usize) -> (Value, Value, Value) {
    let step = &run["status"]["steps"][step];
    (step["step"].clone(), step["attempt"].clone(), step["startedAt"].clone())
}

/// Every phase ran once, each of its steps at the first attempt, and no script was begun twice.
#[track_caller]
fn once(run: &Value) {
    assert_eq!(run["spec"]["attempt"], 1);
    for step in run["status"]["steps"].as_array().unwrap() {
        assert_eq!((&step["state"], &step["attempt"]), (&"Succeeded".into(), &1.into()), "{step}");
        assert_eq!(step["log"].as_str().unwrap().matches("begin").count(), 1, "{step}");
    }
}

// --- Sluice's own pods and processes ------------------------------------------------------------------------------

fn pods() -> Vec<Value> {
    let of_sluice = "app.kubernetes.io/name=sluice,pod-template-hash";
    let pods = get(&["-n", SLUICE, "pods", "-l", of_sluice]).unwrap();
    pods["items"].as_array().unwrap().clone()
}

fn rolled_out() {
    kubectl(&["-n", SLUICE, "rollout", "status", "deployment/sluice", "--timeout=120s"]).ok();
}

/// The server's process in a pod. Its node is this machine, or a container on it as with kind.
fn process_of(pod: &str) -> u32 {
    let name = format!("POD_NAME={pod}");
    let has = |pid: u32, file: &str, what: &dyn Fn(&[u8]) -> bool| {
        std::fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|content| what(&content))
    };
    let found = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let found = found.into_iter().find(|pid| {
        has(*pid, "cmdline", &|text| text.starts_with(b"/sluice\0server\0"))
            && has(*pid, "environ", &|text| text.split(|b| *b == 0).any(|v| v == name.as_bytes()))
    });
    found.unwrap_or_else(|| {
        panic!(
            "no process `/sluice server` with {name} is to be seen in /proc: these tests end it with kill -9, so they \
             must run as root on the machine of the cluster's node (kind's is the one that Docker runs on)"
        )
    })
}

/// Ends Sluice's only process as a crash does.
fn crash() -> Crashed {
    let pods = pods();
    let [pod] = pods.as_slice() else { panic!("one pod of Sluice was expected: {pods:#?}") };
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap();
    let killed = std::process::Command::new("kill").args(["-9", &process_of(&name).to_string()]).status().unwrap();
    assert!(killed.success());
    Crashed { pod: name, restarts }
}

struct Crashed {
    pod: String,
    restarts: u64,
}

impl Crashed {
    /// Waits until the process has a successor that answers the API server.
    fn wait_for_successor(self) {
        eventually(SOON, "the server runs again", || {
            let pod = get(&["-n", SLUICE, "pod", &self.pod])?;
            let status = &pod["status"]["containerStatuses"][0];
            (status["restartCount"].as_u64()? > self.restarts && status["ready"] == true).then_some(())
        });
        answers();
    }
}

// --- the tests ----------------------------------------------------------------------------------------------------

#[test]
fn w16_after_a_crash_in_a_step_the_same_apply_joins_the_run_and_the_pod_that_is_there() {
    let space = Space::alone("crash");
    let manifest = sandbox_with(&space, &[("preCreate", THREE)]);
    let interrupted = begin({
        let manifest = manifest.clone();
        move || apply(&manifest)
    });
    let before = running(&space, "PreCreate", 1);
    let crashed = crash();
    // The API server has no answer to give; nothing of ours can save this one call.
    let interrupted = interrupted.join().unwrap().refused();
    assert!(interrupted.stderr.contains("InternalError"), "{}", interrupted.stderr);
    crashed.wait_for_successor();
    apply(&manifest).ok();
    space.settle("x");
    let after = space.run("x", "PreCreate");
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(begun(&after, 0), begun(&before, 0));
    assert_eq!(begun(&after, 1), begun(&before, 1));
    assert_eq!(after["status"]["steps"][0], before["status"]["steps"][0]);
    once(&after);
}

#[test]
fn after_a_crash_in_a_post_phase_it_goes_on_and_runs_once() {
    let space = Space::alone("crashes");
    let steps: &[_] = &[("first", 1, ""), ("second", 6, "first")];
    let manifest = sandbox_with(&space, &[("postCreate", steps), ("postDelete", steps)]);
    apply(&manifest).ok();
    running(&space, "PostCreate", 1);
    crash().wait_for_successor();
    space.settle("x");
    once(&space.run("x", "PostCreate"));

    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    running(&space, "PostDelete", 1);
    crash().wait_for_successor();
    space.settled_run("x", "PostDelete", "Succeeded");
    once(&space.run("x", "PostDelete"));
    let uid = space.run("x", "PostDelete")["spec"]["target"]["uid"].as_str().unwrap().to_owned();
    eventually(SOON, "nothing is owed any more", || get(&["sandboxrecord", &uid]).is_none().then_some(()));
    let count: Vec<_> = space.count("x").into_iter().collect();
    assert_eq!(count, [("PostCreate".to_owned(), 1), ("PostDelete".to_owned(), 1)]);
}

#[test]
fn w27_a_step_whose_pod_is_lost_is_done_again_under_the_same_key_and_counts_once() {
    let space = Space::new("lost");
    let manifest = sandbox_with(&space, &[("preCreate", THREE)]);
    let applying = begin(move || apply(&manifest));
    let before = running(&space, "PreCreate", 1);
    let key = format!("begin {}/r/second", before["metadata"]["name"].as_str().unwrap());
    let log = kubectl(&["-n", SLUICE, "logs", "-l", &of_run(&before), "--tail=-1"]).stdout;
    assert!(log.contains(&key), "{log}");
    kubectl(&["-n", SLUICE, "delete", "pod", "-l", &of_run(&before), "--force", "--grace-period=0"]).ok();
    applying.join().unwrap().ok();
    let after = space.run("x", "PreCreate");
    let again = after["status"]["steps"][1]["log"].as_str().unwrap();
    assert!(again.contains(&key), "the second pod was given another key: {again}");
    assert_eq!(after["status"]["steps"][0], before["status"]["steps"][0], "a step that had ended runs no second time");
    once(&after);
}

#[test]
fn a_step_whose_pod_is_deleted_before_it_began_runs_in_another() {
    let space = Space::new("early");
    let manifest = sandbox_with(&space, &[("preCreate", THREE)]);
    let applying = begin(move || apply(&manifest));
    let pod = eventually(SOON, "the step's pod is there", || {
        let run = space.runs("x").pop()?;
        get(&["-n", SLUICE, "pods", "-l", &of_run(&run)])?["items"].as_array()?.first().cloned()
    });
    let name = pod["metadata"]["name"].as_str().unwrap();
    kubectl(&["-n", SLUICE, "delete", "pod", name, "--wait=false"]).ok();
    applying.join().unwrap().ok();
    once(&space.run("x", "PreCreate"));
}

#[test]
fn two_replicas_share_the_work_and_one_that_goes_fails_nobody() {
    let space = Space::alone("replicas");
    kubectl(&["-n", SLUICE, "scale", "deployment/sluice", "--replicas=2"]).ok();
    rolled_out();
    let plugin = space.plugin(
        "p",
        &format!(
            "  runner: {{image: '{}'}}
  preCreate:
  - name: work
    script: |
      #!/bin/sh
      echo begin
      sleep 3",
            step_image()
        ),
    );
    let names: Vec<String> = (0..10).map(|n| format!("x{n}")).collect();
    let applying: Vec<_> = names
        .iter()
        .map(|name| {
            let manifest = space.sandbox(name, &format!("  resources: [{{name: r, plugin: {plugin}}}]"));
            begin(move || apply(&manifest))
        })
        .collect();
    let executor = eventually(SOON, "a step runs", || {
        let runs = names.iter().flat_map(|name| space.runs(name));
        let mut running = runs.filter(|run| run["status"]["steps"][0]["state"] == "Running");
        running.next()?["status"]["executor"].as_str().map(str::to_owned)
    });
    let pod = executor.split('/').next().unwrap();
    kubectl(&["-n", SLUICE, "delete", "pod", pod, "--wait=false"]).ok();
    for applied in applying {
        assert_eq!(applied.join().unwrap().ok().stderr, "");
    }
    for name in &names {
        let run = space.settled_run(name, "PreCreate", "Committed");
        assert_eq!(space.count(name)["PreCreate"], 1);
        once(&run);
    }
    rolled_out();
    kubectl(&["-n", SLUICE, "scale", "deployment/sluice", "--replicas=1"]).ok();
    eventually(SOON, "one replica is left", || (pods().len() == 1).then_some(()));
    answers();
}

#[test]
fn uninstalling_leaves_nothing_that_blocks_and_installing_again_takes_up_what_is_there() {
    let space = Space::alone("uninstall");
    let phases: &[Phase] =
        &[("preCreate", &[("work", 0, "")]), ("postCreate", &[("work", 0, "")]), ("postDelete", &[("work", 0, "")])];
    let known = sandbox_with(&space, phases);
    let named = |name: &str| known.replace("{name: x,", &format!("{{name: {name},"));
    for name in ["x", "going"] {
        apply(&named(name)).ok();
        space.settle(name);
    }
    let other = space.name("doomed");
    kubectl(&["create", "namespace", &other]).ok();
    let here = format!("namespace: {}", space.namespace);
    apply(&known.replace(&here, &format!("namespace: {other}"))).ok();

    let values = helm(&["get", "values", "sluice", "--namespace", SLUICE, "--output", "yaml"]).ok().stdout;
    helm(&["uninstall", "sluice", "--namespace", SLUICE, "--wait", "--timeout", "3m"]).ok();
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        assert!(get(&[kind, "sluice"]).is_none(), "{kind} is left");
    }
    kubectl(&["delete", "namespace", &other, "--timeout=60s"]).ok();
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "going", "--timeout=20s"]).ok();
    apply(&named("unseen")).ok();

    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/sluice");
    let install = ["upgrade", "--install", "sluice", chart.to_str().unwrap(), "--namespace", SLUICE];
    let wait = ["--values", "-", "--wait", "--timeout", "3m"];
    run_in(Path::new("."), "helm", &[&install[..], &wait[..]].concat(), &values).ok();
    answers();

    // What was deleted meanwhile gets its post-delete all the same, from the record.
    space.settled_run("going", "PostDelete", "Succeeded");
    // What was stored meanwhile is taken up with a word about it, and no phase runs late.
    let unseen = space.settle("unseen");
    assert_eq!(condition(&unseen, "Ready").unwrap()["status"], "True");
    let adopted = eventually(SOON, "an event tells of the adoption", || {
        let events = get(&["-n", &space.namespace, "events", "--field-selector", "reason=Adopted"])?;
        Some(events["items"].as_array()?.clone()).filter(|events| !events.is_empty())
    });
    assert!(adopted.iter().all(|event| event["involvedObject"]["name"] == "unseen"), "{adopted:#?}");
    assert!(space.runs("unseen").is_empty());
    // What was known is known.
    space.settle("x");
    let count: Vec<_> = space.count("x").into_iter().collect();
    assert_eq!(count, [("PostCreate".to_owned(), 1), ("PreCreate".to_owned(), 1)]);
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "unseen"]).ok();
    space.settled_run("unseen", "PostDelete", "Succeeded");
}

fn helm(arguments: &[&str]) -> Outcome {
    run_in(Path::new("."), "helm", arguments, "")
}
