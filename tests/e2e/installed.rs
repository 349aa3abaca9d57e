//! Sluice comes, goes and is all down: nothing is refused before it can answer, and nothing blocks when it is gone.

use crate::cluster::{
    EDITOR, RUNNERS, SLUICE, Space, Watch, apply, condition, eventually, get, keeps, kubectl, list, plugin, set_up,
    step_image,
};
use crate::server::{SOON, Scaled, answers, helm, install, take_webhooks_out, values};
use crate::sleepers::{Phase, sandbox_with};
use serde_json::Value;

const CONFIGURATIONS: [&str; 2] = ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"];

#[test]
fn w06_uninstalling_takes_the_webhooks_first_and_installing_again_takes_up_what_is_there() {
    let space = Space::alone("uninstall");
    let phases: &[Phase] =
        &[("preCreate", &[("work", 0, "")]), ("postCreate", &[("work", 0, "")]), ("postDelete", &[("work", 0, "")])];
    let known = sandbox_with(&space, phases);
    let named = |name: &str| known.replace("{name: x,", &format!("{{name: {name},"));
    for name in ["x", "going"] {
        apply(&named(name)).ok();
        space.settle(name);
    }
    let other = space.name("doomed");
    kubectl(&["create", "namespace", &other]).ok();
    let here = format!("namespace: {}", space.namespace);
    apply(&known.replace(&here, &format!("namespace: {other}"))).ok();

    let values = values();
    let kinds: [&[&str]; 4] =
        [&[CONFIGURATIONS[0]], &[CONFIGURATIONS[1]], &["deployment", "-n", SLUICE], &["service", "-n", SLUICE]];
    let watch = Watch::new(&kinds);
    helm(&["uninstall", "sluice", "--namespace", SLUICE, "--wait", "--timeout", "3m"], "").ok();
    let gone = |kind: &str| {
        watch.version(&format!("the {kind} is gone"), |event| {
            event.kind == "DELETED" && event.object["kind"] == kind && event.object["metadata"]["name"] == "sluice"
        })
    };
    for configuration in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
        for server in ["Deployment", "Service"] {
            assert!(gone(configuration) < gone(server), "the {server} went before the {configuration}");
        }
    }
    for kind in CONFIGURATIONS {
        assert!(get(&[kind, "sluice"]).is_none(), "{kind} is left");
    }
    kubectl(&["delete", "namespace", &other, "--timeout=120s"]).ok();
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "going", "--timeout=60s"]).ok();
    apply(&named("unseen")).ok();

    install_and_use_at_once(&space, &values);
    // What was deleted meanwhile gets its post-delete all the same, from the record.
    space.settled_run("going", "PostDelete", "Succeeded");
    // What was stored meanwhile is taken up with a word about it, and no phase runs late.
    let unseen = space.settle("unseen");
    assert_eq!(condition(&unseen, "Ready").unwrap()["status"], "True");
    eventually(SOON, "an event tells of the adoption", || {
        let of_it = "reason=Adopted,involvedObject.name=unseen";
        let events = list(&["-n", &space.namespace, "events", "--field-selector", of_it]);
        (!events.is_empty()).then_some(())
    });
    let adopted = list(&["-n", &space.namespace, "events", "--field-selector", "reason=Adopted"]);
    let known = ["x", "going"];
    assert!(
        adopted.iter().all(|event| !known.iter().any(|name| event["involvedObject"]["name"] == *name)),
        "{adopted:#?}"
    );
    assert!(space.runs("unseen").is_empty());
    // What was known is known.
    space.settle("x");
    let count: Vec<_> = space.count("x").into_iter().collect();
    assert_eq!(count, [("PostCreate".to_owned(), 1), ("PreCreate".to_owned(), 1)]);
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "unseen"]).ok();
    space.settled_run("unseen", "PostDelete", "Succeeded");
}

