//! The calls that Argo CD makes when it compares, syncs and tries again.
//!
//! It syncs with a plain or a server-side apply, compares what it wants with what is there by itself or by a dry run on
//! the server, and syncs anew whatever differs.

use crate::cluster::{Outcome, Space, apply, condition, get, kubectl, kubectl_file, run_in, step_image, witnesses};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const SYNC: [&str; 4] = ["apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller"];

fn sync(manifest: &str) -> Outcome {
    kubectl_file(&SYNC, manifest)
}

/// What is there after a sync, as a dry run on the server predicts it.
fn predicted(manifest: &str) -> Value {
    let said = kubectl_file(&[&SYNC[..], &["--dry-run=server", "-o", "json"]].concat(), manifest).ok();
    serde_json::from_str(&said.stdout).unwrap()
}

/// An object without what Argo CD looks past.
fn compared(object: &Value) -> Value {
    let mut object = object.clone();
    for field in ["managedFields", "resourceVersion"] {
        object["metadata"].as_object_mut().unwrap().remove(field);
    }
    object
}

#[test]
fn w22_a_synced_sandbox_is_in_sync_and_stays_so() {
    let space = Space::new("synced");
    space.workload("cart", 1);
    let base = space.name("db");
    apply(&crate::cluster::plugin(&format!("{base}.1.0.0"), &witnesses())).ok();
    // What is written into a sandbox at all is written for `@latest` and for forks.
    let manifest = space.sandbox(
        "x",
        &format!(
            "  description: one
  forks: [{{forkOf: {{kind: Deployment, name: cart}}}}]
  resources: [{{name: r, plugin: '{base}@latest'}}]"
        ),
    );
    let wanted = kubectl_file(&["apply", "--dry-run=client", "-o", "json"], &manifest).ok();
    let wanted: Value = serde_json::from_str(&wanted.stdout).unwrap();
    sync(&manifest).ok();
    let live = space.rest("x");
    assert_eq!(condition(&live, "Ready").unwrap()["status"], "True", "healthy");
    assert_eq!(live["status"]["observedGeneration"], live["metadata"]["generation"]);
    let runs = space.count("x");
    let with_managers = |name: &str| -> Value {
        let shown = ["-n", &space.namespace, "get", "sandbox", name, "-o", "json", "--show-managed-fields"];
        serde_json::from_str(&kubectl(&shown).ok().stdout).unwrap()
    };

    assert_eq!(live["spec"], wanted["spec"], "compared by the client");
    assert_eq!(compared(&predicted(&manifest)), compared(&live), "compared by the server");
    let spec = |managed: &&Value| managed["fieldsV1"]["f:spec"].is_object();
    let managed = with_managers("x")["metadata"]["managedFields"].as_array().unwrap().clone();
    let managers: Vec<&Value> = managed.iter().filter(spec).map(|managed| &managed["manager"]).collect();
    assert_eq!(managers, ["argocd-controller"], "nobody else has written to the spec");

    sync(&manifest).ok();
    std::thread::sleep(Duration::from_secs(10));
    let later = space.get("sandbox", "x").unwrap();
    assert_eq!(later["metadata"]["resourceVersion"], live["metadata"]["resourceVersion"], "nothing writes to it");
    assert_eq!(space.count("x"), runs, "the second sync ran nothing");

    // An application that was synced by plain applies before is no different.
    let plain = manifest.replace("{name: x,", "{name: plain,");
    apply(&plain).ok();
    let live = space.rest("plain");
    kubectl_file(&["diff"], &plain).ok();
    assert_eq!(live["spec"], wanted["spec"]);
}

#[test]
fn w22_the_chart_itself_is_in_sync_though_its_webhook_configurations_are_filled_in() {
    let _space = Space::new("chart");
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/sluice");
    let template = ["template", "sluice", chart.to_str().unwrap(), "--namespace", "sluice-system"];
    let webhooks = ["--show-only", "templates/webhooks.yaml"];
    let rendered = run_in(Path::new("."), "helm", &[&template[..], &webhooks[..]].concat(), "").ok().stdout;
    let documents: Vec<&str> = rendered.split("---\n").filter(|text| text.contains("kind:")).collect();
    assert_eq!(documents.len(), 2);
    for document in documents {
        let wanted = kubectl_file(&["create", "--dry-run=client", "-o", "json"], document).ok();
        let wanted: Value = serde_json::from_str(&wanted.stdout).unwrap();
        let kind = wanted["kind"].as_str().unwrap();
        let live = get(&[kind, "sluice"]).unwrap();
        assert!(wanted["webhooks"].as_array().is_none_or(Vec::is_empty), "the chart names no webhook: {wanted}");
        let webhook = &live["webhooks"][0];
        assert!(webhook["clientConfig"]["caBundle"].is_string(), "{kind} is filled in: {live}");
        assert_eq!(predicted(document)["webhooks"], live["webhooks"], "a sync takes nothing of it away");
        for (field, value) in wanted["metadata"]["labels"].as_object().unwrap() {
            assert_eq!(&live["metadata"]["labels"][field], value, "{kind}");
        }
    }
}

#[test]
fn w30_a_sync_that_is_tried_again_begins_a_new_attempt_until_one_passes() {
    let space = Space::new("retried");
    // The attempt is in the key, so the first two fail and the third passes.
    let script = "script: \"#!/bin/sh\\ncase $SLUICE_IDEMPOTENCY_KEY in *-3/r/work) exit 0;; esac; exit 7\"";
    let plugin =
        space.plugin("p", &format!("  runner: {{image: '{}'}}\n  preCreate: [{{name: work, {script}}}]", step_image()));
    let manifest = space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"));
    // Argo CD waits 5, 10, 20 … s between its tries.
    let mut syncs = 0;
    let synced = loop {
        let synced = sync(&manifest);
        syncs += 1;
        if synced.success || syncs == 5 {
            break synced;
        }
        let of_attempt = format!("-{syncs} -o yaml");
        assert!(synced.stderr.contains("exit code 7") && synced.stderr.contains(&of_attempt), "{}", synced.stderr);
        std::thread::sleep(Duration::from_secs(2));
    };
    synced.ok();
    assert_eq!(syncs, 3);
    space.rest("x");
    let attempts: Vec<(Value, Value)> =
        space.runs("x").iter().map(|run| (run["spec"]["attempt"].clone(), run["status"]["state"].clone())).collect();
    let expected: Vec<(Value, Value)> =
        [(1, "Failed"), (2, "Failed"), (3, "Committed")].map(|(attempt, state)| (attempt.into(), state.into())).into();
    assert_eq!(attempts, expected);

    // One more sync, as selfHeal makes it, runs nothing.
    sync(&manifest).ok();
    kubectl(&["-n", &space.namespace, "get", "sandbox", "x"]).ok();
    assert_eq!(space.runs("x").len(), 3);
}
