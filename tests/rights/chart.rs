//! The chart's roles as they are written: what no rule may say, whatever the suite uses.

use serde_json::{Map, Value};
use std::path::Path;

/// The chart's files of roles: name and text.
fn templates() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/sluice/templates");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("\nrules:") {
            found.push((name, text));
        }
    }
    assert!(found.len() >= 3, "the roles are not where they were: {found:?}");
    found
}

/// The documents of a template. What is a line of the template's own is left out, and what stands within one is `x`.
fn documents(template: &str) -> Vec<Value> {
    let mut text = String::new();
    let mut in_action = false;
    for line in template.lines() {
        let is_action = line.trim_start().starts_with("{{");
        if in_action || is_action {
            in_action = !line.contains("}}");
            continue;
        }
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((_, after)) = after.split_once("}}") else { panic!("an action over several lines: {line}") };
            text += before;
            text += "x";
            rest = after;
        }
        text += rest;
        text.push('\n');
    }
    let parts = text.split("\n---").map(|part| part.trim_start_matches("---"));
    let parse = |part: &str| serde_saphyr::from_str::<Value>(part).unwrap_or_else(|error| panic!("{error}: {part}"));
    parts.filter(|part| part.lines().any(|line| line.starts_with("kind:"))).map(parse).collect()
}

/// Every rule of a kind of documents: where it is, and what it says.
fn rules(of: impl Fn(&str, &Value) -> bool) -> Vec<(String, Map<String, Value>)> {
    let mut found = Vec::new();
    for (file, text) in templates() {
        for document in documents(&text).into_iter().filter(|document| of(&file, document)) {
            let rules = document["rules"].as_array().into_iter().flatten();
            found.extend(rules.map(|rule| (file.clone(), rule.as_object().unwrap().clone())));
        }
    }
    assert!(!found.is_empty());
    found
}

/// What holds for Sluice's account in every namespace.
fn everywhere() -> Vec<(String, Map<String, Value>)> {
    let found = rules(|file, document| file == "rbac-cluster.yaml" && document["kind"] == "ClusterRole");
    let (_, text) = templates().into_iter().find(|(file, _)| file == "rbac-cluster.yaml").unwrap();
    assert!(text.contains("kind: ClusterRoleBinding"), "these are the rules that are bound across the cluster");
    found
}

fn has(rule: &Map<String, Value>, field: &str, word: &str) -> bool {
    rule.get(field).and_then(Value::as_array).is_some_and(|words| words.iter().any(|it| it == word))
}

#[test]
fn t17_every_rule_of_the_chart_has_a_reason_above_it() {
    for (file, text) in templates() {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (index, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("- apiGroups:")) {
            assert!(index > 0 && lines[index - 1].starts_with("# "), "{file}, line {}: {line}", index + 1);
        }
        let counted: usize = documents(&text).iter().filter_map(|it| it["rules"].as_array()).map(Vec::len).sum();
        let written = lines.iter().filter(|line| line.starts_with("- apiGroups:")).count();
        assert_eq!(counted, written, "{file}: each rule begins with `- apiGroups:` on a line of its own");
    }
}

#[test]
fn t17_no_rule_says_all_of_anything() {
    for (file, rule) in rules(|_, _| true) {
        assert!(!Value::from(rule.clone()).to_string().contains('*'), "{file}: {rule:?}");
        for verb in ["escalate", "bind"] {
            assert!(!has(&rule, "verbs", verb), "{file}: {rule:?}");
        }
    }
}

#[test]
fn t17_across_the_cluster_a_secret_can_be_made_and_nothing_else() {
    let secrets: Vec<_> = everywhere().into_iter().filter(|(_, rule)| has(rule, "resources", "secrets")).collect();
    assert_eq!(secrets.len(), 1);
    assert_eq!(secrets[0].1["verbs"], serde_json::json!(["create"]));
}

#[test]
fn t17_across_the_cluster_nobody_is_impersonated_and_no_pod_is_entered() {
    for (_, rule) in everywhere() {
        assert!(!has(&rule, "verbs", "impersonate"), "{rule:?}");
        for resource in
            ["serviceaccounts", "serviceaccounts/token", "pods/exec", "pods/log", "pods/attach", "configmaps"]
        {
            assert!(!has(&rule, "resources", resource), "{rule:?}");
        }
    }
}

#[test]
fn t17_events_are_written_in_one_group_and_no_object_is_replaced_but_a_record() {
    for (_, rule) in everywhere() {
        assert!(!has(&rule, "resources", "events") || rule["apiGroups"] == serde_json::json!(["events.k8s.io"]));
        let is_record = rule["resources"] == serde_json::json!(["sandboxrecords"]);
        assert!(!has(&rule, "verbs", "update") || is_record, "{rule:?}");
    }
}

#[test]
fn t17_in_sluices_own_namespace_secrets_are_listed_and_changed_by_name_alone() {
    let own = rules(|file, document| file == "rbac-namespaces.yaml" && document["kind"] == "Role");
    let secrets: Vec<_> = own.into_iter().filter(|(_, rule)| has(rule, "resources", "secrets")).collect();
    assert!(!secrets.is_empty());
    for (_, rule) in secrets {
        let named = rule.get("resourceNames").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
        for verb in ["list", "watch", "update", "patch", "deletecollection"] {
            assert!(named || !has(&rule, "verbs", verb), "{verb}: {rule:?}");
        }
    }
}

#[test]
fn t10_every_request_for_a_lease_that_the_account_may_make_is_of_the_level_for_leases() {
    let leases = rules(|file, _| file == "rbac-namespaces.yaml");
    let leases: Vec<_> = leases.iter().filter(|(_, rule)| has(rule, "resources", "leases")).collect();
    assert_eq!(leases.len(), 1, "{leases:?}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/sluice/templates/flowschema.yaml");
    let schema = documents(&std::fs::read_to_string(path).unwrap()).remove(0);
    let spec = &schema["spec"];
    assert_eq!(spec["priorityLevelConfiguration"]["name"], "leader-election");
    assert!(spec["matchingPrecedence"].as_i64().unwrap() < 900, "an own one of service accounts would come first");
    let rule = &spec["rules"][0]["resourceRules"][0];
    assert_eq!(rule["verbs"], leases[0].1["verbs"]);
    assert_eq!(rule["resources"], leases[0].1["resources"], "nothing else may use up that level");
}
