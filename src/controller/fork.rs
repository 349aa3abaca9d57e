//! What a fork consists of, as a pure function of its baseline: a Deployment, and a Service for each that leads to
//! the baseline.
//!
//! The fork's pods must never be reached through the baseline's Services: every label that a selector asks for gets
//! another value.

mod customize;
mod readiness;

pub use readiness::readiness;

use crate::api::{Fork, Patch, labels};
use crate::plan::patch::PatchError;
use crate::plan::{bounds, patch, references};
use customize::customize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Services that may lead to one baseline: each is an object of the fork's, written at every look.
const MOST_SERVICES: usize = 64;

/// The sandbox that a fork belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    pub name: &'a str,
    pub uid: &'a str,
    pub namespace: &'a str,
    pub routing_key: &'a str,
    /// The Secret beside the sandbox that holds the outputs of its resources.
    pub outputs: &'a str,
}

/// Why a fork cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForkError {
    #[error("there is no {kind} {name:?} in namespace {namespace:?} to fork")]
    NoBaseline { kind: String, name: String, namespace: String },
    #[error("customizations.{field}: the workload has no container {container:?} (it has {known})")]
    NoContainer { field: String, container: String, known: String },
    #[error("customizations.images[{index}].container is missing: the workload has several ({known})")]
    WhichContainer { index: usize, known: String },
    #[error("customizations.patch.value: {0}")]
    Patch(#[from] PatchError),
    #[error("customizations.patch.value: what it leaves is no Deployment: {path:?} must be an object")]
    Shape { path: String },
    #[error(
        "customizations.patch.value: the fork would use {kind} {name:?}, which neither its baseline nor its customizations name: write that name in the value of the patch"
    )]
    Unnamed { kind: &'static str, name: String },
    #[error("customizations.env: in each of {containers} containers these variables have {} KiB together, and a fork can have {} KiB: set fewer, or name their container", .bytes / 1024, bounds::MOST_BYTES / 1024)]
    Variables { containers: usize, bytes: usize },
    #[error(
        "forkOf.name: {count} Services lead to the workload, and at most {MOST_SERVICES} are forked with it: fork one that fewer lead to"
    )]
    Services { count: usize },
    #[error("it cannot be put together: this is a fault of Sluice's, see its log; change the fork's customizations")]
    Broken,
}

/// Finds the key in the outputs' Secret of a resource's output: (resource, outputKey) → key.
pub type OutputKey<'a> = dyn Fn(&str, &str) -> Option<String> + 'a;

/// The name of what is forked from `baseline`.
pub fn name(baseline: &str, owner: Owner<'_>) -> String {
    labels::name(&format!("{baseline}-{}", owner.name), 63)
}

