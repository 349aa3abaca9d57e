//! The mutating webhook: pure, and the only field that it writes is an annotation of ours.
//!
//! It notes which version each `@latest` stands for. The spec stays as the user wrote it, so that nothing that
//! compares it with a file (`kubectl diff`, Argo CD) sees a difference.

use super::review::{Answer, Operation, Request};
use crate::api::labels::LATEST;
use crate::plan::plugins::Plugins;
use crate::plan::runs;
use json_patch::PatchOperation;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The answer to the mutating review of a sandbox.
pub fn sandbox(request: &Request, plugins: &Plugins) -> Answer {
    if !matches!(request.operation, Operation::Create | Operation::Update) {
        return Answer::allow();
    }
    Answer::Allow {
        warnings: Vec::new(),
        audit: Vec::new(),
        patch: patch(&request.old_object, &request.object, plugins),
    }
}

fn patch(old: &Value, new: &Value, plugins: &Plugins) -> Vec<PatchOperation> {
    let wanted = latest(old, new, plugins);
    let annotations = &new["metadata"]["annotations"];
    if wanted == runs::latest(new) {
        return Vec::new();
    }
    let mut after = new.clone();
    if !annotations.is_object() {
        after["metadata"]["annotations"] = json!({});
    }
    if wanted.is_empty() {
        if let Some(annotations) = after["metadata"]["annotations"].as_object_mut() {
            annotations.remove(LATEST);
        }
    } else {
        after["metadata"]["annotations"][LATEST] = json!(json!(wanted).to_string());
    }
    json_patch::diff(new, &after).0
}

/// What each `@latest` stands for: what it stood for when its resource joined, else the newest version.
fn latest(old: &Value, new: &Value, plugins: &Plugins) -> BTreeMap<String, String> {
    let before = runs::latest(old);
    let was = runs::declared(old).unwrap_or_default();
    let resources = runs::declared(new).unwrap_or_default();
    resources
        .into_iter()
        .filter(|resource| resource.plugin.ends_with("@latest"))
        .filter_map(|resource| {
            let kept = was.iter().any(|r| r.name == resource.name && r.plugin == resource.plugin);
            let pinned = before.get(&resource.name).filter(|_| kept).map(String::as_str);
            let found =
                plugins.resolve(&resource.plugin, pinned).or_else(|_| plugins.resolve(&resource.plugin, None)).ok()?;
            Some((resource.name, found.name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ResourcePluginSpec;

    fn plugins(names: &[&str]) -> Plugins {
        Plugins::new(names.iter().map(|n| ((*n).to_owned(), ResourcePluginSpec::default())))
    }

    fn sandbox(plugin: &str, latest: Option<&str>) -> Value {
        let mut sandbox = json!({"metadata": {"name": "x"}, "spec": {"resources": [{"name": "db", "plugin": plugin}]}});
        if let Some(latest) = latest {
            sandbox["metadata"]["annotations"] = json!({LATEST: latest});
        }
        sandbox
    }

    fn mutated(old: &Value, new: &Value, known: &[&str]) -> Value {
        let mut after = new.clone();
        json_patch::patch(&mut after, &patch(old, new, &plugins(known))).unwrap();
        after
    }

    #[test]
    fn latest_is_pinned_when_the_resource_joins_and_stays() {
        let created = mutated(&Value::Null, &sandbox("db@latest", None), &["db.1.0.0", "db.2.0.0"]);
        assert_eq!(created["metadata"]["annotations"][LATEST], r#"{"db":"db.2.0.0"}"#);
        assert_eq!(created["spec"], sandbox("db@latest", None)["spec"]);

        let updated = mutated(&created, &sandbox("db@latest", None), &["db.1.0.0", "db.2.0.0", "db.3.0.0"]);
        assert_eq!(updated["metadata"]["annotations"][LATEST], r#"{"db":"db.2.0.0"}"#);
    }

    #[test]
    fn nobody_can_pin_by_hand_and_what_is_no_longer_latest_is_forgotten() {
        let forged =
            mutated(&Value::Null, &sandbox("db@latest", Some(r#"{"db":"db.1.0.0"}"#)), &["db.1.0.0", "db.2.0.0"]);
        assert_eq!(forged["metadata"]["annotations"][LATEST], r#"{"db":"db.2.0.0"}"#);
        let named = mutated(&Value::Null, &sandbox("db@1.0.0", Some(r#"{"db":"db.2.0.0"}"#)), &["db.1.0.0"]);
        assert_eq!(named["metadata"]["annotations"], json!({}));
    }

    #[test]
    fn a_sandbox_without_latest_is_left_alone() {
        assert_eq!(patch(&Value::Null, &sandbox("db@1.0.0", None), &plugins(&["db.1.0.0"])), vec![]);
    }
}
