//! What must hold though no replica of Sluice answers, and where plugins and their accounts are.

use crate::chart::Values;
use crate::cluster::{
    EDITOR, OWN_USER, Outcome, RESTRICTED, RUNNERS, SLUICE, Space, apply, eventually, get, keeps, kubectl,
    kubectl_file, list, plugin, run, step_image, witnesses,
};
use crate::server::{Scaled, take_webhooks_out};
use serde_json::{Value, json};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// The sandbox of the attack: a copy of Sluice itself that sends out what it may read.
fn thief(namespace: &str, name: &str) -> String {
    format!(
        "
apiVersion: sluice.dev/v1alpha1
kind: Sandbox
metadata: {{name: {name}, namespace: {namespace}, finalizers: [example.com/hold]}}
spec:
  forks: [{{forkOf: {{kind: Deployment, name: sluice}}}}]
"
    )
}

/// A policy's binding that is taken away, until this is dropped.
struct Unbound(Value);

impl Unbound {
    fn policy(name: &str) -> Self {
        let mut binding = get(&["validatingadmissionpolicybinding", name]).unwrap();
        for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"] {
            binding["metadata"].as_object_mut().unwrap().remove(field);
        }
        kubectl(&["delete", "validatingadmissionpolicybinding", name]).ok();
        Self(binding)
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        kubectl_file(&["create"], &self.0.to_string());
    }
}

/// An object as one would write it anew under another name.
fn renamed(object: &Value, name: &str) -> String {
    let mut new = object.clone();
    new["metadata"] = json!({"name": name, "labels": object["metadata"]["labels"]});
    new.to_string()
}

#[test]
fn t01_no_sandbox_gets_to_where_sluice_and_its_plugins_run_though_no_replica_answers() {
    let space = Space::alone("boundary");
    let _down = Scaled::to(0);
    take_webhooks_out();
    for namespace in [SLUICE, RUNNERS] {
        let said = kubectl_file(&["create"], &thief(namespace, "thief")).refused().stderr;
        assert!(said.contains(&format!("no sandbox may be in namespace {namespace}")), "{said}");
        let said = kubectl_file(&["create", "--dry-run=server"], &thief(namespace, "thief")).refused().stderr;
        assert!(said.contains("make it in the namespace of the workloads that it forks"), "{said}");
    }
    // Everywhere else they are nobody's business but RBAC's.
    kubectl_file(&["create"], &thief(&space.namespace, "x").replace("finalizers: [example.com/hold]", "")).ok();
}

