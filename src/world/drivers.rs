//! Stand-ins for the controllers that a sandbox's life leans on. Each does one round when it is called and asks the
//! world as its original does; whoever drives the world decides when, and in which order.

mod deployments;
mod kubelet;
mod replicasets;

use super::World;
use super::ask::{Ask, Part, User, Verb};
use super::kinds::Kind;
use super::store::Key;
use serde_json::Value;
use std::sync::Arc;

type Found = Vec<(Key, Arc<Value>)>;

impl World {
    /// One round of the Deployment controller, the ReplicaSet controller and the kubelet; true when something was
    /// written.
    pub async fn tick(&self) -> bool {
        let before = self.version();
        self.tick_deployments().await;
        self.tick_replicasets().await;
        self.tick_pods().await;
        self.version() != before
    }

    /// All objects of a built-in kind, and the kind.
    fn all_of(&self, group: &str, plural: &str) -> Option<(Arc<Kind>, Found)> {
        let store = self.store();
        let kind = store.kinds.served(group, "v1", plural)?;
        let id = kind.id();
        let found = store.of_kind(&id, "").map(|(key, object)| (key.clone(), object.clone())).collect();
        Some((kind, found))
    }

    async fn write_status(&self, kind: &Arc<Kind>, key: &Key, object: &Value, status: Value, who: &str) {
        if object["status"] == status {
            return;
        }
        let mut object = object.clone();
        object["status"] = status;
        let mut ask = Ask::own(Verb::Update, kind, &key.namespace, &key.name, User::controller(who));
        ask.part = Part::Status;
        // A refusal is no fault: the next round asks again.
        drop(self.update(&ask.with_body(&object)).await);
    }

    async fn ask_for(&self, verb: Verb, kind: &Arc<Kind>, key: &Key, body: &Value, who: &str) {
        let name = if verb == Verb::Create { "" } else { &key.name };
        let ask = Ask::own(verb, kind, &key.namespace, name, User::controller(who)).with_body(body);
        match verb {
            Verb::Create => drop(self.create(&ask).await),
            Verb::Update => drop(self.update(&ask).await),
            _ => drop(self.delete(&ask).await),
        }
    }
}

/// The reference of an owner that controls.
fn controller_of(kind: &Kind, owner: &Value) -> Value {
    serde_json::json!([{"apiVersion": kind.api_version(kind.preferred()), "kind": kind.kind,
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true}])
}

/// Whether `owner` controls `object`.
fn controls(owner: &Value, object: &Value) -> bool {
    let mut references = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    references.any(|reference| reference["controller"] == true && reference["uid"] == owner["metadata"]["uid"])
}
