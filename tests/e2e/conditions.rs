//! What the API server asks the mutating webhook about, by the conditions that stand in its configuration.

use crate::cluster::{Space, apply, get, kubectl, kubectl_file};
use serde_json::{Value, json};

/// A webhook with the conditions of Sluice's that nobody answers: whatever is sent there is refused.
struct Unanswered(String);

impl Unanswered {
    fn of(space: &Space) -> Self {
        let ours = get(&["mutatingwebhookconfiguration", "sluice"]).unwrap()["webhooks"][0].clone();
        let name = space.namespace.clone();
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [{
                "name": "unanswered.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 1,
                "clientConfig": {"url": "https://127.0.0.1:1/unanswered"},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "rules": ours["rules"],
                "matchConditions": ours["matchConditions"],
            }],
        });
        apply(&configuration.to_string()).ok();
        Self(name)
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        kubectl(&["delete", "mutatingwebhookconfiguration", &self.0, "--ignore-not-found"]);
    }
}

fn with(annotations: &Value, spec: &Value) -> String {
    json!({
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": "x", "annotations": annotations},
        "spec": spec,
    })
    .to_string()
}

#[test]
fn the_mutating_webhook_is_called_only_where_it_may_have_something_to_note() {
    let space = Space::new("conditions");
    let _unanswered = Unanswered::of(&space);
    let (none, many) = (json!({}), vec![json!({"name": "a", "plugin": "db@latest"}); 65]);
    let cases = [
        ("bare", &none, json!({}), false),
        ("a long text", &none, json!({"description": "x".repeat(5000)}), false),
        (
            "a version",
            &none,
            json!({"resources": [{"name": "a", "plugin": "db@1.0.0"}, {"name": "b", "plugin": "db"}]}),
            false,
        ),
        (
            "the latest",
            &none,
            json!({"resources": [{"name": "a", "plugin": "db"}, {"name": "b", "plugin": "db@latest"}]}),
            true,
        ),
        ("too many", &none, json!({"resources": many}), false),
        ("no forks", &none, json!({"forks": []}), false),
        ("a fork", &none, json!({"forks": [{"forkOf": {"kind": "Deployment", "name": "web"}}]}), true),
        ("a pin by hand", &json!({"sluice.dev/latest": "{}"}), json!({}), true),
        ("a seal by hand", &json!({"sluice.dev/admitted": ""}), json!({}), true),
        ("another annotation", &json!({"a": "b"}), json!({}), false),
        ("a spec of another type", &none, json!("db@latest"), true),
        ("forks of another type", &none, json!({"forks": 7}), true),
        ("resources of another type", &none, json!({"resources": {"a": 1}}), true),
        ("a resource of another type", &none, json!({"resources": ["db"]}), true),
        ("a plugin of another type", &none, json!({"resources": [{"plugin": 7}]}), true),
        ("no plugin", &none, json!({"resources": [{"name": "a"}]}), false),
    ];
    let create = ["-n", &space.namespace, "create", "--dry-run=server", "--validate=false"];
    for (what, annotations, spec, called) in cases {
        let answer = kubectl_file(&create, &with(annotations, &spec)).stderr;
        assert_eq!(answer.contains("unanswered.example.com"), called, "{what}: {answer}");
        assert!(!answer.contains("CEL") && !answer.contains("matchCondition"), "{what}: {answer}");
    }
}

#[test]
fn a_type_that_is_wrong_is_told_by_the_schema() {
    let space = Space::new("types");
    let create = ["-n", &space.namespace, "create", "--dry-run=server", "--validate=false"];
    for (spec, told) in [
        (json!({"forks": 7}), "spec.forks in body must be of type array"),
        (json!({"resources": [{"plugin": 7}]}), "spec.resources[0].plugin in body must be of type string"),
        (json!("text"), "spec in body must be of type object"),
    ] {
        let answer = kubectl_file(&create, &with(&json!({}), &spec)).stderr;
        assert!(answer.contains(told), "{answer}");
    }
}
