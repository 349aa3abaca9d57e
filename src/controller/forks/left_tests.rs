//! Tests of what counts as a sandbox's fork.

use super::*;
use rstest::rstest;
use serde_json::{Value, json};

fn metadata(value: Value) -> ObjectMeta {
    serde_json::from_value(value).unwrap()
}

fn owner(kind: &str, uid: &str) -> Value {
    json!({"apiVersion": "v", "kind": kind, "name": "x", "uid": uid})
}

#[rstest]
#[case::as_it_was_made(json!([owner("Sandbox", "u")]), json!([]), true)]
#[case::orphaned(json!([]), json!([{"manager": "sluice", "operation": "Apply"}]), true)]
#[case::labelled_by_somebody(json!([]), json!([{"manager": "kubectl", "operation": "Update"}]), false)]
#[case::edited_in_sluices_name(json!([]), json!([{"manager": "sluice", "operation": "Update"}]), false)]
#[case::of_another_sandbox(json!([owner("Sandbox", "v")]), json!([]), false)]
#[case::of_another_kind(json!([owner("ConfigMap", "u")]), json!([]), false)]
fn t03_an_object_that_is_only_labelled_is_no_fork(#[case] owners: Value, #[case] fields: Value, #[case] is: bool) {
    let labels = json!({labels::SANDBOX_UID: "u", "app.kubernetes.io/managed-by": "sluice"});
    let found = metadata(json!({"labels": labels, "ownerReferences": owners, "managedFields": fields}));
    assert_eq!(is_of(&found, "u"), is);
    assert!(!is_of(&ObjectMeta { labels: None, ..found }, "u"));
}

#[rstest]
#[case::of_the_fork("cart", "ReplicaSet", "cart-x-5d4f", true)]
#[case::of_a_workload_that_is_labelled("cart", "ReplicaSet", "web-5d4f", false)]
#[case::of_a_job("cart", "Job", "cart-x-5d4f", false)]
#[case::of_another_sandbox("cart", "ReplicaSet", "cart-y-5d4f", false)]
#[case::of_a_workload_that_is_called_alike("cart", "ReplicaSet", "cart-x-evil-5d4f", false)]
#[case::of_another_template("cart", "ReplicaSet", "cart-x-6e5a", false)]
fn t03_a_pod_that_is_only_labelled_is_no_forks(
    #[case] of: &str,
    #[case] kind: &str,
    #[case] name: &str,
    #[case] is: bool,
) {
    let owner = json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "r", "controller": true});
    let labels = json!({labels::SANDBOX_UID: "u", labels::FORK_OF: of, "pod-template-hash": "5d4f"});
    let pod = metadata(json!({"labels": labels, "ownerReferences": [owner]}));
    assert_eq!(is_pod_of(&pod, "x", "u"), is);
    assert!(!is_pod_of(&pod, "x", "v"));
    assert!(!is_pod_of(&ObjectMeta { owner_references: None, ..pod }, "x", "u"));
}

#[rstest]
#[case::short("cart")]
#[case::just_fits(&"c".repeat(60))]
#[case::as_long_as_a_label(&"c".repeat(63))]
#[case::longer_than_a_label(&"c".repeat(100))]
#[case::dots(&"cart.".repeat(20))]
fn the_pods_of_a_fork_are_known_however_long_its_name(#[case] baseline: &str) {
    let fork = labels::name(&format!("{baseline}-feature-x"), 63);
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{fork}-5d4f"), "uid": "r", "controller": true});
    let labels =
        json!({labels::SANDBOX_UID: "u", labels::FORK_OF: labels::value(baseline), "pod-template-hash": "5d4f"});
    assert!(is_pod_of(&metadata(json!({"labels": labels, "ownerReferences": [owner]})), "feature-x", "u"));
}
