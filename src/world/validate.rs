//! What an object must be to be stored. Of built-in kinds: their metadata, and the fields that never change.

use super::ask::{Ask, Part};
use super::refusal::{FieldError, Refusal};
use super::{meta, read};
use serde_json::{Value, json};

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
    '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

pub fn created(ask: &Ask, object: &Value) -> Result<(), Refusal> {
    let mut errors = name_errors(ask, object);
    errors.extend(owner_errors(object));
    if let Some(schema) = ask.kind.schema(&ask.version) {
        errors.extend(schema.check(&read::shown(ask, object), None));
    }
    refused(ask, meta::text(object, "name"), &errors)
}

pub fn updated(ask: &Ask, live: &Value, object: &Value) -> Result<(), Refusal> {
    let mut errors = Vec::new();
    let (known, new) = (meta::strings(live, "finalizers"), meta::strings(object, "finalizers"));
    let added: Vec<String> = new.into_iter().filter(|name| !known.contains(name)).collect();
    if meta::deleting(live) && !added.is_empty() {
        let added: Vec<String> = added.iter().map(|name| format!("{name:?}")).collect();
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.join(", ")
        );
        errors.push(FieldError::forbidden("metadata.finalizers", &why));
    }
    if meta::text(object, "uid") != meta::text(live, "uid") {
        errors.push(immutable("metadata.uid", &object["metadata"]["uid"]));
    }
    errors.extend(owner_errors(object));
    if ask.part == Part::Whole {
        errors.extend(fixed(ask, live, object));
    }
    if let Some(schema) = ask.kind.schema(&ask.version) {
        errors.extend(schema.check(&read::shown(ask, object), Some(&read::shown(ask, live))));
    }
    refused(ask, &ask.name, &errors)
}

fn refused(ask: &Ask, name: &str, errors: &[FieldError]) -> Result<(), Refusal> {
    if errors.is_empty() { Ok(()) } else { Err(Refusal::invalid(&ask.kind.group, &ask.kind.kind, name, errors)) }
}

fn immutable(path: &str, value: &Value) -> FieldError {
    FieldError::invalid(path, value, "field is immutable")
}

fn name_errors(ask: &Ask, object: &Value) -> Vec<FieldError> {
    let name = meta::text(object, "name");
    let rbac = ask.kind.group == "rbac.authorization.k8s.io";
    if name.is_empty() {
        return vec![FieldError::required("metadata.name", "name or generateName is required")];
    }
    let letters = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    let ends = |text: &str| !text.is_empty() && !text.starts_with('-') && !text.ends_with('-');
    let label = |text: &str| letters(text) && ends(text);
    let mut errors = Vec::new();
    let mut wrong = |detail: &str| errors.push(FieldError::invalid("metadata.name", &json!(name), detail));
    match ask.kind.qualified().as_str() {
        _ if rbac => {
            if name == "." || name == ".." {
                wrong(&format!("may not be '{name}'"));
            }
            for part in ["/", "%"].iter().filter(|part| name.contains(**part)) {
                wrong(&format!("may not contain '{part}'"));
            }
        }
        "namespaces" | "services" => {
            if name.len() > 63 {
                wrong("must be no more than 63 bytes");
            }
            if !label(name) {
                wrong(LABEL);
            }
        }
        _ => {
            if name.len() > 253 {
                wrong("must be no more than 253 bytes");
            }
            if !name.split('.').all(label) {
                wrong(SUBDOMAIN);
            }
        }
    }
    errors
}

/// At most one owner controls.
fn owner_errors(object: &Value) -> Vec<FieldError> {
    let references = object["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    let mut errors = Vec::new();
    for reference in references {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if reference[field].as_str().unwrap_or_default().is_empty() {
                let path = format!("metadata.ownerReferences.{field}");
                let value = json!(reference[field].as_str().unwrap_or_default());
                errors.push(FieldError::invalid(&path, &value, "must not be empty"));
            }
        }
    }
    let controllers: Vec<&str> =
        references.iter().filter(|r| r["controller"] == true).filter_map(|r| r["kind"].as_str()).collect();
    if let [first, .., last] = controllers.as_slice() {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {last}"
        );
        errors.push(FieldError::invalid("metadata.ownerReferences", &json!(references), &why));
    }
    errors
}

/// The fields of built-in kinds that stay as they were made.
fn fixed(ask: &Ask, live: &Value, object: &Value) -> Vec<FieldError> {
    let changed = |path: &str| at(live, path) != at(object, path);
    let paths: &[&str] = match ask.kind.qualified().as_str() {
        "deployments.apps" | "replicasets.apps" | "daemonsets.apps" => &["spec.selector"],
        "jobs.batch" => &["spec.selector", "spec.template", "spec.completionMode"],
        "secrets" => &["type"],
        "rolebindings.rbac.authorization.k8s.io" | "clusterrolebindings.rbac.authorization.k8s.io" => &["roleRef"],
        _ => &[],
    };
    let mut errors: Vec<FieldError> =
        paths.iter().filter(|path| changed(path)).map(|path| immutable(path, at(object, path))).collect();
    if matches!(ask.kind.qualified().as_str(), "secrets" | "configmaps") && live["immutable"] == true {
        if object["immutable"] != true {
            errors.push(FieldError::forbidden("immutable", "field is immutable when `immutable` is set"));
        }
        if changed("data") {
            errors.push(FieldError::forbidden("data", "field is immutable when `immutable` is set"));
        }
    }
    if ask.kind.qualified() == "pods" && changeless(live) != changeless(object) {
        errors.push(FieldError::forbidden("spec", POD));
    }
    errors
}

const POD: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(object, |value, name| &value[name])
}

/// The spec of a pod without what may change.
fn changeless(pod: &Value) -> Value {
    let mut spec = pod["spec"].clone();
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            container["image"] = Value::Null;
        }
    }
    for field in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"] {
        spec[field] = Value::Null;
    }
    spec
}
