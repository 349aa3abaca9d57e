//! GET and LIST.

use super::World;
use super::ask::{Ask, Part};
use super::refusal::Refusal;
use super::select::Selector;
use super::store::{Key, Store, key};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a list goes on.
#[derive(serde::Serialize, serde::Deserialize)]
struct Continue {
    rv: u64,
    namespace: String,
    name: String,
}

impl Continue {
    fn read(token: &str) -> Result<Self, Refusal> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok();
        let read = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        read.ok_or_else(|| Refusal::bad_request("continue key is not valid"))
    }

    fn token(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}

impl World {
    pub(super) fn get(&self, ask: &Ask) -> Result<Value, Refusal> {
        let store = self.store();
        let asked = version_of(ask.option("resourceVersion"))?;
        if asked > store.version() {
            return Err(Refusal::ahead(asked, store.version()));
        }
        let object = store.get(&key(&ask.kind, &ask.namespace, &ask.name));
        let object = object.ok_or_else(|| Refusal::not_found(&ask.kind, &ask.name))?;
        match ask.part {
            Part::Scale => Ok(super::scale::of(&ask.kind, &object)),
            _ => Ok(shown(ask, &object)),
        }
    }

    pub(super) fn list(&self, ask: &Ask) -> Result<Value, Refusal> {
        let selector = selector(ask)?;
        let store = self.store();
        let go_on = match ask.option("continue") {
            "" => None,
            token => Some(Continue::read(token)?),
        };
        let asked = version_of(ask.option("resourceVersion"))?;
        let exact = ask.option("resourceVersionMatch") == "Exact";
        let version = match &go_on {
            Some(go_on) => go_on.rv,
            None if exact => asked,
            None => store.version(),
        };
        if asked > store.version() {
            return Err(Refusal::ahead(asked, store.version()));
        }
        if version < store.compacted() {
            return Err(Refusal::gone(if go_on.is_some() {
                TOO_OLD
            } else {
                "The resourceVersion for the provided list is too old."
            }));
        }
        let after = go_on.map(|go_on| Key { kind: ask.kind.id(), namespace: go_on.namespace, name: go_on.name });
        let found: Vec<(Key, Arc<Value>)> = at(&store, ask, version)
            .into_iter()
            .filter(|(key, object)| after.as_ref().is_none_or(|after| key > after) && selector.matches(object))
            .collect();
        Ok(page(ask, version, &found))
    }
}

const TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a \
    new list without the continue parameter, or use the continue token in this response to retrieve the remainder of \
    the results. Continuing with the provided token results in an inconsistent list - objects that were created, \
    modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// One page of a list, and where the next begins.
fn page(ask: &Ask, version: u64, found: &[(Key, Arc<Value>)]) -> Value {
    let limit = ask.option("limit").parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let shown_here = &found[..limit.min(found.len())];
    let items: Vec<Value> = shown_here.iter().map(|(_, object)| item(ask, object)).collect();
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if let (true, Some((key, _))) = (found.len() > limit, shown_here.last()) {
        let go_on = Continue { rv: version, namespace: key.namespace.clone(), name: key.name.clone() };
        metadata["continue"] = json!(go_on.token());
        if ask.option("labelSelector").is_empty() && ask.option("fieldSelector").is_empty() {
            metadata["remainingItemCount"] = json!(found.len() - limit);
        }
    }
    let (kind, api_version) = if ask.metadata_only {
        ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned())
    } else {
        (format!("{}List", ask.kind.kind), ask.api_version())
    };
    json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items})
}

/// The objects of a kind as they were at a version: today's, with what was written since taken back.
fn at(store: &Store, ask: &Ask, version: u64) -> BTreeMap<Key, Arc<Value>> {
    let kind = ask.kind.id();
    let mut objects: BTreeMap<Key, Arc<Value>> =
        store.of_kind(&kind, &ask.namespace).map(|(key, object)| (key.clone(), object.clone())).collect();
    let here = |key: &Key| key.kind == kind && (ask.namespace.is_empty() || key.namespace == ask.namespace);
    for change in store.since(version).iter().rev().filter(|change| here(&change.key)) {
        match &change.before {
            Some(before) => drop(objects.insert(change.key.clone(), before.clone())),
            None => drop(objects.remove(&change.key)),
        }
    }
    objects
}

pub fn selector(ask: &Ask) -> Result<Selector, Refusal> {
    Selector::parse(&ask.kind, ask.option("labelSelector"), ask.option("fieldSelector"))
}

/// A resourceVersion of a query; none is 0.
pub fn version_of(text: &str) -> Result<u64, Refusal> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| Refusal::bad_request(format!("Invalid value: \"{text}\": invalid resource version")))
}

/// An object as a request of one version sees it.
pub fn shown(ask: &Ask, object: &Value) -> Value {
    ask.kind.in_version(&ask.version, object)
}

/// An object within a list: the API server leaves out what built-in kinds are called.
fn item(ask: &Ask, object: &Value) -> Value {
    if ask.metadata_only {
        return metadata_of(object);
    }
    let mut object = shown(ask, object);
    if let (false, Some(fields)) = (ask.kind.custom, object.as_object_mut()) {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}

/// An object of which only the metadata was asked.
pub fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}
