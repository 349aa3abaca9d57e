//! The three orderings of the request, each from the API server's own record.

use crate::cluster::{EDITOR, Space, apply, condition, get, kubectl, step_image};
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

fn baseline(namespace: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: cart, namespace: {namespace}}}
spec:
  selector: {{matchLabels: {{app: cart}}}}
  template:
    metadata: {{labels: {{app: cart}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{{name: main, image: '{}', command: [sleep, '3600']}}]
",
        step_image()
    )
}

fn time<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no {pointer} in {object:#?}"))
}

/// When a run began and ended, to the microsecond.
fn times(run: &Value) -> (&str, &str) {
    (time(run, "/status/startedAt"), time(run, "/status/finishedAt"))
}

/// The API server keeps whole seconds of its own moments: the second of a moment of ours.
fn second(moment: &str) -> &str {
    &moment[..19]
}

#[test]
fn each_phase_runs_where_it_belongs() {
    let space = Space::new("orderings");
    apply(&baseline(&space.namespace)).ok();
    let plugin = space.plugin("all", &all_phases());
    let spec = |more: &str| {
        format!(
            "  forks: [{{forkOf: {{kind: Deployment, name: cart}}}}]
  resources: [{{name: r, plugin: {plugin}}}]
{more}"
        )
    };

    apply(&space.sandbox("x", &spec(""))).ok();
    let created = space.settle("x");
    let (pre, post) = (space.run("x", "PreCreate"), space.run("x", "PostCreate"));
    assert!(second(times(&pre).1) <= time(&created, "/metadata/creationTimestamp"), "pre-create ends before the sandbox exists");
    assert_eq!(pre["status"]["state"], "Committed");
    assert_eq!(pre["status"]["admitted"]["uid"], created["metadata"]["uid"]);
    let ready = condition(&created, "Ready").unwrap();
    assert!(time(&ready, "/lastTransitionTime") <= second(times(&post).0), "post-create begins after Ready");
    let fork = get(&["-n", &space.namespace, "deployment", "cart-x"]).unwrap();
    assert!(second(times(&pre).1) <= time(&fork, "/metadata/creationTimestamp"), "pre-create ends before the fork is made");

    apply(&space.sandbox("x", &spec("  description: changed"))).ok();
    let updated = space.settle("x");
    assert_eq!(updated["metadata"]["generation"], 2);
    let (pre, post) = (space.run("x", "PreUpdate"), space.run("x", "PostUpdate"));
    let stored = updated["metadata"]["managedFields"].as_array().unwrap().iter();
    let stored = stored.filter(|m| m["manager"] == "kubectl-client-side-apply").map(|m| time(m, "/time")).max().unwrap();
    assert!(second(times(&pre).1) <= stored, "pre-update ends before the update is stored");
    assert!(stored <= second(times(&post).0), "post-update begins after the update is stored");
    assert_eq!(post["spec"]["object"]["metadata"]["generation"], 2);

    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    let post = space.settled_run("x", "PostDelete", "Succeeded");
    let pre = space.run("x", "PreDelete");
    assert_eq!(pre["status"]["state"], "Committed");
    assert!(times(&pre).1 < times(&post).0, "pre-delete ends before post-delete begins");
    assert!(get(&["-n", &space.namespace, "deployment", "cart-x"]).is_none(), "the fork is gone before post-delete ends");
    let ran: Vec<_> = space.runs("x").iter().map(|run| run["spec"]["phase"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ran, ["PreCreate", "PostCreate", "PreUpdate", "PostUpdate", "PreDelete", "PostDelete"]);
}
