//! Malformed plugins.

use super::refused;
use crate::cluster::{EDITOR, RUNNERS, Space, apply, kubectl, plugin, step_image};
use std::fmt::Write;

const OBJECT: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: m}}";

/// A plugin whose pre-create has these steps; its runner has all that steps need.
fn steps(space: &Space, steps: &[&str]) -> String {
    let mut spec = format!("  runner: {{image: i, serviceAccountName: {EDITOR}}}\n  preCreate:\n");
    for step in steps {
        let _ = writeln!(spec, "  - {{{step}}}");
    }
    plugin(&space.name("bad"), &spec)
}

/// One step, a script with these fields more.
fn script(space: &Space, more: &str) -> String {
    steps(space, &[&format!("name: a, script: '#!/bin/sh', {more}")])
}

/// One step that applies, with these fields of `apply`.
fn applies(space: &Space, fields: &str) -> String {
    steps(space, &[&format!("name: a, apply: {{{fields}}}")])
}

#[test]
fn a_malformed_plugin_is_refused_by_its_schema() {
    let space = Space::new("faults");
    let s = &space;
    let whole = |spec: &str| plugin(&s.name("bad"), spec);
    let work = "[{name: a, script: '#!/bin/sh'}]";
    refused(&[
        ("no workflow", whole("  description: none"), &["spec: ", "a plugin needs a workflow: preCreate, "]),
        ("an empty workflow", whole("  preCreate: []"), &["spec.preCreate: ", "at least 1 items"]),
        (
            "both names of pre-create",
            whole(&format!("  create: {work}\n  preCreate: {work}")),
            &["spec.create: ", "create is another name of preCreate: keep only one of the two"],
        ),
        (
            "both names of post-delete",
            whole(&format!("  delete: {work}\n  postDelete: {work}")),
            &["spec.delete: ", "delete is another name of postDelete: keep only one of the two"],
        ),
        ("an unknown phase", whole(&format!("  preBuild: {work}")), &["unknown field \"spec.preBuild\""]),
        ("an unknown field of a step", script(s, "retry: 1"), &["unknown field \"spec.preCreate[0].retry\""]),
        (
            "no action",
            steps(s, &["name: a"]),
            &["spec.preCreate[0]: ", "exactly one action: script, apply, delete, wait or http"],
        ),
        (
            "two actions",
            steps(s, &[&format!("name: a, script: '#!/bin/sh', apply: {{manifests: [{OBJECT}]}}")]),
            &["spec.preCreate[0]: ", "exactly one action: script, apply, delete, wait or http"],
        ),
        ("a step without name", steps(s, &["script: '#!/bin/sh'"]), &["spec.preCreate[0].name: Required value"]),
        (
            "a step's name with a space",
            steps(s, &["name: a b, script: '#!/bin/sh'"]),
            &["spec.preCreate[0].name: ", "\"a b\": must be letters, digits, - and _"],
        ),
        (
            "two steps of one name",
            steps(s, &["name: a, script: '#!/bin/sh'", "name: a, script: '#!/bin/sh'"]),
            &["spec.preCreate[1]: Duplicate value", "\"name\":\"a\""],
        ),
        (
            "two inputs of one name",
            script(s, "inputs: [{name: x, valueFromSandbox: true}, {name: x, value: '1'}]"),
            &["spec.preCreate[0].inputs[1]: Duplicate value", "\"name\":\"x\""],
        ),
        (
            "two outputs of one name",
            script(s, "outputs: [{name: o, valueFromPath: /out/a}, {name: o, valueFromPath: /out/b}]"),
            &["spec.preCreate[0].outputs[1]: Duplicate value", "\"name\":\"o\""],
        ),
        (
            "a script without interpreter",
            steps(s, &["name: a, script: echo hello"]),
            &["spec.preCreate[0].script: ", "must begin with #! and the interpreter, as in #!/bin/sh"],
        ),
        (
            "outputs of an apply",
            steps(
                s,
                &[&format!("name: a, outputs: [{{name: o, valueFromPath: /out/o}}], apply: {{manifests: [{OBJECT}]}}")],
            ),
            &["spec.preCreate[0].outputs: ", "only script, wait and http have outputs"],
        ),
        (
            "inputs of an apply",
            steps(s, &[&format!("name: a, inputs: [{{name: x, value: '1'}}], apply: {{manifests: [{OBJECT}]}}")]),
            &["spec.preCreate[0].inputs: ", "read their values in expressions, as ${params.NAME}"],
        ),
        (
            "an input with two sources",
            script(s, "inputs: [{name: x, valueFromSandbox: true, value: '1'}]"),
            &[
                "spec.preCreate[0].inputs[0]: ",
                "exactly one source: valueFromSandbox: true, valueFromStep, value, valueFromSecret or valueFromConfigMap",
            ],
        ),
        (
            "an input with no source",
            script(s, "inputs: [{name: x, valueFromSandbox: false}]"),
            &[
                "spec.preCreate[0].inputs[0]: ",
                "exactly one source: valueFromSandbox: true, valueFromStep, value, valueFromSecret or valueFromConfigMap",
            ],
        ),
        (
            "an empty `as`",
            script(s, "inputs: [{name: x, value: '1', as: {}}]"),
            &["spec.preCreate[0].inputs[0].as: ", "as needs env, path or both"],
        ),
        (
            "a relative path",
            script(s, "inputs: [{name: x, value: '1', as: {path: in/x}}]"),
            &["spec.preCreate[0].inputs[0].as.path: ", "\"in/x\": must be an absolute path at least two levels deep"],
        ),
        (
            "an output in the root folder",
            script(s, "outputs: [{name: o, valueFromPath: /host}]"),
            &["spec.preCreate[0].outputs[0].valueFromPath: ", "\"/host\": must be an absolute path"],
        ),
        (
            "no name for an environment variable",
            script(s, "inputs: [{name: x, value: '1', as: {env: DB-HOST}}]"),
            &[
                "spec.preCreate[0].inputs[0].as.env: ",
                "\"DB-HOST\": must be the name of a variable: a letter or _ first",
            ],
        ),
        (
            "a negative time limit",
            script(s, "timeoutSeconds: -1"),
            &["spec.preCreate[0].timeoutSeconds: ", "-1", "greater than or equal to 1"],
        ),
        (
            "a time limit of a day",
            script(s, "timeoutSeconds: 86400"),
            &["spec.preCreate[0].timeoutSeconds: ", "86400", "less than or equal to 1800"],
        ),
        (
            "negative retries",
            script(s, "retries: -1"),
            &["spec.preCreate[0].retries: ", "-1", "greater than or equal to 0"],
        ),
        (
            "a hundred retries",
            script(s, "retries: 100"),
            &["spec.preCreate[0].retries: ", "100", "less than or equal to 10"],
        ),
        (
            "a failure policy that there is not",
            whole(&format!("  phases: {{preCreate: {{failurePolicy: Warn}}}}\n  preCreate: {work}")),
            &["spec.phases.preCreate.failurePolicy: ", "\"Warn\"", "\"Fail\", \"Ignore\""],
        ),
        (
            "an apply of nothing",
            applies(s, "manifests: []"),
            &["spec.preCreate[0].apply.manifests: ", "at least 1 items"],
        ),
        (
            "`as` without forEach",
            applies(s, &format!("as: fork, manifests: [{OBJECT}]")),
            &["spec.preCreate[0].apply.as: ", "as names the item of forEach: give forEach too"],
        ),
        (
            "an item with a bad name",
            applies(s, &format!("forEach: '[1]', as: a-fork, manifests: [{OBJECT}]")),
            &["spec.preCreate[0].apply.as: ", "\"a-fork\": must be a variable of expressions: a small letter"],
        ),
    ]);
}

