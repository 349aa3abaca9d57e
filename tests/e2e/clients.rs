//! Every client and every way of making a change obeys the phases, without knowing of them.

use crate::cluster::{Outcome, Space, apply, eventually, kubectl, kubectl_file, list, run_in, step_image, witnesses};
use crate::raw::{Proxy, all_at_once};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// A change of the sandbox `x`, given its manifest as it is to be.
type Change<'a> = &'a dyn Fn(&str) -> Outcome;

/// Creates, changes and deletes the sandbox `x`, and proves that each phase ran once, at its change.
fn live(space: &Space, create: Change<'_>, update: Change<'_>, delete: &dyn Fn() -> Outcome) {
    let plugin = space.plugin("witness", &witnesses());
    let manifest = |description: &str| {
        let spec = format!("  description: {description}\n  resources: [{{name: r, plugin: {plugin}}}]");
        space.sandbox("x", &spec)
    };
    create(&manifest("one")).ok();
    assert_eq!(description(space, "pre-create"), "one", "the pre-phase has run by the end of the command");
    space.rest("x");
    assert_ran(space, &["PostCreate", "PreCreate"]);

    update(&manifest("two")).ok();
    assert_eq!(description(space, "pre-update"), "two");
    space.settle("x");
    assert_ran(space, &["PostCreate", "PostUpdate", "PreCreate", "PreUpdate"]);
    assert_eq!((description(space, "pre-create"), description(space, "post-update")), ("one".into(), "two".into()));

    delete().ok();
    assert!(space.get("sandbox", "x").is_none(), "the sandbox is gone by the end of the command");
    space.settled_run("x", "PreDelete", "Committed");
    space.settled_run("x", "PostDelete", "Succeeded");
    assert_ran(space, &["PostCreate", "PostDelete", "PostUpdate", "PreCreate", "PreDelete", "PreUpdate"]);
    for phase in ["PreCreate", "PreUpdate"] {
        space.settled_run("x", phase, "Committed");
    }
    for phase in ["pre-create", "pre-update", "post-update", "pre-delete"] {
        let witness = space.get("configmap", &format!("{phase}-x"));
        assert!(witness.is_none(), "what the resource applied went with it: {witness:?}");
    }
}

/// The description that the phase saw.
fn description(space: &Space, phase: &str) -> String {
    let witness = space.get("configmap", &format!("{phase}-x")).unwrap_or_else(|| panic!("{phase} has not run"));
    witness["data"]["description"].as_str().unwrap().to_owned()
}

/// Each of these phases has run once, and no other has.
#[track_caller]
fn assert_ran(space: &Space, phases: &[&str]) {
    let count: Vec<_> = space.count("x").into_iter().collect();
    let expected: Vec<_> = phases.iter().map(|phase| ((*phase).to_owned(), 1)).collect();
    assert_eq!(count, expected);
}

#[test]
fn kubectl_apply_obeys_the_phases() {
    let space = Space::new("apply");
    live(&space, &apply, &apply, &|| kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]));
}

#[test]
fn kubectl_apply_server_side_obeys_the_phases() {
    let space = Space::new("server-side");
    let change = |manifest: &str| kubectl_file(&["apply", "--server-side", "--field-manager=e2e"], manifest);
    live(&space, &change, &change, &|| kubectl(&["-n", &space.namespace, "delete", "sandboxes", "--all"]));
}

#[test]
fn kubectl_create_and_a_merge_patch_obey_the_phases() {
    let space = Space::new("merge");
    let namespace = space.namespace.as_str();
    let patch = r#"{"spec": {"description": "two"}}"#;
    live(
        &space,
        &|manifest| kubectl_file(&["create"], manifest),
        &|_| kubectl(&["-n", namespace, "patch", "sandbox", "x", "--type=merge", "-p", patch]),
        &|| kubectl_file(&["delete"], &space.sandbox("x", "  {}")),
    );
}

#[test]
fn a_json_patch_and_a_deletion_of_the_whole_collection_obey_the_phases() {
    let space = Space::new("json");
    let namespace = space.namespace.as_str();
    let patch = r#"[{"op": "replace", "path": "/spec/description", "value": "two"}]"#;
    let collection = format!("/apis/sluice.dev/v1alpha1/namespaces/{namespace}/sandboxes");
    live(
        &space,
        &|manifest| kubectl_file(&["create"], manifest),
        &|_| kubectl(&["-n", namespace, "patch", "sandbox", "x", "--type=json", "-p", patch]),
        &|| kubectl(&["delete", "--raw", &collection]),
    );
}

