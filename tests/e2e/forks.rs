//! Forks beside what is there already: nothing of another's is taken over, and what cannot be is said.

use crate::cluster::{Space, apply, condition, eventually, kubectl};
use std::time::Duration;

fn baseline(space: &Space) {
    space.workload("web", 1);
    let namespace = &space.namespace;
    apply(&format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {namespace}}}
spec: {{selector: {{app: web}}, ports: [{{port: 80}}]}}
"
    ))
    .ok();
}

/// Waits until a sandbox is not ready for this reason.
fn refused(space: &Space, name: &str, why: &str) {
    eventually(Duration::from_secs(60), why, || {
        let ready = condition(&space.get("sandbox", name)?, "Ready")?;
        (ready["status"] == "False" && ready["message"].as_str()?.contains(why)).then_some(())
    });
}

#[test]
fn an_object_of_another_s_is_never_taken_over_by_a_fork() {
    let space = Space::new("forks");
    baseline(&space);
    let foreign = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web-x, namespace: {}}}\nspec: {{selector: {{app: other}}, ports: [{{port: 81}}]}}\n",
        space.namespace
    );
    apply(&foreign).ok();
    apply(&space.sandbox("x", "  forks: [{forkOf: {kind: Deployment, name: web}}]")).ok();
    refused(&space, "x", "spec.forks[0]: Service web-x exists already and is not this sandbox's");
    let service = space.get("service", "web-x").unwrap();
    assert_eq!(service["spec"]["selector"], serde_json::json!({"app": "other"}));
    assert!(service["metadata"]["ownerReferences"].is_null(), "{service:#?}");

    // Out of the way, the fork is made.
    kubectl(&["-n", &space.namespace, "delete", "service", "web-x"]).ok();
    let sandbox = space.settle("x");
    assert_eq!(condition(&sandbox, "Ready").unwrap()["status"], "True");
}

#[test]
fn a_fork_that_the_api_server_refuses_says_why() {
    let space = Space::new("forks");
    baseline(&space);
    let patch = "patch: {type: merge, value: 'spec: {template: {spec: {restartPolicy: Sometimes}}}'}";
    let spec = format!("  forks: [{{forkOf: {{kind: Deployment, name: web}}, customizations: {{{patch}}}}}]");
    apply(&space.sandbox("x", &spec)).ok();
    refused(&space, "x", "spec.forks[0]: Deployment web-x was refused");
    refused(&space, "x", "restartPolicy");
}