/// Installs the chart as one who waits for nothing (W11): nothing is refused at any moment until Sluice can answer, and
/// no webhook is registered before.
fn install_and_use_at_once(space: &Space, values: &str) {
    let name = space.name("first");
    let steps = keeps("config", "${sandbox.metadata.name}-config", "");
    let plugin = plugin(&name, &format!("  runner: {{serviceAccountName: {EDITOR}}}\n  preCreate: [{steps}]"));
    let first = |n: u32| space.sandbox(&format!("first{n}"), &format!("  resources: [{{name: r, plugin: {name}}}]"));
    let kinds: [&[&str]; 3] = [&[CONFIGURATIONS[0]], &[CONFIGURATIONS[1]], &["endpointslices", "-n", SLUICE]];
    let watch = Watch::new(&kinds);
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/sluice");
    helm(&["install", "sluice", chart, "--namespace", SLUICE, "--values", "-"], values).ok();
    for n in 0.. {
        apply(&format!("{plugin}---\n{}", first(n))).ok();
        if CONFIGURATIONS.iter().all(|kind| get(&[kind, "sluice"]).unwrap()["webhooks"].is_array()) {
            break;
        }
        assert!(n < 200, "Sluice does not come up");
    }
    let ready = watch.version("an endpoint is ready", |event| {
        let endpoints = event.object["endpoints"].as_array();
        endpoints.is_some_and(|endpoints| endpoints.iter().any(|endpoint| endpoint["conditions"]["ready"] == true))
    });
    for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
        let registered = watch.version(&format!("{kind} has a webhook"), |event| {
            event.object["kind"] == kind && event.object["webhooks"].is_array()
        });
        assert!(ready < registered, "{kind} was filled in ({registered}) before an endpoint was ready ({ready})");
    }
    answers();
    apply(&first(1000)).ok();
    space.settled_run("first1000", "PreCreate", "Committed");
}

/// The line of docs/operations.md for a namespace that was deleted without uninstalling.
fn documented_recovery() -> Vec<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md")).unwrap();
    let (_, after) = page.split_once("**The namespace was deleted without `helm uninstall`:**").unwrap();
    let line = after.lines().find_map(|line| line.strip_prefix("    kubectl ")).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn w06_after_the_namespace_is_deleted_the_documented_line_lets_everything_go() {
    let space = Space::alone("raw");
    let manifest = sandbox_with(&space, &[("preDelete", &[("work", 0, "")]), ("postDelete", &[("work", 0, "")])]);
    apply(&manifest).ok();
    space.settle("x");
    for kind in CONFIGURATIONS {
        for webhook in get(&[kind, "sluice"]).unwrap()["webhooks"].as_array().unwrap() {
            let apart = &webhook["namespaceSelector"]["matchExpressions"][0];
            let expected =
                serde_json::json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [SLUICE]});
            assert_eq!(*apart, expected, "our own namespace is never matched");
        }
    }
    let values = values();
    kubectl(&["delete", "namespace", SLUICE, "--timeout=90s"]).ok();
    let refused = kubectl(&["-n", &space.namespace, "delete", "sandbox", "x", "--timeout=20s"]).refused();
    assert!(refused.stderr.contains("validate.sluice.dev"), "{}", refused.stderr);

    let line = documented_recovery();
    kubectl(&line.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    let other = space.name("doomed");
    kubectl(&["create", "namespace", &other]).ok();
    apply(&manifest.replace(&format!("namespace: {}", space.namespace), &format!("namespace: {other}"))).ok();
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x", "--timeout=20s"]).ok();
    kubectl(&["delete", "namespace", &other, "--timeout=120s"]).ok();

    install(&values);
    set_up();
    space.settled_run("x", "PostDelete", "Succeeded");
}

#[test]
fn w08_no_object_ever_has_a_finalizer_of_sluice() {
    let space = Space::new("finalizers");
    let namespace = space.namespace.as_str();
    space.workload("cart", 1);
    let kinds: [&[&str]; 10] = [
        &["sandboxes", "-n", namespace],
        &["phaseruns"],
        &["sandboxrecords"],
        &["resourceplugins"],
        &["deployments", "-n", namespace],
        &["configmaps", "-n", namespace],
        &["secrets", "-n", namespace],
        &["pods", "-n", RUNNERS],
        &["secrets", "-n", SLUICE],
        &["leases", "-n", SLUICE],
    ];
    let watch = Watch::new(&kinds);
    let script = "script: \"#!/bin/sh\\nprintf secret > /out/o\"";
    let work = format!("{{name: work, outputs: [{{name: o, valueFromPath: /out/o}}], {script}}}");
    let spec = format!(
        "  runner: {{image: '{}', serviceAccountName: {}}}\n  preCreate: [{work}, {}]\n  preDelete: [{script_alone}]\n  postDelete: [{script_alone}]",
        step_image(),
        EDITOR,
        keeps("config", "${sandbox.metadata.name}-config", ""),
        script_alone = "{name: work, script: \"#!/bin/sh\"}",
    );
    let plugin = space.plugin("p", &spec);
    let sandbox = |description: &str| {
        space.sandbox("x", &format!("  description: {description}\n  forks: [{{forkOf: {{kind: Deployment, name: cart}}}}]\n  resources: [{{name: r, plugin: {plugin}}}]"))
    };
    apply(&sandbox("one")).ok();
    space.settle("x");
    apply(&sandbox("two")).ok();
    space.settle("x");
    kubectl(&["-n", namespace, "delete", "sandbox", "x"]).ok();
    space.settled_run("x", "PostDelete", "Succeeded");

    let seen = watch.seen(|_| true);
    for kind in ["Sandbox", "PhaseRun", "SandboxRecord", "ResourcePlugin", "ConfigMap", "Deployment", "Pod", "Secret"] {
        assert!(seen.iter().any(|event| event.object["kind"] == kind), "no {kind} was seen");
    }
    for event in seen {
        let finalizers = event.object["metadata"]["finalizers"].to_string();
        assert!(!finalizers.contains("sluice"), "{:#?}", event.object);
    }
}

