//! What a phase that fails leaves behind, what the person at the terminal reads, and what the next try finds.

use crate::cluster::{
    EDITOR, RUNNERS, SLUICE, Space, apply, condition, eventually, kubectl, kubectl_file, list, step_image,
};
use crate::raw::{Proxy, all_at_once};
use serde_json::Value;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

fn runner() -> String {
    format!("  runner: {{image: '{}', serviceAccountName: {EDITOR}}}\n", step_image())
}

/// A step that keeps a ConfigMap beside the sandbox, with the parameter `mode` in it.
const CONFIG: &str = "
  - name: config
    apply:
      manifests:
      - apiVersion: v1
        kind: ConfigMap
        metadata: {name: '${sandbox.metadata.name}-config', namespace: '${sandbox.metadata.namespace}'}
        data: {mode: '${params.mode}'}";

/// A script that fails where the parameter `mode` is `bad`; after `config` where that is a step of the phase.
fn check(needs: &str) -> String {
    format!(
        "
  - name: check
    needs: [{needs}]
    inputs: [{{name: mode, valueFromSandbox: true}}]
    script: |
      #!/bin/sh
      [ \"$MODE\" != bad ] || {{ echo the mode is bad; exit 4; }}"
    )
}

fn in_mode(space: &Space, plugin: &str, mode: &str) -> String {
    space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}, params: {{mode: {mode}}}}}]"))
}

/// Everything that a failed or abandoned change may not leave; waits until it is gone.
#[track_caller]
fn nothing_is_left(space: &Space) {
    let of_space = format!("sluice.dev/namespace={}", space.namespace);
    eventually(SOON, "no object of the change is left", || {
        let here = [vec!["sandbox,configmap", "-l", &of_space], vec!["sandbox"]];
        let left = here.iter().flat_map(|what| list(&[&["-n", &space.namespace], what.as_slice()].concat())).count();
        let pods = list(&["-n", RUNNERS, "pods", "-l", &of_space]).len();
        let names: Vec<Value> = space.runs("x").iter().map(|run| run["metadata"]["name"].clone()).collect();
        let secrets = list(&["-n", SLUICE, "secrets", "-l", "sluice.dev/run"]);
        let secrets = secrets.iter().filter(|secret| names.contains(&secret["metadata"]["labels"]["sluice.dev/run"]));
        let records = list(&["sandboxrecords"]);
        let records = records.iter().filter(|record| record["spec"]["target"]["namespace"] == *space.namespace);
        (left + pods + secrets.count() + records.count() == 0).then_some(())
    });
}

/// The runs that undid others of the sandbox `x`.
fn undoings(space: &Space) -> Vec<Value> {
    space.runs("x").into_iter().filter(|run| run["spec"]["compensates"].is_string()).collect()
}

/// What the event of the sandbox `x` with this reason says; waits for it.
#[track_caller]
fn event(space: &Space, reason: &str) -> String {
    eventually(SOON, &format!("an event {reason}"), || {
        let events = list(&["-n", &space.namespace, "events"]);
        let event = events.iter().find(|event| event["reason"] == reason && event["involvedObject"]["name"] == "x")?;
        Some(event["message"].as_str()?.to_owned())
    })
}

/// What our webhook said, without what the API server and kubectl put before it.
fn said(stderr: &str) -> &str {
    stderr.split_once("denied the request: ").unwrap_or_else(|| panic!("no denial: {stderr}")).1
}

