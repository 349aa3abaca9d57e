//! What an account may do, from the roles that are bound to it.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// One verb on one resource, and on one name where the rule has names, by one role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    pub role: String,
    /// Where it is bound; none for everywhere.
    pub namespaces: Option<BTreeSet<String>>,
    pub group: String,
    /// `RESOURCE` or `RESOURCE/SUBRESOURCE`.
    pub resource: String,
    pub verb: String,
    pub name: Option<String>,
}

/// Every right that is bound to the account itself, from the items of `kubectl get
/// clusterroles,roles,clusterrolebindings,rolebindings`. What every account has by its groups is not its own.
pub fn of_account(list: &Value, account: (&str, &str)) -> Result<Vec<Right>, String> {
    let items = || list["items"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // Of each role, where it is bound.
    let mut bound: BTreeMap<(String, String, String), Option<BTreeSet<String>>> = BTreeMap::new();
    for binding in items().filter(|item| item["kind"].as_str().is_some_and(|kind| kind.ends_with("Binding"))) {
        let is_ours = |subject: &Value| {
            subject["kind"] == "ServiceAccount" && subject["namespace"] == account.0 && subject["name"] == account.1
        };
        if !binding["subjects"].as_array().is_some_and(|subjects| subjects.iter().any(is_ours)) {
            continue;
        }
        let namespace = text(&binding["metadata"]["namespace"]);
        let role = &binding["roleRef"];
        let home = if role["kind"] == "Role" { namespace.clone() } else { String::new() };
        let key = (text(&role["kind"]), home, text(&role["name"]));
        if binding["kind"] == "ClusterRoleBinding" {
            bound.insert(key, None);
        } else if let Some(namespaces) = bound.entry(key).or_insert_with(|| Some(BTreeSet::new())) {
            namespaces.insert(namespace);
        }
    }
    if bound.is_empty() {
        return Err(format!("nothing is bound to service account {}/{}: is Sluice installed?", account.0, account.1));
    }
    let mut rights = Vec::new();
    for ((kind, home, name), namespaces) in bound {
        let is_it = |item: &&Value| {
            item["kind"] == kind.as_str()
                && item["metadata"]["name"] == name.as_str()
                && text(&item["metadata"]["namespace"]) == home
        };
        let role = items().find(is_it).ok_or_else(|| format!("{kind} {name} is bound, and not there"))?;
        for rule in role["rules"].as_array().into_iter().flatten() {
            rights.extend(of_rule(&format!("{kind} {name}"), namespaces.as_ref(), rule)?);
        }
    }
    Ok(rights)
}

fn of_rule(role: &str, namespaces: Option<&BTreeSet<String>>, rule: &Value) -> Result<Vec<Right>, String> {
    let texts = |field: &str| -> Vec<String> {
        rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (groups, resources, verbs) = (texts("apiGroups"), texts("resources"), texts("verbs"));
    if !rule["nonResourceURLs"].is_null() {
        return Err(format!("{role}: a rule for paths, which nothing of Sluice needs: {rule}"));
    }
    if [&groups, &resources, &verbs].into_iter().flatten().any(|word| word.contains('*')) {
        return Err(format!("{role}: a rule with `*` cannot be compared with what is used: {rule}"));
    }
    let names = match texts("resourceNames") {
        names if names.is_empty() => vec![None],
        names => names.into_iter().map(Some).collect(),
    };
    let mut rights = Vec::new();
    for group in &groups {
        for resource in &resources {
            for verb in &verbs {
                rights.extend(names.iter().map(|name| Right {
                    role: role.to_owned(),
                    namespaces: namespaces.cloned(),
                    group: group.clone(),
                    resource: resource.clone(),
                    verb: verb.clone(),
                    name: name.clone(),
                }));
            }
        }
    }
    Ok(rights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster(rule: &Value) -> Value {
        let sluice = json!([{"kind": "ServiceAccount", "namespace": "s", "name": "sluice"}]);
        let other = json!([{"kind": "ServiceAccount", "namespace": "shop", "name": "sluice"}]);
        let binding = |kind: &str, namespace: Option<&str>, role: &str, subjects: &Value| {
            let role = json!({"kind": if role == "own" { "Role" } else { "ClusterRole" }, "name": role});
            json!({"kind": kind, "metadata": {"namespace": namespace}, "roleRef": role, "subjects": subjects})
        };
        json!({"items": [
            {"kind": "ClusterRole", "metadata": {"name": "runners"}, "rules": [rule]},
            {"kind": "ClusterRole", "metadata": {"name": "admin"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]},
            {"kind": "Role", "metadata": {"name": "own", "namespace": "s"}, "rules": [
                {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"], "verbs": ["get"]}]},
            {"kind": "Role", "metadata": {"name": "own", "namespace": "t"}, "rules": []},
            binding("RoleBinding", Some("r1"), "runners", &sluice),
            binding("RoleBinding", Some("r2"), "runners", &sluice),
            binding("RoleBinding", Some("s"), "own", &sluice),
            binding("ClusterRoleBinding", None, "admin", &other),
        ]})
    }

    #[test]
    fn each_verb_resource_and_name_of_a_bound_role_is_a_right_of_its_own() {
        let rule = json!({"apiGroups": ["", "apps"], "resources": ["pods", "pods/exec"], "verbs": ["get", "create"]});
        let rights = of_account(&cluster(&rule), ("s", "sluice")).unwrap();
        assert_eq!(rights.len(), 8 + 2);
        let runners: Vec<_> = rights.iter().filter(|right| right.role == "ClusterRole runners").collect();
        assert!(runners.iter().all(|right| right.namespaces == Some(["r1".to_owned(), "r2".to_owned()].into())));
        let names: Vec<_> = rights.iter().filter_map(|right| right.name.as_deref()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn a_rule_that_cannot_be_compared_is_an_error() {
        let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]});
        assert!(of_account(&cluster(&rule), ("s", "sluice")).unwrap_err().contains("cannot be compared"));
        let rule = json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]});
        assert!(of_account(&cluster(&rule), ("s", "sluice")).unwrap_err().contains("paths"));
    }

    #[test]
    fn an_account_that_nothing_is_bound_to_is_an_error() {
        assert!(of_account(&cluster(&json!({})), ("s", "other")).is_err());
    }
}
