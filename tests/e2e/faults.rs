//! Malformed plugins and sandboxes: each refused by the API server, with the field and with what would be right.

use crate::cluster::{EDITOR, SLUICE, Space, apply, kubectl, kubectl_file, plugin, step_image};
use std::fmt::Write;

/// What is wrong, the manifest, and what the message must say: the field, then the remedy.
type Fault<'a> = (&'a str, String, &'a [&'a str]);

/// Creates each of them, and fails with all that were not refused as they should be.
#[track_caller]
fn refused(faults: &[Fault<'_>]) {
    let mut wrong = String::new();
    for (what, manifest, words) in faults {
        let got = kubectl_file(&["create"], manifest);
        let missing: Vec<_> = words.iter().filter(|word| !got.stderr.contains(**word)).collect();
        if got.success || !missing.is_empty() {
            let _ = writeln!(wrong, "--- {what}: missing {missing:?} in\n{}{}", got.stdout, got.stderr);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

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
            &["spec.runner.namespace: plugins may not run in \"kube-system\"", SLUICE, "runnerNamespaces"],
        ),
        (
            "Sluice's own service account",
            whole("  runner: {image: i, serviceAccountName: sluice}\n  preCreate: [{name: a, script: '#!/bin/sh'}]"),
            &["spec.runner.serviceAccountName: is Sluice's own", "make one for the plugin"],
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

#[test]
fn a_malformed_sandbox_is_refused() {
    let space = Space::new("faults");
    let plugin = space.plugin(
        "db",
        "  runner: {image: i}\n  preCreate: [{name: branch, script: '#!/bin/sh', outputs: [{name: host, valueFromPath: /out/host}]}]",
    );
    let resources = |list: &str| space.sandbox("x", &format!("  resources: [{list}]"));
    let resource = |fields: &str| resources(&format!("{{name: db, plugin: {plugin}, {fields}}}"));
    let fork = |kind: &str, more: &str| {
        space.sandbox("x", &format!("  forks: [{{forkOf: {{kind: {kind}, name: cart}}{more}}}]"))
    };
    let env = |env: &str| {
        fork("Deployment", &format!(", customizations: {{env: [{{name: H, {env}}}]}}"))
            + &format!("  resources: [{{name: db, plugin: {plugin}}}]\n")
    };
    let output = |name: &str, key: &str| env(&format!("valueFrom: {{resource: {{name: {name}, outputKey: {key}}}}}"));
    let named = |name: &str| space.sandbox(name, "  description: named");
    let name = "a lower-case letter, then letters, digits and dashes, at most 63 bytes";
    let field = "spec.forks[0].customizations.env[0]";
    let wrong_output =
        format!("{field}.valueFrom.resource.outputKey: no step of the plugin has an output \"branch.port\"");
    let wrong_resource = format!("{field}.valueFrom.resource.name: the sandbox has no resource \"cache\" (it has db)");
    let known = format!("there is {plugin}");
    refused(&[
        (
            "an unknown plugin",
            resources("{name: db, plugin: nothing-of-this-name}"),
            &[
                "spec.resources[0].plugin: there is no ResourcePlugin \"nothing-of-this-name\"",
                "apply the plugin first",
            ],
        ),
        (
            "an unknown version",
            resources(&format!("{{name: db, plugin: '{plugin}@9.9.9'}}")),
            &["spec.resources[0].plugin: there is no ResourcePlugin", ".9.9.9\"", &known],
        ),
        (
            "a version that is none",
            resources(&format!("{{name: db, plugin: '{plugin}@newest'}}")),
            &["spec.resources[0].plugin: ", "@newest\": must be NAME, NAME@VERSION as in db@1.2.0, or NAME@latest"],
        ),
        ("a resource without plugin", resources("{name: db}"), &["spec.resources[0].plugin: Required value"]),
        (
            "two resources of one name",
            resources(&format!("{{name: db, plugin: {plugin}}}, {{name: db, plugin: {plugin}}}")),
            &["spec.resources[1]: Duplicate value", "\"name\":\"db\""],
        ),
        (
            "params that are a number",
            resource("params: {size: 3}"),
            &["spec.resources[0].params.size: ", "must be of type string"],
        ),
        (
            "params that are a list",
            resource("params: {size: [a]}"),
            &["spec.resources[0].params.size: ", "must be of type string"],
        ),
        ("an unknown field", resource("parameters: {size: a}"), &["unknown field \"spec.resources[0].parameters\""]),
        (
            "two forks of one workload",
            space.sandbox(
                "x",
                "  forks: [{forkOf: {kind: Deployment, name: cart}}, {forkOf: {kind: Deployment, name: cart}}]",
            ),
            &["spec.forks: ", "a workload is forked at most once in a sandbox: keep one"],
        ),
        (
            "a kind that cannot be forked",
            fork("StatefulSet", ""),
            &["spec.forks[0].forkOf.kind: ", "\"StatefulSet\"", "\"Deployment\""],
        ),
        ("a name with a dot", named("a.b"), &["metadata.name: ", name]),
        ("a name that begins with a digit", named("1a"), &["metadata.name: ", name]),
        (
            "a name with a capital",
            named("Feature"),
            &["metadata.name: ", "\"Feature\"", "lower case alphanumeric characters"],
        ),
        ("a name that is too long", named(&"a".repeat(64)), &["metadata.name: ", name]),
        (
            "a value twice over",
            env("value: a, valueFrom: {secret: {name: s, key: k}}"),
            &[field, "has either value or valueFrom"],
        ),
        ("no value", env("operation: upsert"), &[field, "has either value or valueFrom"]),
        (
            "a value that is deleted",
            env("operation: delete, value: a"),
            &[field, "with operation: delete it has neither"],
        ),
        (
            "two sources of a value",
            env("valueFrom: {secret: {name: s, key: k}, configMap: {name: c, key: k}}"),
            &[field, "exactly one source: resource, configMap or secret"],
        ),
        ("an output that there is not", output("db", "branch.port"), &[&wrong_output, "there is branch.host"]),
        ("a resource that there is not", output("cache", "branch.host"), &[&wrong_resource]),
        (
            "a time to live in seconds",
            space.sandbox("x", "  ttl: {duration: 90s}"),
            &["spec.ttl.duration: ", "\"90s\": must be a whole number and one of m, h, d and w"],
        ),
        (
            "a patch of a kind that there is not",
            fork("Deployment", ", customizations: {patch: {type: strategic, value: '{}'}}"),
            &["spec.forks[0].customizations.patch.type: ", "\"strategic\"", "\"merge\", \"json\""],
        ),
    ]);
    assert!(space.runs("x").is_empty(), "something that was refused has run");
}

#[test]
fn a_sandbox_gives_nobody_a_right_that_they_lack() {
    let space = Space::new("faults");
    let namespace = space.namespace.as_str();
    let plugin = space.plugin("db", "  runner: {image: i}\n  postUpdate: [{name: a, script: '#!/bin/sh'}]");
    let grant = |what: &str, verb: &str, resource: &str, user: &str| {
        kubectl(&[
            "-n",
            namespace,
            "create",
            "role",
            what,
            &format!("--verb={verb}"),
            &format!("--resource={resource}"),
        ])
        .ok();
        kubectl(&[
            "-n",
            namespace,
            "create",
            "rolebinding",
            what,
            &format!("--role={what}"),
            &format!("--user={user}"),
        ])
        .ok();
    };
    let forks = |name: &str| space.sandbox(name, "  forks: [{forkOf: {kind: Deployment, name: cart}}]");

    // The chart lets every authenticated user use every plugin, so somebody who lacks it is none.
    let anonymous = "system:anonymous";
    grant("sandboxes-of-anonymous", "create,get", "sandboxes.sluice.dev", anonymous);
    let discovery = space.name("discovery");
    let user = format!("--user={anonymous}");
    kubectl(&["create", "clusterrolebinding", &discovery, "--clusterrole=system:discovery", &user]).ok();
    let manifest = space.sandbox("x", &format!("  resources: [{{name: db, plugin: {plugin}}}]"));
    let got = kubectl_file(&["create", "--as", anonymous], &manifest);
    kubectl(&["delete", "clusterrolebinding", &discovery]).ok();
    let got = got.refused().stderr;
    let wanted =
        format!("spec.resources[0].plugin: \"{anonymous}\" may not use resourceplugins.sluice.dev \"{plugin}\"");
    assert!(got.contains(&wanted) && got.contains("a role with verb \"use\" on it"), "{got}");

    let alice = space.name("alice");
    grant("sandboxes-of-alice", "create,get", "sandboxes.sluice.dev", &alice);
    let got = kubectl_file(&["create", "--as", &alice], &forks("x")).refused().stderr;
    let wanted =
        format!("spec.forks[0].forkOf: \"{alice}\" may not create deployments.apps in namespace \"{namespace}\"");
    assert!(got.contains(&wanted) && got.contains("a role with verb \"create\" on it"), "{got}");
    assert!(space.get("sandbox", "x").is_none());

    // With the rights both are let through: it was their lack that was refused.
    kubectl_file(&["create", "--as", &alice], &manifest).ok();
    grant("deployments", "create", "deployments.apps", &alice);
    grant("services", "create", "services", &alice);
    kubectl_file(&["create", "--as", &alice], &forks("z")).ok();
}
