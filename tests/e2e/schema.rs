//! What kubectl shows of the custom resources.

use crate::cluster::{Space, apply, get, kubectl, step_image};
use serde_json::Value;

#[test]
fn each_kind_has_a_short_name_and_columns_worth_reading() {
    let space = Space::new("schema");
    let script = "[{name: a, script: '#!/bin/sh'}]";
    let plugin = space.plugin(
        "p",
        &format!("  description: Makes nothing\n  runner: {{image: {}}}\n  preCreate: {script}", step_image()),
    );
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    let sandbox = space.settle("x");
    let uid = sandbox["metadata"]["uid"].as_str().unwrap();
    let run = space.settled_run("x", "PreCreate", "Committed")["metadata"]["name"].as_str().unwrap().to_owned();
    let key = sandbox["status"]["routingKey"].as_str().unwrap();

    let shows = |arguments: &[&str], header: &str, cells: &[&str]| {
        let shown = kubectl(&[&["get"], arguments].concat()).ok().stdout;
        let mut lines = shown.lines();
        let titles: Vec<_> = lines.next().unwrap().split("  ").map(str::trim).filter(|t| !t.is_empty()).collect();
        assert_eq!(titles.join(", "), header, "{shown}");
        let row = lines.next().unwrap();
        cells.iter().for_each(|cell| assert!(row.contains(cell), "no {cell:?} in\n{shown}"));
    };
    shows(&["rp", &plugin], "NAME, IMAGE, DESCRIPTION, AGE", &[&plugin, &step_image(), "Makes nothing"]);
    shows(&["-n", &space.namespace, "sbx", "x"], "NAME, READY, PHASES, ROUTING KEY, AGE", &["x", "True", key]);
    let finished = "NAME, NAMESPACE, TARGET, PHASE, STATE, STARTED, FINISHED";
    shows(&["pr", &run], finished, &[&space.namespace, "PreCreate", "Committed"]);
    shows(&["sbr", uid], "NAME, NAMESPACE, TARGET, OWED, AGE", &[&space.namespace, "x"]);

    let all = kubectl(&["get", "sluice", "-n", &space.namespace, "-o", "name"]).ok().stdout;
    for object in [
        format!("resourceplugin.sluice.dev/{plugin}"),
        "sandbox.sluice.dev/x".to_owned(),
        format!("phaserun.sluice.dev/{run}"),
        format!("sandboxrecord.sluice.dev/{uid}"),
    ] {
        assert!(all.lines().any(|line| line == object), "no {object} in\n{all}");
    }
}

#[test]
fn kubectl_explains_each_field() {
    let _space = Space::new("schema");
    for (field, words) in [
        ("sandbox", "A temporary fork of some services"),
        ("sandbox.spec.forks", "The workloads that are forked."),
        ("sandbox.spec.forks.customizations.env.valueFrom.resource.outputKey", "STEP.OUTPUT"),
        ("resourceplugin.spec.preCreate.apply", "Objects, written with server-side apply"),
        ("phaserun.status.steps.exitCode", "What a script ended with."),
    ] {
        let shown = kubectl(&["explain", field]).ok().stdout;
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(words) && !shown.contains("<no description>"), "{field}: {shown}");
    }
}

#[test]
fn the_spec_of_a_run_never_changes() {
    let space = Space::new("schema");
    let plugin = space.plugin(
        "p",
        &format!("  runner: {{image: {}}}\n  preCreate: [{{name: a, script: '#!/bin/sh'}}]", step_image()),
    );
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    let name = space.run("x", "PreCreate")["metadata"]["name"].as_str().unwrap().to_owned();
    let spec = |run: &Option<Value>| run.as_ref().unwrap()["spec"].clone();
    let before = get(&["phaserun", &name]);
    for patch in [r#"{"spec": {"attempt": 7}}"#, r#"{"spec": {"resources": []}}"#, r#"{"spec": {"requestedBy": null}}"#]
    {
        let got = kubectl(&["patch", "phaserun", &name, "--type=merge", "-p", patch]).refused();
        assert!(
            got.stderr.contains("spec: ") && got.stderr.contains("the spec of a run never changes"),
            "{}",
            got.stderr
        );
    }
    assert_eq!(spec(&before), spec(&get(&["phaserun", &name])));
}