#[test]
fn a_replaced_sandbox_as_kubectl_edit_makes_it_obeys_the_phases() {
    let space = Space::new("replace");
    let edit = |_: &str| {
        let mut sandbox = space.get("sandbox", "x").unwrap();
        sandbox["spec"]["description"] = "two".into();
        kubectl_file(&["replace"], &sandbox.to_string())
    };
    let delete = || kubectl(&["-n", &space.namespace, "delete", "sandbox", "x", "--cascade=foreground"]);
    live(&space, &|manifest| kubectl_file(&["create"], manifest), &edit, &delete);
}

#[test]
fn a_replacement_is_not_in_conflict_with_what_sluice_writes_while_its_phase_runs() {
    let space = Space::new("version");
    let plugin = space.plugin(
        "slow",
        &format!(
            "  runner: {{image: {}}}\n  preUpdate: [{{name: slow, script: \"#!/bin/sh\\nsleep 3\"}}]",
            step_image()
        ),
    );
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    let mut sandbox = space.settle("x");
    sandbox["spec"]["description"] = "two".into();
    kubectl_file(&["replace"], &sandbox.to_string()).ok();
    // Once it is stored, the status tells of the phase.
    let phases = space.rest("x")["status"]["phases"].clone();
    assert_eq!((&phases[0]["phase"], &phases[0]["state"]), (&"PreUpdate".into(), &"Committed".into()));
}

#[test]
fn a_helm_release_with_a_sandbox_obeys_the_phases() {
    let space = Space::new("helm");
    let chart = tempfile::tempdir().unwrap();
    std::fs::write(chart.path().join("Chart.yaml"), "apiVersion: v2\nname: feature\nversion: 0.1.0\n").unwrap();
    std::fs::create_dir(chart.path().join("templates")).unwrap();
    let release = |arguments: &[&str]| {
        run_in(Path::new("."), "helm", &[&["-n", space.namespace.as_str()], arguments].concat(), "")
    };
    let write = |manifest: &str| {
        std::fs::write(chart.path().join("templates/sandbox.yaml"), manifest).unwrap();
        chart.path().to_str().unwrap().to_owned()
    };
    live(
        &space,
        &|manifest| release(&["install", "feature", &write(manifest)]),
        &|manifest| release(&["upgrade", "feature", &write(manifest)]),
        &|| release(&["uninstall", "feature", "--wait"]),
    );
}

