//! What a fork consists of, as a pure function of its baseline: a Deployment, and a Service for each that leads to
//! the baseline.
//!
//! The fork's pods must never be reached through the baseline's Services: every label that a selector asks for gets
//! another value.

mod customize;
mod readiness;

pub use readiness::readiness;

use super::kept::KeptService;
use crate::api::{Fork, Patch, labels};
use crate::plan::patch::PatchError;
use crate::plan::{bounds, cost, patch, references};
use customize::customize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Services that may lead to one baseline: each is an object of the fork's, written at every look.
const MOST_SERVICES: usize = 64;
/// What a baseline's spec may take in memory, in bytes. A variable takes 1 KiB of it, so this is ten thousand of them: no
/// workload that anybody runs has a tenth. A fork of it takes up to four times that while it is put together.
pub const MOST_OF_BASELINE: usize = 10 * MIB;
/// What the ports of all Services of a fork may take in memory, in bytes: three thousand of them.
const MOST_OF_PORTS: usize = 4 * MIB;
pub(super) const MIB: usize = 1024 * 1024;

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
    #[error(
        "customizations.patch.value: the fork would show outputs of resources that its variables do not name: name each in customizations.env, as valueFrom.resource"
    )]
    Outputs,
    #[error("customizations.env: in each of {containers} containers these variables have {} KiB together, and a fork can have {} KiB: set fewer, or name their container", .bytes / 1024, bounds::MOST_BYTES / 1024)]
    Variables { containers: usize, bytes: usize },
    #[error(
        "forkOf.name: {count} Services lead to the workload, and at most {MOST_SERVICES} are forked with it: fork one that fewer lead to"
    )]
    Services { count: usize },
    #[error(
        "forkOf.name: the spec of Deployment {name:?} would take {} MiB in memory, and a fork is made of at most {} MiB: it has more list items and fields than a fork can have; take out what it does not need, or fork another", .cost.div_ceil(MIB), MOST_OF_BASELINE / MIB)]
    Baseline { name: String, cost: usize },
    #[error(
        "forkOf.name: the ports of the Services that lead to the workload would take {} MiB in memory, and a fork has at most {} MiB of them: give these Services fewer ports", .cost.div_ceil(MIB), MOST_OF_PORTS / MIB)]
    Ports { cost: usize },
    #[error(
        "forkOf.name: the Services of namespace {namespace:?} are more than Sluice looks through to find those that lead to the workload ({most}): delete those that nobody needs, or their annotations"
    )]
    TooManyServices { namespace: String, most: String },
    #[error("it cannot be put together: this is a fault of Sluice's, see its log; change the fork's customizations")]
    Broken,
}

/// Finds the key in the outputs' Secret of a resource's output: (resource, outputKey) → key.
pub type OutputKey<'a> = dyn Fn(&str, &str) -> Option<String> + 'a;

/// The name of what is forked from `baseline`.
pub fn name(baseline: &str, owner: Owner<'_>) -> String {
    labels::name(&format!("{baseline}-{}", owner.name), 63)
}

