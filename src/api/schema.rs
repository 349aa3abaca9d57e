//! Pieces of schema that the types of this module share.

use kube::core::Rule;
use schemars::{Schema, SchemaGenerator, json_schema};

/// An object that the schema leaves as it is: kept whole, not pruned, not defaulted.
pub fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Anything that JSON can say.
pub fn any(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
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

/// The rule that a string matches `pattern`. Whoever breaks it is told what it `must` be, which a schema's own
/// `pattern` cannot say; the API server adds the field and the value.
pub fn matches(pattern: &str, must: &str) -> Rule {
    Rule::new(format!("self.matches('{}')", pattern.replace('\\', "\\\\"))).message(format!("must be {must}").as_str())
}

/// A moment, as the API server writes it.
pub fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "nullable": true})
}
