//! Pieces of schema that the types of this module share.

use kube::core::{Message, Rule};
use schemars::{Schema, SchemaGenerator, json_schema};

/// An object that the schema leaves as it is: kept whole, not pruned, not defaulted.
pub fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// The same, absent or null where there is none.
pub fn optional_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true})
}

/// A list of objects that another schema has checked already.
pub fn any_objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}})
}

/// A list of whole Kubernetes objects.
pub fn manifests(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 64,
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
    })
}

/// `params`: strings by name.
pub fn params(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": 16384}
    })
}

/// The rule that a string matches `pattern`. What fails it is told what it is and what would be `right`, which a
/// schema's own `pattern` cannot say.
pub fn matches(pattern: &str, right: &str) -> Rule {
    told(&format!("self.matches('{}')", pattern.replace('\\', "\\\\")), right)
}

/// The rule `rule` on a string; what fails it is told what it is and what would be `right`.
pub fn told(rule: &str, right: &str) -> Rule {
    Rule::new(rule).message(Message::Expression(format!("'\"' + self + '\" is not right: {right}'")))
}

/// A moment, as the API server writes it.
pub fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "nullable": true})
}
