//! What a fork consists of, as a pure function of its baseline: a Deployment, and a Service for each that leads to
//! the baseline.
//!
//! The fork's pods must never be reached through the baseline's Services: every label that a selector asks for gets
//! another value.

use crate::api::{EnvOperation, EnvVar, Fork, Patch, PatchType, labels};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

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
    #[error("customizations.patch.value: {why}")]
    Patch { why: String },
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

fn customize(pod: &mut Value, owner: Owner<'_>, fork: &Fork, key: &OutputKey<'_>) -> Result<(), ForkError> {
    let names: Vec<String> = pod["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|c| c["name"].as_str().map(str::to_owned))
        .collect();
    let known = names.join(", ");
    let exists = |field: String, container: &str| {
        if names.iter().any(|name| name == container) {
            return Ok(());
        }
        Err(ForkError::NoContainer { field, container: container.to_owned(), known: known.clone() })
    };
    let custom = fork.customizations.clone().unwrap_or_default();
    for (index, image) in custom.images.iter().enumerate() {
        let container = match &image.container {
            Some(container) => {
                exists(format!("images[{index}].container"), container)?;
                container.clone()
            }
            None if names.len() == 1 => names[0].clone(),
            None => return Err(ForkError::WhichContainer { index, known: known.clone() }),
        };
        for found in pod["containers"].as_array_mut().into_iter().flatten().filter(|c| c["name"] == json!(container)) {
            found["image"] = json!(image.image);
        }
    }
    for container in pod["containers"].as_array_mut().into_iter().flatten() {
        for (name, value) in [
            ("SIGNADOT_SANDBOX_NAME", owner.name),
            ("SIGNADOT_SANDBOX_ROUTING_KEY", owner.routing_key),
            ("SLUICE_SANDBOX_NAME", owner.name),
            ("SLUICE_SANDBOX_ROUTING_KEY", owner.routing_key),
        ] {
            set_env(container, name, Some(json!({"name": name, "value": value})));
        }
    }
    for (index, env) in custom.env.iter().enumerate() {
        if let Some(container) = &env.container {
            exists(format!("env[{index}].container"), container)?;
        }
        let entry = (env.operation != Some(EnvOperation::Delete)).then(|| variable(env, owner, key));
        for container in pod["containers"].as_array_mut().into_iter().flatten() {
            if env.container.as_ref().is_none_or(|wanted| container["name"] == json!(wanted)) {
                set_env(container, &env.name, entry.clone());
            }
        }
    }
    Ok(())
}

fn variable(env: &EnvVar, owner: Owner<'_>, key: &OutputKey<'_>) -> Value {
    let Some(from) = &env.value_from else {
        return json!({"name": env.name, "value": env.value.clone().unwrap_or_default()});
    };
    let source = if let Some(output) = &from.resource {
        let key = key(&output.name, &output.output_key).unwrap_or_else(|| output.output_key.clone());
        json!({"secretKeyRef": {"name": owner.outputs, "key": key}})
    } else if let Some(map) = &from.config_map {
        json!({"configMapKeyRef": {"name": map.name, "key": map.key}})
    } else {
        let secret = from.secret.clone().unwrap_or_default();
        json!({"secretKeyRef": {"name": secret.name, "key": secret.key}})
    };
    json!({"name": env.name, "valueFrom": source})
}

fn set_env(container: &mut Value, name: &str, entry: Option<Value>) {
    if !container["env"].is_array() {
        container["env"] = json!([]);
    }
    let Some(list) = container["env"].as_array_mut() else { return };
    let at = list.iter().position(|known| known["name"] == json!(name));
    match (at, entry) {
        (Some(at), Some(entry)) => list[at] = entry,
        (Some(at), None) => drop(list.remove(at)),
        (None, Some(entry)) => list.push(entry),
        (None, None) => {}
    }
}

fn patched(deployment: &mut Value, patch: &Patch) -> Result<(), ForkError> {
    let failed = |why: String| ForkError::Patch { why };
    let value: Value = serde_saphyr::from_str(&patch.value).map_err(|e| failed(e.to_string()))?;
    match patch.type_ {
        PatchType::Merge => json_patch::merge(deployment, &value),
        PatchType::Json => {
            let operations: json_patch::Patch = serde_json::from_value(value).map_err(|e| failed(e.to_string()))?;
            json_patch::patch(deployment, &operations).map_err(|e| failed(e.to_string()))?;
        }
    }
    let needed = ["", "/spec", "/spec/template", "/spec/template/metadata", "/spec/template/metadata/labels"];
    match needed.iter().find(|path| !deployment.pointer(path).is_some_and(Value::is_object)) {
        None => Ok(()),
        Some(path) => {
            Err(failed(format!("what it leaves is no Deployment: {:?} must be an object", path.replace('/', "."))))
        }
    }
}

/// Whether a fork runs as it should; what it waits for where not. The rules of `kubectl rollout status`.
pub fn readiness(deployment: &Deployment) -> Result<(), String> {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let (Some(spec), Some(status)) = (&deployment.spec, &deployment.status) else {
        return Err(format!("Deployment {name} has no status yet"));
    };
    if status.observed_generation < deployment.metadata.generation {
        return Err(format!("Deployment {name} has not been observed yet"));
    }
    let failed = status.conditions.iter().flatten().find(|c| {
        (c.type_ == "Progressing" && c.reason.as_deref() == Some("ProgressDeadlineExceeded"))
            || (c.type_ == "ReplicaFailure" && c.status == "True")
    });
    if let Some(condition) = failed {
        return Err(format!("Deployment {name}: {}", condition.message.as_deref().unwrap_or("is not getting on")));
    }
    let wanted = spec.replicas.unwrap_or(1);
    let (updated, available) = (status.updated_replicas.unwrap_or(0), status.available_replicas.unwrap_or(0));
    if updated < wanted || status.replicas.unwrap_or(0) > updated || available < updated {
        return Err(format!("Deployment {name}: {available} of {wanted} pods available"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const OWNER: Owner<'static> =
        Owner { name: "feature-x", uid: "u", namespace: "shop", routing_key: "r", outputs: "o" };

    fn baseline() -> Value {
        json!({"metadata": {"name": "cart", "labels": {"app.kubernetes.io/instance": "argo"}}, "spec": {
            "replicas": 5, "selector": {"matchLabels": {"app": "cart"}},
            "template": {"metadata": {"labels": {"app": "cart", "tier": "web", "version": "1"}},
                "spec": {"containers": [{"name": "main", "image": "cart:1", "env": [{"name": "OLD", "value": "1"}]}]}}}})
    }

    fn services() -> Vec<Value> {
        vec![
            json!({"metadata": {"name": "cart"}, "spec": {"selector": {"tier": "web"}, "ports": [{"port": 80, "nodePort": 30000}]}}),
            json!({"metadata": {"name": "other"}, "spec": {"selector": {"app": "other"}}}),
            json!({"metadata": {"name": "all"}, "spec": {}}),
        ]
    }

    fn fork(yaml: &str) -> Fork {
        serde_saphyr::from_str(yaml).unwrap()
    }

    fn made(yaml: &str) -> Result<Vec<Value>, ForkError> {
        objects(OWNER, &fork(yaml), &baseline(), &services(), &|r, k| Some(format!("{r}.step.{k}")))
    }

    #[test]
    fn no_selector_of_the_baseline_reaches_the_fork() {
        let made = made("forkOf: {kind: Deployment, name: cart}").unwrap();
        let labels = &made[0]["spec"]["template"]["metadata"]["labels"];
        assert_eq!(
            (&labels["app"], &labels["tier"], &labels["version"]),
            (&json!("cart-feature-x"), &json!("web-feature-x"), &json!("1"))
        );
        assert_eq!(made[0]["metadata"]["labels"]["app.kubernetes.io/instance"], Value::Null);
        assert_eq!(made[0]["spec"]["replicas"], 1);
    }

    #[test]
    fn no_patch_brings_the_baselines_labels_back() {
        let patch = "patch: {type: merge, value: 'spec: {selector: {matchLabels: {app: cart}}, template: {metadata: {labels: {app: cart, more: a}}}}'}";
        let made = made(&format!("{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{{patch}}}}}")).unwrap();
        let labels = &made[0]["spec"]["template"]["metadata"]["labels"];
        assert_eq!((&labels["app"], &labels["more"]), (&json!("cart-feature-x"), &json!("a")));
        assert_eq!(
            made[0]["spec"]["selector"],
            json!({"matchLabels": selector(OWNER, &fork("forkOf: {kind: Deployment, name: cart}"))})
        );
    }

    #[test]
    fn each_service_that_leads_to_the_baseline_is_forked() {
        let made = made("forkOf: {kind: Deployment, name: cart}").unwrap();
        assert_eq!(made.len(), 2);
        assert_eq!(made[1]["metadata"]["name"], "cart-feature-x");
        assert_eq!(made[1]["spec"]["selector"], made[0]["spec"]["selector"]["matchLabels"]);
        assert_eq!(made[1]["spec"]["ports"], json!([{"port": 80}]));
    }

    #[test]
    fn images_variables_and_patches_are_customised() {
        let made = made(
            "{forkOf: {kind: Deployment, name: cart}, customizations: {images: [{image: 'cart:pr'}], env: [{name: OLD, operation: delete},
             {name: HOST, valueFrom: {resource: {name: db, outputKey: host}}}], patch: {type: merge, value: 'spec: {replicas: 2}'}}}",
        )
        .unwrap();
        let container = &made[0]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!((&container["image"], &made[0]["spec"]["replicas"]), (&json!("cart:pr"), &json!(2)));
        let env = container["env"].as_array().unwrap();
        assert!(!env.iter().any(|e| e["name"] == "OLD"));
        assert!(
            env.contains(&json!({"name": "HOST", "valueFrom": {"secretKeyRef": {"name": "o", "key": "db.step.host"}}}))
        );
        assert!(env.contains(&json!({"name": "SIGNADOT_SANDBOX_ROUTING_KEY", "value": "r"})));
    }

    #[rstest]
    #[case(
        "images: [{image: a, container: side}]",
        "customizations.images[0].container: the workload has no container \"side\" (it has main)"
    )]
    #[case(
        "env: [{name: A, value: b, container: side}]",
        "customizations.env[0].container: the workload has no container \"side\" (it has main)"
    )]
    #[case("patch: {type: json, value: '[{op: remove, path: /spec/none}]'}", "customizations.patch.value: ")]
    #[case("patch: {type: merge, value: 'text'}", "customizations.patch.value: what it leaves is no Deployment")]
    #[case(
        "patch: {type: merge, value: 'spec: {template: {metadata: {labels: text}}}'}",
        "customizations.patch.value: what it leaves is no Deployment: \".spec.template.metadata.labels\" must be an object"
    )]
    fn what_does_not_fit_is_named(#[case] customizations: &str, #[case] message: &str) {
        let error =
            made(&format!("{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{{customizations}}}}}"))
                .unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }

    #[test]
    fn a_deployment_is_ready_when_its_new_pods_are() {
        let deployment = |observed: i64, updated: i32, available: i32| -> Deployment {
            serde_json::from_value(json!({"metadata": {"name": "d", "generation": 2}, "spec": {"replicas": 1, "selector": {}, "template": {}},
                "status": {"observedGeneration": observed, "replicas": 1, "updatedReplicas": updated, "availableReplicas": available}})).unwrap()
        };
        assert_eq!(readiness(&deployment(2, 1, 1)), Ok(()));
        assert!(readiness(&deployment(1, 1, 1)).is_err());
        assert_eq!(readiness(&deployment(2, 1, 0)), Err("Deployment d: 0 of 1 pods available".into()));
        assert!(readiness(&deployment(2, 0, 1)).is_err());
    }
}