/// The objects of a fork, to be applied.
pub fn objects(
    owner: Owner<'_>,
    fork: &Fork,
    baseline: &Value,
    services: &[Value],
    key: &OutputKey<'_>,
) -> Result<Vec<Value>, ForkError> {
    let pod_labels = baseline["spec"]["template"]["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let leading: Vec<&Value> = services.iter().filter(|service| selects(service, &pod_labels)).collect();
    if leading.len() > MOST_SERVICES {
        return Err(ForkError::Services { count: leading.len() });
    }
    let mut selected: BTreeSet<&str> = baseline["spec"]["selector"]["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, _)| k.as_str())
        .collect();
    for service in &leading {
        selected.extend(service["spec"]["selector"].as_object().into_iter().flatten().map(|(k, _)| k.as_str()));
    }
    let mut all = vec![deployment(owner, fork, baseline, &pod_labels, &selected, key)?];
    all.extend(leading.into_iter().map(|service| self::service(owner, fork, service)));
    Ok(all)
}

fn selects(service: &Value, pod_labels: &Map<String, Value>) -> bool {
    let selector = service["spec"]["selector"].as_object();
    // What was forked for a sandbox is nobody's baseline.
    let forked = service["metadata"]["labels"][labels::SANDBOX_UID].is_string();
    !forked && selector.is_some_and(|s| !s.is_empty() && s.iter().all(|(k, v)| pod_labels.get(k) == Some(v)))
}

fn own_labels(owner: Owner<'_>, fork: &Fork) -> Value {
    json!({
        labels::SANDBOX: labels::value(owner.name),
        labels::SANDBOX_UID: owner.uid,
        labels::FORK_OF: labels::value(&fork.fork_of.name),
        "app.kubernetes.io/managed-by": labels::MANAGER,
        labels::NO_BACKUP: "true",
    })
}

/// What alone tells a fork's pods from all others.
fn selector(owner: Owner<'_>, fork: &Fork) -> Value {
    json!({labels::SANDBOX_UID: owner.uid, labels::FORK_OF: labels::value(&fork.fork_of.name)})
}

fn owner_reference(owner: Owner<'_>) -> Value {
    json!([{"apiVersion": crate::api::API_VERSION, "kind": "Sandbox", "name": owner.name, "uid": owner.uid, "controller": true}])
}

fn deployment(
    owner: Owner<'_>,
    fork: &Fork,
    baseline: &Value,
    pod_labels: &Map<String, Value>,
    selected: &BTreeSet<&str>,
    key: &OutputKey<'_>,
) -> Result<Value, ForkError> {
    let mut spec = baseline["spec"].clone();
    spec["replicas"] = json!(1);
    spec["selector"] = json!({"matchLabels": selector(owner, fork)});
    let mut template_labels = Map::new();
    for (label, value) in pod_labels {
        let value = match value.as_str() {
            Some(text) if selected.contains(label.as_str()) => {
                json!(labels::value(&format!("{text}-{}", owner.name)))
            }
            _ => value.clone(),
        };
        template_labels.insert(label.clone(), value);
    }
    if let Value::Object(own) = own_labels(owner, fork) {
        template_labels.extend(own);
    }
    // What a patch must not bring back: the baseline's Services would lead to the fork.
    let own = own_labels(owner, fork);
    let is_kept = |label: &String| selected.contains(label.as_str()) || own.get(label).is_some();
    let kept: Vec<(String, Value)> =
        template_labels.iter().filter(|(label, _)| is_kept(label)).map(|(l, v)| (l.clone(), v.clone())).collect();
    spec["template"]["metadata"]["labels"] = Value::Object(template_labels);
    if let Some(metadata) = spec["template"]["metadata"].as_object_mut() {
        metadata.remove("creationTimestamp");
    }
    customize(&mut spec["template"]["spec"], owner, fork, key)?;
    let mut deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": spec});
    if let Some(patch) = fork.customizations.as_ref().and_then(|c| c.patch.as_ref()) {
        patched(&mut deployment, patch)?;
        all_named(&deployment, fork, baseline, owner)?;
        deployment["spec"]["selector"] = json!({"matchLabels": selector(owner, fork)});
        for (label, value) in kept {
            deployment["spec"]["template"]["metadata"]["labels"][&label] = value;
        }
    }
    deployment["apiVersion"] = json!("apps/v1");
    deployment["kind"] = json!("Deployment");
    deployment["metadata"] = json!({
        "name": name(&fork.fork_of.name, owner),
        "namespace": owner.namespace,
        "labels": own_labels(owner, fork),
        "annotations": deployment["metadata"]["annotations"].clone(),
        "ownerReferences": owner_reference(owner),
    });
    if deployment["metadata"]["annotations"].is_null()
        && let Some(metadata) = deployment["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
    Ok(deployment)
}

fn service(owner: Owner<'_>, fork: &Fork, baseline: &Value) -> Value {
    let ports: Vec<Value> = baseline["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|port| {
            let mut port = port.clone();
            if let Some(port) = port.as_object_mut() {
                port.remove("nodePort");
            }
            port
        })
        .collect();
    let headless = baseline["spec"]["clusterIP"] == json!("None");
    let mut spec = json!({"ports": ports, "selector": selector(owner, fork), "type": "ClusterIP"});
    if headless {
        spec["clusterIP"] = json!("None");
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name(baseline["metadata"]["name"].as_str().unwrap_or_default(), owner),
            "namespace": owner.namespace,
            "labels": own_labels(owner, fork),
            "ownerReferences": owner_reference(owner),
        },
        "spec": spec,
    })
}

fn patched(deployment: &mut Value, patch: &Patch) -> Result<(), ForkError> {
    patch::apply(deployment, &patch::read(patch)?, &mut patch::Work::default())?;
    let needed = ["", "/spec", "/spec/template", "/spec/template/metadata", "/spec/template/metadata/labels"];
    match needed.iter().find(|path| !deployment.pointer(path).is_some_and(Value::is_object)) {
        None => Ok(()),
        Some(path) => Err(ForkError::Shape { path: path.replace('/', ".") }),
    }
}

/// What a patch leaves refers to nothing that its author was not asked about.
fn all_named(deployment: &Value, fork: &Fork, baseline: &Value, owner: Owner<'_>) -> Result<(), ForkError> {
    let named = references::named(&serde_json::to_value(fork).unwrap_or_default());
    let template = |of: &Value| of["spec"]["template"].clone();
    match references::unnamed(&template(deployment), &template(baseline), &named, owner.outputs) {
        None => Ok(()),
        Some((kind, name)) => Err(ForkError::Unnamed { kind: kind.name(), name }),
    }
}

#[cfg(test)]
mod tests;
