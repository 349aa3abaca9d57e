//! What the API server itself writes into an object: statuses kept apart, generations, and fields that nobody changes.

use super::ask::{Ask, Part};
use super::kinds::{Generation, Kind};
use super::{defaults, meta};
use serde_json::{Map, Value, json};

/// Defaults and pruning, before anybody admits.
pub fn completed(ask: &Ask, object: &mut Value) {
    match ask.kind.schema(&ask.version) {
        Some(schema) => schema.complete(object),
        None => defaults::fill(&ask.kind, object),
    }
}

/// A kind with a status has none when it is made.
pub fn without_status(kind: &Kind, object: &mut Value) {
    if let (true, Some(fields)) = (kind.status, object.as_object_mut()) {
        fields.remove("status");
    }
}

/// A new object.
pub fn created(kind: &Kind, object: &mut Value) {
    without_status(kind, object);
    let generation = if kind.generation == Generation::None { Value::Null } else { json!(1) };
    meta::set(object, "generation", generation);
    let status = match kind.qualified().as_str() {
        "pods" => Some(json!({"phase": "Pending", "qosClass": "BestEffort"})),
        "namespaces" => {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            let name = meta::text(object, "name").to_owned();
            if !object["metadata"]["labels"].is_object() {
                meta::set(object, "labels", json!({}));
            }
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(name);
            Some(json!({"phase": "Active"}))
        }
        "services" => Some(json!({"loadBalancer": {}})),
        "deployments.apps" => Some(json!({})),
        "replicasets.apps" => Some(json!({"replicas": 0})),
        _ => None,
    };
    if let Some(status) = status {
        object["status"] = status;
    }
}

/// An object that replaces `live`: what this part of it may not change is as it was.
pub fn updated(ask: &Ask, live: &Value, object: &mut Value) {
    match ask.part {
        Part::Status => only_status(ask, live, object),
        Part::Finalize => {
            let finalizers = object["spec"]["finalizers"].clone();
            let managed = object["metadata"]["managedFields"].clone();
            *object = live.clone();
            object["spec"]["finalizers"] = finalizers;
            meta::set(object, "managedFields", managed);
        }
        Part::Whole | Part::Scale => {
            if ask.kind.status {
                meta::take(object, "status", live);
            }
            if ask.kind.qualified() == "namespaces" {
                meta::take(object, "spec", live);
            }
        }
    }
    for field in ["uid", "creationTimestamp"] {
        if meta::text(object, field).is_empty() {
            meta::set(object, field, live["metadata"][field].clone());
        }
    }
    meta::set(object, "creationTimestamp", live["metadata"]["creationTimestamp"].clone());
    meta::set(object, "selfLink", Value::Null);
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        meta::set(object, field, live["metadata"][field].clone());
    }
    let before = meta::generation(live);
    let generation = if moves(&ask.kind, live, object) { before + 1 } else { before };
    meta::set(object, "generation", if generation == 0 { Value::Null } else { json!(generation) });
}

/// A write of the status changes nothing else; of built-in kinds it may change most of the metadata.
fn only_status(ask: &Ask, live: &Value, object: &mut Value) {
    let mut kept = live.clone();
    meta::take(&mut kept, "status", object);
    if ask.kind.custom {
        let managed = object["metadata"]["managedFields"].clone();
        let version = object["metadata"]["resourceVersion"].clone();
        meta::set(&mut kept, "managedFields", managed);
        meta::set(&mut kept, "resourceVersion", version);
    } else {
        meta::take(&mut kept, "metadata", object);
        let fixed = match ask.kind.qualified().as_str() {
            "pods" => Some("ownerReferences"),
            "deployments.apps" => Some("labels"),
            _ => None,
        };
        if let Some(field) = fixed {
            meta::set(&mut kept, field, live["metadata"][field].clone());
        }
    }
    *object = kept;
}

/// Whether a change counts as a new generation.
fn moves(kind: &Kind, live: &Value, object: &Value) -> bool {
    let content = |object: &Value| -> Map<String, Value> {
        let fields = object.as_object().into_iter().flatten();
        let ignored =
            |name: &str| matches!(name, "metadata" | "apiVersion" | "kind") || (kind.status && name == "status");
        fields.filter(|(name, _)| !ignored(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let changed = content(live) != content(object);
    let annotations = |object: &Value| object["metadata"]["annotations"].clone();
    match kind.generation {
        Generation::None => false,
        Generation::Content => changed,
        Generation::ContentAndAnnotations => changed || annotations(live) != annotations(object),
    }
}