#[test]
fn a_plugin_that_could_not_run_is_refused_when_it_is_applied() {
    let space = Space::new("faults");
    let s = &space;
    let whole = |spec: &str| plugin(&s.name("bad"), spec);
    let when = |expression: &str| script(s, &format!("when: '{expression}'"));
    let text = |text: &str| {
        applies(s, &format!("manifests: [{{apiVersion: v1, kind: ConfigMap, metadata: {{name: '{text}'}}}}]"))
    };
    let base = s.name("bad");
    let version = format!("metadata.name: \"{base}.1.0\"");
    let right = format!("a semantic one: {base}.1.0.0");
    refused(&[
        (
            "a script without image",
            whole("  preCreate: [{name: a, script: '#!/bin/sh'}]"),
            &["spec.runner.image: is missing", "spec.preCreate[0] is a script and needs an image"],
        ),
        (
            "an apply without service account",
            whole(&format!("  preCreate: [{{name: a, apply: {{manifests: [{OBJECT}]}}}}]")),
            &[
                "spec.runner.serviceAccountName: is missing",
                "spec.preCreate[0] is of kind apply and needs a service account",
            ],
        ),
        (
            "a namespace where plugins may not run",
            whole("  runner: {image: i, namespace: kube-system}\n  preCreate: [{name: a, script: '#!/bin/sh'}]"),
            &["spec.runner.namespace: plugins may not run in \"kube-system\"", RUNNERS, "runnerNamespaces"],
        ),
        (
            "Sluice's own namespace",
            whole(
                "  runner: {image: i, namespace: sluice-system, serviceAccountName: sluice}\n  preCreate: [{name: a, script: '#!/bin/sh'}]",
            ),
            &["spec.runner.namespace: sluice-system is Sluice's own namespace", "runners.allowOwnNamespace"],
        ),
        (
            "a cycle",
            steps(s, &["name: a, script: '#!/bin/sh', needs: [b]", "name: b, script: '#!/bin/sh', needs: [a]"]),
            &[
                "spec.preCreate: the steps wait for each other: a waits for b waits for a",
                "take one of the needs or inputs away",
            ],
        ),
        (
            "a need of nothing",
            script(s, "needs: [setup]"),
            &["spec.preCreate[0].needs[0]: there is no step \"setup\"", "it has no other step"],
        ),
        (
            "an output of nothing",
            steps(
                s,
                &[
                    "name: a, script: '#!/bin/sh', inputs: [{name: x, valueFromStep: {name: b, output: port}}]",
                    "name: b, script: '#!/bin/sh', outputs: [{name: host, valueFromPath: /out/h}]",
                ],
            ),
            &["spec.preCreate[0].inputs[0].valueFromStep: no step \"b\" has an output \"port\"", "there is b.host"],
        ),
        (
            "an output of a later phase",
            script(s, "inputs: [{name: x, valueFromStep: {name: z, output: o}}]")
                + "  postDelete: [{name: z, script: '#!/bin/sh', outputs: [{name: o, valueFromPath: /out/o}]}]\n",
            &[
                "spec.preCreate[0].inputs[0].valueFromStep: z.o is an output of a later phase",
                "only this phase's and earlier ones'",
            ],
        ),
        (
            "its own output",
            script(
                s,
                "outputs: [{name: o, valueFromPath: /out/o}], inputs: [{name: x, valueFromStep: {name: a, output: o}}]",
            ),
            &["spec.preCreate[0].inputs[0].valueFromStep: a step cannot read its own output"],
        ),
        (
            "an object without apiVersion",
            applies(s, "manifests: [{kind: ConfigMap, metadata: {name: m}}]"),
            &["spec.preCreate[0].apply.manifests[0].apiVersion: is missing"],
        ),
        (
            "an object without kind",
            applies(s, "manifests: [{apiVersion: v1, metadata: {name: m}}]"),
            &["spec.preCreate[0].apply.manifests[0].kind: is missing"],
        ),
        (
            "an object without name",
            applies(s, "manifests: [{apiVersion: v1, kind: ConfigMap}]"),
            &["spec.preCreate[0].apply.manifests[0].metadata.name: is missing"],
        ),
        (
            "a condition that cannot be read",
            when("params.size =="),
            &["spec.preCreate[0].when: line 1, column 15: ", "params.size =="],
        ),
        (
            "an unknown variable",
            when("sandox.spec.forks.size() > 0"),
            &["spec.preCreate[0].when: ", "there is no variable `sandox` here; there are `sandbox`"],
        ),
        (
            "an unknown function",
            when("upper(params.size) == \"S\""),
            &["spec.preCreate[0].when: ", "there is no function `upper`"],
        ),
        (
            "a step that there is not",
            when("steps.branch.host == \"\""),
            &["spec.preCreate[0].when: reads steps.branch", "no step \"branch\" has"],
        ),
        (
            "a field that no sandbox has",
            when("sandbox.spec.fork.size() > 0"),
            &[
                "spec.preCreate[0].when: line 1, column 14: there is no field `fork` in sandbox.spec, did you mean `forks`?",
            ],
        ),
        (
            "a condition that is a text",
            when("params.size"),
            &["spec.preCreate[0].when: line 1, column 1: this gives a string, but true or false is needed here"],
        ),
        (
            "a bad value",
            script(s, "inputs: [{name: x, value: params.}]"),
            &["spec.preCreate[0].inputs[0].value: line 1, column 8: "],
        ),
        (
            "a bad list",
            applies(s, &format!("forEach: forks, manifests: [{OBJECT}]")),
            &["spec.preCreate[0].apply.forEach: ", "no variable `forks`", "`sandbox`"],
        ),
        (
            "an item with a name that is taken",
            applies(s, &format!("forEach: sandbox.spec.forks, as: params, manifests: [{OBJECT}]")),
            &["spec.preCreate[0].apply.as: `params` already has a meaning in expressions: choose another name"],
        ),
        (
            "an expression in a text that cannot be read",
            text("x-${sandbox.}"),
            &["spec.preCreate[0].apply.manifests[0].metadata.name: line 1, column 9: "],
        ),
        (
            "an unknown variable in a text",
            text("x-${fork.name}"),
            &["spec.preCreate[0].apply.manifests[0].metadata.name: ", "no variable `fork`"],
        ),
        (
            "an expression without end",
            text("x-${sandbox"),
            &[
                "spec.preCreate[0].apply.manifests[0].metadata.name: `${sandbox` opens an expression that is never closed: add the `}`",
            ],
        ),
        (
            "a version that is not semantic",
            plugin(&format!("{base}.1.0"), "  runner: {image: i}\n  preCreate: [{name: a, script: '#!/bin/sh'}]"),
            &[&version, &right],
        ),
    ]);
}

#[test]
fn a_version_never_changes_and_what_is_used_is_not_deleted() {
    let space = Space::new("faults");
    let version = format!("{}.1.0.0", space.name("v"));
    let spec =
        |size: u8| format!("  runner: {{image: i}}\n  postDelete: [{{name: a, retries: {size}, script: '#!/bin/sh'}}]");
    apply(&plugin(&version, &spec(1))).ok();
    let got = apply(&plugin(&version, &spec(2))).refused();
    assert!(
        got.stderr.contains("spec: ") && got.stderr.contains("the spec of a version never changes"),
        "{}",
        got.stderr
    );
    kubectl(&["label", "resourceplugin", &version, "team=shop"]).ok();

    let used = space.plugin(
        "used",
        &format!("  runner: {{image: {}}}\n  postUpdate: [{{name: a, script: '#!/bin/sh'}}]", step_image()),
    );
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {used}}}]"))).ok();
    let got = kubectl(&["delete", "resourceplugin", &used]).refused();
    let user = format!("is used by sandbox {}/x: delete it first, or take the resource out of it", space.namespace);
    assert!(got.stderr.contains(&user), "{}", got.stderr);
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    kubectl(&["delete", "resourceplugin", &version]).ok();
}
