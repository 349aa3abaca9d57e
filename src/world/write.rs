//! What all writes have in common: the body, the namespace, the hooks, the version.

use super::World;
use super::ask::{Ask, Part};
use super::meta;
use super::refusal::{FieldError, Refusal};
use super::store::{Key, key};
use serde_json::{Value, json};
use std::sync::Arc;

/// The object of a request's body.
pub fn body(ask: &Ask) -> Result<Value, Refusal> {
    let unread = |error: serde_json::Error| {
        Refusal::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {error}",
            ask.kind.kind, ask.version, ask.kind.kind
        ))
    };
    let object: Value = serde_json::from_slice(&ask.body).map_err(unread)?;
    typed(ask, object)
}

/// `object`, which must be of the kind and version of the path.
pub fn typed(ask: &Ask, mut object: Value) -> Result<Value, Refusal> {
    let Some(fields) = object.as_object_mut() else {
        return Err(Refusal::bad_request("the object provided is unrecognized: it is no map"));
    };
    let (kind, api_version) = match ask.part {
        Part::Scale => ("Scale".to_owned(), "autoscaling/v1".to_owned()),
        _ => (ask.kind.kind.clone(), ask.api_version()),
    };
    let found = fields.entry("kind").or_insert_with(|| json!(kind)).clone();
    let version = fields.entry("apiVersion").or_insert_with(|| json!(api_version)).clone();
    let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
    if metadata.is_null() {
        *metadata = json!({});
    }
    if !metadata.is_object() {
        return Err(Refusal::bad_request(format!("{kind} in version {:?} cannot be handled as a {kind}", ask.version)));
    }
    if version != json!(api_version) {
        let version = version.as_str().unwrap_or_default();
        return Err(Refusal::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({api_version})"
        )));
    }
    if found != json!(kind) {
        let found = found.as_str().unwrap_or_default();
        return Err(Refusal::bad_request(format!(
            "{found} in version {:?} cannot be handled as a {kind}",
            ask.version
        )));
    }
    Ok(object)
}

/// The name and the namespace of an object must be those of the path.
pub fn placed(ask: &Ask, object: &mut Value) -> Result<(), Refusal> {
    let (namespace, name) = (meta::text(object, "namespace").to_owned(), meta::text(object, "name").to_owned());
    let expected = if ask.kind.namespaced { ask.namespace.as_str() } else { "" };
    if !namespace.is_empty() && !expected.is_empty() && namespace != expected {
        let said = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Refusal::bad_request(said));
    }
    if !ask.name.is_empty() && !name.is_empty() && name != ask.name {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            ask.name
        )));
    }
    if !ask.name.is_empty() && name.is_empty() {
        return Err(Refusal::bad_request("the name of the object (based on the object's metadata.name) is empty"));
    }
    meta::set(object, "namespace", json!(expected));
    Ok(())
}

/// The options that a query may hold.
pub fn options(ask: &Ask) -> Result<(), Refusal> {
    let dry_run = ask.option("dryRun");
    if !dry_run.is_empty() && dry_run != "All" {
        let error = FieldError::unsupported("dryRun", &json!([dry_run]), &[json!("All")]);
        return Err(Refusal::invalid("meta.k8s.io", options_kind(ask), "", &[error]));
    }
    if ask.option("fieldManager").len() > 128 {
        let error = FieldError::too_long("fieldManager", 128);
        return Err(Refusal::invalid("meta.k8s.io", options_kind(ask), "", &[error]));
    }
    Ok(())
}

fn options_kind(ask: &Ask) -> &'static str {
    use super::ask::Verb;
    match ask.verb {
        Verb::Create => "CreateOptions",
        Verb::Update => "UpdateOptions",
        Verb::Patch => "PatchOptions",
        _ => "DeleteOptions",
    }
}

impl World {
    pub(super) fn live(&self, ask: &Ask) -> Option<Arc<Value>> {
        self.store().get(&self.key(ask))
    }

    pub(super) fn key(&self, ask: &Ask) -> Key {
        key(&ask.kind, &ask.namespace, &ask.name)
    }

    /// Nothing is written into a namespace that is not there, nothing is made in one that ends.
    pub(super) fn in_a_namespace(&self, ask: &Ask, name: &str, creates: bool) -> Result<(), Refusal> {
        if !ask.kind.namespaced || ask.kind.review {
            return Ok(());
        }
        let store = self.store();
        let Some(kind) = store.kinds.served("", "v1", "namespaces") else { return Ok(()) };
        match store.get(&key(&kind, "", &ask.namespace)) {
            None => Err(Refusal::not_found(&kind, &ask.namespace)),
            Some(namespace) if creates && namespace["status"]["phase"] == "Terminating" => {
                Err(Refusal::terminating(&ask.kind, name, &ask.namespace))
            }
            Some(_) => Ok(()),
        }
    }

    /// Stores an object when what was read is still what is there; else says so by none.
    pub(super) fn commit(&self, key: &Key, read: Option<&Arc<Value>>, object: Value) -> Option<Arc<Value>> {
        let stored = {
            let mut store = self.store();
            let now = store.get(key);
            let same = match (&now, read) {
                (Some(now), Some(read)) => Arc::ptr_eq(now, read),
                (None, None) => true,
                _ => false,
            };
            if !same {
                return None;
            }
            store.put(key.clone(), object)
        };
        self.written(key, Some(&stored));
        Some(stored)
    }

    /// Removes an object when what was read is still what is there.
    pub(super) fn erase(&self, key: &Key, read: &Arc<Value>) -> bool {
        let gone = {
            let mut store = self.store();
            store.get(key).is_some_and(|now| Arc::ptr_eq(&now, read)) && store.remove(key).is_some()
        };
        if gone {
            self.written(key, None);
        }
        gone
    }

    /// What follows from a write at once: definitions of kinds, and the news.
    fn written(&self, key: &Key, object: Option<&Value>) {
        if key.kind.plural == "customresourcedefinitions" && key.kind.group == "apiextensions.k8s.io" {
            self.define(&key.name, object);
        }
        self.tell();
    }
}
