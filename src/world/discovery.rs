//! What the API server says that it serves.

use super::World;
use super::kinds::Kind;
use super::refusal::Refusal;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl World {
    fn versions(&self) -> BTreeMap<String, Vec<String>> {
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for kind in self.store().kinds.all().filter(|kind| !kind.group.is_empty()) {
            let known = groups.entry(kind.group.clone()).or_default();
            for version in &kind.versions {
                if !known.contains(version) {
                    known.push(version.clone());
                }
            }
        }
        groups
    }

    pub(super) fn groups(&self) -> Value {
        let groups: Vec<Value> = self.versions().iter().map(|(name, versions)| group(name, versions)).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    pub(super) fn group(&self, name: &str) -> Result<Value, Refusal> {
        let versions = self.versions().remove(name).ok_or_else(Refusal::no_such_path)?;
        let mut group = group(name, &versions);
        group["kind"] = json!("APIGroup");
        group["apiVersion"] = json!("v1");
        Ok(group)
    }

    pub(super) fn resources(&self, group: &str, version: &str) -> Result<Value, Refusal> {
        let store = self.store();
        let served = |kind: &&std::sync::Arc<Kind>| kind.group == group && kind.versions.iter().any(|v| v == version);
        let resources: Vec<Value> = store.kinds.all().filter(served).flat_map(|kind| entries(kind)).collect();
        if resources.is_empty() {
            return Err(Refusal::no_such_path());
        }
        let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        Ok(
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}),
        )
    }
}

fn group(name: &str, versions: &[String]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

/// A kind and its subresources.
fn entries(kind: &Kind) -> Vec<Value> {
    let entry = |name: String, kind_name: &str, verbs: Value| json!({"name": name, "singularName": "", "namespaced": kind.namespaced, "kind": kind_name, "verbs": verbs});
    let verbs = if kind.review {
        json!(["create"])
    } else {
        json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"])
    };
    let mut whole = entry(kind.plural.clone(), &kind.kind, verbs);
    whole["singularName"] = json!(kind.singular);
    if !kind.short_names.is_empty() {
        whole["shortNames"] = json!(kind.short_names);
    }
    let mut entries = vec![whole];
    let part_verbs = json!(["get", "patch", "update"]);
    if kind.scale {
        entries.push(entry(format!("{}/scale", kind.plural), "Scale", part_verbs.clone()));
    }
    if kind.status {
        entries.push(entry(format!("{}/status", kind.plural), &kind.kind, part_verbs));
    }
    entries
}
