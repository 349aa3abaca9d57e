//! What the trial says of an expression holds for every sandbox that the definition allows.

use super::specimen::{SPECIMENS, sandbox_schema};
use crate::api::{Phase, Workflow};
use crate::plan::changes::change;
use crate::plan::expression::{Calls, Expression, Type};
use crate::plan::kinds::SANDBOX;
use crate::plan::scope::{Scope, ScopeBuilder};
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};

/// Values that a schema allows. No list and no map is empty, so that every loop has a round.
fn value(schema: &Json) -> BoxedStrategy<Json> {
    if let Some(values) = schema["enum"].as_array() {
        return select(values.clone()).boxed();
    }
    match schema["type"].as_str() {
        Some("string") => select(vec![json!("a"), json!("graphql-b"), json!("1h"), json!("7")]).boxed(),
        Some("integer") => (0..9_i64).prop_map(|number| json!(number)).boxed(),
        Some("boolean") => any::<bool>().prop_map(|flag| json!(flag)).boxed(),
        Some("array") => vec(value(&schema["items"]), 1..3).prop_map(|items| json!(items)).boxed(),
        Some("object") if schema["additionalProperties"].is_object() => {
            hash_map(select(vec!["a", "team"]), value(&schema["additionalProperties"]), 1..3)
                .prop_map(|map| json!(map))
                .boxed()
        }
        _ => {
            let required = |key: &str| schema["required"].as_array().is_some_and(|r| r.iter().any(|name| name == key));
            let filled = ["forks", "resources", "labels", "params"];
            let properties = schema["properties"].as_object().into_iter().flatten();
            let fields: Vec<_> = properties
                .map(|(key, property)| {
                    let (key, always) = (key.clone(), required(key) || filled.contains(&key.as_str()));
                    (value(property), any::<bool>())
                        .prop_map(move |(value, present)| (always || present).then(|| (key.clone(), value)))
                })
                .collect();
            fields.prop_map(|fields| Json::Object(fields.into_iter().flatten().collect())).boxed()
        }
    }
}

fn scope() -> impl Strategy<Value = (Scope, Workflow)> {
    let spec = value(&sandbox_schema()["properties"]["spec"]);
    let phases = select(vec![Phase::PreCreate, Phase::PostUpdate, Phase::PreDelete]);
    (spec.clone(), proptest::option::of(spec), phases).prop_map(|(new, old, phase)| {
        let object = |spec: Json| {
            let labels = json!({"a": "b", "team": "7"});
            let metadata =
                json!({"name": "x", "namespace": "n", "generation": 3, "labels": labels, "annotations": labels});
            json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox", "metadata": metadata, "spec": spec})
        };
        let old = old.or_else(|| (phase == Phase::PostUpdate).then(|| new.clone())).map(object);
        let mut new = object(new);
        let changes = change(&SANDBOX, old.as_ref(), Some(&new));
        new["status"] = json!({"routingKey": "r"});
        let scope = ScopeBuilder::new(&SANDBOX).target(new).old(old).change(changes).phase(phase);
        let scope = scope.params(json!({"a": "1", "team": "x"})).steps(json!({"s": {"o": "2"}}));
        (scope.build().unwrap(), Workflow::Of(phase))
    })
}

#[rustfmt::skip]
const LEAVES: [&str; 46] = [
    "1", "2u", "1.5", "'a'", "'7'", "true", "null", "[]", "[1, 2]", "['a']", "{}", "{'a': 1}", "b'a'", "duration('1h')",
    "timestamp('2026-03-01T00:00:00Z')", "quantity('1')", "optional.none()", "optional.of(1)", "phase", "params",
    "params.a", "params.?b", "steps.s.o", "sandbox", "sandbox.spec", "sandbox.spec.forks", "sandbox.spec.resources",
    "sandbox.spec.forks[0]", "sandbox.spec.forks[0].forkOf", "sandbox.spec.forks[0].customizations", "sandbox.spec.ttl",
    "sandbox.?spec.ttl.duration", "sandbox.spec.labels", "sandbox.metadata.generation", "sandbox.metadata.name",
    "sandbox.status.routingKey", "sandbox.spec.fork", "old", "old.spec.forks", "change.forks.added", "change.patch",
    "change.patch[0].value", "f", "f.forkOf", "f.name", "f.forkOf.name",
];
#[rustfmt::skip]
const BINARY: [&str; 15] = ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in", "?"];
#[rustfmt::skip]
const METHODS: [&str; 22] = [
    "size()", "first()", "last()", "reverse()", "sort()", "distinct()", "flatten()", "sum()", "min()", "max()",
    "isSorted()", "hasValue()", "value()", "trim()", "upperAscii()", "join()", "getHours()", "asInteger()", "string()",
    "int()", "double()", "isInteger()",
];
/// An argument that a function does not take is never evaluated, so none is given.
#[rustfmt::skip]
const METHODS_OF_TWO: [&str; 14] = [
    "split", "join", "indexOf", "lastIndexOf", "contains", "startsWith", "orValue", "or", "isGreaterThan", "find",
    "findAll", "format", "charAt", "add",
];
const FIELDS: [&str; 7] = [".forkOf", ".name", ".a", "[0]", "[?0]", ".?name", "['a']"];