#[test]
fn w26_a_failed_pre_create_leaves_nothing_but_its_runs_and_says_why_and_what_to_do() {
    let space = Space::new("fails");
    let spec = format!(
        "{}  preCreate:{CONFIG}
  - name: token
    outputs: [{{name: token, valueFromPath: /out/token}}]
    script: |
      #!/bin/sh
      printf hunter22 > /out/token
  - name: volume
    needs: [config, token]
    script: |
      #!/bin/sh
      for i in $(seq 200); do echo line $i of much that was printed; done
      echo the disk is full
      exit 3
  postDelete:
  - name: drop
    inputs: [{{name: token, valueFromStep: {{name: token, output: token}}}}]
    script: |
      #!/bin/sh
      [ \"$TOKEN\" = hunter22 ]",
        runner()
    );
    let plugin = space.plugin("p", &spec);
    let denied = apply(&in_mode(&space, &plugin, "any")).refused();

    let run = space.run("x", "PreCreate");
    let name = run["metadata"]["name"].as_str().unwrap();
    let message = said(&denied.stderr).trim_end();
    assert!(message.len() <= 1024, "{} bytes: {message}", message.len());
    for part in [&plugin, "step volume", "exit code 3", "the disk is full", name, "make the change again"] {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
    assert_eq!(run["status"]["state"], "Failed");
    let step = run["status"]["steps"].as_array().unwrap().iter().find(|step| step["step"] == "volume").unwrap();
    assert_eq!(step["exitCode"], 3);
    let log = step["log"].as_str().unwrap();
    assert!(log.trim_end().ends_with("line 200 of much that was printed\nthe disk is full"), "{log}");
    assert!(log.len() <= 8192, "{} bytes", log.len());
    let event = event(&space, "PreCreateFailed");
    assert!(event.len() <= 1024);
    for part in [&plugin, "step volume", "exit code 3", "the disk is full", name] {
        assert!(event.contains(part), "{part:?} is not in: {event}");
    }
    nothing_is_left(&space);
    let undone = space.settled_run("x", "PostDelete", "Succeeded");
    assert_eq!(undoings(&space).len(), 1);
    assert_eq!(undone["spec"]["compensates"], name);
    assert_eq!(undone["status"]["steps"][0]["attempt"], 1);
    assert_eq!(undone["status"]["steps"][0]["exitCode"], 0, "the undoing was given what the failed run left");
    // Nothing uses it any more.
    eventually(SOON, "the plugin can be deleted", || {
        kubectl(&["delete", "resourceplugin", &plugin]).success.then_some(())
    });
}

#[test]
fn the_next_apply_after_a_failure_is_a_new_attempt() {
    let space = Space::new("again");
    let account = space.name("late");
    apply(&format!(
        "
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {account}, namespace: {RUNNERS}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: late, namespace: {0}}}
rules: [{{apiGroups: [''], resources: [configmaps], verbs: [get, create, patch, delete]}}]
",
        space.namespace
    ))
    .ok();
    let plugin = space.plugin("p", &format!("  runner: {{serviceAccountName: {account}}}\n  preCreate:{CONFIG}"));
    let manifest = in_mode(&space, &plugin, "any");
    let denied = apply(&manifest).refused();
    assert!(denied.stderr.contains("forbidden") && denied.stderr.contains(&account), "{}", denied.stderr);
    let subject = format!("--serviceaccount={RUNNERS}:{account}");
    kubectl(&["-n", &space.namespace, "create", "rolebinding", "late", "--role=late", &subject]).ok();
    // An authorizer learns of a binding from its watch.
    let may = format!("--as=system:serviceaccount:{RUNNERS}:{account}");
    eventually(SOON, "the account may write", || {
        let can = kubectl(&["-n", &space.namespace, "auth", "can-i", "create", "configmaps", &may]);
        can.success.then_some(())
    });
    // Whoever asks within a second of the denial is told the same once more.
    std::thread::sleep(Duration::from_secs(1));
    apply(&manifest).ok();
    space.settle("x");
    let attempts: Vec<Value> = space
        .runs("x")
        .iter()
        .filter(|run| run["spec"]["phase"] == "PreCreate")
        .map(|run| run["spec"]["attempt"].clone())
        .collect();
    assert_eq!(attempts, [1, 2]);
    kubectl(&["-n", RUNNERS, "delete", "serviceaccount", &account]).ok();
}

#[test]
fn a_failed_pre_update_leaves_the_sandbox_and_its_objects_as_they_were() {
    let space = Space::new("update");
    let plugin =
        space.plugin("p", &format!("{}  preCreate:{CONFIG}\n  preUpdate:{CONFIG}{}", runner(), check("config")));
    apply(&in_mode(&space, &plugin, "good")).ok();
    let before = space.settle("x");
    let mode = || space.get("configmap", "x-config").unwrap()["data"]["mode"].clone();
    assert_eq!(mode(), "good");

    let denied = apply(&in_mode(&space, &plugin, "bad")).refused();
    assert!(denied.stderr.contains("the mode is bad"), "{}", denied.stderr);
    let after = space.get("sandbox", "x").unwrap();
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!(after["spec"], before["spec"]);
    eventually(SOON, "the objects are what the stored spec asks for", || (mode() == "good").then_some(()));
    assert_eq!(undoings(&space).len(), 1);
    assert_eq!(space.count("x")["PreUpdate"], 2, "the phase and its undoing, though the API server asks again");

    apply(&in_mode(&space, &plugin, "better")).ok();
    space.settle("x");
    assert_eq!(mode(), "better");
}

