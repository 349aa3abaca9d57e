//! Short ways to the fields of `metadata`.

use serde_json::Value;

pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

pub fn strings(object: &Value, field: &str) -> Vec<String> {
    let items = object["metadata"][field].as_array();
    items.into_iter().flatten().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}

pub fn deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or_default()
}

/// Sets a field of `metadata`; an empty text, an empty list and null remove it. What has no `metadata` stays as it is:
/// requests without one never come so far.
pub fn set(object: &mut Value, field: &str, value: Value) {
    let Some(fields) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let empty = match &value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    if empty {
        fields.remove(field);
    } else {
        fields.insert(field.to_owned(), value);
    }
}

/// Takes a top-level field from another object, also its absence.
pub fn take(object: &mut Value, field: &str, from: &Value) {
    let Some(fields) = object.as_object_mut() else { return };
    match from.get(field) {
        Some(value) => drop(fields.insert(field.to_owned(), value.clone())),
        None => drop(fields.remove(field)),
    }
}

/// An ownerReference.
#[derive(Debug, Clone)]
pub struct Owner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub blocks: bool,
}

pub fn owners(object: &Value) -> Vec<Owner> {
    let references = object["metadata"]["ownerReferences"].as_array();
    let text = |reference: &Value, field: &str| reference[field].as_str().unwrap_or_default().to_owned();
    references
        .into_iter()
        .flatten()
        .map(|reference| Owner {
            api_version: text(reference, "apiVersion"),
            kind: text(reference, "kind"),
            name: text(reference, "name"),
            uid: text(reference, "uid"),
            blocks: reference["blockOwnerDeletion"].as_bool().unwrap_or_default(),
        })
        .collect()
}
