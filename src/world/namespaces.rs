//! How namespaces begin and end.

use super::World;
use super::ask::{Ask, Part, User, Verb};
use super::delete::FOREGROUND;
use super::meta;
use super::prepare;
use super::store::{Key, key};
use serde_json::{Value, json};

impl World {
    /// Puts a namespace there, as those of a new cluster are.
    pub(super) fn found(&self, name: &str) {
        let Some(kind) = self.store().kinds.served("", "v1", "namespaces") else { return };
        let mut namespace = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name,
            "uid": self.0.ids.uid(), "creationTimestamp": self.stamp()}});
        prepare::created(&kind, &mut namespace);
        self.commit(&key(&kind, "", name), None, namespace);
    }

    /// Deletes what is in the namespaces that end, and lets those go that are empty.
    pub(super) async fn end_namespaces(&self) {
        let Some(kind) = self.store().kinds.served("", "v1", "namespaces") else { return };
        let id = kind.id();
        let ending: Vec<(Key, Value)> = self
            .store()
            .of_kind(&id, "")
            .filter(|(_, namespace)| meta::deleting(namespace))
            .map(|(key, namespace)| (key.clone(), namespace.as_ref().clone()))
            .collect();
        for (key, namespace) in ending {
            if self.empty(&key.name).await {
                let mut namespace = namespace;
                namespace["spec"]["finalizers"] = json!([]);
                let user = User::controller("namespace-controller");
                let mut ask = Ask::own(Verb::Update, &kind, "", &key.name, user).with_body(&namespace);
                ask.part = Part::Finalize;
                drop(self.update(&ask).await);
            }
        }
    }

    /// Asks for the deletion of all that is in a namespace; true when nothing was there.
    async fn empty(&self, namespace: &str) -> bool {
        let mut was_empty = true;
        for (kind, key) in self.everything().into_iter().filter(|(_, key)| key.namespace == namespace) {
            was_empty = false;
            let Some(live) = self.store().get(&key) else { continue };
            if meta::deleting(&live) && !meta::strings(&live, "finalizers").iter().any(|name| name == FOREGROUND) {
                continue;
            }
            let user = User::controller("namespace-controller");
            let ask = Ask::own(Verb::Delete, &kind, namespace, &key.name, user)
                .with_body(&json!({"propagationPolicy": "Background"}));
            // A refusal is no fault: the next round asks again.
            drop(self.delete(&ask).await);
        }
        was_empty
    }
}