#[test]
fn w20_a_failed_pre_delete_leaves_the_sandbox_usable() {
    let space = Space::new("delete");
    let plugin = space.plugin("p", &format!("{}  preDelete:{}", runner(), check("")));
    apply(&in_mode(&space, &plugin, "bad")).ok();
    space.settle("x");
    let delete = || kubectl(&["-n", &space.namespace, "delete", "sandbox", "x", "--timeout=60s"]);
    let denied = delete().refused();
    assert!(said(&denied.stderr).contains("the mode is bad"), "{}", denied.stderr);
    assert!(space.get("sandbox", "x").unwrap()["metadata"]["deletionTimestamp"].is_null());

    apply(&in_mode(&space, &plugin, "good")).ok();
    space.settle("x");
    delete().ok();
    assert!(space.get("sandbox", "x").is_none());
    assert_eq!(space.count("x")["PreDelete"], 2);
}

#[test]
fn a_failure_that_the_plugin_ignores_admits_the_change_with_a_warning() {
    let space = Space::new("ignore");
    let phases = "  phases: {preCreate: {failurePolicy: Ignore}}\n";
    let plugin = space.plugin("p", &format!("{}{phases}  preCreate:{}", runner(), check("")));
    let applied = apply(&in_mode(&space, &plugin, "bad")).ok();
    assert!(applied.stderr.starts_with("Warning: ") && applied.stderr.contains("exit code 4"), "{}", applied.stderr);
    space.settle("x");
    let run = space.settled_run("x", "PreCreate", "Committed");
    assert_eq!(run["status"]["steps"][0]["state"], "Failed");
    assert!(undoings(&space).is_empty());
}

#[test]
fn a_failed_post_create_is_tried_three_times_and_told_on_the_sandbox() {
    let space = Space::new("post");
    let spec = format!("{}  postCreate:{check}\n  postUpdate:{check}", runner(), check = check(""));
    let plugin = space.plugin("p", &spec);
    apply(&in_mode(&space, &plugin, "bad")).ok();
    eventually(Duration::from_secs(90), "the last attempt has failed", || {
        let runs = space.runs("x");
        (runs.len() == 3 && runs.iter().all(|run| run["status"]["state"] == "Failed")).then_some(())
    });
    let told = || {
        let sandbox = space.get("sandbox", "x").unwrap();
        let complete = condition(&sandbox, "PhasesComplete").unwrap();
        let last = space.runs("x").pop().unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
        let message = complete["message"].as_str().unwrap_or_default();
        let good = complete["status"] == "False"
            && complete["reason"] == "PostCreateFailed"
            && message.contains("exit code 4")
            && message.contains(&last);
        (sandbox["metadata"]["resourceVersion"].clone(), good)
    };
    eventually(SOON, "the condition tells it", || told().1.then_some(()));
    // It stays told: a status that is written again and again would be another by now.
    let (version, _) = told();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(told(), (version, true));
    let attempts: Vec<Value> = space.runs("x").iter().map(|run| run["spec"]["attempt"].clone()).collect();
    assert_eq!(attempts, [1, 2, 3]);
    let events = list(&["-n", &space.namespace, "events"]);
    let event = events.iter().find(|event| event["reason"] == "PostCreateFailed").expect("an event");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["involvedObject"]["name"], "x");
    assert!(event["message"].as_str().unwrap().contains("exit code 4"), "{event}");

    // The phases of the next change make it good.
    apply(&in_mode(&space, &plugin, "good")).ok();
    space.settle("x");
}

/// Makes a quota of no sandboxes, and waits until it is in force.
fn forbid_sandboxes(space: &Space) {
    let counted = "count/sandboxes.sluice.dev";
    let quota = |args: &[&str]| kubectl(&[&["-n", &space.namespace], args].concat()).ok();
    let has_counted = || space.get("quota", "none").is_some_and(|quota| quota["status"]["used"][counted].is_string());
    // Kubernetes notices a new kind within half a minute, and looks only minutes later at quotas that were there before.
    eventually(Duration::from_secs(180), "the quota is in force", || {
        quota(&["delete", "quota", "none", "--ignore-not-found"]);
        quota(&["create", "quota", "none", &format!("--hard={counted}=0")]);
        (0..20).find(|_| {
            std::thread::sleep(Duration::from_millis(100));
            has_counted()
        })
    });
}

