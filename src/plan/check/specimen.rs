//! What a plugin's expressions see, before there is a sandbox: types of all its variables, read off the schema of the
//! target, and the smallest target that the schema allows.

use crate::api::{Phase, Sandbox, Workflow};
use crate::plan::changes::change;
use crate::plan::expression::{Field, Shape, Type};
use crate::plan::kinds::SANDBOX;
use crate::plan::scope::{Empty, Scope, ScopeBuilder, TargetKind, TrackedList};
use kube::CustomResourceExt;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// The specimens of a kind of target.
pub(super) struct Specimens {
    kind: TargetKind,
    /// The types of the variables, without `old`.
    variables: BTreeMap<&'static str, Type>,
    old: Type,
    smallest: Json,
}

/// Those of a sandbox.
pub(super) static SPECIMENS: LazyLock<Specimens> = LazyLock::new(|| Specimens::new(&SANDBOX, &sandbox_schema()));

/// The schema of a sandbox as its definition has it; nothing is known of one that cannot be read.
pub(super) fn sandbox_schema() -> Json {
    let definition = serde_json::to_value(Sandbox::crd()).unwrap_or_default();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

impl Specimens {
    fn new(kind: &TargetKind, schema: &Json) -> Self {
        let spec = &schema["properties"]["spec"];
        let seen = |status: Option<Json>| {
            let mut seen = json!({
                "type": "object",
                "properties": {"apiVersion": text(), "kind": text(), "metadata": metadata(), "spec": spec},
                "required": ["apiVersion", "kind", "metadata", "spec"],
            });
            if let Some(status) = status {
                seen["properties"]["status"] = status;
                seen["required"] = json!(["apiVersion", "kind", "metadata", "spec", "status"]);
            }
            seen
        };
        // Of the status nothing is seen but the routing key, and nothing of the old one.
        let status = json!({"type": "object", "properties": {"routingKey": text()}, "required": ["routingKey"]});
        let target = kind_of(&seen(Some(status)), kind.variable, "", kind.defaults);
        let old = kind_of(&seen(None), "old", "", kind.defaults);
        let variables = BTreeMap::from([
            ("change", change_of(kind, spec)),
            ("params", Type::map(Type::String)),
            ("steps", Type::map(Type::map(Type::String))),
            ("phase", Type::String),
            (kind.variable, target),
        ]);
        let mut smallest = smallest(&seen(None), "a");
        for list in kind.lists {
            let items = ["a", "b"].map(|text| self::smallest(&spec["properties"][list.field]["items"], text));
            smallest["spec"][list.field] = json!(items);
        }
        Self { kind: *kind, variables, old, smallest }
    }

    /// The type of a variable in the steps of `workflow`; nothing is known of others.
    pub fn variable(&self, name: &str, workflow: Workflow) -> Type {
        match name {
            "old" if self.is_update(workflow) => self.old.clone(),
            "old" => self.old.clone().nullable(),
            name => self.variables.get(name).cloned().unwrap_or(Type::Any),
        }
    }

    /// What the steps of `workflow` see of the smallest target, of its creation or its deletion where they may run for
    /// those.
    pub fn smallest(&self, workflow: Workflow, params: Json, steps: Json) -> Option<Scope> {
        let phase = match workflow {
            Workflow::Of(phase) => phase,
            Workflow::Abandoned => Phase::PreCreate,
        };
        let old = self.is_update(workflow).then_some(&self.smallest);
        let changes = match phase {
            Phase::PreDelete | Phase::PostDelete => change(&self.kind, Some(&self.smallest), None),
            _ => change(&self.kind, old, Some(&self.smallest)),
        };
        let mut target = self.smallest.clone();
        target["status"] = json!({"routingKey": "a"});
        let builder = ScopeBuilder::new(&self.kind).target(target).old(old.cloned()).change(changes);
        builder.params(params).steps(steps).phase(phase).build().ok()
    }

    /// Whether there is an old target whenever the workflow runs. The other phases run for a resource that joins or
    /// leaves an existing target, too.
    fn is_update(&self, workflow: Workflow) -> bool {
        matches!(workflow, Workflow::Of(Phase::PreUpdate | Phase::PostUpdate))
    }
}

fn text() -> Json {
    json!({"type": "string"})
}

/// The metadata of an object, as the API server keeps it and Sluice shows it. Attempts at a create have no UID yet.
fn metadata() -> Json {
    let texts = json!({"type": "object", "additionalProperties": text()});
    let flag = json!({"type": "boolean"});
    let number = json!({"type": "integer"});
    json!({
        "type": "object",
        "required": ["name", "namespace"],
        "properties": {
            "name": text(), "generateName": text(), "namespace": text(), "selfLink": text(), "uid": text(),
            "resourceVersion": text(), "generation": number, "creationTimestamp": text(), "deletionTimestamp": text(),
            "deletionGracePeriodSeconds": number, "labels": texts, "annotations": texts,
            "finalizers": {"type": "array", "items": text()},
            "ownerReferences": {"type": "array", "items": {
                "type": "object",
                "required": ["apiVersion", "kind", "name", "uid"],
                "properties": {
                    "apiVersion": text(), "kind": text(), "name": text(), "uid": text(), "controller": flag,
                    "blockOwnerDeletion": flag,
                },
            }},
        },
    })
}

/// The type that a schema describes. `name` is for messages, `path` the one of `filled`, the optional fields that are
/// always found.
fn kind_of(schema: &Json, name: &str, path: &str, filled: &[(&str, Empty)]) -> Type {
    let is = |what: &str| schema["type"] == what;
    let says = |what: &str| schema[what] == true;
    let found = if says("x-kubernetes-preserve-unknown-fields") || says("x-kubernetes-int-or-string") {
        Type::Any
    } else if is("string") {
        Type::String
    } else if is("integer") {
        Type::Int
    } else if is("boolean") {
        Type::Bool
    } else if is("array") {
        Type::list(kind_of(&schema["items"], &format!("an item of {name}"), &format!("{path}[]"), filled))
    } else if schema["additionalProperties"].is_object() {
        Type::map(kind_of(&schema["additionalProperties"], name, path, filled))
    } else if let Some(properties) = schema["properties"].as_object() {
        let field = |(key, property): (&String, &Json)| {
            let name = if name.contains(' ') { format!("{key} of {name}") } else { format!("{name}.{key}") };
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let required = is_required(schema, key) || filled.iter().any(|(filled, _)| *filled == path);
            (key.clone(), Field { kind: kind_of(property, &name, &path, filled), required })
        };
        let fields = properties.iter().map(field).collect();
        Type::Object(Arc::new(Shape { name: name.to_owned(), fields }))
    } else {
        // A `number` may come as a whole one, and there are schemas that say nothing.
        Type::Any
    };
    if says("nullable") { found.nullable() } else { found }
}

fn is_required(schema: &Json, key: &str) -> bool {
    let named = schema["required"].as_array().is_some_and(|required| required.iter().any(|name| name == key));
    named || !schema["properties"][key]["default"].is_null()
}

fn object(name: &str, fields: Vec<(&str, Type, bool)>) -> Type {
    let field = |(key, kind, required): (&str, Type, bool)| (key.to_owned(), Field { kind, required });
    Type::Object(Arc::new(Shape { name: name.to_owned(), fields: fields.into_iter().map(field).collect() }))
}

/// What an `http` step is answered.
pub(super) fn response() -> Type {
    let fields = vec![
        ("status", Type::Int, true),
        ("headers", Type::map(Type::String), true),
        ("body", Type::String, true),
        ("json", Type::Any, true),
    ];
    object("response", fields)
}

/// The variable `change`. Its items are given as they are stored, so no field is filled in.
fn change_of(kind: &TargetKind, spec: &Json) -> Type {
    let list = |list: &TrackedList| {
        let name = format!("change.{}", list.name);
        let items = kind_of(&spec["properties"][list.field], &name, "", &[]);
        let fields = ["added", "removed", "changed"].map(|which| (which, items.clone(), true));
        (list.name, object(&name, fields.into()), true)
    };
    let operation = object(
        "an item of change.patch",
        vec![
            ("op", Type::String, true),
            ("path", Type::String, true),
            ("from", Type::String, false),
            ("value", Type::Any, false),
        ],
    );
    let patch = ("patch", Type::list(operation), true);
    object("change", kind.lists.iter().map(list).chain([patch]).collect())
}

/// The smallest value that a schema allows, as far as it matters for what is read of it: what is required, and `text`
/// for every string.
fn smallest(schema: &Json, text: &str) -> Json {
    if let Some(value) = schema["enum"].as_array().and_then(|values| values.first()) {
        return value.clone();
    }
    match schema["type"].as_str() {
        Some("string") => json!(text),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(false),
        Some("array") => json!([]),
        Some("object") => {
            let properties = schema["properties"].as_object().into_iter().flatten();
            let required = properties.filter(|(key, _)| is_required(schema, key));
            Json::Object(required.map(|(key, schema)| (key.clone(), smallest(schema, text))).collect())
        }
        _ => Json::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::SandboxSpec;

    #[test]
    fn the_types_are_those_of_the_definition() {
        let Type::Object(target) = SPECIMENS.variable("sandbox", Workflow::Of(Phase::PreCreate)) else { panic!() };
        let Type::Object(spec) = &target.fields["spec"].kind else { panic!() };
        let fields: Vec<_> = spec.fields.iter().map(|(name, field)| (name.as_str(), field.required)).collect();
        assert_eq!(
            fields,
            [("description", false), ("forks", true), ("labels", true), ("resources", true), ("ttl", false)]
        );
        assert_eq!(format!("{:?}", spec.fields["forks"].kind), "[<an item of sandbox.spec.forks>]");
        assert_eq!(format!("{:?}", spec.fields["labels"].kind), "{a string}");
        assert_eq!(format!("{:?}", SPECIMENS.variable("old", Workflow::Of(Phase::PreCreate))), "null|<old>");
        assert_eq!(format!("{:?}", SPECIMENS.variable("old", Workflow::Of(Phase::PreUpdate))), "<old>");
    }

    #[test]
    fn the_smallest_target_is_a_sandbox() {
        let spec: SandboxSpec = serde_json::from_value(SPECIMENS.smallest["spec"].clone()).unwrap();
        assert_eq!((spec.forks.len(), spec.resources.len(), spec.ttl), (2, 2, None));
        for workflow in Workflow::ALL {
            assert!(SPECIMENS.smallest(workflow, json!({}), json!({})).is_some());
        }
    }
}
