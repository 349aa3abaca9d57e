//! What a change changes: the variable `change` of expressions.

use super::scope::TargetKind;
use serde_json::{Map, Value as Json, json};

/// What `new` changes of `old`: for each tracked list of the kind which items it adds, removes and changes, and a JSON
/// patch of the spec whose paths begin with `/spec`.
///
/// On a create (`old` is `None`) all items are added, on a delete (`new` is `None`) all are removed. An item that is
/// only moved is none of the three. Changed items are given as they are in `new`.
pub fn change(kind: &TargetKind, old: Option<&Json>, new: Option<&Json>) -> Json {
    let mut change = Map::new();
    for list in kind.lists {
        let (before, after) = (items(old, list.field), items(new, list.field));
        let twin = |item: &Json, others: &[Json]| -> Option<Json> {
            let same = |other: &&Json| list.identity.iter().all(|at| other.pointer(at) == item.pointer(at));
            others.iter().find(same).cloned()
        };
        let added: Vec<&Json> = after.iter().filter(|item| twin(item, before).is_none()).collect();
        let removed: Vec<&Json> = before.iter().filter(|item| twin(item, after).is_none()).collect();
        let changed: Vec<&Json> =
            after.iter().filter(|item| twin(item, before).is_some_and(|twin| twin != **item)).collect();
        change.insert(list.name.to_owned(), json!({"added": added, "removed": removed, "changed": changed}));
    }
    let patch = json_patch::diff(&spec_alone(old), &spec_alone(new));
    change.insert("patch".to_owned(), json!(patch));
    Json::Object(change)
}

fn items<'a>(object: Option<&'a Json>, field: &str) -> &'a [Json] {
    object.and_then(|object| object.get("spec")?.get(field)?.as_array()).map_or(&[], Vec::as_slice)
}

fn spec_alone(object: Option<&Json>) -> Json {
    match object.and_then(|object| object.get("spec")) {
        Some(spec) => json!({ "spec": spec }),
        None => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::SANDBOX;
    use super::*;

    fn fork(name: &str, image: &str) -> Json {
        json!({"forkOf": {"kind": "Deployment", "name": name}, "customizations": {"images": [{"image": image}]}})
    }

    fn sandbox(forks: &[Json]) -> Json {
        json!({"metadata": {"name": "x"}, "spec": {"forks": forks, "resources": [{"name": "db", "plugin": "p"}]}})
    }

    #[test]
    fn a_create_adds_everything() {
        let new = sandbox(&[fork("a", "1")]);
        let change = change(&SANDBOX, None, Some(&new));
        assert_eq!(change["forks"]["added"], new["spec"]["forks"]);
        assert_eq!(change["resources"]["added"], new["spec"]["resources"]);
        assert_eq!(change["forks"]["removed"], json!([]));
        assert_eq!(change["patch"], json!([{"op": "add", "path": "/spec", "value": new["spec"]}]));
    }

    #[test]
    fn a_delete_removes_everything() {
        let old = sandbox(&[fork("a", "1")]);
        let change = change(&SANDBOX, Some(&old), None);
        assert_eq!(change["forks"]["removed"], old["spec"]["forks"]);
        assert_eq!(change["forks"]["added"], json!([]));
        assert_eq!(change["patch"], json!([{"op": "remove", "path": "/spec"}]));
    }

    #[test]
    fn an_update_tells_added_removed_and_changed_apart() {
        let old = sandbox(&[fork("a", "1"), fork("b", "1"), fork("c", "1")]);
        let new = sandbox(&[fork("d", "1"), fork("c", "2"), fork("b", "1")]);
        let change = change(&SANDBOX, Some(&old), Some(&new));
        assert_eq!(
            change["forks"],
            json!({"added": [fork("d", "1")], "removed": [fork("a", "1")], "changed": [fork("c", "2")]})
        );
        assert_eq!(change["resources"], json!({"added": [], "removed": [], "changed": []}));
    }

    #[test]
    fn items_of_another_kind_are_other_items() {
        let mut other = fork("a", "1");
        other["forkOf"]["kind"] = json!("StatefulSet");
        let change = change(&SANDBOX, Some(&sandbox(&[fork("a", "1")])), Some(&sandbox(&[other.clone()])));
        assert_eq!(change["forks"], json!({"added": [other], "removed": [fork("a", "1")], "changed": []}));
    }

    #[test]
    fn the_patch_leads_from_the_old_spec_to_the_new_one() {
        let (mut old, new) = (sandbox(&[fork("a", "1")]), sandbox(&[fork("a", "2"), fork("b", "1")]));
        let patch: json_patch::Patch =
            serde_json::from_value(change(&SANDBOX, Some(&old), Some(&new))["patch"].clone()).unwrap();
        json_patch::patch(&mut old, &patch).unwrap();
        assert_eq!(old, new);
    }

    #[test]
    fn a_change_of_metadata_is_none() {
        let old = sandbox(&[]);
        let mut new = old.clone();
        new["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(change(&SANDBOX, Some(&old), Some(&new))["patch"], json!([]));
    }
}
