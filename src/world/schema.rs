//! The schema of a custom kind: pruning, defaults, and its rules in CEL.

use super::refusal::FieldError;
use super::structural;
use kube_cel::{CompiledSchema, ErrorKind, RootContext, ValidationError, Validator, compile_schema};
use serde_json::{Map, Value};

/// One version's `openAPIV3Schema`, read once.
pub struct Schema {
    raw: Value,
    rules: CompiledSchema,
    context: RootContext,
    has_rules: bool,
    preserves: bool,
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Schema").field("kind", &self.context.kind).finish_non_exhaustive()
    }
}

impl Schema {
    pub fn new(raw: Value, group: &str, api_version: &str, kind: &str, preserves: bool) -> Self {
        let context =
            RootContext { api_version: api_version.to_owned(), api_group: group.to_owned(), kind: kind.to_owned() };
        let has_rules = raw.to_string().contains("x-kubernetes-validations");
        Self { rules: compile_schema(&raw), raw, context, has_rules, preserves }
    }

    pub fn raw(&self) -> &Value {
        &self.raw
    }

    /// Drops what the schema does not know, and fills in its defaults.
    pub fn complete(&self, object: &mut Value) {
        if !self.preserves {
            prune(object, &self.raw, true);
        }
        default(object, &self.raw);
    }

    /// What is wrong with an object, `old` being what it replaces.
    pub fn check(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = structural::check(object, &self.raw);
        if !self.has_rules {
            return errors;
        }
        if errors.iter().any(FieldError::blocks_rules) {
            errors.push(FieldError::invalid("<nil>", &Value::Null, UNCHECKED));
            return errors;
        }
        let validator = Validator::new();
        let context = Some(&self.context);
        if let Err(broken) = validator.validate_compiled_with_context(&self.rules, object, old, context) {
            errors.extend(broken.into_iter().map(|error| self.broken(&error)));
        }
        errors
    }

    /// A broken rule in the words of the API server, which shows the type in the value's place.
    fn broken(&self, error: &ValidationError) -> FieldError {
        let path = error.field_path.as_str();
        let kind = Value::from(type_at(&self.raw, path));
        let path = if path.is_empty() { "<nil>" } else { path };
        let detail = match error.kind {
            ErrorKind::ValidationFailure => error.message.clone(),
            _ => format!("rule evaluation error: {}", error.message),
        };
        match error.reason.as_deref() {
            Some("FieldValueRequired") => FieldError::required(path, &detail),
            Some("FieldValueForbidden") => FieldError::forbidden(path, &detail),
            Some("FieldValueDuplicate") => FieldError::duplicate(path, &kind),
            _ => FieldError::invalid(path, &kind, &detail),
        }
    }
}

const UNCHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing \
    errors to complete validation";

fn is(schema: &Value, mark: &str) -> bool {
    schema[mark] == true
}

/// The schema of a field of a map.
pub fn of_field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    schema["properties"].get(name).or_else(|| schema.get("additionalProperties").filter(|more| more.is_object()))
}

/// The type that a schema gives to a path such as `spec.items[0].name`.
fn type_at<'a>(schema: &'a Value, path: &str) -> &'a str {
    let mut at = schema;
    for word in path.split(['.', '[']).filter(|word| !word.is_empty()) {
        let inner = if word.ends_with(']') && at.get("items").is_some() {
            at.get("items")
        } else {
            of_field(at, word.trim_end_matches(']'))
        };
        let Some(inner) = inner else { break };
        at = inner;
    }
    at["type"].as_str().unwrap_or("object")
}

/// The fields that every object has and every embedded object may have.
const COMMON: &[&str] = &["apiVersion", "kind", "metadata"];

fn prune(value: &mut Value, schema: &Value, root: bool) {
    match value {
        Value::Object(fields) => {
            let common = root || is(schema, "x-kubernetes-embedded-resource");
            let open = is(schema, "x-kubernetes-preserve-unknown-fields") || schema["additionalProperties"] == true;
            fields.retain(|name, _| {
                open || of_field(schema, name).is_some() || (common && COMMON.contains(&name.as_str()))
            });
            for (name, value) in fields.iter_mut().filter(|(name, _)| !(common && COMMON.contains(&name.as_str()))) {
                if let Some(inner) = of_field(schema, name) {
                    prune(value, inner, false);
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = schema.get("items") {
                items.iter_mut().for_each(|item| prune(item, inner, false));
            }
        }
        _ => {}
    }
}

fn default(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => default_fields(fields, schema),
        Value::Array(items) => {
            if let Some(inner) = schema.get("items") {
                items.iter_mut().for_each(|item| default(item, inner));
            }
        }
        _ => {}
    }
}

/// Null where it is not allowed counts as absent.
fn default_fields(fields: &mut Map<String, Value>, schema: &Value) {
    fields.retain(|name, value| !value.is_null() || of_field(schema, name).is_none_or(|inner| is(inner, "nullable")));
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        if let (false, Some(value)) = (fields.contains_key(name), inner.get("default")) {
            fields.insert(name.clone(), value.clone());
        }
    }
    for (name, value) in fields.iter_mut() {
        if let Some(inner) = of_field(schema, name) {
            default(value, inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Schema {
        let raw = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["size"],
            "x-kubernetes-validations": [
                {"rule": "self.size >= oldSelf.size", "message": "size must not shrink"}],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "mode": {"type": "string", "default": "fast", "enum": ["fast", "slow"]},
                "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}});
        Schema::new(raw, "x.io", "x.io/v1", "Thing", false)
    }

    fn errors(object: &Value, old: Option<&Value>) -> Vec<String> {
        schema().check(object, old).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unknown_fields_go_and_defaults_come() {
        let mut object = json!({"kind": "Thing", "metadata": {"name": "a"},
            "spec": {"size": 1, "odd": 2, "mode": null, "any": {"x": 1}}});
        schema().complete(&mut object);
        assert_eq!(object["spec"], json!({"size": 1, "mode": "fast", "any": {"x": 1}}));
        assert_eq!(object["metadata"]["name"], "a");
    }

    #[test]
    fn errors_read_as_those_of_the_api_server() {
        assert_eq!(
            errors(&json!({"spec": {"size": 12}}), None),
            ["spec.size: Invalid value: 12: spec.size in body should be less than or equal to 9"]
        );
        assert_eq!(
            errors(&json!({"spec": {"size": "x"}}), None)[0],
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\""
        );
        assert_eq!(errors(&json!({"spec": {}}), None)[0], "spec.size: Required value");
        assert_eq!(
            errors(&json!({"spec": {"size": 1, "mode": "odd"}}), None)[0],
            "spec.mode: Unsupported value: \"odd\": supported values: \"fast\", \"slow\""
        );
    }

    #[test]
    fn a_transition_rule_sees_what_was() {
        let old = json!({"spec": {"size": 5}});
        assert_eq!(errors(&json!({"spec": {"size": 6}}), Some(&old)), [""; 0]);
        assert_eq!(
            errors(&json!({"spec": {"size": 4}}), Some(&old)),
            ["spec: Invalid value: \"object\": size must not shrink"]
        );
        assert_eq!(errors(&json!({"spec": {"size": 4}}), None), [""; 0]);
    }
}
