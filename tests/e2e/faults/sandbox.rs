//! Malformed sandboxes, and those that ask for more than their user may.

use super::refused;
use crate::cluster::{Space, kubectl, kubectl_file};

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
    grant("deployments", "create,get", "deployments.apps", &alice);
    grant("services", "create", "services", &alice);
    kubectl_file(&["create", "--as", &alice], &forks("z")).ok();
}
