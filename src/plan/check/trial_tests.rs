//! What the trial of a plugin refuses, what it warns of, and what it leaves alone.

use super::specimen::{SPECIMENS, sandbox_schema};
use super::{examine, plugin};
use crate::api::{Phase, ResourcePlugin, ResourcePluginSpec, Workflow};
use crate::plan::changes::change;
use crate::plan::expression::{Calls, Cancel, Expression, Type};
use crate::plan::kinds::SANDBOX;
use crate::plan::scope::{Scope, ScopeBuilder};
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use rstest::rstest;
use serde_json::{Value as Json, json};

fn spec(workflows: Json) -> ResourcePluginSpec {
    let mut spec = json!({"runner": {"image": "i", "serviceAccountName": "s"}});
    for (field, steps) in workflows.as_object().unwrap() {
        spec[field] = steps.clone();
    }
    serde_json::from_value(spec).unwrap()
}

/// A plugin whose only expression is an input of a script.
fn input(workflow: &str, expression: &str) -> ResourcePluginSpec {
    spec(json!({workflow: [{"name": "s", "script": "#!", "inputs": [{"name": "x", "value": expression}]}]}))
}

fn faults(spec: &ResourcePluginSpec) -> Vec<String> {
    plugin("p", spec).iter().map(ToString::to_string).collect()
}

fn warnings(spec: &ResourcePluginSpec) -> Vec<String> {
    let found = examine("p", spec);
    assert_eq!(found.faults, []);
    found.warnings.listed(&Cancel::default())
}

#[rstest]
// fields that no sandbox has
#[case(
    "sandbox.spec.fork",
    "line 1, column 14: there is no field `fork` in sandbox.spec, did you mean `forks`?; there are `description`, `forks`, `labels`, `resources`, `ttl`\n  sandbox.spec.fork\n               ^"
)]
#[case("sandbox.metadata.nme", "column 18: there is no field `nme` in sandbox.metadata, did you mean `name`?")]
#[case("sandbox.spec['fork']", "column 13: there is no field `fork` in sandbox.spec")]
#[case("sandbox.status.conditions", "column 16: there is no field `conditions` in sandbox.status")]
#[case("old.status.routingKey", "column 5: there is no field `status` in old")]
#[case("sandbox.spec.forks[0].name", "column 23: there is no field `name` in an item of sandbox.spec.forks")]
#[case("sandbox.spec.forks.map(f, f.forkOf.nme)", "column 36: there is no field `nme` in f.forkOf")]
#[case("sandbox.spec.forks.filter(f, f.nme == 'a')", "column 32: there is no field `nme` in f")]
#[case("sandbox.spec.forks.exists(f, f.nme == 'a')", "column 32: there is no field `nme` in f")]
#[case("[1].map(x, sandbox.spec.forks.all(f, f.nme == 'a'))", "column 40: there is no field `nme` in f")]
#[case("change.forks.aded.size()", "column 14: there is no field `aded` in change.forks, did you mean `added`?")]
#[case("change.forks.added[0].nme", "column 23: there is no field `nme` in an item of change.forks")]
#[case("change.patch[0].pth", "column 17: there is no field `pth` in an item of change.patch")]
#[case("true ? sandbox.a : sandbox.b", "column 16: there is no field `a` in sandbox")]
#[case("sandbox.a == 1 || sandbox.b == 1", "column 9: there is no field `a` in sandbox")]
// types that do not fit
#[case(
    "sandbox.metadata.name + 1",
    "column 23: `+` cannot take a string and an integer: convert one, for example with int(…)"
)]
#[case("sandbox.spec.forks > 3", "column 20: `>` cannot take a list and an integer")]
#[case("params.replicas > 3", "column 17: `>` cannot take a string and an integer: convert one")]
#[case("3 - 1 - params.replicas", "column 7: `-` cannot take an integer and a string")]
#[case("phase.name", "column 7: a string has no field `name`")]
#[case("params.domain.host", "column 15: a string has no field `host`")]
#[case("steps.a.host.port", "column 14: a string has no field `port`")]
#[case("sandbox.spec.forks.name", "column 20: a list has no field or key")]
#[case("sandbox.spec.forks['a']", "column 19: a list has no field or key")]
#[case("sandbox.spec.forks.startsWith('a')", "column 20: `startsWith()` cannot take a list and a string")]
#[case("sandbox.metadata.generation.size()", "column 29: `size()` cannot take an integer")]
#[case("sandbox.metadata.name.startsWith()", "`startsWith()` is given")]
#[case("sandbox.metadata.generation.map(x, x)", "column 29: an integer cannot be looped over")]
#[case("!params.debug", "column 1: `!` cannot take a string")]
#[case("params.debug && phase", "column 14: the left of `&&` must be true or false, it is a string")]
#[case("params.debug ? 1 : 2", "column 14: the condition before `?` must be true or false, it is a string")]
#[case("sandbox.spec.forks.filter(f, f.forkOf.name)", "column 20: the condition of the loop must be true or false")]
#[case("1 in 2", "column 3: `in` cannot take an integer and an integer")]
#[case("sandbox.spec.forks.map(f, f.forkOf.name).join(1)", "column 42: `join()` cannot take a list and an integer")]
#[case("params.?size.orValue('1') + 1", "column 27: `+` cannot take a string and an integer")]
#[case("semver('1.2.3') > 2", "column 17: `>` cannot take")]
#[case("quantity(params.size)", "column 1: this gives an object, but a value that JSON has a form for is needed here")]
#[case("size(\n  sandbox.spec.forks\n).a", "line 3, column 3: an integer has no field `a`")]
#[case("phase == 'in' && [1 - -1, -2].x", "line 1, column 31: a list has no field or key")]
fn what_can_never_work_is_a_fault(#[case] expression: &str, #[case] fault: &str) {
    let mut spec = input("preUpdate", expression);
    let outputs = json!([{"name": "a", "script": "#!", "outputs": [{"name": "host", "valueFromPath": "/o/h"}]}]);
    spec.pre_create = serde_json::from_value(outputs).unwrap();
    // The last one is behind an `&&`: only the place matters.
    let found = if expression.contains("&& [") { warnings(&spec) } else { faults(&spec) };
    assert!(
        matches!(found.as_slice(), [one] if one.starts_with("spec.preUpdate[0].inputs[0].value: line")),
        "{found:?}"
    );
    assert!(found[0].contains(fault), "{}", found[0]);
}

