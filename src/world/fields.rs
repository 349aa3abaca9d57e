//! Sets of fields, as `managedFields` write them (`FieldsV1`).

use super::shape::{List, Shape};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A set of paths: whether a place itself is in it, and what of its children is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields {
    pub member: bool,
    /// By `f:name`, `k:{keys}` or `v:value`.
    pub children: BTreeMap<String, Fields>,
}

impl Fields {
    pub fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }

    pub fn parse(value: &Value) -> Self {
        let fields = value.as_object();
        let children: BTreeMap<String, Self> = fields
            .into_iter()
            .flatten()
            .filter(|(name, _)| *name != ".")
            .map(|(name, value)| (name.clone(), Self::parse(value)))
            .collect();
        let member = children.is_empty() || value.get(".").is_some();
        Self { member, children }
    }

    /// The whole of an object: its root is never a member.
    pub fn parse_root(value: &Value) -> Self {
        Self { member: false, ..Self::parse(value) }
    }

    pub fn to_json(&self) -> Value {
        let mut map: Map<String, Value> =
            self.children.iter().map(|(name, child)| (name.clone(), child.to_json())).collect();
        if self.member && !map.is_empty() {
            map.insert(".".to_owned(), json!({}));
        }
        Value::Object(map)
    }

    pub fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.member |= other.member;
        for (name, child) in &other.children {
            let merged = all.children.get(name).map_or_else(|| child.clone(), |known| known.union(child));
            all.children.insert(name.clone(), merged);
        }
        all
    }

    pub fn intersection(&self, other: &Self) -> Self {
        self.combined(other, |one, other| one && other)
    }

    pub fn difference(&self, other: &Self) -> Self {
        self.combined(other, |one, other| one && !other)
    }

    fn combined(&self, other: &Self, rule: fn(bool, bool) -> bool) -> Self {
        let nothing = Self::default();
        let children = self
            .children
            .iter()
            .map(|(name, child)| (name.clone(), child.combined(other.children.get(name).unwrap_or(&nothing), rule)));
        Self {
            member: rule(self.member, other.member),
            children: children.filter(|(_, child)| !child.is_empty()).collect(),
        }
    }

    /// The paths of all members, as conflicts print them.
    pub fn paths(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.collect("", &mut found);
        found
    }

    fn collect(&self, path: &str, found: &mut Vec<String>) {
        if self.member {
            found.push(path.to_owned());
        }
        for (name, child) in &self.children {
            child.collect(&format!("{path}{}", printed(name)), found);
        }
    }

    fn child(&mut self, name: String) -> &mut Self {
        self.children.entry(name).or_default()
    }
}