/// The objects of a fork, to be applied. `spec` is the baseline's.
pub fn objects(
    owner: Owner<'_>,
    fork: &Fork,
    spec: Value,
    services: &[KeptService],
    key: &OutputKey<'_>,
) -> Result<Vec<Value>, ForkError> {
    let pod_labels = spec["template"]["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let leading: Vec<(&KeptService, Selector)> =
        services.iter().filter_map(|service| Some((service, leads(service, &pod_labels)?))).collect();
    if leading.len() > MOST_SERVICES {
        return Err(ForkError::Services { count: leading.len() });
    }
    let cost = leading.iter().filter_map(|(service, _)| service.spec.ports.as_ref());
    let cost = cost.map(|ports| cost::of(ports.get().as_bytes()).objects).sum();
    if cost > MOST_OF_PORTS {
        return Err(ForkError::Ports { cost });
    }
    let own = spec["selector"]["matchLabels"].as_object().into_iter().flatten().map(|(key, _)| key.clone());
    let mut selected: BTreeSet<String> = own.collect();
    let mut made = Vec::new();
    for (service, selector) in leading {
        selected.extend(selector.into_keys());
        made.push(self::service(owner, fork, service));
    }
    let mut all = vec![deployment(owner, fork, spec, &pod_labels, &selected, key)?];
    all.append(&mut made);
    Ok(all)
}

type Selector = BTreeMap<String, String>;

/// The selector of a Service that leads to pods with these labels.
fn leads(service: &KeptService, pod_labels: &Map<String, Value>) -> Option<Selector> {
    // What was forked for a sandbox is nobody's baseline.
    if service.metadata.labels.is_some() {
        return None;
    }
    let selector: Selector = serde_json::from_str(service.spec.selector.as_ref()?.get()).ok()?;
    let leads = selector.iter().all(|(key, value)| pod_labels.get(key).and_then(Value::as_str) == Some(value));
    (leads && !selector.is_empty()).then_some(selector)
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
    mut spec: Value,
    pod_labels: &Map<String, Value>,
    selected: &BTreeSet<String>,
    key: &OutputKey<'_>,
) -> Result<Value, ForkError> {
    let patch = fork.customizations.as_ref().and_then(|c| c.patch.as_ref());
    let baseline = patch.map(|_| spec["template"].clone());
    spec["replicas"] = json!(1);
    spec["selector"] = json!({"matchLabels": selector(owner, fork)});
    let mut template_labels = Map::new();
    for (label, value) in pod_labels {
        let value = match value.as_str() {
            Some(text) if selected.contains(label) => {
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
    let is_kept = |label: &String| selected.contains(label) || own.get(label).is_some();
    let kept: Vec<(String, Value)> =
        template_labels.iter().filter(|(label, _)| is_kept(label)).map(|(l, v)| (l.clone(), v.clone())).collect();
    spec["template"]["metadata"]["labels"] = Value::Object(template_labels);
    if let Some(metadata) = spec["template"]["metadata"].as_object_mut() {
        metadata.remove("creationTimestamp");
    }
    customize(&mut spec["template"]["spec"], owner, fork, key)?;
    let shown = references::keys(&spec["template"], owner.outputs);
    let mut deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": spec});
    if let (Some(patch), Some(baseline)) = (patch, baseline) {
        patched(&mut deployment, patch)?;
        all_named(&deployment["spec"]["template"], fork, &baseline, owner, &shown)?;
        drop(baseline);
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
        "annotations": deployment["metadata"]["annotations"].take(),
        "ownerReferences": owner_reference(owner),
    });
    if deployment["metadata"]["annotations"].is_null()
        && let Some(metadata) = deployment["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
    Ok(deployment)
}

fn service(owner: Owner<'_>, fork: &Fork, baseline: &KeptService) -> Value {
    let ports = baseline.spec.ports.as_ref().map(|ports| serde_json::from_str(ports.get()));
    // The API server has given them, so they can be read.
    let mut ports: Vec<Value> = ports.and_then(Result::ok).unwrap_or_default();
    for port in ports.iter_mut().filter_map(Value::as_object_mut) {
        port.remove("nodePort");
    }
    let headless = baseline.spec.cluster_ip.as_deref() == Some("None");
    let mut spec = json!({"ports": ports, "selector": selector(owner, fork), "type": "ClusterIP"});
    if headless {
        spec["clusterIP"] = json!("None");
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name(baseline.metadata.name.as_deref().unwrap_or_default(), owner),
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

/// What a patch leaves refers to nothing that its author was not asked about. `shown` are the keys of the outputs that
/// the fork's variables name.
fn all_named(
    template: &Value,
    fork: &Fork,
    baseline: &Value,
    owner: Owner<'_>,
    shown: &BTreeSet<Option<String>>,
) -> Result<(), ForkError> {
    let named = references::named(&serde_json::to_value(fork).unwrap_or_default());
    match references::unnamed(template, baseline, &named, owner.outputs, shown) {
        None => Ok(()),
        Some((_, name)) if name == owner.outputs => Err(ForkError::Outputs),
        Some((kind, name)) => Err(ForkError::Unnamed { kind: kind.name(), name }),
    }
}

#[cfg(test)]
mod tests;