#[rstest]
#[case("sandbox.spec.forks[7].forkOf.name")]
#[case("sandbox.spec.labels.team")]
#[case("sandbox.metadata.annotations['a/b'].size()")]
#[case("params[sandbox.metadata.name]")]
#[case("int(params.size) / 0")]
#[case("timestamp(params.at).getFullYear() > 2000")]
#[case("duration(params.ttl) > duration('1h')")]
#[case("quantity(params.size).asInteger()")]
#[case("params.name.matches('[')")]
#[case("sandbox.spec.ttl.duration")]
#[case("sandbox.spec.forks[0].customizations.env[0].valueFrom.resource.outputKey")]
#[case("sandbox.spec.forks.map(f, f.forkOf.name).first().orValue('none') + 'x'")]
#[case("sandbox.spec.forks.map(f, f.forkOf.name).sort()[0] + 'x'")]
#[case("old == null ? 0 : old.spec.forks.size()")]
#[case("old.spec.forks.size()")]
#[case("change.patch[0].value.size() > 0")]
#[case("change.patch.exists(p, has(p.value) && p.value > 3)")]
#[case("params.?replicas.orValue(3) + 1")]
#[case("sandbox.spec.fork == 1 || true")]
#[case("has(sandbox.spec.fork) ? sandbox.spec.fork : 'a'")]
#[case("[1, 'a'][0] + 1")]
#[case("{'a': 1, 'b': 'x'}.a + 1")]
#[case("[].map(x, x.y)")]
#[case("[sandbox.spec.forks.sum()]")]
#[case("(sandbox.spec.forks + [{'forkOf': {'name': 'a'}}]).map(f, f.forkOf.name)")]
#[case("sandbox.metadata.ownerReferences[0].controller")]
#[case("sandbox.metadata.name == 1")]
#[case("sandbox.?spec.ttl.duration.orValue('1h') + 'x'")]
#[case("sandbox.?spec.fork.orValue(1)")]
#[case("(true ? 1 : 'a') + 1")]
#[case("sandbox.spec.resources.filter(r, r.plugin == 'db')[0].params.size + 'Gi'")]
#[case("{'a': 1}.all(k, k.startsWith('a'))")]
#[case("[null][0]")]
#[case("cidr(params.net).containsIP(params.ip)")]
#[case("lists.range(int(params.n)).map(i, string(i) + params.name)")]
fn what_some_sandbox_works_with_is_no_fault(#[case] expression: &str) {
    for workflow in ["preCreate", "postUpdate", "preDelete", "abandoned"] {
        assert_eq!(faults(&input(workflow, expression)), [""; 0], "{expression}");
    }
}

