//! Step pods that cannot be: no image, no place, no permission, or another's in their way.

use crate::chart::Values;
use crate::cluster::{
    Outcome, RESTRICTED, RUNNERS, Space, apply, eventually, get, kubectl, kubectl_file, list, step_image,
};
use serde_json::Value;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// The sandbox `x` with one script, in a pod of this runner, within so many seconds.
fn sandbox(space: &Space, runner: &str, seconds: u32, script: &str) -> String {
    let plugin = space.plugin(
        "p",
        &format!(
            "  runner: {{{runner}}}
  phases: {{preCreate: {{timeoutSeconds: {seconds}}}}}
  preCreate: [{{name: one, script: \"#!/bin/sh\\n{script}\"}}]"
        ),
    );
    space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))
}

fn image() -> String {
    format!("image: '{}'", step_image())
}

fn pods(namespace: &str, space: &Space) -> Vec<Value> {
    list(&["-n", namespace, "pods", "-l", &format!("sluice.dev/namespace={}", space.namespace)])
}

/// Waits until the failed run's pods are gone.
#[track_caller]
fn no_pod_is_left(namespace: &str, space: &Space) {
    eventually(SOON, "no pod is left", || pods(namespace, space).is_empty().then_some(()));
}

#[test]
fn w23_an_image_that_cannot_be_pulled_denies_the_change_before_the_phase_is_out_of_time() {
    let space = Space::new("image");
    let manifest = sandbox(&space, "image: '127.0.0.1:1/none:1'", 60, "exit 0");
    let (outcome, pod) = while_its_pod_waits(&space, &manifest);
    let spec = &pod["spec"];
    assert_eq!((&spec["activeDeadlineSeconds"], &spec["restartPolicy"]), (&180.into(), &"Never".into()));
    let said = outcome.refused();
    assert!(said.stderr.contains("cannot run: ImagePullBackOff: image 127.0.0.1:1/none:1"), "{}", said.stderr);
    assert!(said.took.as_secs() < 60, "it took {:?}", said.took);
    no_pod_is_left(RUNNERS, &space);
}

#[test]
fn w23_a_pod_that_finds_no_place_is_told_of_when_its_phase_is_out_of_time() {
    // Alone, since no other pod finds a place either.
    let space = Space::alone("place");
    let nodes: Vec<String> =
        list(&["nodes"]).iter().map(|node| node["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    let all = |verb: &str| nodes.iter().for_each(|node| drop(kubectl(&[verb, node])));
    let manifest = sandbox(&space, &image(), 10, "exit 0");
    all("cordon");
    let outcome = apply(&manifest);
    all("uncordon");
    let said = outcome.refused().stderr;
    assert!(said.contains("the phase's time limit of 10 s was reached"), "{said}");
    assert!(said.contains("its pod was waiting: Unschedulable: ") && said.contains("nodes are available"), "{said}");
    no_pod_is_left(RUNNERS, &space);
}

/// Applies a sandbox, and tells how it went and which pod was made for it.
fn while_its_pod_waits(space: &Space, manifest: &str) -> (Outcome, Value) {
    std::thread::scope(|scope| {
        let applying = scope.spawn(|| apply(manifest));
        let pod = eventually(SOON, "the step's pod is there", || pods(RUNNERS, space).pop());
        (applying.join().unwrap(), pod)
    })
}

#[test]
fn w16_a_pod_of_another_s_with_the_name_of_a_step_s_is_reported_and_left_alone() {
    let space = Space::new("taken");
    let manifest = sandbox(&space, &image(), 60, "case $SLUICE_IDEMPOTENCY_KEY in *-3/r/one) exit 0;; esac; exit 7");
    apply(&manifest).refused();
    let first = space.run("x", "PreCreate")["metadata"]["name"].as_str().unwrap().to_owned();
    let second = format!("{}-2", first.strip_suffix("-1").unwrap());
    // Even the label says that it is the run's. Only the run itself can be its owner.
    let foreign = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {second}-0-0, namespace: {RUNNERS}, labels: {{sluice.dev/run: {second}}}}}
spec: {{containers: [{{name: main, image: '{}', command: [sleep, '600'], {RESTRICTED}}}], terminationGracePeriodSeconds: 0}}
",
        step_image()
    );
    kubectl_file(&["create"], &foreign).ok();
    let name = format!("{second}-0-0");
    let uid = |pod: Option<Value>| {
        pod.map(|pod| (pod["metadata"]["uid"].clone(), pod["metadata"]["deletionTimestamp"].clone()))
    };
    let there = || uid(get(&["-n", RUNNERS, "pod", &name]));
    let before = there();
    // Whoever asks within a second of the denial is told the same once more.
    std::thread::sleep(Duration::from_secs(1));
    let said = apply(&manifest).refused().stderr;
    let reported = format!("a pod {RUNNERS}/{name} is there that is not this run's: delete it");
    assert!(said.contains(&reported), "{said}");
    space.settled_run("x", "PreCreate", "Failed");
    no_pod_is_left(RUNNERS, &space);
    assert_eq!(there(), before);
    assert!(before.is_some());

    // The next attempt has pods of its own name.
    std::thread::sleep(Duration::from_secs(1));
    apply(&manifest).ok();
    let run = space.settled_run("x", "PreCreate", "Committed");
    assert_eq!(run["spec"]["attempt"], 3);
    assert_eq!(there(), before);
    kubectl(&["-n", RUNNERS, "delete", "pod", &name]).ok();
}

#[test]
fn w25_a_step_runs_under_the_restricted_standard_and_a_quota_and_is_told_where_that_is_used_up() {
    let space = Space::alone("strict");
    let runners = space.name("runners");
    apply(&format!(
        "
apiVersion: v1
kind: Namespace
metadata: {{name: {runners}, labels: {{pod-security.kubernetes.io/enforce: restricted}}}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {{name: all, namespace: {runners}}}
spec: {{hard: {{requests.cpu: 500m, requests.memory: 1Gi, limits.cpu: '4', limits.memory: 4Gi, pods: '5'}}}}
"
    ))
    .ok();
    eventually(SOON, "the quota is in force", || {
        get(&["-n", &runners, "quota", "all"]).filter(|quota| quota["status"]["hard"]["pods"].is_string())
    });
    let _values = Values::set(&[&format!("runnerNamespaces={{{runners}}}")]);
    // Both are in force: a pod that says nothing is refused.
    let naked = ["-n", &runners, "run", "naked", "--image=none", "--dry-run=server"];
    assert!(kubectl(&naked).refused().stderr.contains("restricted"));

    let runner = format!("{}, namespace: {runners}", image());
    apply(&sandbox(&space, &runner, 60, "exit 0")).ok();
    space.settle("x");
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    no_pod_is_left(&runners, &space);

    kubectl(&["-n", &runners, "patch", "quota", "all", "--type=merge", "-p", r#"{"spec": {"hard": {"pods": "0"}}}"#])
        .ok();
    eventually(SOON, "the quota is used up", || {
        get(&["-n", &runners, "quota", "all"]).filter(|quota| quota["status"]["hard"]["pods"] == "0")
    });
    let said = apply(&sandbox(&space, &runner, 60, "exit 0")).refused();
    let reason = format!("the step's pod could not be made in namespace {runners}");
    assert!(said.stderr.contains(&reason) && said.stderr.contains("exceeded quota: all"), "{}", said.stderr);
    assert!(said.took < Duration::from_secs(60), "it took {:?}", said.took);
    kubectl(&["delete", "namespace", &runners, "--wait=false"]).ok();
}