fn expression() -> impl Strategy<Value = String> {
    let leaf = select(&LEAVES[..]).prop_map(str::to_owned);
    leaf.prop_recursive(5, 24, 3, |inner| {
        let pair = (inner.clone(), inner.clone());
        let loops = select(vec!["map", "filter", "all", "exists", "exists_one"]);
        let ranges =
            select(vec!["sandbox.spec.forks", "sandbox.spec.resources", "[1, 2]", "['a']", "sandbox.spec.labels"]);
        prop_oneof![
            (select(&BINARY[..13]), pair.clone()).prop_map(|(op, (a, b))| format!("({a}) {op} ({b})")),
            (select(&METHODS[..]), inner.clone()).prop_map(|(method, a)| format!("({a}).{method}")),
            (select(&METHODS_OF_TWO[..]), pair.clone()).prop_map(|(method, (a, b))| format!("({a}).{method}({b})")),
            (select(&FIELDS[..]), inner.clone()).prop_map(|(field, a)| format!("({a}){field}")),
            (pair.clone(), inner.clone()).prop_map(|((a, b), c)| format!("({a}) ? ({b}) : ({c})")),
            (loops, ranges, inner.clone()).prop_map(|(name, range, body)| format!("{range}.{name}(f, {body})")),
            pair.clone().prop_map(|(a, b)| format!("[{a}, {b}]")),
            pair.prop_map(|(a, b)| format!("{{'a': {a}, 'b': {b}}}")),
            inner.clone().prop_map(|a| format!("!({a})")),
            inner.prop_map(|a| format!("has(({a}).name)")),
        ]
    })
}

/// Whether a value can be of this type once it is JSON.
fn is_of(kind: &Type, value: &Json) -> bool {
    match kind {
        Type::Any => true,
        Type::Never => false,
        Type::Null => value.is_null(),
        Type::Bool => value.is_boolean(),
        Type::Int => value.is_i64(),
        Type::UInt => value.is_u64(),
        Type::Float => value.is_number(),
        Type::String | Type::Bytes | Type::Duration | Type::Timestamp => value.is_string(),
        Type::List(item) => value.as_array().is_some_and(|items| items.iter().all(|value| is_of(item, value))),
        Type::Map(item) => value.as_object().is_some_and(|fields| fields.values().all(|value| is_of(item, value))),
        Type::Object(shape) => value.as_object().is_some_and(|fields| {
            fields.iter().all(|(key, value)| shape.fields.get(key).is_some_and(|field| is_of(&field.kind, value)))
                && shape.fields.iter().all(|(key, field)| !field.required || fields.contains_key(key))
        }),
        Type::Nullable(inner) | Type::Optional(inner) => value.is_null() || is_of(inner, value),
        Type::Opaque(_) => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 1_000_000, ..ProptestConfig::default() })]

    #[test]
    fn what_has_a_value_is_never_refused_and_the_value_is_of_its_type(
        source in expression(),
        (scope, workflow) in scope(),
    ) {
        let Ok(expression) = Expression::parse(&source) else { return Err(TestCaseError::reject("no expression")) };
        prop_assume!(expression.check(&SANDBOX.names()).is_ok());
        let Ok(value) = expression.evaluate(&scope) else { return Err(TestCaseError::reject("no value")) };
        let tried = expression.tried(&|name| SPECIMENS.variable(name, workflow), &mut Calls::default());
        match tried.result {
            Ok(kind) => prop_assert!(is_of(&kind, &value), "{source}\n gives {value}, which is no {kind:?}"),
            Err(remark) => prop_assert!(false, "{source}\n gives {value}, but: {}", remark.message),
        }
    }

    #[test]
    fn every_sandbox_is_of_the_types_of_its_definition((scope, workflow) in scope()) {
        for name in SANDBOX.names() {
            let value = Expression::parse(name).unwrap().evaluate(&scope).unwrap();
            let kind = SPECIMENS.variable(name, workflow);
            prop_assert!(is_of(&kind, &value), "{name} is {value}, which is no {kind:?}");
        }
    }

    #[test]
    fn no_source_breaks_a_trial(source in "[a-z.()\\[\\]{}'?:+&|! 0-9]{1,30}|sandbox[a-z.()\\[\\]'?]{1,30}") {
        if let Ok(expression) = Expression::parse(&source) {
            let _ = expression.tried(&|name| SPECIMENS.variable(name, Workflow::Abandoned), &mut Calls::default());
        }
    }
}
