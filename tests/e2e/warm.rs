//! Pods that wait ready for a plugin: taken once, replaced at once, and gone with what they were kept for.

use crate::cluster::{RUNNERS, Space, apply, eventually, get, kubectl, list, plugin, step_image};
use crate::server::{crash, fresh};
use crate::sleepers::{THREE, begin, begun, once, running, sandbox_in};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// A plugin that keeps no pods any more when its test is over.
struct Warm(String);

impl Warm {
    fn of(space: &Space, spec: &str) -> Self {
        Self(space.plugin("p", spec))
    }
}

impl std::ops::Deref for Warm {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        kubectl(&["patch", "resourceplugin", &self.0, "--type=merge", "-p", r#"{"spec": {"runner": {"warm": 0}}}"#]);
    }
}

/// The pods that wait for a plugin, ready or not, but not on their way out.
fn waiting(plugin: &str) -> Vec<Value> {
    // A label's value is as long as 63 bytes; the names of these tests are shorter.
    let mut pods = list(&["-n", RUNNERS, "pods", "-l", &format!("sluice.dev/warm-of={plugin}")]);
    pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    pods
}

fn names(pods: &[Value]) -> BTreeSet<String> {
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until exactly so many wait, each ready.
#[track_caller]
fn ready(plugin: &str, count: usize) -> BTreeSet<String> {
    eventually(SOON, &format!("{count} pods wait for {plugin}"), || {
        let pods = waiting(plugin);
        let are_ready = pods.iter().all(|pod| pod["status"]["phase"] == "Running");
        (pods.len() == count && are_ready).then(|| names(&pods))
    })
}

fn spec(runner: &str, script: &str) -> String {
    format!(
        "  runner: {{image: '{}', {runner}}}
  preCreate:
  - name: one
    outputs: [{{name: o, valueFromPath: /out/o}}]
    script: |
      #!/bin/sh
      hostname | tee /out/o
      {script}
  postDelete:
  - name: two
    inputs: [{{name: o, valueFromStep: {{name: one, output: o}}, as: {{path: /elsewhere/o}}}}]
    script: |
      #!/bin/sh
      echo made on $(cat /elsewhere/o), deleted on $(hostname)
",
        step_image()
    )
}

fn sandbox(space: &Space, name: &str, plugin: &str) -> String {
    space.sandbox(name, &format!("  resources: [{{name: r, plugin: {plugin}}}]"))
}

#[test]
fn a_pod_that_waits_is_used_once_by_any_phase_and_replaced_at_once() {
    let space = Space::new("warm");
    let name = Warm::of(&space, &spec("warm: 2", "sleep 5"));
    let before = ready(&name, 2);
    let manifest = sandbox(&space, "x", &name);
    let applying = begin(move || apply(&manifest));
    let of = format!("sluice.dev/namespace={},sluice.dev/name=x", space.namespace);
    let pod = eventually(SOON, "a pod is the run's", || list(&["-n", RUNNERS, "pods", "-l", &of]).pop());
    let (metadata, run) = (&pod["metadata"], space.run("x", "PreCreate"));
    let taken = metadata["name"].as_str().unwrap().to_owned();
    assert!(before.contains(&taken), "{taken} did not wait: {before:?}");
    let owner = &metadata["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&"PhaseRun".into(), &run["metadata"]["uid"]));
    assert_eq!(metadata["labels"]["sluice.dev/run"], run["metadata"]["name"]);
    assert!(metadata["labels"]["sluice.dev/warm-of"].is_null());
    let deadline = pod["spec"]["activeDeadlineSeconds"].as_i64().unwrap();
    assert!((420..1000).contains(&deadline), "{deadline}");
    // While the step still runs, another waits in its place.
    let after = ready(&name, 2);
    assert!(!after.contains(&taken) && after.is_superset(&(&before - &[taken.clone()].into())), "{before:?} {after:?}");
    applying.join().unwrap().ok();
    eventually(SOON, "what was used is gone", || get(&["-n", RUNNERS, "pod", &taken]).is_none().then_some(()));

    space.settle("x");
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    let run = space.settled_run("x", "PostDelete", "Succeeded");
    let log = run["status"]["steps"][0]["log"].as_str().unwrap().trim();
    assert!(after.iter().any(|pod| log.ends_with(&format!("deleted on {pod}"))), "{log}: {after:?}");

    // It is in use until nothing is owed to the sandbox any more.
    eventually(SOON, "the plugin can go", || kubectl(&["delete", "resourceplugin", &name]).success.then_some(()));
    eventually(SOON, "nothing waits for a plugin that is gone", || waiting(&name).is_empty().then_some(()));
}

#[test]
fn many_runs_at_once_never_share_a_pod_and_the_rest_get_one_made() {
    let space = Space::of_three("crowd");
    let name = Warm::of(&space, &spec("warm: 2", "[ ! -e /tmp/used ] || exit 9; touch /tmp/used"));
    ready(&name, 2);
    let names: Vec<String> = (0..6).map(|i| format!("x{i}")).collect();
    let all = names.iter().map(|x| sandbox(&space, x, &name)).collect::<Vec<_>>();
    let applying: Vec<_> = all.into_iter().map(|manifest| begin(move || apply(&manifest))).collect();
    applying.into_iter().for_each(|one| drop(one.join().unwrap().ok()));
    ready(&name, 2);
}

#[test]
fn an_edited_plugin_has_pods_of_its_new_template_alone() {
    let space = Space::new("edited");
    let name = Warm::of(&space, &spec("warm: 1", "true"));
    let before = ready(&name, 1);
    let overlaid = "warm: 2, podTemplateOverlay: 'metadata: {labels: {edited: \"yes\"}}'";
    apply(&plugin(&name, &spec(overlaid, "true"))).ok();
    let after = eventually(SOON, "the new ones wait", || {
        let pods = waiting(&name);
        let are_new = pods.iter().all(|pod| pod["metadata"]["labels"]["edited"] == "yes");
        (pods.len() == 2 && are_new).then(|| names(&pods))
    });
    assert!(before.is_disjoint(&after));
    // A script that changes makes no other pods.
    apply(&plugin(&name, &spec(overlaid, "echo changed"))).ok();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(ready(&name, 2), after);
    apply(&plugin(&name, &spec("warm: 0", "true"))).ok();
    eventually(SOON, "none waits", || waiting(&name).is_empty().then_some(()));
}

#[test]
fn a_pod_that_waits_and_is_deleted_or_breaks_is_replaced() {
    let space = Space::new("refill");
    let name = Warm::of(&space, &spec("warm: 1", "true"));
    let first = ready(&name, 1);
    kubectl(&["-n", RUNNERS, "delete", "pod", first.first().unwrap(), "--wait=false"]).ok();
    eventually(SOON, "another waits", || {
        let now = names(&waiting(&name));
        (now.len() == 1 && now.is_disjoint(&first)).then_some(())
    });
    // Its agent ends with the word to do so, and the pod with it.
    let second = ready(&name, 1);
    let agent = ["exec", second.first().unwrap(), "--", "kill", "1"];
    kubectl(&[&["-n", RUNNERS], &agent[..]].concat()).ok();
    eventually(SOON, "a third waits", || {
        let now = names(&waiting(&name));
        (now.len() == 1 && now.is_disjoint(&second)).then_some(())
    });
    ready(&name, 1);
}

#[test]
fn what_stands_in_the_way_of_pods_that_wait_is_told_on_the_plugin_and_scripts_fail_by_themselves() {
    let space = Space::new("unready");
    let broken = "  runner: {image: '127.0.0.1:1/none:1', warm: 1}\n  preCreate: [{name: one, script: '#!/bin/sh'}]";
    let name = Warm::of(&space, broken);
    let event = eventually(SOON, "an event on the plugin", || {
        let about = format!("involvedObject.kind=ResourcePlugin,involvedObject.name={},reason=WarmPodFailed", &*name);
        list(&["-n", "default", "events", "--field-selector", &about])
            .into_iter()
            .find(|event| event["message"].as_str().unwrap_or_default().contains("127.0.0.1:1/none:1"))
    });
    assert!(event["message"].as_str().unwrap().starts_with("No pod of the plugin is ready: "), "{event}");
    kubectl(&["delete", "resourceplugin", &name]).ok();
    eventually(SOON, "nothing waits", || waiting(&name).is_empty().then_some(()));
}

#[test]
fn w16_a_pod_that_was_taken_is_found_again_after_a_crash() {
    let space = Space::alone("warm-crash");
    fresh();
    let manifest = sandbox_in(&space, "p", "warm: 2", &[("preCreate", THREE)]);
    let name = Warm(space.name("p"));
    let before = ready(&name, 2);
    let interrupted = begin({
        let manifest = manifest.clone();
        move || apply(&manifest)
    });
    let run = running(&space, "PreCreate", 1);
    let of = format!("sluice.dev/run={}", run["metadata"]["name"].as_str().unwrap());
    let pods = || names(&list(&["-n", RUNNERS, "pods", "-l", &of]));
    let taken = pods();
    assert!(taken.len() == 1 && taken.is_subset(&before), "{taken:?} {before:?}");
    let crashed = crash();
    interrupted.join().unwrap().refused();
    // One that waits goes while nobody is there to see to it.
    let left = before.difference(&taken).next().unwrap();
    kubectl(&["-n", RUNNERS, "delete", "pod", left, "--wait=false"]).ok();
    crashed.wait_for_successor();
    apply(&manifest).ok();
    space.settle("x");
    let after = space.run("x", "PreCreate");
    assert_eq!((begun(&after, 0), begun(&after, 1)), (begun(&run, 0), begun(&run, 1)));
    once(&after);
    ready(&name, 2);
}

#[test]
fn all_scripts_of_a_resource_run_in_the_pod_that_waited() {
    let space = Space::new("swift");
    let step = |i: u32| {
        let needs = if i > 1 { format!("s{}", i - 1) } else { String::new() };
        format!("  - {{name: s{i}, needs: [{needs}], script: \"#!/bin/sh\\nhostname\"}}\n")
    };
    let steps: String = (1..=5).map(step).collect();
    let plugin = Warm::of(&space, &format!("  runner: {{image: '{}', warm: 1}}\n  preCreate:\n{steps}", step_image()));
    let waited = ready(&plugin, 1).pop_first().unwrap();
    apply(&sandbox(&space, "x", &plugin)).ok();
    let run = space.run("x", "PreCreate");
    for step in run["status"]["steps"].as_array().unwrap() {
        assert_eq!(step["log"].as_str().unwrap().trim(), waited, "{step}");
    }
}