#[test]
fn s02_a_create_that_is_refused_after_its_pre_create_is_abandoned_and_undone_once() {
    let space = Space::new("quota");
    let spec =
        format!("{}  preCreate:{CONFIG}\n  postCreate:{check}\n  postDelete:{check}", runner(), check = check(""));
    let plugin = space.plugin("p", &spec);
    forbid_sandboxes(&space);
    let denied = apply(&in_mode(&space, &plugin, "any")).refused();
    assert!(denied.stderr.contains("exceeded quota: none"), "{}", denied.stderr);
    // The API server says no after every webhook has said yes, so the run has passed and its object is there.
    assert!(space.get("configmap", "x-config").is_some());
    eventually(Duration::from_secs(150), "the run is Compensated", || {
        space.runs("x").into_iter().find(|run| run["status"]["state"] == "Compensated")
    });
    nothing_is_left(&space);
    let (run, undo) = (space.run("x", "PreCreate"), space.run("x", "PostDelete"));
    assert_eq!(undo["spec"]["compensates"], run["metadata"]["name"]);
    let told = event(&space, "Abandoned");
    for name in [&run, &undo].map(|run| run["metadata"]["name"].as_str().unwrap()) {
        assert!(told.contains(name), "{told}");
    }
    let count: Vec<_> = space.count("x").into_iter().collect();
    assert_eq!(count, [("PostDelete".to_owned(), 1), ("PreCreate".to_owned(), 1)], "no post-create, and undone once");
}

#[test]
fn w01_creating_what_is_there_is_refused_and_nothing_is_done_to_what_is_there() {
    let space = Space::new("twice");
    let spec = format!("{}  preCreate:{CONFIG}\n  postCreate:{}", runner(), check(""));
    let plugin = space.plugin("p", &spec);
    let first = in_mode(&space, &plugin, "first");
    kubectl_file(&["create"], &first).ok();
    let before = (space.rest("x"), space.get("configmap", "x-config"));
    for manifest in [first, in_mode(&space, &plugin, "other")] {
        let again = kubectl_file(&["create"], &manifest).refused();
        assert!(again.stderr.contains("AlreadyExists"), "{}", again.stderr);
    }
    assert_eq!((space.rest("x"), space.get("configmap", "x-config")), before);
    let count: Vec<_> = space.count("x").into_iter().collect();
    assert_eq!(count, [("PostCreate".to_owned(), 1), ("PreCreate".to_owned(), 1)]);
}

#[test]
fn w01_of_two_creates_at_the_same_moment_only_the_stored_one_leaves_anything() {
    let space = Space::new("race");
    let post = CONFIG.replace("}-config'", "}-post'").replace("name: config\n", "name: post\n");
    let plugin = space.plugin("p", &format!("{}  preCreate:{CONFIG}\n  postCreate:{post}", runner()));
    let proxy = Proxy::start();
    for n in 0..6 {
        let name = format!("x{n}");
        let manifest = |mode: &&str| in_mode(&space, &plugin, mode).replace("name: x,", &format!("name: {name},"));
        // client-go's own repetition, so that whoever is told to come again does.
        let answers = all_at_once(&["a", "b"], |mode| {
            loop {
                let answer = proxy.create(&space, &manifest(mode), "");
                match answer.come_again() {
                    Some(pause) => std::thread::sleep(pause),
                    None => break answer,
                }
            }
        });
        let mut codes: Vec<u16> = answers.iter().map(|answer| answer.code).collect();
        codes.sort_unstable();
        assert_eq!(codes, [201, 409], "{answers:?}");
        let sandbox = space.settle(&name);
        let stored = &sandbox["spec"]["resources"][0]["params"]["mode"];
        let kept = space.get("configmap", &format!("{name}-config")).unwrap();
        assert_eq!(&kept["data"]["mode"], stored, "what is applied is the stored one's");
        let runs = space.runs(&name);
        let of = |phase: &str| runs.iter().filter(|run| run["spec"]["phase"] == phase).collect::<Vec<_>>();
        let committed: Vec<_> =
            of("PreCreate").into_iter().filter(|run| run["status"]["state"] == "Committed").collect();
        assert_eq!(committed.len(), 1);
        assert_eq!(committed[0]["status"]["admitted"]["uid"], sandbox["metadata"]["uid"]);
        assert_eq!(of("PostCreate").len(), 1);
    }
}
