//! What is installed for the load: namespaces, a quota, the account of `apply` steps, and plugins with all six phases.

use crate::etcd::MARK;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use sluice::api::Phase;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

pub const SLUICE: &str = "sluice-system";
/// Where plugins run.
pub const RUNNERS: &str = "sluice-runners";
pub const NAMESPACE: &str = "chaos";
/// A namespace where a ResourceQuota refuses some of the creates, after Sluice has let them through.
pub const QUOTA: &str = "chaos-quota";
pub const APPLY: &str = "chaos-apply";
pub const SCRIPT: &str = "chaos-script";
const EDITOR: &str = "chaos-editor";

/// Runs a program; an error with what it said where it fails.
pub async fn run(program: &str, arguments: &[&str], input: &str) -> anyhow::Result<String> {
    let what = || format!("{program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(what)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that reads no input may be gone before it is written.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = child.wait_with_output().await.with_context(what)?;
    if !output.status.success() {
        bail!("{}: {}", what(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Changes how the chart is installed, and waits until it is.
pub async fn upgrade(values: &str) -> anyhow::Result<()> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/sluice");
    let rest = ["--namespace", SLUICE, "--reuse-values", "--wait", "--timeout", "3m", "--set", values];
    run("helm", &[&["upgrade", "sluice", chart], rest.as_slice()].concat(), "").await.map(drop)
}

/// Applies everything that the load needs.
pub async fn install() -> anyhow::Result<()> {
    let image = std::env::var("SLUICE_TEST_STEP_IMAGE").context("SLUICE_TEST_STEP_IMAGE must name an image with sh")?;
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": QUOTA}}),
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": QUOTA},
            "spec": {"hard": {"count/sandboxes.sluice.dev": "2"}}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": EDITOR, "namespace": RUNNERS}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": EDITOR},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch", "delete"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": EDITOR},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": EDITOR},
            "subjects": [{"kind": "ServiceAccount", "name": EDITOR, "namespace": RUNNERS}]}),
    ];
    objects.push(plugin(APPLY, &image, |phase| vec![keep(phase, "sandbox.spec.description", &[]), doom(phase)]));
    objects.push(plugin(SCRIPT, &image, |phase| vec![say(), keep(phase, "steps.say.word", &["say"]), doom(phase)]));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    run("kubectl", &["apply", "-f", "-"], &list.to_string()).await.map(drop)
}

fn plugin(name: &str, image: &str, steps: impl Fn(Phase) -> Vec<Value>) -> Value {
    let mut spec = json!({"runner": {"image": image, "serviceAccountName": EDITOR}, "phases": {}});
    for phase in Phase::ALL {
        spec[phase.field()] = json!(steps(phase));
        spec["phases"][phase.field()] = json!({"timeoutSeconds": 90});
    }
    json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "ResourcePlugin", "metadata": {"name": name}, "spec": spec})
}

/// Writes down which change the phase ran for, in an object that only etcd is asked for.
fn keep(phase: Phase, word: &str, needs: &[&str]) -> Value {
    let (open, close) = MARK;
    json!({"name": phase.slug(), "needs": needs, "apply": {"manifests": [{
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("{}-${{sandbox.metadata.name}}", phase.slug())},
        "data": {"change": format!("{open}${{{word}}}{close}")},
    }]}})
}

/// Fails where the change says that this phase is to fail, after something has been done.
fn doom(phase: Phase) -> Value {
    json!({"name": "doom", "needs": [phase.slug()], "when": "params.?fail.orValue('') == phase", "apply": {"manifests": [{
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "NOT A NAME"}, "data": {},
    }]}})
}

/// Takes a while in a pod, and gives the change's word on.
fn say() -> Value {
    json!({
        "name": "say",
        "inputs": [
            {"name": "word", "value": "sandbox.spec.description", "as": {"env": "WORD"}},
            {"name": "sleep", "valueFromSandbox": true, "as": {"env": "PAUSE"}},
        ],
        "outputs": [{"name": "word", "valueFromPath": "/out/word"}],
        "script": "#!/bin/sh\nset -eu\nsleep \"${PAUSE:-0}\"\nprintf %s \"$WORD\" >/out/word\n",
    })
}
