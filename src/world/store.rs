//! What etcd is to the API server: objects, one version that only grows, and the log of what became of them.

use super::kinds::{Kind, KindId, Kinds};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What names an object. `namespace` is empty for a kind that has none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub kind: KindId,
    pub namespace: String,
    pub name: String,
}

/// One write. Of a creation `before` is none, of a removal `after` is.
#[derive(Debug, Clone)]
pub struct Change {
    pub version: u64,
    pub key: Key,
    pub before: Option<Arc<Value>>,
    pub after: Option<Arc<Value>>,
}

/// The whole state.
#[derive(Debug)]
pub struct Store {
    pub kinds: Kinds,
    objects: BTreeMap<Key, Arc<Value>>,
    version: u64,
    log: Vec<Change>,
    compacted: u64,
}

impl Store {
    pub fn new(kinds: Kinds) -> Self {
        Self { kinds, objects: BTreeMap::new(), version: 1, log: Vec::new(), compacted: 0 }
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(key).cloned()
    }

    /// The objects of a kind in order of their names, in one namespace or in all.
    pub fn of_kind<'a>(
        &'a self,
        kind: &'a KindId,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> + 'a {
        let first = Key { kind: kind.clone(), namespace: namespace.to_owned(), name: String::new() };
        self.objects
            .range(first..)
            .take_while(move |(key, _)| key.kind == *kind && (namespace.is_empty() || key.namespace == namespace))
    }

    pub fn all(&self) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter()
    }

    /// Stores `object` and gives it the next version.
    pub fn put(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = Value::from(self.version.to_string());
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), object.clone());
        self.log.push(Change { version: self.version, key, before, after: Some(object.clone()) });
        object
    }

    /// Removes an object. What is returned bears the version of the removal, as watches show it.
    pub fn remove(&mut self, key: &Key) -> Option<Arc<Value>> {
        let before = self.objects.remove(key)?;
        self.version += 1;
        let gone = at_version(&before, self.version);
        self.log.push(Change { version: self.version, key: key.clone(), before: Some(before), after: None });
        Some(Arc::new(gone))
    }

    /// The changes after `version`, oldest first.
    pub fn since(&self, version: u64) -> &[Change] {
        let from = self.log.partition_point(|change| change.version <= version);
        &self.log[from..]
    }

    /// Forgets the changes up to `version`: watches from before are answered with 410.
    pub fn compact(&mut self, version: u64) {
        self.compacted = self.compacted.max(version.min(self.version));
        self.log.retain(|change| change.version > self.compacted);
    }
}

/// `object` as it is shown with another version than its own.
pub fn at_version(object: &Value, version: u64) -> Value {
    let mut object = object.clone();
    object["metadata"]["resourceVersion"] = Value::from(version.to_string());
    object
}

/// The key of an object of a kind.
pub fn key(kind: &Kind, namespace: &str, name: &str) -> Key {
    let namespace = if kind.namespaced { namespace } else { "" };
    Key { kind: kind.id(), namespace: namespace.to_owned(), name: name.to_owned() }
}
