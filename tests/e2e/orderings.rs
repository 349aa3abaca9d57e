//! The three orderings of the request, each from the API server's own record.

use crate::cluster::{EDITOR, Event, Space, Watch, apply, condition, kubectl, step_image};
use serde_json::Value;

/// All six phases: a script that sleeps, and a ConfigMap for each phase as a witness.
fn all_phases() -> String {
    let mut spec = format!("  runner: {{image: {}, serviceAccountName: {EDITOR}}}\n", step_image());
    for phase in ["preCreate", "postCreate", "preUpdate", "postUpdate", "preDelete", "postDelete"] {
        spec += &format!(
            "  {phase}:
  - name: work
    script: |
      #!/bin/sh
      sleep 1
      echo $SLUICE_PHASE of $SLUICE_SANDBOX_NAME
"
        );
    }
    spec
}

/// Whether an event is of the sandbox `x`, and what else is asked of it.
fn sandbox(event: &Event, more: impl Fn(&Value) -> bool) -> bool {
    event.object["kind"] == "Sandbox" && event.object["metadata"]["name"] == "x" && more(&event.object)
}

/// The versions at which the run of a phase was written and at which its success was.
fn run(watch: &Watch, namespace: &str, phase: &str) -> (u64, u64) {
    let of_phase = |event: &Event| {
        let spec = &event.object["spec"];
        event.object["kind"] == "PhaseRun" && spec["phase"] == phase && spec["target"]["namespace"] == namespace
    };
    let began = watch.version(&format!("{phase} is written"), |e| of_phase(e) && e.kind == "ADDED");
    let ended =
        watch.version(&format!("{phase} succeeds"), |e| of_phase(e) && e.object["status"]["state"] == "Succeeded");
    (began, ended)
}

#[test]
fn each_phase_runs_where_it_belongs() {
    let space = Space::new("orderings");
    let namespace = space.namespace.as_str();
    space.workload("cart", 1);
    let plugin = space.plugin("all", &all_phases());
    let watch = Watch::new(&[
        &["sandboxes", "-n", namespace],
        &["deployments", "-n", namespace],
        &["pods", "-n", namespace],
        &["phaseruns"],
    ]);
    let manifest = |more: &str| {
        let spec = format!(
            "  forks: [{{forkOf: {{kind: Deployment, name: cart}}}}]
  resources: [{{name: r, plugin: {plugin}}}]
{more}"
        );
        space.sandbox("x", &spec)
    };
    let fork = |event: &Event, kind: &str| {
        event.object["kind"] == kind && event.object["metadata"]["name"].as_str().unwrap().starts_with("cart-x")
    };

    apply(&manifest("")).ok();
    space.settle("x");
    let (_, pre_ended) = run(&watch, namespace, "PreCreate");
    let (post_began, _) = run(&watch, namespace, "PostCreate");
    let created = watch.version("the sandbox is created", |e| sandbox(e, |_| e.kind == "ADDED"));
    let forked = watch.version("the fork is made", |e| fork(e, "Deployment"));
    let ready = watch.version("the sandbox is ready", |e| {
        sandbox(e, |object| condition(object, "Ready").is_some_and(|c| c["status"] == "True"))
    });
    assert!(pre_ended < created, "pre-create ends ({pre_ended}) before the sandbox exists ({created})");
    assert!(created < forked, "the sandbox exists ({created}) before its fork ({forked})");
    assert!(ready < post_began, "post-create begins ({post_began}) after Ready ({ready})");
    let pre = space.run("x", "PreCreate");
    assert_eq!(pre["status"]["state"], "Committed");
    assert_eq!(pre["status"]["admitted"]["uid"], space.get("sandbox", "x").unwrap()["metadata"]["uid"]);

    apply(&manifest("  description: changed")).ok();
    space.settle("x");
    let (_, pre_ended) = run(&watch, namespace, "PreUpdate");
    let (post_began, _) = run(&watch, namespace, "PostUpdate");
    let updated = watch.version("the update is stored", |e| sandbox(e, |object| object["metadata"]["generation"] == 2));
    let observed =
        watch.version("the update is observed", |e| sandbox(e, |object| object["status"]["observedGeneration"] == 2));
    assert!(pre_ended < updated, "pre-update ends ({pre_ended}) before the update is stored ({updated})");
    assert!(observed < post_began, "post-update begins ({post_began}) after the update has settled ({observed})");

    kubectl(&["-n", namespace, "delete", "sandbox", "x"]).ok();
    space.settled_run("x", "PostDelete", "Succeeded");
    let (_, pre_ended) = run(&watch, namespace, "PreDelete");
    let (post_began, _) = run(&watch, namespace, "PostDelete");
    let deleted = watch.version("the sandbox is deleted", |e| sandbox(e, |_| e.kind == "DELETED"));
    let unforked = watch.version("the fork is gone", |e| fork(e, "Deployment") && e.kind == "DELETED");
    let stopped = watch.version("the fork's pod is gone", |e| fork(e, "Pod") && e.kind == "DELETED");
    assert!(pre_ended < deleted, "pre-delete ends ({pre_ended}) before the sandbox is deleted ({deleted})");
    for (what, gone) in [("sandbox", deleted), ("fork", unforked), ("fork's pod", stopped)] {
        assert!(gone < post_began, "post-delete begins ({post_began}) when the {what} is gone ({gone})");
    }
    let ran: Vec<_> = space.runs("x").iter().map(|run| run["spec"]["phase"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ran, ["PreCreate", "PostCreate", "PreUpdate", "PostUpdate", "PreDelete", "PostDelete"]);
}
