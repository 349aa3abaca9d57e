//! Who is taken for the API server: only a caller that knows the path that the webhook configurations name.

use crate::cluster::{EDITOR, SLUICE, Space, apply, get, keeps, kubectl, kubectl_file, witnesses};
use serde_json::{Value, json};

/// The path of the webhook in a configuration.
fn path(kind: &str) -> String {
    let configuration = get(&[kind, "sluice"]).unwrap();
    configuration["webhooks"][0]["clientConfig"]["service"]["path"].as_str().unwrap().to_owned()
}

/// A review as the API server would write it; the objects are missing where they are null.
fn review(space: &Space, operation: &str, object: &Value, old: &Value) -> String {
    let name = if object.is_null() { &old["metadata"]["name"] } else { &object["metadata"]["name"] };
    let request = json!({
        "uid": "1", "operation": operation, "name": name, "namespace": space.namespace,
        "kind": {"group": "sluice.dev", "version": "v1alpha1", "kind": "Sandbox"},
        "resource": {"group": "sluice.dev", "version": "v1alpha1", "resource": "sandboxes"},
        "userInfo": {"username": "nobody", "groups": ["system:masters"]},
        "object": object, "oldObject": old,
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

/// Where the API server passes a request on to the webhooks' port, as any pod could send one.
fn proxied(path: &str) -> String {
    format!("/api/v1/namespaces/{SLUICE}/services/https:sluice:webhook/proxy{path}")
}

#[test]
fn a_forged_review_finds_nobody_unless_it_knows_the_path_that_the_configurations_name() {
    let space = Space::new("trust");
    let spec = format!(
        "  runner: {{serviceAccountName: {EDITOR}}}\n  preCreate: [{}]",
        keeps("note", "forged-${sandbox.metadata.name}", "a: b")
    );
    let plugin = space.plugin("forged", &spec);
    let create = |sandbox: &str| {
        let metadata =
            json!({"name": sandbox, "namespace": space.namespace, "uid": format!("uid-{sandbox}"), "generation": 1});
        let object = json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox", "metadata": metadata,
            "spec": {"resources": [{"name": "r", "plugin": plugin}]},
        });
        review(&space, "CREATE", &object, &Value::Null)
    };
    let (validate, mutate) = (path("validatingwebhookconfiguration"), path("mutatingwebhookconfiguration"));
    let token = validate.strip_prefix("/validate/").unwrap();
    assert_eq!(mutate.strip_prefix("/mutate/"), Some(token));

    let guessed = "0".repeat(token.len());
    let shorter = &validate[..validate.len() - 1];
    let guesses = ["/validate", "/mutate", &format!("/validate/{guessed}"), shorter, &format!("{validate}/"), "/"];
    for guess in guesses {
        let path = proxied(guess);
        let answer = kubectl_file(&["create", "--raw", &path], &create("stranger")).refused();
        assert!(answer.stderr.contains("NotFound"), "{guess}: {}", answer.stderr);
    }
    assert!(space.runs("stranger").is_empty(), "{:?}", space.runs("stranger"));

    // The same review, by a caller who has read the configuration: it was the path alone that was missing.
    let path = proxied(&format!("{validate}?timeout=10s"));
    let answer = kubectl_file(&["create", "--raw", &path], &create("insider")).ok();
    assert!(answer.stdout.contains(r#""allowed":true"#), "{}", answer.stdout);
    assert_eq!(space.runs("insider").len(), 1);

    // What a replica writes down must not give the path away.
    let selector = "sluice.dev/component=server";
    let logs = kubectl(&["-n", SLUICE, "logs", "-l", selector, "--all-containers", "--tail=-1"]).ok();
    assert!(!logs.stdout.is_empty() && !logs.stdout.contains(token), "the token is in the logs");
}

#[test]
fn an_update_that_comes_when_its_sandbox_is_gone_runs_nothing() {
    let space = Space::new("late");
    let plugin = space.plugin("witness", &witnesses());
    let manifest = |description: &str| {
        space.sandbox("x", &format!("  description: {description}\n  resources: [{{name: r, plugin: {plugin}}}]"))
    };
    apply(&manifest("first")).ok();
    let old = space.settle("x");
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    space.settled_run("x", "PostDelete", "Succeeded");
    let known = space.runs("x").len();

    let mut new = old.clone();
    new["spec"]["description"] = json!("second");
    new["metadata"]["generation"] = json!(2);
    let path = proxied(&format!("{}?timeout=10s", path("validatingwebhookconfiguration")));
    let answer = kubectl_file(&["create", "--raw", &path], &review(&space, "UPDATE", &new, &old)).ok();
    let answer: Value = serde_json::from_str(&answer.stdout).unwrap();
    let response = &answer["response"];
    assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(404)), "{answer}");
    assert!(response["status"]["message"].as_str().unwrap().contains("was deleted meanwhile"), "{answer}");
    assert_eq!(space.runs("x").len(), known, "a run was begun for what is gone, or stays");
}

#[test]
fn t02_a_review_that_does_not_show_what_is_stored_runs_no_phase() {
    let space = Space::new("forged");
    let plugin = space.plugin("witness", &witnesses());
    apply(&space.sandbox("x", &format!("  description: first\n  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    let stored = space.settle("x");
    let known = space.runs("x").len();
    let send = |operation: &str, new: &Value, old: &Value| -> Value {
        let path = proxied(&format!("{}?timeout=10s", path("validatingwebhookconfiguration")));
        let answer = kubectl_file(&["create", "--raw", &path], &review(&space, operation, new, old)).ok();
        serde_json::from_str(&answer.stdout).unwrap()
    };
    // Another spec, another generation, another object: each as somebody would guess it.
    let with = |change: &dyn Fn(&mut Value)| {
        let mut object = stored.clone();
        change(&mut object);
        object
    };
    let forged: [Value; 3] = [
        with(&|object| object["spec"]["resources"][0]["params"] = json!({"size": "1"})),
        with(&|object| object["metadata"]["generation"] = json!(7)),
        with(&|object| object["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000")),
    ];
    for old in &forged {
        let answer = send("DELETE", &Value::Null, old);
        assert_eq!(answer["response"]["allowed"], json!(false), "{answer}");
        let mut new = old.clone();
        new["spec"]["description"] = json!("second");
        let answer = send("UPDATE", &new, old);
        assert_eq!(answer["response"]["allowed"], json!(false), "{answer}");
    }
    assert_eq!(space.runs("x").len(), known, "{:#?}", space.runs("x"));
    assert!(space.get("configmap", "pre-delete-x").is_none() && space.get("configmap", "pre-update-x").is_none());
}
