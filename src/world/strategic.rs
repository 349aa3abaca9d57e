//! Strategic merge patches of built-in kinds, with `$patch`, `$retainKeys`, `$deleteFromPrimitiveList` and
//! `$setElementOrder`.

use super::shape::{List, Shape};
use serde_json::{Map, Value};

/// Merges `patch` over `target`.
pub fn merge(target: &mut Value, patch: &Value, shape: Shape<'_>) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    match fields.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *target = plain(patch);
            return;
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return;
        }
        _ => {}
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else { return };
    if let Some(Value::Array(kept)) = fields.get("$retainKeys") {
        target.retain(|name, _| kept.iter().any(|kept| kept == name));
    }
    for (name, value) in fields {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            remove_values(target.get_mut(list), value);
        } else if !name.starts_with('$') {
            merge_field(target, name, value, shape.field(name));
        }
    }
    for (name, order) in fields {
        if let Some(list) = name.strip_prefix("$setElementOrder/") {
            reorder(target.get_mut(list), order, shape.field(list));
        }
    }
}

fn merge_field(target: &mut Map<String, Value>, name: &str, value: &Value, shape: Shape<'_>) {
    match (target.get_mut(name), value) {
        (_, Value::Null) => drop(target.remove(name)),
        (Some(Value::Array(known)), Value::Array(items)) => match (shape.patch_key(), shape.list()) {
            (Some(key), _) => merge_list(known, items, key, shape),
            (None, List::Set) => {
                let new: Vec<Value> = items.iter().filter(|item| !known.contains(item)).cloned().collect();
                known.extend(new);
            }
            (None, _) => *known = items.iter().map(plain).collect(),
        },
        (Some(known), Value::Object(_)) => merge(known, value, shape),
        _ => drop(target.insert(name.to_owned(), plain(value))),
    }
}

fn merge_list(known: &mut Vec<Value>, items: &[Value], key: &str, shape: Shape<'_>) {
    let directive = |item: &Value| item["$patch"].as_str().map(ToOwned::to_owned);
    if items.iter().any(|item| directive(item).as_deref() == Some("replace")) {
        known.clear();
    }
    for item in items {
        let Some(name) = item.get(key) else { continue };
        let at = known.iter().position(|known| known.get(key) == Some(name));
        match (at, directive(item).as_deref()) {
            (_, Some("delete")) => known.retain(|known| known.get(key) != Some(name)),
            (Some(at), _) => merge(&mut known[at], item, shape.items()),
            (None, _) => known.push(plain(item)),
        }
    }
}

fn remove_values(list: Option<&mut Value>, values: &Value) {
    if let (Some(Value::Array(known)), Value::Array(values)) = (list, values) {
        known.retain(|item| !values.contains(item));
    }
}

/// Puts the items that `order` names into that order; others keep their place behind those that they followed.
fn reorder(list: Option<&mut Value>, order: &Value, shape: Shape<'_>) {
    let (Some(Value::Array(known)), Value::Array(order)) = (list, order) else { return };
    let key = shape.patch_key();
    let rank = |item: &Value| {
        order.iter().position(|wanted| match key {
            Some(key) => wanted.get(key) == item.get(key),
            None => wanted == item,
        })
    };
    let mut last = None;
    let mut ranked: Vec<(Option<usize>, usize, Value)> = Vec::new();
    for (at, item) in known.drain(..).enumerate() {
        let own = rank(&item);
        last = own.or(last);
        ranked.push((last, if own.is_some() { 0 } else { at + 1 }, item));
    }
    ranked.sort_by_key(|(rank, at, _)| (*rank, *at));
    known.extend(ranked.into_iter().map(|(_, _, item)| item));
}

/// What is left where there is nothing to merge with: no directive, and nothing that deletes.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, value)| !name.starts_with('$') && !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), plain(value))).collect())
        }
        Value::Array(items) => {
            Value::Array(items.iter().filter(|item| item["$patch"] != "delete").map(plain).collect())
        }
        other => other.clone(),
    }
}
