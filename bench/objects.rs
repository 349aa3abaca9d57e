//! The sandboxes and plugins that are measured with, and what they need in the cluster.

use crate::client::until_answered;
use crate::server;
use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use sluice::api::{API_VERSION, PhaseRun, ResourcePlugin, Sandbox};
use std::future::Future;
use std::time::{Duration, Instant};

pub const NAMESPACE: &str = "bench";
/// How many steps a chain has, and how many hooks the chart in `bench/chart`.
pub const STEPS: usize = 5;
const COMPLETE_WITHIN: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const IMAGE: &str = "cluster.local/busybox:1";
const RUNNER: &str = "bench-runner";

pub fn sandboxes(client: &Client) -> Api<Sandbox> {
    Api::namespaced(client.clone(), NAMESPACE)
}

/// A sandbox with one resource of each of these plugins.
pub fn sandbox(name: &str, plugins: &[&str]) -> anyhow::Result<Sandbox> {
    let resources: Vec<Value> =
        plugins.iter().map(|plugin| json!({"name": plugin, "plugin": plugin, "params": {"size": "small"}})).collect();
    Ok(serde_json::from_value(json!({
        "apiVersion": API_VERSION,
        "kind": "Sandbox",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"description": "measured by make bench", "resources": resources},
    }))?)
}

/// How long the API server takes to answer a create.
pub async fn create(client: &Client, name: &str, plugins: &[&str]) -> anyhow::Result<Duration> {
    let (api, sandbox, post) = (sandboxes(client), sandbox(name, plugins)?, PostParams::default());
    let began = Instant::now();
    until_answered(|| api.create(&post, &sandbox)).await.with_context(|| format!("sandbox {name}"))?;
    Ok(began.elapsed())
}

/// Waits until every phase of a sandbox has run.
pub async fn complete(client: &Client, name: &str) -> anyhow::Result<()> {
    let api = sandboxes(client);
    let is_complete = || async {
        let found = api.get(name).await?;
        let generation = found.metadata.generation;
        let status = found.status.unwrap_or_default();
        let done = status.conditions.iter().any(|condition| {
            condition.type_ == "PhasesComplete"
                && condition.status == "True"
                && condition.observed_generation == generation
        });
        anyhow::Ok(done)
    };
    until(&format!("the phases of sandbox {name}"), is_complete).await
}

/// Waits until it is so.
pub async fn until<F>(what: &str, is_so: impl Fn() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let since = Instant::now();
    while !is_so().await? {
        anyhow::ensure!(since.elapsed() < COMPLETE_WITHIN, "{what}: not after {COMPLETE_WITHIN:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// The runs of a sandbox.
pub async fn runs(client: &Client, sandbox: &str) -> anyhow::Result<Vec<PhaseRun>> {
    let all: Api<PhaseRun> = Api::all(client.clone());
    let selector = sluice::api::labels::selector(NAMESPACE, sandbox);
    let of_sandbox = ListParams::default().labels(&selector);
    Ok(all.list(&of_sandbox).await?.items)
}

/// Makes a plugin of this spec; returns it as it is stored.
pub async fn plugin(client: &Client, name: &str, spec: Value) -> anyhow::Result<ResourcePlugin> {
    let plugin = json!({"apiVersion": API_VERSION, "kind": "ResourcePlugin", "metadata": {"name": name}, "spec": spec});
    let plugin: ResourcePlugin = serde_json::from_value(plugin)?;
    let plugins: Api<ResourcePlugin> = Api::all(client.clone());
    plugins.create(&PostParams::default(), &plugin).await.with_context(|| format!("plugin {name}"))
}

/// The spec of a plugin with one workflow of scripts, each after the one before.
pub fn scripts(workflow: &str) -> Value {
    let steps: Vec<Value> = (0..STEPS).map(|index| after(index, json!({"script": "#!/bin/sh\ntrue"}))).collect();
    json!({"runner": {"image": IMAGE}, workflow: steps})
}

/// The same of ConfigMaps that are applied, so many of them.
pub fn applies(workflow: &str, steps: usize) -> Value {
    let config_map = |index| {
        let name = format!("${{sandbox.metadata.name}}-{index}");
        json!({"apply": {"manifests": [{
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "${sandbox.metadata.namespace}"},
            "data": {"size": "${params.size}"},
        }]}})
    };
    let steps: Vec<Value> = (0..steps).map(|index| after(index, config_map(index))).collect();
    json!({"runner": {"serviceAccountName": RUNNER}, workflow: steps})
}

fn after(index: usize, mut step: Value) -> Value {
    step["name"] = json!(format!("step-{index}"));
    if index > 0 {
        step["needs"] = json!([format!("step-{}", index - 1)]);
    }
    step
}

/// The namespace, and the account that `apply` steps act as.
pub async fn set_up(client: &Client) -> anyhow::Result<()> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": RUNNER}}))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), server::RUNNERS);
    accounts.create(&PostParams::default(), &account).await?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": RUNNER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": RUNNER, "namespace": server::RUNNERS}],
    }))?;
    Api::<ClusterRoleBinding>::all(client.clone()).create(&PostParams::default(), &binding).await?;
    Ok(())
}
