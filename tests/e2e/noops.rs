//! What changes no spec runs nothing, and a dry run writes nothing.

use crate::cluster::{EDITOR, Outcome, RUNNERS, Space, apply, get, keeps, kubectl, kubectl_file, list, witnesses};
use crate::raw::Proxy;

fn manifest(space: &Space, plugin: &str, description: &str) -> String {
    let spec = format!("  description: {description}\n  resources: [{{name: r, plugin: {plugin}}}]");
    space.sandbox("x", &spec)
}

#[test]
fn w18_what_changes_no_spec_runs_nothing() {
    let space = Space::new("noops");
    let plugin = space.plugin("witness", &witnesses());
    let same = manifest(&space, &plugin, "one");
    apply(&same).ok();
    let generation = space.rest("x")["metadata"]["generation"].clone();
    let runs = |space: &Space| space.runs("x").iter().map(|run| run["metadata"]["uid"].clone()).collect::<Vec<_>>();
    let before = runs(&space);
    assert_eq!(before.len(), 2);

    let patch = |arguments: &[&str]| {
        kubectl(&[&["-n", space.namespace.as_str(), "patch", "sandbox", "x", "--type=merge"], arguments].concat())
    };
    let proxy = Proxy::start();
    // kubectl reads a status before it patches it, which Sluice's account may not.
    let by_status = |patch: &str| {
        let answer = proxy.patch_by_status(&space, "x", patch);
        Outcome {
            success: answer.code == 200,
            stdout: String::new(),
            stderr: answer.body.to_string(),
            took: answer.took,
        }
    };
    let on = |verb: &str, what: &str| kubectl(&["-n", &space.namespace, verb, "sandbox", "x", what]);
    for _ in 0..9 {
        apply(&same).ok();
    }
    let nothings: [(&str, &dyn Fn() -> Outcome); 8] = [
        ("the tenth apply", &|| apply(&same)),
        ("a label", &|| on("label", "a=b")),
        ("an annotation", &|| on("annotate", "a=b")),
        ("an owned field alone", &|| {
            kubectl_file(&["apply", "--server-side", "--force-conflicts", "--field-manager=another"], &same)
        }),
        ("a patch to what is there", &|| patch(&["-p", r#"{"spec": {"description": "one"}}"#])),
        ("a status", &|| by_status(r#"{"status": {"phases": []}}"#)),
        ("a spec given to the status subresource", &|| {
            by_status(r#"{"spec": {"description": "two"}, "status": {"phases": []}}"#)
        }),
        // Last: kubectl notes what it replaced as what was applied, so that nothing can be applied after it.
        ("a replacement by itself", &|| kubectl_file(&["replace"], &space.rest("x").to_string())),
    ];
    for (what, make) in nothings {
        let made = make();
        assert!(made.success, "{what}: {}", made.stderr);
        // A run is written before its change is admitted: it would be there by now.
        assert_eq!(runs(&space), before, "{what} ran something");
    }
    let sandbox = space.settle("x");
    assert_eq!(sandbox["metadata"]["generation"], generation);
    assert_eq!(sandbox["metadata"]["labels"]["a"], "b", "the changes were made");

    // A real change shows that nothing was owed of all that: post-phases come later than their change.
    patch(&["-p", r#"{"spec": {"description": "two"}}"#]).ok();
    space.settle("x");
    let count: Vec<_> = space.count("x").into_values().collect();
    assert_eq!(count, [1, 1, 1, 1], "one run of each phase of a create and an update: {:?}", space.count("x"));
}

/// Everything of the space that a run could have written, by version.
fn versions(space: &Space) -> Vec<String> {
    let runs = list(&["phaseruns", "-l", &format!("sluice.dev/namespace={}", space.namespace)]);
    let own = list(&["-n", &space.namespace, "configmaps,events,secrets,sandboxes"]);
    let pods = list(&["-n", RUNNERS, "pods", "-l", &format!("sluice.dev/namespace={}", space.namespace)]);
    let version = |object: &serde_json::Value| {
        let metadata = &object["metadata"];
        format!("{} {} at {}", object["kind"], metadata["name"], metadata["resourceVersion"])
    };
    runs.iter().chain(&own).chain(&pods).map(version).collect()
}

#[test]
fn w04_w05_a_dry_run_says_what_would_run_and_writes_nothing() {
    let space = Space::new("dry");
    let plugin = space.plugin("witness", &witnesses());
    let (one, two) = (manifest(&space, &plugin, "one"), manifest(&space, &plugin, "two"));
    let dry = |manifest: &str| kubectl_file(&["apply", "--dry-run=server"], manifest).ok().stderr;
    // What Argo CD asks for when it compares on the server's side.
    let argo = ["apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller", "--dry-run=server"];

    let before = versions(&space);
    let said = dry(&one);
    assert!(said.contains("Warning: pre-create would run: r/pre-create"), "{said}");
    let diff = kubectl_file(&["diff"], &one).refused();
    assert!(diff.stdout.contains("+  description: one"), "{}", diff.stdout);
    let said = kubectl_file(&argo, &one).ok().stderr;
    assert!(said.contains("Warning: pre-create would run: r/pre-create"), "{said}");
    assert_eq!(versions(&space), before, "a dry create wrote something");
    let records = serde_json::to_string(&list(&["sandboxrecords"])).unwrap();
    assert!(!records.contains(&space.namespace), "a dry create left a record");

    apply(&one).ok();
    space.rest("x");
    let before = versions(&space);
    let said = dry(&two);
    assert!(said.contains("Warning: pre-update would run: r/pre-update"), "{said}");
    let said = kubectl_file(&argo, &two).ok().stderr;
    assert!(said.contains("Warning: pre-update would run: r/pre-update"), "{said}");
    let diff = kubectl_file(&["diff"], &two).refused();
    assert!(diff.stdout.contains("+  description: two"), "{}", diff.stdout);
    kubectl_file(&["diff"], &one).ok();
    let said = kubectl(&["-n", &space.namespace, "delete", "sandbox", "x", "--dry-run=server"]).ok().stderr;
    assert!(said.contains("Warning: pre-delete would run: r/pre-delete"), "{said}");
    assert_eq!(versions(&space), before, "a dry change wrote something");

    // The real change is a run of its own, which joins none that a dry one could have begun.
    apply(&two).ok();
    space.rest("x");
    assert_eq!(space.count("x")["PreUpdate"], 1);
}

#[test]
fn w05_a_dry_run_lists_the_steps_of_each_resource_in_their_order() {
    let space = Space::new("listed");
    let steps = format!("[{}, {}]", keeps("a", "a", "k: v"), keeps("b", "b", "k: v"));
    let plugin = space.plugin("two", &format!("  runner: {{serviceAccountName: {EDITOR}}}\n  preCreate: {steps}"));
    let sandbox =
        space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}, {{name: s, plugin: {plugin}}}]"));
    let said = kubectl_file(&["create", "--dry-run=server"], &sandbox).ok().stderr;
    assert!(said.contains("pre-create would run: r/a, r/b, s/a, s/b"), "{said}");
}

#[test]
fn w05_a_dry_run_of_what_is_wrong_is_refused_as_the_change_would_be() {
    let space = Space::new("faulty");
    let plugin = space.plugin("witness", &witnesses());
    let env = "{name: A, valueFrom: {resource: {name: r, outputKey: none}}}";
    let faults = [
        (
            "  resources: [{name: r, plugin: no-such-plugin}]".to_owned(),
            "spec.resources[0].plugin: there is no ResourcePlugin \"no-such-plugin\"",
        ),
        (
            format!(
                "  resources: [{{name: r, plugin: {plugin}}}]
  forks: [{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{env: [{env}]}}}}]"
            ),
            "spec.forks[0].customizations.env[0].valueFrom.resource.outputKey: no step of the plugin has an output \"none\"",
        ),
        (
            format!("  resources: [{{name: r, plugin: {plugin}}}, {{name: r, plugin: {plugin}}}]"),
            "spec.resources[1]: Duplicate value",
        ),
    ];
    for (spec, message) in faults {
        for arguments in [&["create", "--dry-run=server"][..], &["create"][..]] {
            let said = kubectl_file(arguments, &space.sandbox("x", &spec)).refused().stderr;
            assert!(said.contains(message), "{arguments:?}: {said}");
        }
    }
    assert!(space.runs("x").is_empty());
}

#[test]
fn w37_both_webhooks_declare_that_a_dry_run_has_no_side_effects() {
    let _space = Space::new("declared");
    for (kind, declared) in [("validating", "NoneOnDryRun"), ("mutating", "None")] {
        let live = get(&[&format!("{kind}webhookconfiguration"), "sluice"]).unwrap();
        let webhooks = live["webhooks"].as_array().unwrap();
        assert_eq!(webhooks.len(), 1);
        assert_eq!(webhooks[0]["sideEffects"], declared, "{kind}");
    }
}

/// How often the API server has called Sluice's webhooks for an update, as a written status is one. What it calls them
/// for meanwhile, as it takes the namespaces of earlier tests down, is none.
fn calls() -> u64 {
    ["validate", "default"].map(calls_of).iter().sum()
}

fn calls_of(webhook: &str) -> u64 {
    let metrics = kubectl(&["get", "--raw", "/metrics"]).ok().stdout;
    let of_sluice = |line: &&str| {
        line.starts_with("apiserver_admission_webhook_request_total{")
            && line.contains(&format!("\"{webhook}.sluice.dev\",operation=\"UPDATE\""))
    };
    metrics.lines().filter(of_sluice).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

#[test]
fn w33_a_written_status_calls_no_webhook_nor_does_anything_else_that_no_phase_runs_for() {
    // Alone, since the API server counts the calls of all together.
    let space = Space::alone("status");
    let plugin = space.plugin("witness", &witnesses());
    apply(&manifest(&space, &plugin, "one")).ok();
    let proxy = Proxy::start();
    apply(&manifest(&space, &plugin, "two")).ok();
    let settled = space.rest("x");
    let before = calls();
    assert!(calls_of("validate") > 0, "the API server counts them under another name");
    for n in 0..100 {
        let phase = format!(r#"{{"phases": [{{"phase": "PreCreate", "state": "Committed", "run": "r-{n}"}}]}}"#);
        let written = proxy.patch_status(&space, "x", &phase);
        assert_eq!(written.code, 200, "{}", written.message());
    }
    // Sluice writes the status that it holds for right, which calls nobody either.
    let sandbox = space.rest("x");
    assert_eq!(sandbox["status"]["phases"], settled["status"]["phases"]);
    assert_eq!(calls(), before);
    // Nor does anything else that no phase runs for and that nobody is refused for.
    let on = |verb: &str, what: &str| kubectl(&["-n", &space.namespace, verb, "sandbox", "x", what]).ok();
    on("label", "a=b");
    on("annotate", "a=b");
    on("annotate", "sluice.dev/of-nobody=b");
    for finalizers in ["[\"example.com/hold\"]", "null"] {
        let patch = format!("{{\"metadata\": {{\"finalizers\": {finalizers}}}}}");
        kubectl(&["-n", &space.namespace, "patch", "sandbox", "x", "--type=merge", "-p", &patch]).ok();
    }
    apply(&manifest(&space, &plugin, "two")).ok();
    kubectl(&["label", "resourceplugin", &plugin, "a=b"]).ok();
    assert_eq!(calls(), before);
    let (before_validating, before_mutating) = (calls_of("validate"), calls_of("default"));
    on("annotate", "sluice.dev/skip-pre-delete=because");
    assert!(calls_of("validate") > before_validating, "what Sluice acts on calls it");
    apply(&manifest(&space, &plugin, "three")).ok();
    assert_eq!(calls_of("default"), before_mutating, "there is nothing to note");
    on("annotate", "sluice.dev/latest={}");
    assert!(calls_of("default") > before_mutating, "nobody writes that but Sluice");
}
