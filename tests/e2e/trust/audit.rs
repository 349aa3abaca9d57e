//! What Sluice's own account does, and what the audit log keeps of a change.

use crate::cluster::{EDITOR, SLUICE, Space, apply, eventually, keeps, kubectl, kubectl_file, list, step_image};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// What whoever holds the token of Sluice's account may do.
fn may(namespace: &str, verb: &str, what: &str) -> bool {
    let user = format!("--as=system:serviceaccount:{SLUICE}:sluice");
    // What stands behind a `/` would be taken for a name.
    let (what, part) = match what.split_once('/') {
        Some((of, part @ ("exec" | "log" | "status" | "token"))) => (of, part),
        _ => (what, ""),
    };
    let part = format!("--subresource={part}");
    let asked = kubectl(&["-n", namespace, "auth", "can-i", verb, what, &part, &user]);
    match asked.stdout.lines().last() {
        Some("yes") => true,
        Some(no) if no.starts_with("no") => false,
        _ => panic!("no answer: {}{}", asked.stdout, asked.stderr),
    }
}

#[test]
fn t17_the_account_may_not_do_in_others_namespaces_what_no_code_of_sluice_does() {
    let space = Space::new("narrow");
    let here = space.namespace.as_str();
    let denied = [
        ("get", "secrets"),
        ("list", "secrets"),
        ("watch", "secrets"),
        ("patch", "secrets"),
        ("update", "secrets"),
        ("delete", "secrets"),
        ("get", "configmaps"),
        ("update", "deployments.apps"),
        ("deletecollection", "deployments.apps"),
        ("update", "services"),
        ("watch", "services"),
        ("get", "pods"),
        ("create", "pods"),
        ("get", "pods/log"),
        ("create", "pods/exec"),
        ("get", "namespaces"),
        ("get", "customresourcedefinitions.apiextensions.k8s.io"),
        ("create", "sandboxes.sluice.dev"),
        ("update", "sandboxes.sluice.dev"),
        ("get", "sandboxes.sluice.dev/status"),
        ("update", "sandboxes.sluice.dev/status"),
        ("update", "phaseruns.sluice.dev"),
        ("get", "phaseruns.sluice.dev/status"),
        ("update", "phaseruns.sluice.dev/status"),
        ("patch", "sandboxrecords.sluice.dev"),
        ("patch", "resourceplugins.sluice.dev"),
        ("create", "events"),
        ("patch", "events"),
        ("impersonate", "serviceaccounts"),
        ("impersonate", "users"),
        ("impersonate", "groups"),
        ("create", "serviceaccounts/token"),
        ("escalate", "clusterroles.rbac.authorization.k8s.io"),
        ("bind", "clusterroles.rbac.authorization.k8s.io"),
    ];
    let wrong: Vec<_> = denied.into_iter().filter(|(verb, what)| may(here, verb, what)).collect();
    assert!(wrong.is_empty(), "the account may, and should not: {wrong:?}");
    // What is asked for means something only where a right that is there is seen.
    assert!(may(here, "create", "secrets") && may(here, "patch", "deployments.apps"));
}

#[test]
fn t17_the_account_may_find_no_secrets_in_sluices_own_namespace_and_change_none_but_its_own() {
    for (verb, what) in [
        ("list", "secrets"),
        ("watch", "secrets"),
        ("patch", "secrets"),
        ("update", "secrets"),
        ("update", "secrets/others"),
        ("update", "leases.coordination.k8s.io"),
        ("get", "pods/log"),
    ] {
        assert!(!may(SLUICE, verb, what), "{verb} {what}");
    }
    for name in ["secrets/sluice-tls", "secrets/sluice-token"] {
        assert!(may(SLUICE, "update", name) && may(SLUICE, "watch", name), "{name}");
    }
}

