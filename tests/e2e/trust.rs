//! Who is taken for the API server: only a caller that knows the path that the webhook configurations name.

use crate::cluster::{EDITOR, SLUICE, Space, get, keeps, kubectl, kubectl_file};
use serde_json::json;

/// The path of the webhook in a configuration.
fn path(kind: &str) -> String {
    let configuration = get(&[kind, "sluice"]).unwrap();
    configuration["webhooks"][0]["clientConfig"]["service"]["path"].as_str().unwrap().to_owned()
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
    let review = |sandbox: &str| {
        let metadata =
            json!({"name": sandbox, "namespace": space.namespace, "uid": format!("uid-{sandbox}"), "generation": 1});
        let object = json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox", "metadata": metadata,
            "spec": {"resources": [{"name": "r", "plugin": plugin}]},
        });
        let request = json!({
            "uid": "1", "operation": "CREATE", "name": sandbox, "namespace": space.namespace, "object": object,
            "kind": {"group": "sluice.dev", "version": "v1alpha1", "kind": "Sandbox"},
            "resource": {"group": "sluice.dev", "version": "v1alpha1", "resource": "sandboxes"},
            "userInfo": {"username": "nobody", "groups": ["system:masters"]},
        });
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
    };
    let (validate, mutate) = (path("validatingwebhookconfiguration"), path("mutatingwebhookconfiguration"));
    let token = validate.strip_prefix("/validate/").unwrap();
    assert_eq!(mutate.strip_prefix("/mutate/"), Some(token));

    let guessed = "0".repeat(token.len());
    let shorter = &validate[..validate.len() - 1];
    let guesses = ["/validate", "/mutate", &format!("/validate/{guessed}"), shorter, &format!("{validate}/"), "/"];
    for guess in guesses {
        let path = proxied(guess);
        let answer = kubectl_file(&["create", "--raw", &path], &review("stranger")).refused();
        assert!(answer.stderr.contains("NotFound"), "{guess}: {}", answer.stderr);
    }
    assert!(space.runs("stranger").is_empty(), "{:?}", space.runs("stranger"));

    // The same review, by a caller who has read the configuration: it was the path alone that was missing.
    let path = proxied(&format!("{validate}?timeout=10s"));
    let answer = kubectl_file(&["create", "--raw", &path], &review("insider")).ok();
    assert!(answer.stdout.contains(r#""allowed":true"#), "{}", answer.stdout);
    assert_eq!(space.runs("insider").len(), 1);

    // What a replica writes down must not give the path away.
    let selector = "app.kubernetes.io/name=sluice";
    let logs = kubectl(&["-n", SLUICE, "logs", "-l", selector, "--all-containers", "--tail=-1"]).ok();
    assert!(!logs.stdout.is_empty() && !logs.stdout.contains(token), "the token is in the logs");
}
