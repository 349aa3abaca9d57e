//! CustomResourceDefinitions: kinds that come and go while the world lives.

use super::World;
use super::ask::{Ask, Part, User, Verb};
use super::kinds::{Generation, Kind, KindId};
use super::meta;
use super::schema::Schema;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The kind that a definition defines.
fn kind(definition: &Value) -> Kind {
    let spec = &definition["spec"];
    let (group, names) = (text(&spec["group"]), &spec["names"]);
    let versions: Vec<&Value> =
        spec["versions"].as_array().into_iter().flatten().filter(|version| version["served"] != false).collect();
    let some = |part: &str| versions.iter().any(|version| !version["subresources"][part].is_null());
    let mut schemas = BTreeMap::new();
    for version in &versions {
        let name = text(&version["name"]);
        let raw = version["schema"]["openAPIV3Schema"].clone();
        if raw.is_object() {
            let api_version = format!("{group}/{name}");
            let preserves = spec["preserveUnknownFields"] == true;
            let schema = Schema::new(raw, &group, &api_version, &text(&names["kind"]), preserves);
            schemas.insert(name, Arc::new(schema));
        }
    }
    Kind {
        kind: text(&names["kind"]),
        plural: text(&names["plural"]),
        singular: text(&names["singular"]),
        short_names: texts(&names["shortNames"]),
        namespaced: spec["scope"] == "Namespaced",
        status: some("status"),
        scale: some("scale"),
        generation: Generation::Content,
        unconditional_update: false,
        create_on_update: false,
        returns_deleted: false,
        review: false,
        custom: true,
        twin: false,
        versions: versions.iter().map(|version| text(&version["name"])).collect(),
        schemas,
        group,
    }
}

fn id(name: &str) -> KindId {
    let (plural, group) = name.split_once('.').unwrap_or((name, ""));
    KindId { group: group.to_owned(), plural: plural.to_owned() }
}

impl World {
    /// Takes up what a definition says now; one that is gone takes its kind and its objects along.
    pub(super) fn define(&self, name: &str, definition: Option<&Value>) {
        let mut store = self.store();
        match definition {
            Some(definition) => store.kinds.put(kind(definition)),
            None => {
                let kind = id(name);
                let keys: Vec<_> = store.of_kind(&kind, "").map(|(key, _)| key.clone()).collect();
                for key in keys {
                    store.remove(&key);
                }
                store.kinds.remove(&kind);
            }
        }
    }

    /// Tells in its status that a definition is served: what the API server's controllers do shortly after a write.
    pub(super) async fn establish(&self) {
        let Some(kind) = self.store().kinds.served("apiextensions.k8s.io", "v1", "customresourcedefinitions") else {
            return;
        };
        let id = kind.id();
        let new: Vec<Value> = self
            .store()
            .of_kind(&id, "")
            .filter(|(_, definition)| definition["status"]["acceptedNames"].is_null())
            .map(|(_, definition)| definition.as_ref().clone())
            .collect();
        for mut definition in new {
            let condition = |kind: &str, reason: &str, message: &str| {
                json!({"type": kind, "status": "True", "reason": reason, "message": message,
                    "lastTransitionTime": self.stamp()})
            };
            let storage = definition["spec"]["versions"].as_array().into_iter().flatten();
            let stored: Vec<Value> =
                storage.filter(|version| version["storage"] == true).map(|version| version["name"].clone()).collect();
            definition["status"] = json!({"acceptedNames": definition["spec"]["names"], "storedVersions": stored,
                "conditions": [condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                    condition("Established", "InitialNamesAccepted", "the initial names have been accepted")]});
            let name = meta::text(&definition, "name").to_owned();
            let mut ask = Ask::own(Verb::Update, &kind, "", &name, User::controller("kube-apiserver"));
            ask.part = Part::Status;
            drop(self.update(&ask.with_body(&definition)).await);
        }
    }
}
