//! A pre-delete that always fails: who may let the sandbox go all the same, and what the cluster's own cleaning up
//! does; and a plugin's own way to undo what was never stored.

use crate::cluster::{EDITOR, Space, apply, eventually, get, kubectl, kubectl_file, list, step_image};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// A plugin whose pre-delete always fails.
fn fails(space: &Space) -> String {
    let spec = format!(
        "  runner: {{image: '{}'}}
  preDelete: [{{name: never, script: \"#!/bin/sh\\nexit 9\"}}]
",
        step_image()
    );
    space.plugin("p", &spec)
}

fn annotate(space: &Space, user: &str) -> crate::cluster::Outcome {
    let skip = "sluice.dev/skip-pre-delete=the database is gone";
    kubectl(&["-n", &space.namespace, "annotate", "sandbox", "x", skip, "--as", user])
}

#[test]
fn w20_who_has_the_right_to_can_delete_a_sandbox_whose_pre_delete_always_fails() {
    let space = Space::new("skip");
    let plugin = fails(&space);
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    let uid = space.settle("x")["metadata"]["uid"].as_str().unwrap().to_owned();
    let delete = || kubectl(&["-n", &space.namespace, "delete", "sandbox", "x", "--timeout=60s"]);
    let denied = delete().refused().stderr;
    assert!(denied.contains("exit code 9") && denied.contains("sluice.dev/skip-pre-delete"), "{denied}");

    let (alice, role) = (format!("alice-{}", space.namespace), space.name("edits"));
    let role_of = |verbs: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {role}, namespace: {0}}}
rules: [{{apiGroups: [sluice.dev], resources: [sandboxes], verbs: [{verbs}]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {role}, namespace: {0}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {role}}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {alice}}}]
",
            space.namespace
        )
    };
    apply(&role_of("get, update, patch, delete")).ok();
    let refused = eventually(SOON, "alice may write sandboxes, but not skip their pre-delete", || {
        let refused = annotate(&space, &alice).refused().stderr;
        refused.contains("may not skip").then_some(refused)
    });
    assert!(refused.contains("metadata.annotations[sluice.dev/skip-pre-delete]"), "{refused}");
    assert!(space.get("sandbox", "x").unwrap()["metadata"]["annotations"]["sluice.dev/skip-pre-delete"].is_null());

    apply(&role_of("get, update, patch, delete, skip")).ok();
    eventually(SOON, "alice has the right", || annotate(&space, &alice).success.then_some(()));
    let gone = delete().ok();
    assert!(gone.stderr.contains("pre-delete was skipped") && gone.stderr.contains("the database is gone"), "{gone:?}");
    assert!(space.get("sandbox", "x").is_none());
    eventually(SOON, "an event tells who and why", || {
        let events = list(&["-n", &space.namespace, "events"]);
        let told = events.into_iter().find(|event| event["reason"] == "PreDeleteSkipped")?;
        told["message"].as_str().unwrap().contains("the database is gone").then_some(())
    });
    eventually(SOON, "its record goes", || get(&["sandboxrecord", &uid]).is_none().then_some(()));
}

#[test]
fn a_namespace_is_not_kept_for_ever_by_a_pre_delete_that_fails() {
    let space = Space::new("kept");
    let plugin = fails(&space);
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    space.settle("x");
    kubectl(&["delete", "namespace", &space.namespace, "--timeout=180s"]).ok();
    assert_eq!(space.count("x")["PreDelete"], 3, "three tries, with pauses between them, and no more");
}

#[test]
fn a_plugins_own_way_to_undo_is_told_which_phase_was_abandoned() {
    let space = Space::new("own");
    let spec = format!(
        "  runner: {{image: '{}', serviceAccountName: {EDITOR}}}
  preCreate: [{{name: keep, apply: {{manifests: [{{apiVersion: v1, kind: ConfigMap, metadata: {{name: made, namespace: '${{sandbox.metadata.namespace}}'}}}}]}}}}]
  abandoned: [{{name: tell, script: \"#!/bin/sh\\necho undoing $SLUICE_PHASE\"}}]
",
        step_image()
    );
    let plugin = space.plugin("p", &spec);
    let quota = format!(
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: none, namespace: {}}}\nspec: {{hard: {{count/sandboxes.sluice.dev: \"0\"}}}}\n",
        space.namespace
    );
    apply(&quota).ok();
    let sandbox = space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"));
    eventually(SOON, "the quota is in force", || {
        let quota = space.get("resourcequota", "none")?;
        quota["status"]["hard"].is_object().then_some(())
    });
    kubectl_file(&["create"], &sandbox).refused();
    let undo = eventually(Duration::from_secs(120), "the plugin's own undoing ran", || {
        let undoes = |run: &serde_json::Value| run["spec"]["compensates"].is_string();
        space.runs("x").into_iter().find(|run| undoes(run) && run["status"]["state"] == "Succeeded")
    });
    assert_eq!(undo["spec"]["resources"][0]["undoes"], "PreCreate");
    assert!(undo["status"]["steps"][0]["log"].as_str().unwrap().contains("undoing pre-create"), "{undo}");
    assert!(space.get("configmap", "made").is_none(), "what was applied goes in any case");
    space.settled_run("x", "PreCreate", "Compensated");
}
