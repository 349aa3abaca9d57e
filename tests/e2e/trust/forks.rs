//! Forks that would cost more than they may, and forks that no admission has seen.

use crate::cluster::{Outcome, SLUICE, Space, apply, condition, eventually, kubectl, kubectl_file, list};
use crate::server::{Scaled, take_webhooks_out};
use serde_json::{Value, json};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// A fork (YAML) of the workload `web` with a JSON patch of copies that double.
fn doubling(copies: usize) -> String {
    let mut patch = "[{op: add, path: /metadata/annotations, value: {a: xxxxxxxxxxxxxxxx}}".to_owned();
    for copy in 0..copies {
        patch += &format!(", {{op: copy, from: /metadata/annotations, path: /metadata/annotations/c{copy}}}");
    }
    format!(
        "{{forkOf: {{kind: Deployment, name: web}}, customizations: {{patch: {{type: json, value: \"{patch}]\"}}}}}}"
    )
}

fn fork(name: &str) -> String {
    format!("{{forkOf: {{kind: Deployment, name: {name}}}}}")
}

/// How often each container of Sluice's pods was started again.
fn restarts() -> Vec<(String, Value)> {
    let pods = list(&["-n", SLUICE, "pods", "-l", "sluice.dev/component=server"]);
    let of = |pod: &Value| {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        (name, pod["status"]["containerStatuses"][0]["restartCount"].clone())
    };
    pods.iter().map(of).collect()
}

fn ready(space: &Space, name: &str) -> Option<Value> {
    condition(&space.get("sandbox", name)?, "Ready")
}

fn becomes(space: &Space, name: &str, reason: &str) -> Value {
    eventually(SOON, &format!("{name} is {reason}"), || ready(space, name).filter(|ready| ready["reason"] == reason))
}

fn annotate(space: &Space, name: &str, annotation: &str) -> Outcome {
    kubectl(&["-n", &space.namespace, "annotate", "sandbox", name, "--overwrite", annotation])
}

#[test]
fn t03_a_patch_that_doubles_is_refused_at_admission() {
    let space = Space::new("doubles");
    space.workload("web", 1);
    let before = restarts();
    let refused = apply(&space.sandbox("x", &format!("  forks: [{}]", doubling(24)))).refused().stderr;
    assert!(refused.contains("spec.forks[0].customizations.patch.value: operation "), "{refused}");
    assert!(refused.contains("more than 1024 KiB"), "{refused}");
    let bomb: String = (1..9).map(|n| format!("a{n}: &a{n} [{}]\\n", format!("*a{},", n - 1).repeat(9))).collect();
    let fork = format!(
        "{{forkOf: {{kind: Deployment, name: web}}, customizations: {{patch: {{type: merge, value: \"a0: &a0 [x, x]\\n{bomb}\"}}}}}}"
    );
    let refused = apply(&space.sandbox("x", &format!("  forks: [{fork}]"))).refused().stderr;
    assert!(refused.contains("spec.forks[0].customizations.patch.value: is no YAML"), "{refused}");
    assert_eq!(restarts(), before);
}

