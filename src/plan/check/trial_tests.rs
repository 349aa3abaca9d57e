//! What the trial of a plugin refuses, what it warns of, and what it leaves alone.

use super::{examine, plugin};
use crate::api::{ResourcePlugin, ResourcePluginSpec};
use crate::plan::expression::Cancel;
use rstest::rstest;
use serde_json::{Value as Json, json};

fn spec(workflows: &Json) -> ResourcePluginSpec {
    let mut spec = json!({"runner": {"image": "i", "serviceAccountName": "s"}});
    for (field, steps) in workflows.as_object().unwrap() {
        spec[field] = steps.clone();
    }
    serde_json::from_value(spec).unwrap()
}

/// A plugin whose only expression is an input of a script.
fn input(workflow: &str, expression: &str) -> ResourcePluginSpec {
    spec(&json!({workflow: [{"name": "s", "script": "#!", "inputs": [{"name": "x", "value": expression}]}]}))
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
    let found = faults(&spec(&json!({"preCreate": [{"name": "s", "script": "#!", "when": when}]})));
    match fault {
        None => assert_eq!(found, [""; 0]),
        Some(fault) => assert!(matches!(found.as_slice(), [one] if one.contains(fault)), "{found:?}"),
    }
}

fn applying(list: &str, text: &str) -> ResourcePluginSpec {
    let manifest = json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "m"}, "data": {"a": text}});
    let apply = json!({"forEach": list, "as": "it", "manifests": [manifest]});
    spec(&json!({"preCreate": [{"name": "s", "apply": apply}]}))
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

#[rstest]
#[case("response.status == 201 ? response.json.id : response.headers.location", None)]
#[case("response.sttus", Some("outputs[0].value: line 1, column 10: there is no field `sttus` in response"))]
#[case(
    "response.body + response.status",
    Some("outputs[0].value: line 1, column 15: `+` cannot take a string and an integer")
)]
fn an_answer_is_of_a_known_type(#[case] value: &str, #[case] fault: Option<&str>) {
    let outputs = json!([{"name": "o", "value": value}]);
    let found = faults(&spec(&json!({"preCreate": [{"name": "s", "http": {"url": "http://a"}, "outputs": outputs}]})));
    match fault {
        None => assert_eq!(found, [""; 0]),
        Some(fault) => assert!(matches!(found.as_slice(), [one] if one.contains(fault)), "{found:?}"),
    }
}

#[rstest]
#[case("object != null && object.status.?phase.orValue('') == 'Ready'", None)]
#[case("object.status.phase", None)]
#[case("object.metadata.name + 'x'", None)]
#[case("params.size", Some("wait.until: line 1, column 1: this gives a string, but true or false is needed here"))]
fn nothing_is_known_of_what_is_waited_for(#[case] until: &str, #[case] fault: Option<&str>) {
    let object = json!({"apiVersion": "v1", "kind": "Pod", "name": "${params.?name.orValue('a')}"});
    let found = examine("p", &spec(&json!({"preCreate": [{"name": "s", "wait": {"object": object, "until": until}}]})));
    assert_eq!(found.warnings.listed(&Cancel::default()), [""; 0]);
    let faults: Vec<String> = found.faults.iter().map(ToString::to_string).collect();
    match fault {
        None => assert_eq!(faults, [""; 0]),
        Some(fault) => assert!(matches!(faults.as_slice(), [one] if one.contains(fault)), "{faults:?}"),
    }
}

#[test]
fn nothing_is_said_of_what_a_step_is_not_run_for() {
    let step = |when: &str| {
        let inputs = json!([{"name": "x", "value": "sandbox.spec.ttl.duration"}]);
        spec(&json!({"preCreate": [{"name": "s", "script": "#!", "when": when, "inputs": inputs}]}))
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
    let found = warnings(&spec(&json!({"preCreate": (0..30).map(step).collect::<Vec<_>>()})));
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
