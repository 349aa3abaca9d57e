//! The kinds that a world serves, as its discovery shows them, and the few rules in which they differ.

use super::schema::Schema;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What names a kind in the storage: its group and its plural.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindId {
    pub group: String,
    pub plural: String,
}

/// What moves `metadata.generation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    None,
    /// Every change of a field other than `metadata` and `status`.
    Content,
    /// That, and a change of an annotation.
    ContentAndAnnotations,
}

/// A kind of object.
#[derive(Debug, Clone)]
pub struct Kind {
    pub group: String,
    /// The versions that are served; the first is preferred. All have the same fields.
    pub versions: Vec<String>,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub namespaced: bool,
    pub status: bool,
    pub scale: bool,
    pub generation: Generation,
    /// An update without a resourceVersion overwrites what is there.
    pub unconditional_update: bool,
    /// A PUT to a name that is not there creates it.
    pub create_on_update: bool,
    /// A deletion answers with the object, not with a `Status`.
    pub returns_deleted: bool,
    /// Only creates, and nothing is stored: reviews.
    pub review: bool,
    /// Kinds of a CustomResourceDefinition: the schema of each version.
    pub schemas: BTreeMap<String, Arc<Schema>>,
    /// Kinds of a CustomResourceDefinition.
    pub custom: bool,
    /// Stored as the kind of this name in the core group, under other names of fields: `events.k8s.io`.
    pub twin: bool,
}

impl Kind {
    pub fn id(&self) -> KindId {
        let group = if self.twin { String::new() } else { self.group.clone() };
        KindId { group, plural: self.plural.clone() }
    }

    /// `pods`, `deployments.apps`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `v1`, `apps/v1`.
    pub fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() { version.to_owned() } else { format!("{}/{version}", self.group) }
    }

    pub fn preferred(&self) -> &str {
        self.versions.first().map_or("v1", String::as_str)
    }

    /// `object` as it is stored.
    pub fn stored(&self, object: &Value) -> Value {
        let mut stored = self.in_version(self.preferred(), object);
        if self.twin {
            renamed(&mut stored, |(new, old)| (new, old));
            stored["apiVersion"] = Value::from("v1");
        }
        stored
    }

    /// What is stored, as a version shows it: fields are the same in all.
    pub fn in_version(&self, version: &str, object: &Value) -> Value {
        let mut object = object.clone();
        if self.twin {
            renamed(&mut object, |(new, old)| (old, new));
        }
        object["apiVersion"] = Value::from(self.api_version(version));
        object["kind"] = Value::from(self.kind.clone());
        object
    }

    pub fn schema(&self, version: &str) -> Option<&Schema> {
        self.schemas.get(version).map(AsRef::as_ref)
    }
}

/// What `events.k8s.io` calls its fields, and what the core group calls them.
const TWINS: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

type Names = (&'static str, &'static str);

fn renamed(object: &mut Value, from_to: impl Fn(Names) -> Names) {
    let Some(fields) = object.as_object_mut() else { return };
    for (from, to) in TWINS.iter().copied().map(from_to) {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}

/// All kinds of a world.
#[derive(Debug, Clone, Default)]
pub struct Kinds(BTreeMap<KindId, Arc<Kind>>);

impl Kinds {
    pub fn put(&mut self, kind: Kind) {
        let id = KindId { group: kind.group.clone(), plural: kind.plural.clone() };
        self.0.insert(id, Arc::new(kind));
    }

    pub fn remove(&mut self, id: &KindId) {
        self.0.remove(id);
    }

    pub fn get(&self, id: &KindId) -> Option<Arc<Kind>> {
        self.0.get(id).cloned()
    }

    /// The kind that is served at this place.
    pub fn served(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        let kind = self.get(&KindId { group: group.to_owned(), plural: plural.to_owned() })?;
        kind.versions.iter().any(|served| served == version).then_some(kind)
    }

    /// The kind that an object or an ownerReference names.
    pub fn named(&self, api_version: &str, name: &str) -> Option<Arc<Kind>> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        self.0
            .values()
            .find(|kind| kind.group == group && kind.kind == name && kind.versions.iter().any(|v| v == version))
            .cloned()
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.0.values()
    }
}
