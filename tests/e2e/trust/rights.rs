//! What a sandbox's author must be allowed to do by themselves, before a sandbox does it for them.

use crate::chart::Values;
use crate::cluster::{EDITOR, Outcome, Space, apply, eventually, keeps, kubectl, kubectl_file, step_image};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// Gives a user of this namespace these rules (YAML, a list in flow style).
fn allow(space: &Space, user: &str, rules: &str) {
    let role = space.name("of-alice");
    apply(&format!(
        "apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {role}, namespace: {0}}}
rules: {rules}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {role}, namespace: {0}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {role}}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user}}}]
",
        space.namespace
    ))
    .ok();
}

const SANDBOXES: &str =
    "{apiGroups: [sluice.dev], resources: [sandboxes], verbs: [get, create, update, patch, delete]}";
const CREATES: &str = "{apiGroups: ['', apps], resources: [deployments, services], verbs: [create]}";

fn apply_as(user: &str, manifest: &str) -> Outcome {
    kubectl_file(&["apply", "--as", user], manifest)
}

/// Waits until Sluice refuses with these words: a role takes a moment to be in force.
fn refuses(why: &str, try_it: impl Fn() -> Outcome) {
    eventually(SOON, why, || try_it().refused().stderr.contains(why).then_some(()));
}

#[test]
fn t09_a_fork_takes_the_right_to_read_what_it_shows() {
    let space = Space::new("reads");
    space.workload("web", 1);
    let alice = space.name("alice");
    let patch =
        r#"patch: {type: merge, value: "spec: {template: {spec: {volumes: [{name: v, secret: {secretName: tls}}]}}}"}"#;
    let customizations = format!(
        "{{env: [{{name: A, valueFrom: {{secret: {{name: keys, key: k}}}}}}, {{name: B, valueFrom: {{configMap: {{name: flags, key: k}}}}}}], {patch}}}"
    );
    let plain = space.sandbox("plain", "  forks: [{forkOf: {kind: Deployment, name: web}}]");
    let names = space.sandbox(
        "names",
        &format!("  forks: [{{forkOf: {{kind: Deployment, name: web}}, customizations: {customizations}}}]"),
    );
    allow(&space, &alice, &format!("[{SANDBOXES}, {CREATES}]"));
    refuses("spec.forks[0].forkOf.name", || apply_as(&alice, &plain));
    let refused = apply_as(&alice, &plain).refused().stderr;
    assert!(
        refused.contains("may not get deployments.apps \"web\"") && refused.contains("ask a cluster admin"),
        "{refused}"
    );

    let web = "{apiGroups: [apps], resources: [deployments], resourceNames: [web], verbs: [get]}";
    allow(&space, &alice, &format!("[{SANDBOXES}, {CREATES}, {web}]"));
    eventually(SOON, "alice may read web", || apply_as(&alice, &plain).success.then_some(()));
    let read = |resource: &str, name: &str| {
        format!("{{apiGroups: [''], resources: [{resource}], resourceNames: [{name}], verbs: [get]}}")
    };
    let mut rules = format!("{SANDBOXES}, {CREATES}, {web}");
    for (resource, name, field) in [
        ("configmaps", "flags", "spec.forks[0].customizations.env[1].valueFrom.configMap.name"),
        ("secrets", "keys", "spec.forks[0].customizations.env[0].valueFrom.secret.name"),
        ("secrets", "tls", "spec.forks[0].customizations.patch.value"),
    ] {
        refuses(field, || apply_as(&alice, &names));
        rules += &format!(", {}", read(resource, name));
        allow(&space, &alice, &format!("[{rules}]"));
    }
    eventually(SOON, "alice may read all of it", || apply_as(&alice, &names).success.then_some(()));
    // Who changes something else of it is asked for nothing.
    let bob = space.name("bob");
    allow(&space, &bob, &format!("[{SANDBOXES}]"));
    let note = |user: &str| {
        kubectl(&["-n", &space.namespace, "annotate", "sandbox", "names", "--overwrite", "a=b", "--as", user])
    };
    eventually(SOON, "bob may annotate", || note(&bob).success.then_some(()));
}

#[test]
fn t09_a_fork_shows_outputs_to_whom_may_use_their_plugin_alone() {
    let space = Space::alone("shown");
    space.workload("cart", 0);
    let make = "
  - name: make
    outputs: [{name: word, valueFromPath: /out/word}]
    script: |
      #!/bin/sh
      printf secret >/out/word
";
    let plugin = space.plugin("word", &format!("  runner: {{image: '{}'}}\n  preCreate:{make}", step_image()));
    let resources = format!("  resources: [{{name: r, plugin: {plugin}}}]\n");
    apply(&space.sandbox("x", &resources)).ok();
    space.settle("x");
    let alice = space.name("alice");
    let _values = Values::set(&["plugins.useByEveryone=false"]);
    let what = format!("resourceplugins.sluice.dev/{plugin}");
    let may_use = || kubectl(&["auth", "can-i", "use", &what, "--as", &alice]).success;
    eventually(SOON, "alice may not use the plugin", || (!may_use()).then_some(()));
    let cart = "{apiGroups: [apps], resources: [deployments], resourceNames: [cart], verbs: [get]}";
    allow(&space, &alice, &format!("[{SANDBOXES}, {CREATES}, {cart}]"));

    let with = |customizations: &str| {
        let fork = format!("{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{{customizations}}}}}");
        space.sandbox("x", &format!("{resources}  forks: [{fork}]"))
    };
    let image = format!("images: [{{image: '{}'}}]", step_image());
    let shows = "env: [{name: WORD, valueFrom: {resource: {name: r, outputKey: make.word}}}]";
    let (plain, printed) = (with(&image), with(&format!("{image}, {shows}")));
    eventually(SOON, "alice may fork", || apply_as(&alice, &plain).success.then_some(()));
    let refused = apply_as(&alice, &printed).refused().stderr;
    let field = "spec.forks[0].customizations.env[0].valueFrom.resource";
    assert!(refused.contains(field) && refused.contains("may not use resourceplugins.sluice.dev"), "{refused}");

    // Nor may she choose another image for a fork that shows them by somebody else's will.
    apply(&with(shows)).ok();
    let refused = apply_as(&alice, &printed).refused().stderr;
    assert!(refused.contains(field), "{refused}");
    apply(&format!(
        "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {0}}}
rules: [{{apiGroups: [sluice.dev], resources: [resourceplugins], resourceNames: [{plugin}], verbs: [use]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {0}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {0}}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {alice}}}]
",
        space.name("uses")
    ))
    .ok();
    eventually(SOON, "alice may use the plugin", || apply_as(&alice, &printed).success.then_some(()));
}