/// `.name`, `[name="x"]`, `[="x"]`.
fn printed(element: &str) -> String {
    let (kind, rest) = element.split_once(':').unwrap_or(("f", element));
    match kind {
        "k" => {
            let keys: BTreeMap<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        "v" => format!("[={rest}]"),
        _ => format!(".{rest}"),
    }
}

/// What names an item within a list that merges; none within one that does not.
pub fn element(item: &Value, list: &List, items: Shape<'_>) -> Option<String> {
    match list {
        List::Atomic => None,
        List::Set => Some(format!("v:{item}")),
        List::Map(keys) => {
            let mut named = Map::new();
            for key in keys {
                let value = item.get(key).cloned().or_else(|| items.key_default(key));
                if let Some(value) = value {
                    named.insert(key.clone(), value);
                }
            }
            Some(format!("k:{}", Value::Object(named)))
        }
    }
}

/// All that an applied configuration sets.
pub fn of(value: &Value, shape: Shape<'_>) -> Fields {
    let mut fields = Fields::default();
    collect(value, shape, &mut fields);
    fields
}

fn collect(value: &Value, shape: Shape<'_>, into: &mut Fields) {
    match value {
        Value::Object(map) if !shape.atomic_map() => {
            for (name, value) in map {
                let child = into.child(format!("f:{name}"));
                collect(value, shape.field(name), child);
                let empty = value.as_object().is_some_and(Map::is_empty);
                child.member |= value.is_null() || empty || !shape.declares(name);
            }
            // A list without items sets nothing.
            into.children.retain(|_, child| !child.is_empty());
        }
        Value::Array(items) => {
            let list = shape.list();
            if list == List::Atomic {
                into.member = true;
                return;
            }
            for item in items {
                if let Some(name) = element(item, &list, shape.items()) {
                    let child = into.child(name);
                    child.member = true;
                    if matches!(list, List::Map(_)) {
                        collect(item, shape.items(), child);
                    }
                }
            }
        }
        _ => into.member = true,
    }
}

/// What a write changed.
#[derive(Debug, Default)]
pub struct Changes {
    pub added: Fields,
    pub modified: Fields,
    pub removed: Fields,
}

impl Changes {
    pub fn between(before: &Value, after: &Value, shape: Shape<'_>) -> Self {
        let mut changes = Self::default();
        changes.compare(Some(before), Some(after), shape, &mut Vec::new());
        changes
    }

    fn compare(&mut self, before: Option<&Value>, after: Option<&Value>, shape: Shape<'_>, path: &mut Vec<String>) {
        match (before, after) {
            (None, None) => return,
            (None, Some(_)) => mark(&mut self.added, path),
            (Some(_), None) => mark(&mut self.removed, path),
            (Some(before), Some(after)) if leaf(before, after, shape) => {
                if before != after {
                    mark(&mut self.modified, path);
                }
                return;
            }
            _ => {}
        }
        let one = before.or(after);
        match one {
            Some(Value::Object(_)) if !shape.atomic_map() => self.compare_maps(before, after, shape, path),
            Some(Value::Array(_)) if shape.list() != List::Atomic => self.compare_lists(before, after, shape, path),
            _ => {}
        }
    }

    fn compare_maps(
        &mut self,
        before: Option<&Value>,
        after: Option<&Value>,
        shape: Shape<'_>,
        path: &mut Vec<String>,
    ) {
        let names = |value: Option<&Value>| value.and_then(Value::as_object).map(|map| map.keys().cloned().collect());
        let mut all: Vec<String> = names(before).unwrap_or_default();
        all.extend(names(after).unwrap_or_else(Vec::new));
        all.sort();
        all.dedup();
        for name in all {
            path.push(format!("f:{name}"));
            let at = |value: Option<&'_ Value>| value.and_then(|value| value.get(&name)).cloned();
            let (one, other) = (at(before), at(after));
            let inner: Shape<'_> = shape.field(&name);
            self.compare(one.as_ref(), other.as_ref(), inner, path);
            path.pop();
        }
    }

    fn compare_lists(
        &mut self,
        before: Option<&Value>,
        after: Option<&Value>,
        shape: Shape<'_>,
        path: &mut Vec<String>,
    ) {
        let list = shape.list();
        let named = |value: Option<&Value>| -> BTreeMap<String, Value> {
            let items = value.and_then(Value::as_array).into_iter().flatten();
            items.filter_map(|item| element(item, &list, shape.items()).map(|name| (name, item.clone()))).collect()
        };
        let (before, after) = (named(before), named(after));
        let all: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for name in all {
            path.push(name.clone());
            self.compare(before.get(name), after.get(name), shape.items(), path);
            path.pop();
        }
    }
}

/// Whether two values are compared as one, not by what is in them.
fn leaf(before: &Value, after: &Value, shape: Shape<'_>) -> bool {
    match (before, after) {
        (Value::Object(one), Value::Object(other)) => shape.atomic_map() || (one.is_empty() && other.is_empty()),
        (Value::Array(one), Value::Array(other)) => {
            shape.list() == List::Atomic || (one.is_empty() && other.is_empty())
        }
        _ => true,
    }
}

fn mark(fields: &mut Fields, path: &[String]) {
    let mut at = fields;
    for name in path {
        at = at.child(name.clone());
    }
    at.member = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_applied_pod_owns_its_containers_by_name() {
        let pod = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let fields = of(&pod, Shape::BUILTIN).to_json();
        assert_eq!(
            fields,
            json!({"f:metadata": {"f:labels": {"f:a": {}}},
                "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:name": {}}}}})
        );
        assert_eq!(Fields::parse_root(&fields).to_json(), fields);
    }

    #[test]
    fn an_added_subtree_is_added_with_all_that_leads_to_it() {
        let changes = Changes::between(&json!({}), &json!({"spec": {"replicas": 1}}), Shape::BUILTIN);
        assert_eq!(changes.added.to_json(), json!({"f:spec": {".": {}, "f:replicas": {}}}));
    }
}
