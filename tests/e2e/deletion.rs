//! Every way in which a sandbox can go: its pre-delete runs once before, its post-delete once when it is really gone,
//! and nothing gets stuck.

use crate::cluster::{
    EDITOR, Event, Outcome, RUNNERS, Space, Watch, apply, eventually, get, keeps, kubectl, list, plugin as plugin_of,
    step_image, witnesses,
};
use crate::raw::Proxy;
use crate::server::SOON;
use crate::sleepers::{begin, sandbox_with};
use serde_json::json;
use std::time::Duration;

/// Scripts of so many seconds for each of both phases.
fn slow(space: &Space, pre: &'static [(&'static str, u32, &'static str)]) -> String {
    sandbox_with(space, &[("preDelete", pre), ("postDelete", &[("after", 0, "")])])
}

/// Waits until both phases of the deletion of a sandbox have run, each once, the second when the sandbox was gone.
#[track_caller]
fn went(space: &Space, name: &str) {
    let after = space.settled_run(name, "PostDelete", "Succeeded");
    let before = space.settled_run(name, "PreDelete", "Committed");
    assert_eq!(before["spec"]["target"]["uid"], after["spec"]["target"]["uid"]);
    for phase in ["PreDelete", "PostDelete"] {
        assert_eq!(space.run(name, phase)["spec"]["attempt"], 1);
    }
    assert!(before["status"]["finishedAt"].as_str() < after["status"]["startedAt"].as_str());
}

fn delete(space: &Space, arguments: &[&str]) -> Outcome {
    kubectl(&[&["-n", &space.namespace, "delete", "sandbox"], arguments].concat())
}