#[test]
fn t08_forks_that_no_admission_has_seen_are_not_made_until_one_has() {
    let space = Space::alone("unseen");
    space.workload("web", 1);
    space.workload("api", 1);
    apply(&space.sandbox("kept", &format!("  forks: [{}]", fork("web")))).ok();
    space.settle("kept");
    let kept = space.get("deployment", "web-kept").unwrap();
    let seal = space.get("sandbox", "kept").unwrap()["metadata"]["annotations"]["sluice.dev/admitted"].clone();
    assert_eq!(seal.as_str().map(str::len), Some(64));

    let down = Scaled::to(0);
    take_webhooks_out();
    apply(&space.sandbox("new", &format!("  forks: [{}]", fork("web")))).ok();
    apply(&space.sandbox("bomb", &format!("  forks: [{}, {}]", doubling(24), fork("api")))).ok();
    // A seal of another sandbox is none of this one.
    apply(&space.sandbox("forged", &format!("  forks: [{}]", fork("web")))).ok();
    annotate(&space, "forged", &format!("sluice.dev/admitted={}", seal.as_str().unwrap())).ok();
    apply(&space.sandbox("kept", &format!("  forks: [{}, {}]", fork("web"), fork("api")))).ok();
    drop(down);

    for name in ["new", "bomb", "forged", "kept"] {
        let ready = becomes(&space, name, "NotAdmitted");
        assert!(ready["message"].as_str().unwrap().contains("apply the sandbox again"), "{ready}");
    }
    for name in ["web-new", "api-bomb", "web-forged", "api-kept"] {
        assert!(space.get("deployment", name).is_none(), "{name} was made");
    }
    let now = space.get("deployment", "web-kept").unwrap();
    assert_eq!((&now["metadata"]["uid"], &now["spec"]), (&kept["metadata"]["uid"], &kept["spec"]), "it stays as it is");
    let told = |name: &str| {
        let events =
            list(&["-n", &space.namespace, "events", "--field-selector", &format!("involvedObject.name={name}")]);
        events.iter().filter(|event| event["reason"] == "NotAdmitted").count()
    };
    eventually(SOON, "an event tells of it", || (told("new") == 1).then_some(()));

    // Any change that is admitted heals: of the spec, of nothing but an annotation, or the removal of a forged seal.
    annotate(&space, "new", "touched=1").ok();
    annotate(&space, "forged", "sluice.dev/admitted-").ok();
    apply(&space.sandbox("kept", &format!("  description: again\n  forks: [{}, {}]", fork("web"), fork("api")))).ok();
    for name in ["new", "forged", "kept"] {
        becomes(&space, name, "ForksReady");
    }
    assert!(space.get("deployment", "api-kept").is_some());

    // What was stored with a patch that doubles has its other fork made, says why this one is not, and can be mended.
    annotate(&space, "bomb", "touched=1").ok();
    let invalid = becomes(&space, "bomb", "ForkInvalid");
    assert!(invalid["message"].as_str().unwrap().contains("spec.forks[0]: customizations.patch.value: "), "{invalid}");
    eventually(SOON, "the other fork is made", || space.get("deployment", "api-bomb").map(|_| ()));
    apply(&space.sandbox("bomb", &format!("  forks: [{}]", fork("api")))).ok();
    becomes(&space, "bomb", "ForksReady");
}

#[test]
fn t08_a_seal_makes_no_difference_to_whoever_compares() {
    let space = Space::new("seal");
    space.workload("web", 1);
    let manifest = space.sandbox("x", &format!("  forks: [{}]", fork("web")));
    apply(&manifest).ok();
    space.settle("x");
    let before = space.get("sandbox", "x").unwrap();
    let diff = kubectl_file(&["diff"], &manifest).ok();
    assert_eq!(diff.stdout, "");
    apply(&manifest).ok();
    // A replace without the annotation gets the same again.
    kubectl_file(&["replace"], &manifest).ok();
    let after = space.get("sandbox", "x").unwrap();
    let seal = |sandbox: &Value| sandbox["metadata"]["annotations"]["sluice.dev/admitted"].clone();
    assert_eq!(seal(&after), seal(&before));
    assert_eq!(after["metadata"]["generation"], json!(1));

    // A name that the API server makes is admitted too.
    let named = manifest.replacen("name: x", "generateName: pr-", 1);
    let created = kubectl_file(&["create", "-o", "name"], &named).ok().stdout;
    let name = created.trim().rsplit('/').next().unwrap().to_owned();
    becomes(&space, &name, "ForksReady");

    // Without forks nothing is noted.
    apply(&space.sandbox("bare", "  description: none")).ok();
    assert!(seal(&space.get("sandbox", "bare").unwrap()).is_null());
}
