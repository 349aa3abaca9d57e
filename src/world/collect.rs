//! The garbage collector: what has lost its owners goes, and owners wait or let go as their deletion asked.

use super::World;
use super::ask::{Ask, User, Verb};
use super::delete::{FOREGROUND, ORPHAN};
use super::kinds::Kind;
use super::meta::{self, Owner};
use super::store::{Key, Store};
use serde_json::{Value, json};
use std::sync::Arc;

/// How an owner of an object stands.
#[derive(PartialEq)]
enum Standing {
    There,
    /// It is being deleted and waits for those whom it owns.
    Waiting,
    Gone,
}

fn standing(store: &Store, namespace: &str, owner: &Owner) -> Standing {
    let Some(kind) = store.kinds.named(&owner.api_version, &owner.kind) else { return Standing::There };
    let found = store.get(&super::store::key(&kind, namespace, &owner.name));
    match found.filter(|found| meta::text(found, "uid") == owner.uid) {
        None => Standing::Gone,
        Some(found)
            if meta::deleting(&found) && meta::strings(&found, "finalizers").iter().any(|f| f == FOREGROUND) =>
        {
            Standing::Waiting
        }
        Some(_) => Standing::There,
    }
}

/// What the collector does with one object.
enum Work {
    Delete(&'static str),
    /// Writes the object anew: without owners, or without the finalizer that it has seen to.
    Write(Value),
    /// Its dependents are to forget it first.
    LetGo,
}

impl World {
    /// Lets the collector, the end of namespaces and the acceptance of definitions act once on everything; true when something was written. They ask
    /// as users do, through admission; what is refused is tried again the next time.
    pub async fn settle(&self) -> bool {
        let before = self.version();
        for (kind, key) in self.everything() {
            self.collect(&kind, &key).await;
        }
        self.end_namespaces().await;
        self.establish().await;
        self.version() != before
    }

    /// [`World::settle`] until nothing moves, at most `rounds` times; true when it came to rest.
    pub async fn rest(&self, rounds: u32) -> bool {
        for _ in 0..rounds {
            if !self.settle().await {
                return true;
            }
        }
        false
    }

    pub(super) fn everything(&self) -> Vec<(Arc<Kind>, Key)> {
        let store = self.store();
        store.all().filter_map(|(key, _)| store.kinds.get(&key.kind).map(|kind| (kind, key.clone()))).collect()
    }

    async fn collect(&self, kind: &Arc<Kind>, key: &Key) {
        let Some((live, work)) = self.work(key) else { return };
        match work {
            Work::Delete(policy) => {
                let user = User::controller("generic-garbage-collector");
                let options = json!({"propagationPolicy": policy, "preconditions": {"uid": meta::text(&live, "uid")}});
                let ask = Ask::own(Verb::Delete, kind, &key.namespace, &key.name, user).with_body(&options);
                // A refusal is no fault: the next round asks again.
                drop(self.delete(&ask).await);
            }
            Work::Write(object) => self.write_as_collector(kind, key, &object).await,
            Work::LetGo => {
                for (kind, key, dependent) in self.dependents(&live) {
                    let object = without_owners(&dependent, |owner| owner.uid == meta::text(&live, "uid"));
                    self.write_as_collector(&kind, &key, &object).await;
                }
                let object = without_finalizer(&live, ORPHAN);
                self.write_as_collector(kind, key, &object).await;
            }
        }
    }

    async fn write_as_collector(&self, kind: &Arc<Kind>, key: &Key, object: &Value) {
        let user = User::controller("generic-garbage-collector");
        let ask = Ask::own(Verb::Update, kind, &key.namespace, &key.name, user).with_body(object);
        drop(self.update(&ask).await);
    }

    fn work(&self, key: &Key) -> Option<(Arc<Value>, Work)> {
        let live = self.store().get(key)?;
        let finalizers = meta::strings(&live, "finalizers");
        let has = |name: &str| finalizers.iter().any(|known| known == name);
        if meta::deleting(&live) {
            if has(ORPHAN) {
                return Some((live, Work::LetGo));
            }
            let blocking = |dependent: &Value| {
                meta::owners(dependent).iter().any(|owner| owner.uid == meta::text(&live, "uid") && owner.blocks)
            };
            if has(FOREGROUND) && !self.dependents(&live).iter().any(|(_, _, dependent)| blocking(dependent)) {
                let object = without_finalizer(&live, FOREGROUND);
                return Some((live, Work::Write(object)));
            }
            if !has(FOREGROUND) {
                return None;
            }
        }
        let owners = meta::owners(&live);
        let standings: Vec<Standing> = {
            let store = self.store();
            owners.iter().map(|owner| standing(&store, &key.namespace, owner)).collect()
        };
        let some = |wanted: &Standing| standings.contains(wanted);
        if owners.is_empty() || !(some(&Standing::Gone) || some(&Standing::Waiting)) {
            return None;
        }
        if some(&Standing::There) {
            let there: Vec<&str> = owners
                .iter()
                .zip(&standings)
                .filter(|(_, standing)| **standing == Standing::There)
                .map(|(owner, _)| owner.uid.as_str())
                .collect();
            let object = without_owners(&live, |owner| !there.contains(&owner.uid.as_str()));
            return Some((live.clone(), Work::Write(object)));
        }
        if meta::deleting(&live) {
            return None;
        }
        let foreground = has(FOREGROUND) || (some(&Standing::Waiting) && !self.dependents(&live).is_empty());
        let policy = if has(ORPHAN) {
            "Orphan"
        } else if foreground {
            "Foreground"
        } else {
            "Background"
        };
        Some((live, Work::Delete(policy)))
    }

    /// The objects that name `owner` as theirs.
    fn dependents(&self, owner: &Value) -> Vec<(Arc<Kind>, Key, Arc<Value>)> {
        let uid = meta::text(owner, "uid");
        let store = self.store();
        let owned = |object: &Value| meta::owners(object).iter().any(|owner| owner.uid == uid);
        store
            .all()
            .filter(|(_, object)| owned(object))
            .filter_map(|(key, object)| Some((store.kinds.get(&key.kind)?, key.clone(), object.clone())))
            .collect()
    }
}

fn without_finalizer(object: &Value, name: &str) -> Value {
    let mut object = object.clone();
    let left: Vec<String> = meta::strings(&object, "finalizers").into_iter().filter(|known| known != name).collect();
    meta::set(&mut object, "finalizers", json!(left));
    object
}

fn without_owners(object: &Value, goes: impl Fn(&Owner) -> bool) -> Value {
    let mut object = object.clone();
    let gone: Vec<String> =
        meta::owners(&object).into_iter().filter(|owner| goes(owner)).map(|owner| owner.uid).collect();
    let references = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    let left: Vec<Value> =
        references.into_iter().filter(|r| !gone.iter().any(|uid| r["uid"] == uid.as_str())).collect();
    meta::set(&mut object, "ownerReferences", Value::Array(left));
    object
}
