//! Server-side apply: a merge in which each field has owners.

use super::ask::Ask;
use super::fields::{self, Fields, element};
use super::managed::{self, Entry};
use super::meta;
use super::refusal::Refusal;
use super::shape::{List, Shape};
use serde_json::{Value, json};

/// `live` with `config` applied over it.
pub fn apply(ask: &Ask, live: &Value, config: &Value, now: &str) -> Result<Value, Refusal> {
    if !config["metadata"]["managedFields"].is_null() {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    let kind = &ask.kind;
    let shape = managed::shape(kind, &ask.version);
    let known = known(ask, live, now);
    let mut own = Entry::of(ask, true, managed::stripped(set(config, shape), kind, ask.part));
    let last = known.iter().find(|entry| entry.same(&own)).map(|entry| entry.fields.clone()).unwrap_or_default();

    let mut merged = live.clone();
    merge(&mut merged, config, shape);
    let mut kept = own.fields.clone();
    for entry in known.iter().filter(|entry| !entry.same(&own)) {
        kept = kept.union(&entry.fields);
    }
    prune(&mut merged, &last, &kept, shape);
    let changes = managed::changes(kind, &ask.version, live, &merged);
    let taken = managed::stripped(changes.added.union(&changes.modified), kind, ask.part);

    let removed = managed::stripped(changes.removed, kind, ask.part);
    let mut entries: Vec<Entry> = known.iter().filter(|entry| !entry.same(&own)).cloned().collect();
    let mut conflicts = Vec::new();
    for entry in &mut entries {
        let lost = entry.fields.intersection(&taken);
        conflicts.extend(lost.paths().into_iter().map(|path| (entry.printed(), path)));
        entry.fields = entry.fields.difference(&lost).difference(&removed);
    }
    if !conflicts.is_empty() && ask.option("force") != "true" {
        return Err(Refusal::apply_conflict(&conflicts));
    }
    own.time.clear();
    entries.push(own);
    managed::write(&mut merged, entries, &known, now);
    Ok(merged)
}

/// The managers so far. What an object had before its first apply belongs to `before-first-apply`.
fn known(ask: &Ask, live: &Value, now: &str) -> Vec<Entry> {
    let known = managed::read(live);
    if !known.is_empty() || live["metadata"]["creationTimestamp"].is_null() {
        return known;
    }
    let changes = managed::changes(&ask.kind, &ask.version, &json!({"metadata": {}}), live);
    let mut entry = Entry::of(ask, false, managed::stripped(changes.added, &ask.kind, ask.part));
    entry.manager = "before-first-apply".to_owned();
    entry.time = now.to_owned();
    vec![entry]
}

fn set(config: &Value, shape: Shape<'_>) -> Fields {
    let mut all = fields::of(config, shape);
    if !matches!(shape, Shape::Builtin { .. }) {
        all.children.remove("f:metadata");
        all = all.union(&fields::of(&json!({"metadata": config["metadata"]}), Shape::BUILTIN));
    }
    all
}

/// `metadata` has the same shape in all kinds.
fn field_shape<'a>(shape: Shape<'a>, name: &'a str, root: bool) -> Shape<'a> {
    if root && name == "metadata" { Shape::Builtin { parent: "", field: "metadata" } } else { shape.field(name) }
}

fn merge(target: &mut Value, config: &Value, shape: Shape<'_>) {
    merge_at(target, config, shape, true);
}

fn merge_at(target: &mut Value, config: &Value, shape: Shape<'_>, root: bool) {
    match (&mut *target, config) {
        (Value::Object(known), Value::Object(fields)) if !shape.atomic_map() => {
            for (name, value) in fields {
                match known.get_mut(name) {
                    Some(known) => merge_at(known, value, field_shape(shape, name, root), false),
                    None => drop(known.insert(name.clone(), value.clone())),
                }
            }
        }
        (Value::Array(known), Value::Array(items)) if shape.list() != List::Atomic => {
            let list = shape.list();
            for item in items {
                let name = element(item, &list, shape.items());
                let at = known.iter().position(|known| element(known, &list, shape.items()) == name);
                match at {
                    Some(at) => merge_at(&mut known[at], item, shape.items(), false),
                    None => known.push(item.clone()),
                }
            }
        }
        _ => *target = config.clone(),
    }
}

/// Removes what `last` has and nobody keeps.
fn prune(value: &mut Value, last: &Fields, kept: &Fields, shape: Shape<'_>) {
    prune_at(value, last, kept, shape, true);
}

fn prune_at(value: &mut Value, last: &Fields, kept: &Fields, shape: Shape<'_>, root: bool) {
    for (name, child) in &last.children {
        let keeps = kept.children.get(name);
        match value {
            Value::Object(map) => {
                let Some(field) = name.strip_prefix("f:") else { continue };
                match keeps {
                    None => drop(map.remove(field)),
                    Some(keeps) => {
                        if let Some(inner) = map.get_mut(field) {
                            prune_at(inner, child, keeps, field_shape(shape, field, root), false);
                        }
                    }
                }
            }
            Value::Array(items) => {
                let list = shape.list();
                let here = |item: &Value| element(item, &list, shape.items()).as_ref() == Some(name);
                match keeps {
                    None => items.retain(|item| !here(item)),
                    Some(keeps) => {
                        for item in items.iter_mut().filter(|item| here(item)) {
                            prune_at(item, child, keeps, shape.items(), false);
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// What an apply of a name that is not there begins with.
pub fn nothing() -> Value {
    json!({"metadata": {}})
}

/// An applied configuration must name what it is about, or nothing.
pub fn check(ask: &Ask, config: &Value) -> Result<(), Refusal> {
    let name = meta::text(config, "name");
    if !name.is_empty() && name != ask.name {
        let said = format!("the name of the object ({name}) does not match the name on the URL ({})", ask.name);
        return Err(Refusal::bad_request(said));
    }
    Ok(())
}
