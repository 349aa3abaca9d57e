//! The subresource `scale`.

use super::ask::Ask;
use super::kinds::Kind;
use super::meta;
use super::refusal::Refusal;
use serde_json::{Value, json};

/// The Scale of an object.
pub fn of(kind: &Kind, object: &Value) -> Value {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    let mut scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": number(&object["spec"]["replicas"])},
        "status": {"replicas": number(&object["status"]["replicas"])}});
    if let (false, Some(labels)) = (kind.custom, object["spec"]["selector"]["matchLabels"].as_object()) {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        scale["status"]["selector"] = json!(labels.join(","));
    }
    scale
}

/// `live` with the replicas of a Scale.
pub fn over(ask: &Ask, live: &Value, scale: &Value) -> Result<Value, Refusal> {
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or_default();
    if replicas < 0 {
        let error = super::refusal::FieldError::invalid(
            "spec.replicas",
            &json!(replicas),
            "must be greater than or equal to 0",
        );
        return Err(Refusal::invalid("autoscaling", "Scale", &ask.name, &[error]));
    }
    let mut object = live.clone();
    let version = meta::text(scale, "resourceVersion");
    if !version.is_empty() && version != meta::text(live, "resourceVersion") {
        return Err(Refusal::stale(&ask.kind, &ask.name));
    }
    object["spec"]["replicas"] = json!(replicas);
    Ok(object)
}