#[rstest]
#[case(
    "preCreate",
    "sandbox.spec.ttl.duration",
    Some(
        "column 14: there may be no `ttl`: test with has(sandbox.spec.ttl), or give a default with sandbox.spec.?ttl.orValue(…)"
    )
)]
#[case("preCreate", "has(sandbox.spec.ttl) ? sandbox.spec.ttl.duration : ''", None)]
#[case("preCreate", "has(sandbox.spec.ttl) && sandbox.spec.ttl.duration == '1h'", None)]
#[case("preCreate", "sandbox.spec.?ttl.duration.orValue('1h')", None)]
#[case(
    "preCreate",
    "sandbox.spec.forks.map(f, f.customizations.images)",
    Some("column 29: there may be no `customizations`")
)]
#[case("preCreate", "change.resources.added.map(r, r.params.size)", Some("column 33: there may be no `params`"))]
#[case("preCreate", "sandbox.spec.resources.map(r, r.params.size)", None)]
#[case("preCreate", "old.spec.forks.size()", Some("column 5: `old` may be null: test with old != null"))]
#[case("preDelete", "old.spec.forks.size()", Some("column 5: `old` may be null"))]
#[case("preUpdate", "old.spec.forks.size()", None)]
#[case("preCreate", "old == null ? 0 : old.spec.forks.size()", None)]
#[case("preCreate", "params.size + sandbox.spec.labels.team", None)]
#[case(
    "preCreate",
    "has(sandbox.spec.fork)",
    Some(
        "column 18: there is no field `fork` in sandbox.spec, did you mean `forks`?; there are `description`, `forks`, `labels`, `resources`, `ttl`: this is never true"
    )
)]
#[case("preCreate", "sandbox.?spec.fork.orValue(1)", Some("`ttl`: this is always absent"))]
#[case("preCreate", "phase == 'x' && sandbox.spec.fork == 1", Some("column 30: there is no field `fork`"))]
#[case(
    "preCreate",
    "sandbox.spec.forks.map(f, f.forkOf.name == 'a', f.nme)",
    Some("column 51: there is no field `nme` in f")
)]
fn what_fails_for_some_sandboxes_is_worth_a_warning(
    #[case] workflow: &str,
    #[case] expression: &str,
    #[case] warning: Option<&str>,
) {
    let found = warnings(&input(workflow, expression));
    match warning {
        None => assert_eq!(found, [""; 0]),
        Some(warning) => {
            let field = format!("spec.{workflow}[0].inputs[0].value: line 1, ");
            assert!(matches!(found.as_slice(), [one] if one.starts_with(&field)), "{found:?}");
            assert!(found[0].contains(warning) && !found[0].contains('\n'), "{found:?}");
        }
    }
}

