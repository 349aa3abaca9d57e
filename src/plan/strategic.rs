//! Strategic merge of the parts of a pod: maps are merged, lists by the key that names their items, null deletes.
//!
//! As `kubectl patch --type=strategic` does it, `$patch: delete` and `$patch: replace` included. The keys are the
//! `patchMergeKey`s of Kubernetes' API types; lists that have none are replaced whole.

use serde_json::{Map, Value};

/// What tells a map that is more than its fields.
const DIRECTIVE: &str = "$patch";

/// The field that names the items of a list.
fn key_of(list: &str) -> Option<&'static str> {
    Some(match list {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "resourceClaims"
        | "schedulingGates" => "name",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "ports" => "containerPort",
        "hostAliases" => "ip",
        "topologySpreadConstraints" => "topologyKey",
        _ => return None,
    })
}

/// Merges `patch` over `target`.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() || directive(patch).is_some() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (name, value) in fields.iter().filter(|(name, _)| *name != DIRECTIVE) {
        match (target.get_mut(name), value) {
            (_, Value::Null) => {
                target.remove(name);
            }
            (Some(Value::Array(known)), Value::Array(items)) if key_of(name).is_some() => {
                merge_list(known, items, key_of(name).unwrap_or_default());
            }
            (Some(known), Value::Object(_)) => merge(known, value),
            _ => {
                target.insert(name.clone(), plain(value));
            }
        }
    }
}

fn merge_list(known: &mut Vec<Value>, items: &[Value], key: &str) {
    if items.iter().any(|item| directive(item) == Some("replace") && item.get(key).is_none()) {
        known.clear();
    }
    for item in items {
        let Some(name) = item.get(key) else { continue };
        let at = known.iter().position(|known| known.get(key) == Some(name));
        match (at, directive(item)) {
            (Some(at), Some("delete")) => drop(known.remove(at)),
            (None, Some("delete")) => {}
            (Some(at), _) => merge(&mut known[at], item),
            (None, _) => known.push(plain(item)),
        }
    }
}

fn directive(value: &Value) -> Option<&str> {
    value.get(DIRECTIVE).and_then(Value::as_str)
}

/// What is left where there is nothing to merge with: no directive, and nothing that deletes.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, value)| *name != DIRECTIVE && !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), plain(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().filter(|item| directive(item).is_none()).map(plain).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn yaml(text: &str) -> Value {
        serde_saphyr::from_str(text).unwrap()
    }

    #[rstest]
    #[case::maps_are_merged("{a: {b: 1, c: 2}}", "{a: {c: 3, d: 4}}", "{a: {b: 1, c: 3, d: 4}}")]
    #[case::null_deletes("{a: 1, b: {c: 2}}", "{a: null, b: {c: null}, d: {e: null}}", "{b: {}, d: {}}")]
    #[case::containers_by_name(
        "{containers: [{name: main, image: i, env: [{name: A, value: '1'}]}]}",
        "{containers: [{name: side, image: s}, {name: main, env: [{name: A, value: '2'}, {name: B, value: '3'}]}]}",
        "{containers: [{name: main, image: i, env: [{name: A, value: '2'}, {name: B, value: '3'}]}, {name: side, image: s}]}"
    )]
    #[case::mounts_by_path(
        "{volumeMounts: [{name: v0, mountPath: /tmp}]}",
        "{volumeMounts: [{name: big, mountPath: /tmp, subPath: x}, {name: big, mountPath: /data}]}",
        "{volumeMounts: [{name: big, mountPath: /tmp, subPath: x}, {name: big, mountPath: /data}]}"
    )]
    #[case::other_lists_are_replaced(
        "{tolerations: [{key: a}], args: [a, b]}",
        "{tolerations: [{key: b}], args: [c]}",
        "{tolerations: [{key: b}], args: [c]}"
    )]
    #[case::items_are_deleted(
        "{env: [{name: A}, {name: B}]}",
        "{env: [{name: A, $patch: delete}, {name: C, $patch: delete}]}",
        "{env: [{name: B}]}"
    )]
    #[case::a_list_is_replaced("{env: [{name: A}]}", "{env: [{$patch: replace}, {name: B}]}", "{env: [{name: B}]}")]
    #[case::a_map_is_replaced("{a: {b: 1}}", "{a: {$patch: replace, c: 2}}", "{a: {c: 2}}")]
    #[case::a_type_gives_way("{a: [1]}", "{a: {b: 2}}", "{a: {b: 2}}")]
    #[case::no_directive_is_left(
        "{}",
        "{env: [{name: A, $patch: delete}, {name: B}], a: {$patch: replace, b: 1}}",
        "{env: [{name: B}], a: {b: 1}}"
    )]
    fn what_a_patch_leaves(#[case] target: &str, #[case] patch: &str, #[case] left: &str) {
        let mut merged = yaml(target);
        merge(&mut merged, &yaml(patch));
        assert_eq!(merged, yaml(left));
    }
}