#[test]
fn t17_a_patch_as_the_account_shows_nothing_of_a_tenants_secret() {
    let space = Space::new("patched");
    let namespace = space.namespace.as_str();
    kubectl(&["-n", namespace, "create", "secret", "generic", "theirs", "--from-literal=word=hunter22"]).ok();
    let user = format!("--as=system:serviceaccount:{SLUICE}:sluice");
    // An apply on the server is a patch and nothing before it, and its answer is the whole object.
    let apply =
        ["-n", namespace, "apply", "--server-side", "--force-conflicts", "--validate=false", "-o", "yaml", &user];
    let refused = kubectl_file(&apply, "{apiVersion: v1, kind: Secret, metadata: {name: theirs}}").refused();
    assert!(refused.stderr.contains("cannot patch resource \"secrets\""), "{}", refused.stderr);
    assert!(refused.stdout.is_empty(), "{}", refused.stdout);
}

/// The Secrets of outputs beside a sandbox of this test.
fn beside(space: &Space) -> Vec<Value> {
    let mut secrets = list(&["-n", &space.namespace, "secrets", "-l", "sluice.dev/sandbox-uid"]);
    secrets.sort_by_key(|secret| secret["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned());
    secrets
}

/// The Secret that the fork's pods get their variable from.
fn used(space: &Space) -> Option<String> {
    let fork = space.get("deployment", "cart-x")?;
    let env = fork["spec"]["template"]["spec"]["containers"][0]["env"].as_array()?.clone();
    let word = env.into_iter().find(|variable| variable["name"] == "WORD")?;
    word["valueFrom"]["secretKeyRef"]["name"].as_str().map(str::to_owned)
}

#[test]
fn t17_an_output_beside_a_fork_is_a_secret_that_never_changes_and_a_new_output_rolls_the_fork() {
    let space = Space::new("beside");
    let namespace = space.namespace.as_str();
    space.workload("cart", 1);
    let step = "
  - name: make
    inputs: [{name: word, valueFromSandbox: true, as: {env: WORD}}]
    outputs: [{name: word, valueFromPath: /out/word}]
    script: |
      #!/bin/sh
      printf %s \"$WORD\" >/out/word
";
    let spec = format!("  runner: {{image: '{}'}}\n  preCreate:{step}  preUpdate:{step}", step_image());
    let plugin = space.plugin("word", &spec);
    let env = "{name: WORD, valueFrom: {resource: {name: r, outputKey: make.word}}}";
    let change = |word: &str, description: &str| {
        let spec = format!(
            "  description: {description}\n  resources: [{{name: r, plugin: {plugin}, params: {{word: {word}}}}}]\n  forks: \
             [{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{env: [{env}]}}}}]"
        );
        apply(&space.sandbox("x", &spec)).ok();
        space.settle("x");
        used(&space).unwrap()
    };
    let says = |word: &str| {
        let print = ["-n", namespace, "exec", "deployment/cart-x", "--", "sh", "-c", "echo $WORD"];
        eventually(SOON, &format!("the fork says {word}"), || (kubectl(&print).stdout.trim() == word).then_some(()));
    };

    let first = change("one", "first");
    says("one");
    let again = change("one", "second");
    assert_eq!(first, again, "the same content is the same Secret: nothing rolls");
    change("two", "third");
    let second = eventually(SOON, "the fork uses another Secret", || used(&space).filter(|now| *now != first));
    says("two");

    let secrets = beside(&space);
    let names: BTreeSet<_> = secrets.iter().map(|it| it["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, BTreeSet::from([first.as_str(), second.as_str()]));
    assert!(secrets.iter().all(|secret| secret["immutable"] == true), "{secrets:?}");
    kubectl(&["-n", namespace, "delete", "sandbox", "x"]).ok();
    eventually(SOON, "both Secrets are gone with the sandbox", || beside(&space).is_empty().then_some(()));
}

#[test]
fn a_fork_that_leaves_goes_with_its_service_and_a_sandbox_whose_time_is_over_is_deleted() {
    let space = Space::new("leaves");
    let namespace = space.namespace.as_str();
    space.workload("cart", 0);
    kubectl(&["-n", namespace, "expose", "deployment", "cart", "--port=80"]).ok();
    let ttl = "  ttl: {duration: 1m}\n";
    apply(&space.sandbox("x", &format!("{ttl}  forks: [{{forkOf: {{kind: Deployment, name: cart}}}}]"))).ok();
    space.settle("x");
    let left = |kind: &str| {
        let left = list(&["-n", namespace, kind, "-l", "sluice.dev/sandbox-uid"]);
        left.len()
    };
    assert_eq!((left("deployments"), left("services")), (1, 1));
    apply(&space.sandbox("x", &format!("{ttl}  forks: []"))).ok();
    eventually(SOON, "the fork and its Service are gone", || {
        (left("deployments") + left("services") == 0).then_some(())
    });
    assert!(space.get("service", "cart").is_some(), "what was forked stays");
    eventually(2 * SOON, "the sandbox is gone", || space.get("sandbox", "x").is_none().then_some(()));
}

/// The audit annotations of the answers to requests for a sandbox of this test, oldest first.
fn annotated(space: &Space, name: &str) -> Vec<Value> {
    let file = std::env::var("CLUSTER_AUDIT_LOG")
        .expect("CLUSTER_AUDIT_LOG: only `tests/cluster` makes a cluster with an audit log");
    let log = std::fs::read_to_string(&file).unwrap();
    let events =
        log.lines().filter(|line| line.contains(&space.namespace)).filter_map(|line| serde_json::from_str(line).ok());
    let of_sandbox = |event: &Value| {
        let about = &event["objectRef"];
        about["resource"] == "sandboxes" && about["namespace"] == space.namespace.as_str() && about["name"] == name
    };
    events.filter(of_sandbox).map(|event| event["annotations"].clone()).collect()
}

#[test]
fn the_audit_log_keeps_what_a_change_ran_what_came_of_it_and_the_right_that_it_lacked() {
    let space = Space::new("audited");
    let fails = "{name: fails, script: \"#!/bin/sh\\nexit 3\"}";
    let spec = format!(
        "  runner: {{serviceAccountName: {EDITOR}, image: '{}'}}\n  preCreate: [{}]\n  preUpdate: [{fails}]",
        step_image(),
        keeps("note", "n-${sandbox.metadata.name}", "a: b")
    );
    let plugin = space.plugin("audited", &spec);
    let change = |description: &str| {
        space.sandbox("x", &format!("  description: {description}\n  resources: [{{name: r, plugin: {plugin}}}]"))
    };
    let told = |what: &str, annotations: &[(&str, &str)]| {
        eventually(SOON, what, || {
            let is_it = |event: &Value| {
                annotations.iter().all(|(key, value)| event[format!("validate.sluice.dev/{key}")] == *value)
            };
            annotated(&space, "x").into_iter().any(|event| is_it(&event)).then_some(())
        });
    };
    apply(&change("first")).ok();
    let created = space.run("x", "PreCreate")["metadata"]["name"].as_str().unwrap().to_owned();
    told("the creation", &[("run", &created), ("phases", "pre-create"), ("outcome", "succeeded")]);
    space.settle("x");
    apply(&change("second")).refused();
    told("the update that was refused", &[("phases", "pre-update"), ("outcome", "failed")]);

    let forks = space.sandbox("x", "  forks: [{forkOf: {kind: Deployment, name: web}}]");
    let alice = space.name("alice");
    kubectl(&[
        "-n",
        &space.namespace,
        "create",
        "role",
        "of-alice",
        "--verb=get,patch",
        "--resource=sandboxes.sluice.dev",
    ])
    .ok();
    kubectl(&["-n", &space.namespace, "create", "rolebinding", "of-alice", "--role=of-alice", "--user", &alice]).ok();
    eventually(SOON, "a right that she lacks is named", || {
        kubectl_file(&["apply", "--as", &alice], &forks).refused().stderr.contains("may not create").then_some(())
    });
    let right = format!("create deployments.apps in namespace {:?}", space.namespace);
    told("the update that lacked a right", &[("right", &right)]);
}