#[test]
fn w35_while_all_of_sluice_is_down_only_sandboxes_and_plugins_wait_and_a_deletion_is_made_up_for() {
    let space = Space::alone("deadlock");
    let namespace = space.namespace.as_str();
    for kind in CONFIGURATIONS {
        for webhook in get(&[kind, "sluice"]).unwrap()["webhooks"].as_array().unwrap() {
            for rule in webhook["rules"].as_array().unwrap() {
                assert_eq!(rule["apiGroups"], serde_json::json!(["sluice.dev"]), "{rule}");
                let ours = |resource: &Value| resource == "sandboxes" || resource == "resourceplugins";
                assert!(rule["resources"].as_array().unwrap().iter().all(ours), "{rule}");
            }
        }
    }
    apply(&sandbox_with(&space, &[("preDelete", &[("work", 0, "")]), ("postDelete", &[("work", 0, "")])])).ok();
    space.settle("x");
    let down = Scaled::to(0);
    let other = space.name("made");
    kubectl(&["create", "namespace", &other]).ok();
    space.workload("web", 1);
    kubectl(&["-n", namespace, "set", "env", "deployment/web", "A=B"]).ok();
    let lease = "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: l, namespace: NAMESPACE}\nspec: {holderIdentity: me}\n";
    for (namespace, pod) in [(namespace, "here"), ("kube-system", "e2e-here"), (SLUICE, "e2e-here")] {
        let image = format!("--image={}", step_image());
        kubectl(&["-n", namespace, "run", pod, &image, "--restart=Never", "--command", "--", "true"]).ok();
        apply(&lease.replace("NAMESPACE", namespace)).ok();
        kubectl(&["-n", namespace, "delete", "--wait=false", "pod", pod]).ok();
        kubectl(&["-n", namespace, "delete", "lease", "l"]).ok();
    }
    let node = list(&["nodes"])[0]["metadata"]["name"].as_str().unwrap().to_owned();
    kubectl(&["label", "node", &node, "sluice-e2e=here", "--overwrite"]).ok();
    kubectl(&["label", "node", &node, "sluice-e2e-"]).ok();
    for kind in CONFIGURATIONS {
        kubectl(&["label", kind, "sluice", "sluice-e2e=here", "--overwrite"]).ok();
        kubectl(&["label", kind, "sluice", "sluice-e2e-"]).ok();
    }
    kubectl(&["delete", "namespace", &other, "--timeout=120s"]).ok();
    // All of that was while Sluice's own kinds do wait.
    let refused = apply(&space.sandbox("new", "  {}")).refused();
    assert!(refused.stderr.contains("failed calling webhook \"validate.sluice.dev\""), "{}", refused.stderr);
    let delete = || kubectl(&["-n", namespace, "delete", "sandbox", "x", "--timeout=30s"]);
    let refused = delete().refused();
    assert!(refused.stderr.contains("failed calling webhook \"validate.sluice.dev\""), "{}", refused.stderr);
    assert!(space.get("sandbox", "x").unwrap()["metadata"]["deletionTimestamp"].is_null());

    // Without the webhooks it is deleted, and Sluice makes up for it: it puts them back, and has its record.
    take_webhooks_out();
    delete().ok();
    assert!(space.get("sandbox", "x").is_none());
    drop(down);
    space.settled_run("x", "PostDelete", "Succeeded");
    assert_eq!(space.count("x").into_iter().collect::<Vec<_>>(), [("PostDelete".to_owned(), 1)]);
}