#[test]
fn every_sandbox_of_a_deleted_collection_runs_its_phases() {
    let space = Space::new("collection");
    let plugin = space.plugin("witness", &witnesses());
    let names = ["a", "b", "c"];
    for name in names {
        apply(&space.sandbox(name, &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    }
    for name in names {
        space.settle(name);
    }
    let collection = format!("/apis/sluice.dev/v1alpha1/namespaces/{}/sandboxes", space.namespace);
    // `--raw` does not come again by itself where it was told to, as it is when there was no room to hold it.
    eventually(SOON, "the collection is deleted", || kubectl(&["delete", "--raw", &collection]).success.then_some(()));
    for name in names {
        assert!(space.get("sandbox", name).is_none());
        went(&space, name);
    }
}

#[test]
fn a_sandbox_that_goes_with_its_owner_runs_its_phases() {
    let space = Space::new("owned");
    let manifest = slow(&space, &[("before", 3, "")]);
    for (owner, name) in [("near", "x"), ("far", "far")] {
        kubectl(&["-n", &space.namespace, "create", "configmap", owner]).ok();
        let uid = space.get("configmap", owner).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let owned = format!(
            "{{name: {name}, ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: {owner}, uid: {uid}, \
             blockOwnerDeletion: true}}],"
        );
        apply(&manifest.replace("{name: x,", &owned)).ok();
        space.settle(name);
    }
    let owner = |owner: &str, cascade: &str| {
        kubectl(&["-n", &space.namespace, "delete", "configmap", owner, cascade, "--timeout=90s"]).ok();
    };
    // In the background the sandbox follows: within half a minute the garbage collector has noticed a new kind.
    owner("far", "--cascade=background");
    eventually(Duration::from_secs(120), "the sandbox has followed", || {
        space.get("sandbox", "far").is_none().then_some(())
    });
    // In the foreground the owner waits for it.
    owner("near", "--cascade=foreground");
    assert!(space.get("sandbox", "x").is_none(), "the owner went before the sandbox");
    went(&space, "x");
    went(&space, "far");
}

#[test]
fn w07_a_namespace_goes_though_the_phases_of_its_sandboxes_work_and_write_there() {
    let space = Space::new("going");
    let namespace = space.namespace.as_str();
    let plugin = space.plugin("witness", &witnesses());
    let scripts = slow(&space, &[("before", 1, "")]);
    apply(&space.sandbox("w", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    apply(&scripts).ok();
    for name in ["w", "x"] {
        space.settle(name);
    }
    let pods = Watch::new(&[&["pods", "-n", namespace], &["pods", "-n", RUNNERS]]);
    kubectl(&["delete", "namespace", namespace, "--timeout=90s"]).ok();
    // A script needs nothing of the namespace: its pod is made where the runners are.
    went(&space, "x");
    pods.version("the pods of both scripts were elsewhere", |event| {
        let run = event.object["metadata"]["labels"]["sluice.dev/run"].as_str().unwrap_or_default();
        run.starts_with("post-delete-") && of(event, namespace)
    });
    let here = pods.seen(|event| event.object["metadata"]["namespace"] == namespace && of(event, namespace));
    assert!(here.is_empty(), "{here:#?}");
    // What needs the namespace is left out, with a word about it.
    went(&space, "w");
    let left = space.run("w", "PreDelete")["status"]["steps"][0]["message"].clone();
    assert_eq!(left, "0 applied, 1 left out: their namespace is going or gone");
}

/// Whether a pod is a step's of a sandbox of this namespace.
fn of(event: &Event, namespace: &str) -> bool {
    event.object["metadata"]["labels"]["sluice.dev/namespace"] == namespace
}

#[test]
fn a_sandbox_that_anothers_finalizer_keeps_runs_its_post_delete_when_it_is_gone() {
    let space = Space::new("kept");
    let namespace = space.namespace.as_str();
    let manifest = slow(&space, &[("before", 1, "")]).replace("{name: x,", "{name: x, finalizers: [example.com/hold],");
    apply(&manifest).ok();
    space.settle("x");
    let watch = Watch::new(&[&["sandboxes", "-n", namespace], &["phaseruns"]]);
    delete(&space, &["x", "--wait=false"]).ok();
    space.settled_run("x", "PreDelete", "Committed");
    // It is still there, and whatever is done to it now is no change that has phases; its spec stays as it is.
    delete(&space, &["x", "--wait=false"]).ok();
    kubectl(&["-n", namespace, "label", "sandbox", "x", "still=here"]).ok();
    let late = r#"{"spec": {"description": "late"}}"#;
    kubectl(&["-n", namespace, "patch", "sandbox", "x", "--type=merge", "-p", late]).refused();
    // That it is not there yet is only worth something after a time in which it would have come.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(space.count("x").into_iter().collect::<Vec<_>>(), [("PreDelete".to_owned(), 1)]);

    kubectl(&["-n", namespace, "patch", "sandbox", "x", "--type=merge", "-p", r#"{"metadata": {"finalizers": null}}"#])
        .ok();
    went(&space, "x");
    let gone = watch.version("the sandbox is gone", |event| {
        event.object["kind"] == "Sandbox" && event.object["metadata"]["name"] == "x" && event.kind == "DELETED"
    });
    let began = watch.version("post-delete is written", |event| {
        let spec = &event.object["spec"];
        spec["phase"] == "PostDelete" && spec["target"]["namespace"] == namespace
    });
    assert!(gone < began, "post-delete began ({began}) before the sandbox was gone ({gone})");
}

#[test]
fn a_forced_deletion_runs_the_phases_too() {
    let space = Space::new("forced");
    apply(&slow(&space, &[("before", 1, "")])).ok();
    space.settle("x");
    delete(&space, &["x", "--force", "--grace-period=0"]).ok();
    assert!(space.get("sandbox", "x").is_none());
    went(&space, "x");
}

/// What a pre-create makes and a post-delete takes away: a ConfigMap that is named after the sandbox and a parameter.
const MADE: &str = "
  preCreate:
  - name: make
    apply:
      manifests:
      - apiVersion: v1
        kind: ConfigMap
        metadata: {name: '${sandbox.metadata.name}-${params.of}', namespace: '${sandbox.metadata.namespace}'}";

#[test]
fn what_a_change_made_goes_with_the_sandbox_that_is_deleted_before_anybody_looked() {
    let space = Space::new("once");
    let plugin = space.plugin("p", &format!("  runner: {{image: i, serviceAccountName: {EDITOR}}}{MADE}"));
    let first = format!("  resources: [{{name: first, plugin: {plugin}, params: {{of: first}}}}]");
    let path = |name: &str| format!("/apis/sluice.dev/v1alpha1/namespaces/{}/sandboxes/{name}", space.namespace);
    let proxy = Proxy::start();
    let went = |name: &str| assert_eq!(proxy.send("DELETE", &path(name), "application/json", "").code, 200, "{name}");
    for name in ["x0", "x1", "x2", "x3", "x4", "x5"] {
        apply(&space.sandbox(name, &first)).ok();
        space.settle(name);
        let resources = ["first", "second"].map(|of| json!({"name": of, "plugin": plugin, "params": {"of": of}}));
        let patch = json!({"spec": {"resources": resources}}).to_string();
        let updated = proxy.send("PATCH", &path(name), "application/merge-patch+json", &patch);
        assert_eq!(updated.code, 200, "{updated:?}");
        went(name);
    }
    for name in ["y0", "y1", "y2", "y3"] {
        let created = proxy.create(&space, &space.sandbox(name, &first), "");
        assert_eq!(created.code, 201, "{created:?}");
        went(name);
    }
    eventually(Duration::from_secs(90), "nothing that was made is left", || {
        let made = list(&["-n", &space.namespace, "configmap", "-l", "sluice.dev/namespace"]);
        let records = list(&["sandboxrecords"]);
        let owed = records.iter().filter(|record| record["spec"]["target"]["namespace"] == *space.namespace);
        (made.len() + owed.count() == 0).then_some(())
    });
    for name in ["x0", "x1", "x2", "x3", "x4", "x5", "y0", "y1", "y2", "y3"] {
        let undone = space.runs(name).into_iter().filter(|run| run["spec"]["compensates"].is_string()).count();
        assert_eq!((space.count(name)["PostDelete"], undone), (1, 0), "{name}");
    }
}

#[test]
fn a_deletion_that_is_asked_for_many_times_at_once_is_one() {
    let space = Space::new("repeated");
    apply(&slow(&space, &[("before", 5, "")])).ok();
    space.settle("x");
    let deleting: Vec<_> = (0..5)
        .map(|_| {
            let namespace = space.namespace.clone();
            begin(move || kubectl(&["-n", &namespace, "delete", "sandbox", "x", "--timeout=60s"]))
        })
        .collect();
    let deleted: Vec<_> = deleting.into_iter().map(|deleting| deleting.join().unwrap()).collect();
    assert!(deleted.iter().any(|one| one.success), "{deleted:#?}");
    for late in deleted.iter().filter(|one| !one.success) {
        assert!(late.stderr.contains("NotFound"), "{late:?}");
    }
    went(&space, "x");
}

#[test]
fn a_sandbox_that_takes_up_a_name_waits_for_the_long_post_delete_of_its_predecessor() {
    let space = Space::new("anew");
    let after: &[_] = &[("after", 40, "")];
    let manifest = sandbox_with(&space, &[("preCreate", &[("make", 0, "")]), ("postDelete", after)]);
    apply(&manifest).ok();
    space.settle("x");
    delete(&space, &["x"]).ok();
    assert_eq!(apply(&manifest).ok().stderr, "", "one plain apply waits for it");
    space.settle("x");
    let runs = space.runs("x");
    let phases: Vec<_> = runs.iter().map(|run| run["spec"]["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["PreCreate", "PostDelete", "PreCreate"]);
    assert_eq!(runs[1]["status"]["state"], "Succeeded");
    assert!(runs[1]["status"]["finishedAt"].as_str() < runs[2]["status"]["startedAt"].as_str());
}

#[test]
fn w21_a_post_delete_whose_need_is_gone_fails_after_some_tries_and_blocks_nothing() {
    let space = Space::new("needs");
    let account = space.name("gone");
    kubectl(&["-n", RUNNERS, "create", "serviceaccount", &account]).ok();
    let after = "\n  - {name: after, script: '#!/bin/sh'}";
    let spec = format!("  runner: {{image: '{}', serviceAccountName: {account}}}\n  postDelete:{after}", step_image());
    let plugin = space.plugin("p", &spec);
    let manifest = space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"));
    apply(&manifest).ok();
    let uid = space.settle("x")["metadata"]["uid"].as_str().unwrap().to_owned();
    kubectl(&["-n", RUNNERS, "delete", "serviceaccount", &account]).ok();

    delete(&space, &["x", "--timeout=30s"]).ok();
    assert!(space.get("sandbox", "x").is_none(), "its removal waits for nothing");
    eventually(SOON, "it was tried three times, and nothing is owed any more", || {
        let runs = space.runs("x");
        let failed = runs.len() == 3 && runs.iter().all(|run| run["status"]["state"] == "Failed");
        (failed && get(&["sandboxrecord", &uid]).is_none()).then_some(())
    });
    let runs = space.runs("x");
    let seconds = |run: usize, field: &str| {
        let text = runs[run]["status"][field].as_str().unwrap();
        let (_, time) = text.split_at(text.find('T').unwrap() + 1);
        let parts: Vec<f64> = time.trim_end_matches('Z').split(':').map(|part| part.parse().unwrap()).collect();
        parts[0] * 3600.0 + parts[1] * 60.0 + parts[2]
    };
    let pauses: Vec<f64> =
        (1..3).map(|run| (seconds(run, "startedAt") - seconds(run - 1, "finishedAt")).rem_euclid(86_400.0)).collect();
    assert!(pauses[0] >= 5.0 && pauses[1] >= 20.0, "each pause is longer than the last: {pauses:?}");
    let message = runs[2]["status"]["message"].as_str().unwrap();
    assert!(message.contains(&account), "the reason is not in: {message}");
    eventually(SOON, "an event tells of it", || {
        let events = list(&["-n", &space.namespace, "events", "--field-selector", "reason=PostDeleteFailed"]);
        let told = |event: &serde_json::Value| {
            event["type"] == "Warning" && event["message"].as_str().is_some_and(|text| text.contains(&account))
        };
        events.iter().any(told).then_some(())
    });

    // The name is free, and newer runs push the failed ones out of the history.
    let quick = format!("  runner: {{serviceAccountName: {EDITOR}}}\n  preCreate: [{}]", keeps("quick", "x-quick", ""));
    apply(&plugin_of(&plugin, &quick)).ok();
    for _ in 0..6 {
        apply(&manifest).ok();
        delete(&space, &["x", "--timeout=30s"]).ok();
    }
    eventually(SOON, "the failed runs are history", || {
        space.runs("x").iter().all(|run| run["status"]["state"] != "Failed").then_some(())
    });
}