#[test]
fn t07_a_ttl_that_an_update_brings_takes_the_right_to_delete() {
    let space = Space::new("expires");
    apply(&space.sandbox("x", "  description: stays")).ok();
    let bob = space.name("bob");
    let ttl = |duration: &str| {
        let patch = format!(r#"{{"spec": {{"ttl": {duration}}}}}"#);
        kubectl(&["-n", &space.namespace, "patch", "sandbox", "x", "--type=merge", "-p", &patch, "--as", &bob])
    };
    let (soon, later) = (r#"{"duration": "1m"}"#, r#"{"duration": "8h"}"#);
    let rule = |verbs: &str| format!("[{{apiGroups: [sluice.dev], resources: [sandboxes], verbs: [{verbs}]}}]");
    allow(&space, &bob, &rule("get, patch"));
    refuses("spec.ttl", || ttl(soon));
    let refused = ttl(soon).refused().stderr;
    assert!(refused.contains("may not delete sandboxes.sluice.dev \"x\""), "{refused}");
    allow(&space, &bob, &rule("get, patch, delete"));
    eventually(SOON, "bob may delete", || ttl(later).success.then_some(()));
}

#[test]
fn t07_an_owner_that_a_sandbox_is_given_takes_the_right_to_skip_its_pre_delete() {
    let space = Space::new("owned");
    let runner = format!("  runner: {{serviceAccountName: {EDITOR}}}\n");
    let note =
        |phase: &str| format!("{runner}  {phase}: [{}]", keeps("note", &format!("{phase}-x").to_lowercase(), "a: b"));
    let (guarded, plain) = (space.plugin("guarded", &note("preDelete")), space.plugin("plain", &note("postCreate")));
    apply(&format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: mine, namespace: {}}}\n", space.namespace)).ok();
    let uid = space.get("configmap", "mine").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let owners = format!("[{{apiVersion: v1, kind: ConfigMap, name: mine, uid: {uid}}}]");
    let owned = |name: &str, plugin: &str| {
        let sandbox = space.sandbox(name, &format!("  resources: [{{name: r, plugin: {plugin}}}]"));
        sandbox.replacen("metadata: {", &format!("metadata: {{ownerReferences: {owners}, "), 1)
    };
    let alice = space.name("alice");
    allow(&space, &alice, &format!("[{SANDBOXES}]"));
    refuses("metadata.ownerReferences[0]", || apply_as(&alice, &owned("x", &guarded)));
    let refused = apply_as(&alice, &owned("x", &guarded)).refused().stderr;
    assert!(refused.contains("may not skip sandboxes.sluice.dev \"x\""), "{refused}");
    assert!(refused.contains("or leave metadata.ownerReferences away"), "{refused}");

    // Nor afterwards, by any way to write it.
    apply_as(&alice, &space.sandbox("x", &format!("  resources: [{{name: r, plugin: {guarded}}}]"))).ok();
    let patch = format!(
        r#"{{"metadata": {{"ownerReferences": [{{"apiVersion": "v1", "kind": "ConfigMap", "name": "mine", "uid": "{uid}"}}]}}}}"#
    );
    let patched =
        kubectl(&["-n", &space.namespace, "patch", "sandbox", "x", "--type=merge", "-p", &patch, "--as", &alice]);
    assert!(patched.refused().stderr.contains("metadata.ownerReferences[0]"));

    // Where there is nothing to skip an owner is fine, until a resource joins that has a pre-delete.
    apply_as(&alice, &owned("other", &plain)).ok();
    let joined = apply_as(&alice, &owned("other", &guarded)).refused().stderr;
    assert!(joined.contains("spec.resources[0]") && joined.contains("may not skip"), "{joined}");
    let gone = r#"{"metadata": {"ownerReferences": null}}"#;
    kubectl(&["-n", &space.namespace, "patch", "sandbox", "other", "--type=merge", "-p", gone, "--as", &alice]).ok();

    allow(
        &space,
        &alice,
        &format!("[{SANDBOXES}, {{apiGroups: [sluice.dev], resources: [sandboxes], verbs: [skip]}}]"),
    );
    eventually(SOON, "alice has the right", || apply_as(&alice, &owned("x", &guarded)).success.then_some(()));
}