#[test]
fn t01_a_sandbox_that_is_there_all_the_same_is_ignored_cannot_be_changed_and_can_be_deleted() {
    let space = Space::alone("intruder");
    let (unbound, name) = (Unbound::policy("sluice-sandbox-namespaces"), space.name("thief"));
    eventually(SOON, "nothing keeps it out", || kubectl_file(&["create"], &thief(SLUICE, &name)).success.then_some(()));
    // A sandbox that came later has settled: this one had its turn.
    let plugin = space.plugin("witness", &witnesses());
    apply(&space.sandbox("later", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    space.settle("later");
    let intruder = || get(&["-n", SLUICE, "sandbox", &name]);
    let uid = intruder().unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    assert!(intruder().unwrap()["status"].is_null(), "{:#}", intruder().unwrap());
    assert!(get(&["sandboxrecord", &uid]).is_none());
    let forks = list(&["-n", SLUICE, "deployments,services", "-l", &format!("sluice.dev/sandbox-uid={uid}")]);
    assert!(forks.is_empty(), "{forks:#?}");

    drop(unbound);
    let patch = |what: &str| kubectl(&["-n", SLUICE, "patch", "sandbox", &name, "--type=merge", "-p", what]);
    eventually(SOON, "the policy is in force", || {
        (!patch(r#"{"metadata": {"labels": {"a": "b"}}}"#).success).then_some(())
    });
    patch(r#"{"spec": {"description": "two"}}"#).refused();
    // Who cleans up is in nobody's way: what takes a finalizer off is an update.
    kubectl(&["-n", SLUICE, "delete", "sandbox", &name, "--wait=false"]).ok();
    patch(r#"{"spec": {"description": "two"}}"#).refused();
    patch(r#"{"metadata": {"finalizers": null}}"#).ok();
    assert!(intruder().is_none());
}

#[test]
fn t16_runs_records_and_statuses_are_written_by_sluice_alone_though_no_replica_answers() {
    let space = Space::alone("forger");
    let plugin = space.plugin("witness", &witnesses());
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    let sandbox = space.rest("x");
    let uid = sandbox["metadata"]["uid"].as_str().unwrap();
    let (known, record) = (space.run("x", "PreCreate"), get(&["sandboxrecord", uid]).unwrap());
    let _down = Scaled::to(0);

    let refused = |outcome: Outcome| {
        let said = outcome.refused().stderr;
        assert!(said.contains("are Sluice's own notes, which nobody else may write"), "{said}");
    };
    let names = [space.name("pre-create-forged"), space.name("forged")];
    let forged = [renamed(&known, &names[0]), renamed(&record, &names[1])];
    for (kind, (name, forged)) in ["phaserun", "sandboxrecord"].into_iter().zip(names.iter().zip(&forged)) {
        refused(kubectl_file(&["create"], forged));
        // The same is right in every other way.
        kubectl_file(&["create", "--as", OWN_USER], forged).ok();
        refused(kubectl(&["label", kind, name, "a=b"]));
        refused(kubectl(&["annotate", kind, name, "a=b"]));
        let stored = get(&[kind, name]).unwrap();
        kubectl_file(&["replace"], &stored.to_string()).ok();
        // Who cleans up is in nobody's way.
        let patch = |what: &str| kubectl(&["patch", kind, name, "--type=merge", "-p", what]);
        patch(r#"{"metadata": {"finalizers": ["example.com/hold"]}}"#).ok();
        kubectl(&["delete", kind, name, "--wait=false"]).ok();
        patch(r#"{"metadata": {"finalizers": null}}"#).ok();
        assert!(get(&[kind, name]).is_none());
    }
    let name = known["metadata"]["name"].as_str().unwrap();
    let status = r#"{"status": {"state": "Failed"}}"#;
    refused(kubectl(&["patch", "phaserun", name, "--subresource=status", "--type=merge", "-p", status]));
    let status = r#"{"status": {"routingKey": "another"}}"#;
    let of_sandbox = ["-n", &space.namespace, "patch", "sandbox", "x", "--subresource=status"];
    refused(kubectl(&[&of_sandbox[..], &["--type=merge", "-p", status]].concat()));
}

#[test]
fn t07_what_is_being_deleted_gets_no_other_spec_for_its_post_delete() {
    let space = Space::new("leaving");
    let plugin = space.plugin("witness", &witnesses());
    let spec = format!("  resources: [{{name: r, plugin: {plugin}}}]");
    let held = space.sandbox("x", &spec).replace("{name: x,", "{name: x, finalizers: [example.com/hold],");
    apply(&held).ok();
    space.rest("x");
    let namespace = space.namespace.as_str();
    kubectl(&["-n", namespace, "delete", "sandbox", "x", "--wait=false"]).ok();
    let patch = |patch: &str| kubectl(&["-n", namespace, "patch", "sandbox", "x", "--type=merge", "-p", patch]);
    for (change, field) in [
        (r#"{"spec": {"resources": []}}"#, "spec: sandbox x is being deleted"),
        (r#"{"spec": {"description": "another"}}"#, "spec: sandbox x is being deleted"),
        (r#"{"metadata": {"annotations": {"sluice.dev/latest": "{}"}}}"#, "metadata.annotations[sluice.dev/latest]"),
    ] {
        let said = patch(change).refused().stderr;
        assert!(said.contains(field) && said.contains("Forbidden"), "{change}: {said}");
    }
    patch(r#"{"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}"#).ok();
    patch(r#"{"metadata": {"finalizers": null}}"#).ok();
    eventually(SOON, "its post-delete runs", || (space.count("x")["PostDelete"] == 1).then_some(()));
}

#[test]
fn a_plugin_that_names_sluices_own_namespace_is_refused_though_no_replica_answers() {
    let space = Space::alone("beside");
    let _down = Scaled::to(0);
    take_webhooks_out();
    let of = |runner: &str| {
        plugin(
            &space.name("p"),
            &format!("  runner: {{image: i{runner}}}\n  preCreate: [{{name: a, script: '#!/bin/sh'}}]"),
        )
    };
    let said = apply(&of(", namespace: sluice-system")).refused().stderr;
    assert!(said.contains("spec.runner.namespace: sluice-system is Sluice's own namespace"), "{said}");
    assert!(said.contains("name one of sluice-runners"), "{said}");
    for runner in ["", ", namespace: sluice-runners", ", namespace: elsewhere", ", serviceAccountName: sluice"] {
        apply(&of(runner)).ok();
    }
    apply(&of(", namespace: sluice-system, serviceAccountName: other")).refused();
    kubectl(&["delete", "resourceplugin", &space.name("p")]).ok();
}

#[test]
fn what_no_phase_runs_for_needs_no_replica_and_what_one_may_run_for_does() {
    let space = Space::alone("asked");
    let plugin = space.plugin("witness", &witnesses());
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    space.workload("cart", 0);
    // As many annotations as an object can have: nothing that looks at them may give up.
    let many: serde_json::Map<_, _> = (0..20_000).map(|n| (format!("a{n}"), json!(""))).collect();
    let mut large: Value = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox", "spec": {}});
    large["metadata"] = json!({"name": "large", "namespace": space.namespace, "annotations": many});
    kubectl_file(&["create"], &large.to_string()).ok();
    space.rest("x");
    let _down = Scaled::to(0);
    let patch = |kind: &str, name: &str, what: &Value| {
        kubectl(&["-n", &space.namespace, "patch", kind, name, "--type=merge", "-p", &what.to_string()])
    };
    let nothings = [
        json!({"metadata": {"labels": {"a": "b", "sluice.dev/name": "y"}}}),
        json!({"metadata": {"annotations": {"a": "b", "sluice.dev/of-nobody": "y"}}}),
        json!({"metadata": {"finalizers": ["example.com/hold"]}}),
        json!({"metadata": {"finalizers": null}}),
        json!({"spec": {}}),
    ];
    for nothing in &nothings {
        for name in ["x", "large"] {
            patch("sandbox", name, nothing).ok();
        }
        patch("resourceplugin", &plugin, nothing).ok();
    }
    let uid = space.get("deployment", "cart").unwrap()["metadata"]["uid"].clone();
    let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart", "uid": uid});
    for something in [
        json!({"spec": {"description": "two"}}),
        json!({"metadata": {"ownerReferences": [owner]}}),
        json!({"metadata": {"annotations": {"sluice.dev/skip-pre-delete": "because"}}}),
        json!({"metadata": {"annotations": {"sluice.dev/latest": "{}"}}}),
        json!({"metadata": {"annotations": {"sluice.dev/admitted": "me"}}}),
    ] {
        let said = patch("sandbox", "x", &something).refused().stderr;
        assert!(said.contains("failed calling webhook"), "{something}: {said}");
    }
    let said = patch("resourceplugin", &plugin, &json!({"spec": {"description": "two"}})).refused().stderr;
    assert!(said.contains("failed calling webhook"), "{said}");
    let said = apply(&space.sandbox("new", "  {}")).refused().stderr;
    assert!(said.contains("failed calling webhook"), "{said}");
    // One with forks that came while nobody was asked is brought under admission by any change.
    take_webhooks_out();
    let forks = "  forks: [{forkOf: {kind: Deployment, name: cart}}]";
    eventually(SOON, "nobody is asked", || apply(&space.sandbox("unseen", forks)).success.then_some(()));
    drop(_down);
    let down = Scaled::to(0);
    let said = patch("sandbox", "unseen", &json!({"metadata": {"labels": {"a": "b"}}})).refused().stderr;
    assert!(said.contains("failed calling webhook"), "{said}");
    drop(down);
}

#[test]
fn sluice_impersonates_accounts_of_runner_namespaces_alone_and_only_those_that_values_name() {
    let space = Space::alone("accounts");
    let may = |namespace: &str, account: &str| {
        let what = format!("serviceaccounts/{account}");
        kubectl(&["-n", namespace, "auth", "can-i", "impersonate", &what, "--as", OWN_USER]).success
    };
    assert!(may(RUNNERS, EDITOR) && may(RUNNERS, "another"));
    for namespace in [SLUICE, "kube-system", "default", &space.namespace] {
        assert!(!may(namespace, "sluice") && !may(namespace, "default"), "{namespace}");
    }
    let everywhere = ["auth", "can-i", "impersonate", "serviceaccounts", "-A", "--as", OWN_USER];
    assert!(!kubectl(&everywhere).success);
    {
        let _named = Values::set(&[
            &format!("runners.serviceAccounts.{RUNNERS}={{{EDITOR}}}"),
            "runners.allowOwnNamespace=true",
            "runnerNamespaces={sluice-system}",
            "runners.serviceAccounts.sluice-system={named}",
        ]);
        eventually(SOON, "the bindings are known", || may(SLUICE, "named").then_some(()));
        assert!(may(RUNNERS, EDITOR) && !may(RUNNERS, "another"));
        assert!(!may(SLUICE, "sluice") && !may(SLUICE, "default"));
        let of = |more: &str| {
            let runner = format!("  runner: {{image: '{}', namespace: {SLUICE}{more}}}", step_image());
            plugin(&space.name("own"), &format!("{runner}\n  preCreate: [{{name: a, script: '#!/bin/sh'}}]"))
        };
        let said = apply(&of(", serviceAccountName: sluice")).refused().stderr;
        assert!(said.contains("sluice is Sluice's own"), "{said}");
        for (overlay, fault) in [
            ("spec: {serviceAccountName: sluice}", "\"sluice\" is Sluice's own, which no plugin may act as"),
            (
                "spec: {volumes: [{name: tls, secret: {secretName: sluice-tls}}]}",
                "refers to the Secret \"sluice-tls\", which is Sluice's own",
            ),
        ] {
            let said = apply(&of(&format!(", podTemplateOverlay: '{overlay}'"))).refused().stderr;
            assert!(said.contains(fault), "{said}");
        }
        apply(&of("")).ok();
        let manifest = space.sandbox("x", &format!("  resources: [{{name: r, plugin: {}}}]", space.name("own")));
        apply(&manifest).ok();
        space.settle("x");
        kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
        // Whatever an overlay said: Sluice makes no pod with its own account.
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: thief, namespace: {SLUICE}}}\nspec: {{serviceAccountName: sluice, containers: [{{name: a, image: i, {RESTRICTED}}}]}}\n"
        );
        let said = kubectl_file(&["create", "--dry-run=server", "--as", OWN_USER], &pod).refused().stderr;
        assert!(said.contains("sluice is Sluice's own, which no plugin's pod may have"), "{said}");
        kubectl(&["delete", "resourceplugin", &space.name("own")]).ok();
    }
    eventually(SOON, "it is as it was", || (!may(SLUICE, "named") && may(RUNNERS, "another")).then_some(()));
}

#[test]
fn values_that_would_let_a_plugin_act_as_sluice_are_refused_when_the_chart_is_rendered() {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/sluice");
    let rendered = |values: &[&str]| {
        let set: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
        run("helm", &[&["template", "sluice", chart, "--namespace", "sluice-system"], &set[..]].concat(), "")
    };
    rendered(&[]).ok();
    let own = "runners.allowOwnNamespace=true";
    rendered(&[own, "runners.namespace.name=sluice-system"]).ok();
    let wrong: [(&[&str], &str); 5] = [
        (&["runners.namespace.name=sluice-system"], "unless runners.allowOwnNamespace is true"),
        (&["runnerNamespaces={a,sluice-system}"], "unless runners.allowOwnNamespace is true"),
        (&["runners.serviceAccounts.a={b}"], "names the namespace \"a\", where no plugin runs"),
        (
            &[own, "runnerNamespaces={sluice-system}", "runners.serviceAccounts.sluice-system={a,sluice}"],
            "is Sluice's own account and no plugin may act as",
        ),
        (&["runners.serviceAccounts.sluice-runners={Wrong}"], "does not match pattern"),
    ];
    for (values, message) in wrong {
        let said = rendered(values).refused().stderr;
        assert!(said.contains(message), "{values:?}: {said}");
    }
}

#[test]
fn t13_a_pod_that_looks_like_a_waiting_one_in_a_tenants_namespace_is_nobodys_business() {
    let space = Space::new("lookalike");
    let name = space.name("pretender");
    let pod = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {}, labels: {{sluice.dev/warm-of: nobody, sluice.dev/run: nobody}}}}
spec: {{terminationGracePeriodSeconds: 0, containers: [{{name: main, image: '{}', command: [sleep, '600']}}]}}
",
        space.namespace,
        step_image()
    );
    apply(&pod).ok();
    // The leader looks at all that wait when it makes one.
    let spec =
        format!("  runner: {{image: '{}', warm: 1}}\n  preCreate: [{{name: a, script: '#!/bin/sh'}}]", step_image());
    let warm = space.plugin("p", &spec);
    let of = format!("sluice.dev/warm-of={warm}");
    eventually(SOON, "a pod waits", || (!list(&["-n", RUNNERS, "pods", "-l", &of]).is_empty()).then_some(()));
    kubectl(&["delete", "resourceplugin", &warm]).ok();
    eventually(SOON, "it is gone with its plugin", || {
        list(&["-n", RUNNERS, "pods", "-l", &of]).is_empty().then_some(())
    });
    let logs = kubectl(&["-n", SLUICE, "logs", "-l", "sluice.dev/component=server", "--tail=-1"]).ok().stdout;
    assert!(!logs.is_empty() && !logs.contains(&name), "Sluice was at the tenant's pod");
    assert!(space.get("pod", &name).unwrap()["metadata"]["deletionTimestamp"].is_null());
}

#[test]
fn t14_using_a_plugin_takes_no_reading_of_it_and_values_say_who_may_read() {
    let space = Space::alone("readers");
    let (alice, group) = (space.name("alice"), space.name("readers"));
    let may = |verb: &str, more: &[&str]| {
        let what = ["auth", "can-i", verb, "resourceplugins.sluice.dev", "--as", &alice];
        kubectl(&[&what[..], more].concat()).success
    };
    let grouped = ["--as-group", "system:authenticated", "--as-group", &group];
    assert!(may("use", &[]));
    for verb in ["get", "list", "watch"] {
        assert!(!may(verb, &[]) && !may(verb, &grouped), "everyone may {verb} plugins");
    }
    let plugin = space.plugin(
        "p",
        &format!("  runner: {{serviceAccountName: {EDITOR}}}\n  preCreate: [{}]", keeps("note", "note", "a: b")),
    );
    let user = format!("--user={alice}");
    kubectl(&["-n", &space.namespace, "create", "rolebinding", "edits", "--clusterrole=edit", &user]).ok();
    let manifest = space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"));
    eventually(SOON, "alice may use it", || kubectl_file(&["create", "--as", &alice], &manifest).success.then_some(()));
    assert!(!may("list", &[]), "who may edit in a namespace reads no plugins");
    let _values = Values::set(&[&format!("plugins.readableBy={{{group}}}")]);
    eventually(SOON, "the group may read", || may("list", &grouped).then_some(()));
    assert!(!may("list", &[]));
}
