//! `metadata.managedFields`: who set what.

use super::ask::{Ask, Part};
use super::fields::{Changes, Fields};
use super::kinds::Kind;
use super::meta;
use super::shape::Shape;
use serde_json::{Value, json};

/// One manager's fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub manager: String,
    /// An apply; else an update.
    pub applied: bool,
    pub api_version: String,
    pub part: String,
    pub time: String,
    pub fields: Fields,
}

impl Entry {
    pub fn of(ask: &Ask, applied: bool, fields: Fields) -> Self {
        Self {
            manager: ask.manager().to_owned(),
            applied,
            api_version: ask.api_version(),
            part: ask.part.as_str().to_owned(),
            time: String::new(),
            fields,
        }
    }

    /// Whether two entries are of one manager: appliers are the same in all versions.
    pub fn same(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.applied == other.applied
            && self.part == other.part
            && (self.applied || self.api_version == other.api_version)
    }

    /// As conflicts name it.
    pub fn printed(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.part.is_empty() {
            text = format!("{text} with subresource {:?}", self.part);
        }
        if self.applied { text } else { format!("{text} using {}", self.api_version) }
    }

    fn to_json(&self) -> Value {
        let operation = if self.applied { "Apply" } else { "Update" };
        let mut entry = json!({"manager": self.manager, "operation": operation, "apiVersion": self.api_version,
            "time": self.time, "fieldsType": "FieldsV1", "fieldsV1": self.fields.to_json()});
        if !self.part.is_empty() {
            entry["subresource"] = json!(self.part);
        }
        entry
    }
}

pub fn read(object: &Value) -> Vec<Entry> {
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries
        .map(|entry| Entry {
            manager: text(entry, "manager"),
            applied: entry["operation"] == "Apply",
            api_version: text(entry, "apiVersion"),
            part: text(entry, "subresource"),
            time: text(entry, "time"),
            fields: Fields::parse_root(&entry["fieldsV1"]),
        })
        .collect()
}

/// Writes entries back; those that changed get the time `now`.
pub fn write(object: &mut Value, entries: Vec<Entry>, before: &[Entry], now: &str) {
    let mut entries: Vec<Entry> = entries
        .into_iter()
        .filter(|entry| !entry.fields.is_empty())
        .map(|mut entry| {
            let known = before.iter().find(|known| known.same(&entry));
            let kept = known.filter(|known| known.fields == entry.fields && known.api_version == entry.api_version);
            entry.time = kept.map_or_else(|| now.to_owned(), |known| known.time.clone());
            entry
        })
        .collect();
    entries.sort_by(|one, other| {
        let order =
            |entry: &Entry| (!entry.applied, entry.time.clone(), entry.manager.clone(), entry.api_version.clone());
        order(one).cmp(&order(other))
    });
    let entries: Vec<Value> = entries.iter().map(Entry::to_json).collect();
    meta::set(object, "managedFields", Value::Array(entries));
}

/// The shape of a kind's objects; `metadata` is that of built-in kinds in all.
pub fn shape<'a>(kind: &'a Kind, version: &str) -> Shape<'a> {
    match kind.schema(version) {
        Some(schema) => Shape::Schema(schema.raw()),
        None if kind.custom => Shape::Unknown,
        None => Shape::BUILTIN,
    }
}

/// Takes away what nobody owns: names, what the server sets, and what the request cannot write.
pub fn stripped(mut fields: Fields, kind: &Kind, part: Part) -> Fields {
    for name in ["f:apiVersion", "f:kind"] {
        fields.children.remove(name);
    }
    if let Some(metadata) = fields.children.get_mut("f:metadata") {
        metadata.member = false;
        for name in SYSTEM {
            metadata.children.remove(&format!("f:{name}"));
        }
    }
    match part {
        Part::Status => fields.children.retain(|name, _| name == "f:status"),
        _ if kind.status => drop(fields.children.remove("f:status")),
        _ => {}
    }
    fields.children.retain(|_, child| !child.is_empty());
    fields
}

const SYSTEM: &[&str] = &[
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    meta::set(&mut object, "managedFields", Value::Null);
    object
}

/// What changed between two objects, each field in the shape of its kind.
pub fn changes(kind: &Kind, version: &str, before: &Value, after: &Value) -> Changes {
    let (before, after) = (bare(before), bare(after));
    let mut changes = Changes::between(&before, &after, shape(kind, version));
    if !matches!(shape(kind, version), Shape::Builtin { .. }) {
        let part = |object: &Value| json!({"metadata": object["metadata"]});
        let metadata = Changes::between(&part(&before), &part(&after), Shape::BUILTIN);
        for (all, own) in [
            (&mut changes.added, metadata.added),
            (&mut changes.modified, metadata.modified),
            (&mut changes.removed, metadata.removed),
        ] {
            all.children.remove("f:metadata");
            *all = all.union(&own);
        }
    }
    changes
}

/// Notes an update or a creation: who asks owns what it changed, and those who owned it do no more.
pub fn note_update(ask: &Ask, before: &Value, after: &mut Value, now: &str) {
    let managed = &after["metadata"]["managedFields"];
    let emptied = managed.as_array().is_some_and(|list| list.iter().all(|entry| entry == &json!({})));
    let sent = if ask.part == Part::Whole && managed.is_array() { read(after) } else { read(before) };
    let creation = before["metadata"]["creationTimestamp"].is_null();
    if emptied || (!creation && sent.is_empty()) {
        // Nobody tracks an object whose fields were given up, until it is applied.
        meta::set(after, "managedFields", Value::Null);
        return;
    }
    let changes = changes(&ask.kind, &ask.version, before, after);
    // What this part of an object cannot write counts for nobody.
    let taken = stripped(changes.added.union(&changes.modified), &ask.kind, ask.part);
    let removed = stripped(changes.removed, &ask.kind, ask.part);
    let mut entries = sent.clone();
    let mut own = Entry::of(ask, false, Fields::default());
    for entry in &mut entries {
        if entry.same(&own) {
            own.fields = entry.fields.clone();
        }
        entry.fields = entry.fields.difference(&taken).difference(&removed);
    }
    entries.retain(|entry| !entry.same(&own));
    own.fields = own.fields.union(&taken).difference(&removed);
    entries.push(own);
    write(after, entries, &sent, now);
}