#[test]
fn w02_each_of_fifty_sandboxes_that_the_api_server_names_has_phases_of_its_own() {
    let space = Space::new("generated");
    let generated = |spec: &str| space.sandbox("x", spec).replace("name: x,", "generateName: sb-,");
    let plugin = space.plugin("witness", &witnesses());
    let manifest = generated(&format!("  description: many\n  resources: [{{name: r, plugin: {plugin}}}]"));
    let proxy = Proxy::start();
    let created = all_at_once(&[(); 50], |()| proxy.create_at_last(&space, &manifest));
    let uid_of: BTreeMap<String, String> = created
        .iter()
        .map(|sandbox| &sandbox["metadata"])
        .map(|metadata| (metadata["name"].as_str().unwrap().to_owned(), metadata["uid"].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(uid_of.len(), 50);

    let all = || list(&["phaseruns", "-l", &format!("sluice.dev/namespace={}", space.namespace)]);
    let runs = eventually(Duration::from_secs(120), "each has its post-create", || {
        let runs = all();
        let post = |run: &&Value| run["spec"]["phase"] == "PostCreate" && run["status"]["state"] == "Succeeded";
        (runs.iter().filter(post).count() >= 50).then_some(runs)
    });
    assert_eq!(runs.len(), 100, "one run of each phase for each sandbox, and none under a name that is not stored");
    for run in &runs {
        let (spec, name) = (&run["spec"], run["spec"]["target"]["name"].as_str().unwrap());
        let uid = uid_of.get(name).unwrap_or_else(|| panic!("a run of {name}, which is not stored"));
        assert_eq!(spec["object"]["metadata"]["name"], name);
        if spec["phase"] == "PreCreate" {
            assert_eq!(run["status"]["admitted"]["uid"], **uid);
        } else {
            assert_eq!(spec["target"]["uid"], **uid);
        }
    }
    for name in uid_of.keys() {
        assert!(space.get("configmap", &format!("pre-create-{name}")).is_some());
    }

    // A script is told the name that is stored.
    let script = "script: \"#!/bin/sh\\necho I am $SLUICE_SANDBOX_NAME.\"";
    let plugin = space
        .plugin("says", &format!("  runner: {{image: '{}'}}\n  preCreate: [{{name: say, {script}}}]", step_image()));
    let created =
        kubectl_file(&["create", "-o", "name"], &generated(&format!("  resources: [{{name: r, plugin: {plugin}}}]")));
    let name = created.ok().stdout.trim().rsplit_once('/').unwrap().1.to_owned();
    assert_eq!(space.run(&name, "PreCreate")["status"]["steps"][0]["log"], format!("I am {name}.\n"));
}

#[test]
fn w02_a_sandbox_that_the_api_server_names_is_told_when_its_phase_takes_too_long_for_that() {
    let space = Space::new("unnamed");
    let script = "script: \"#!/bin/sh\\nsleep 20\"";
    let plugin = space
        .plugin("slow", &format!("  runner: {{image: '{}'}}\n  preCreate: [{{name: slow, {script}}}]", step_image()));
    let manifest = space
        .sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))
        .replace("name: x,", "generateName: sb-,");
    // Each attempt would have another name, and so begin anew.
    let proxy = Proxy::start();
    let refused = eventually(Duration::from_secs(120), "there is room to wait", || {
        let answer = proxy.create(&space, &manifest, "?timeout=10s");
        (!answer.message().contains("there is room for")).then_some(answer)
    });
    assert_eq!(refused.code, 400, "{refused:?}");
    assert!(refused.message().contains("metadata.generateName"), "{refused:?}");
    let all = list(&["phaseruns", "-l", &format!("sluice.dev/namespace={}", space.namespace)]);
    assert_eq!(all.len(), 1);
}

#[test]
fn w19_after_a_failed_helm_install_the_next_upgrade_runs_what_each_sandbox_then_needs() {
    let space = Space::new("helm-again");
    // The pre-create of whatever is described as broken fails.
    let mut spec = witnesses();
    spec = spec.replacen("serviceAccountName", &format!("image: '{}', serviceAccountName", step_image()), 1);
    let check = "{name: check, inputs: [{name: d, value: sandbox.spec.description}], script: \"#!/bin/sh\\n[ $D != broken ]\"}, ";
    spec = spec.replacen("preCreate: [", &format!("preCreate: [{check}"), 1);
    let plugin = space.plugin("p", &spec);
    let chart = tempfile::tempdir().unwrap();
    std::fs::write(chart.path().join("Chart.yaml"), "apiVersion: v2\nname: three\nversion: 0.1.0\n").unwrap();
    std::fs::create_dir(chart.path().join("templates")).unwrap();
    let upgrade = |same: &str, changed: &str, failing: &str| {
        for (name, description) in [("same", same), ("changed", changed), ("failing", failing)] {
            let spec = format!("  description: {description}\n  resources: [{{name: r, plugin: {plugin}}}]");
            let file = chart.path().join(format!("templates/{name}.yaml"));
            std::fs::write(file, space.sandbox(name, &spec)).unwrap();
        }
        let path = chart.path().to_str().unwrap();
        run_in(Path::new("."), "helm", &["-n", &space.namespace, "upgrade", "--install", "three", path], "")
    };
    upgrade("one", "one", "broken").refused();
    for name in ["same", "changed"] {
        space.rest(name);
    }
    assert!(space.get("sandbox", "failing").is_none());

    upgrade("one", "two", "mended").ok();
    for name in ["same", "changed"] {
        space.rest(name);
    }
    space.settle("failing");
    let count = |name: &str| space.count(name).into_iter().map(|(phase, n)| format!("{phase} {n}")).collect::<Vec<_>>();
    assert_eq!(count("same"), ["PostCreate 1", "PreCreate 1"]);
    assert_eq!(count("changed"), ["PostCreate 1", "PostUpdate 1", "PreCreate 1", "PreUpdate 1"]);
    // The failed attempt, what undid it, and the phases of the one that was stored.
    assert_eq!(count("failing"), ["PostCreate 1", "PostDelete 1", "PreCreate 2"]);
}