#[rstest]
#[case(
    "sandbox.metadata.name",
    Some("spec.preCreate[0].when: line 1, column 1: this gives a string, but true or false is needed here")
)]
#[case("null", Some("this gives null, but true or false"))]
#[case("sandbox.spec.labels.enabled == 'true'", None)]
#[case("change.patch[0].value", None)]
#[case("params.?on.hasValue()", None)]
fn a_condition_gives_true_or_false(#[case] when: &str, #[case] fault: Option<&str>) {
    let found = faults(&spec(json!({"preCreate": [{"name": "s", "script": "#!", "when": when}]})));
    match fault {
        None => assert_eq!(found, [""; 0]),
        Some(fault) => assert!(matches!(found.as_slice(), [one] if one.contains(fault)), "{found:?}"),
    }
}

fn applying(list: &str, text: &str) -> ResourcePluginSpec {
    let manifest = json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "m"}, "data": {"a": text}});
    let apply = json!({"forEach": list, "as": "it", "manifests": [manifest]});
    spec(json!({"preCreate": [{"name": "s", "apply": apply}]}))
}

#[rstest]
#[case(
    "sandbox.metadata.name",
    "",
    Some("apply.forEach: line 1, column 1: this gives a string, but a list is needed here")
)]
#[case("sandbox.spec.labels", "", Some("this gives a map, but a list is needed here"))]
#[case(
    "sandbox.spec.forks",
    "a ${it.forkOf.nme}",
    Some("data.a: line 1, column 11: there is no field `nme` in it.forkOf")
)]
#[case("sandbox.spec.forks.map(f, f.forkOf.name)", "${it.name}", Some("a string has no field `name`"))]
#[case("sandbox.spec.forks", "${it.forkOf.name}", None)]
#[case("[duration('1h')]", "${it + 'x'}", None)]
#[case("[1u]", "${it + 1}", None)]
#[case("[1, 'a']", "${it + 1}", None)]
#[case("change.patch", "${it.value.x}", None)]
fn the_item_of_a_for_each_is_one_of_its_list(#[case] list: &str, #[case] text: &str, #[case] fault: Option<&str>) {
    let found = faults(&applying(list, text));
    match fault {
        None => assert_eq!(found, [""; 0]),
        Some(fault) => assert!(matches!(found.as_slice(), [one] if one.contains(fault)), "{found:?}"),
    }
}

#[test]
fn nothing_is_said_of_what_a_step_is_not_run_for() {
    let step = |when: &str| {
        let inputs = json!([{"name": "x", "value": "sandbox.spec.ttl.duration"}]);
        spec(json!({"preCreate": [{"name": "s", "script": "#!", "when": when, "inputs": inputs}]}))
    };
    assert_eq!(warnings(&step("has(sandbox.spec.ttl)")), [""; 0]);
    assert_eq!(warnings(&step("phase == 'PreCreate'")).len(), 1);
    assert_eq!(
        warnings(&applying("sandbox.spec.forks.filter(f, has(f.customizations))", "${it.customizations.env}")),
        [""; 0]
    );
    assert_eq!(warnings(&applying("sandbox.spec.forks", "${it.customizations.env}")).len(), 1);
}

#[test]
fn many_warnings_are_cut() {
    let step = |at: usize| json!({"name": format!("s{at}"), "script": "#!", "when": "has(sandbox.x)"});
    let found = warnings(&spec(json!({"preCreate": (0..30).map(step).collect::<Vec<_>>()})));
    assert_eq!((found.len(), found[10].as_str()), (11, "there are more warnings: they are given once these are gone"));
}

#[test]
fn the_examples_have_no_fault_and_no_warning() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut seen = 0;
    for example in std::fs::read_dir(folder).unwrap().filter_map(|entry| entry.unwrap().path().read_dir().ok()) {
        for file in
            example.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        {
            let text = std::fs::read_to_string(&file).unwrap();
            for document in text.split("\n---").filter(|document| document.contains("kind: ResourcePlugin")) {
                let plugin: ResourcePlugin = serde_saphyr::from_str(document).unwrap();
                assert_eq!(warnings(&plugin.spec), [""; 0], "{}", file.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 0);
}

// Properties: what the trial says of an expression holds for every sandbox that the schema allows.

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
