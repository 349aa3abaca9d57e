//! CREATE, also by an update or an apply of what is not there.

use super::World;
use super::admission::Attempt;
use super::ask::{Ask, Part};
use super::refusal::Refusal;
use super::store::key;
use super::{managed, meta, prepare, read, validate, write};
use serde_json::{Value, json};

/// How often a generated name is tried.
const TRIES: u32 = 8;

impl World {
    pub(super) async fn create(&self, ask: &Ask) -> Result<Value, Refusal> {
        write::options(ask)?;
        if ask.part != Part::Whole {
            return Err(Refusal::unsupported_method());
        }
        let mut object = write::body(ask)?;
        if ask.kind.review {
            return self.review(ask, object);
        }
        write::placed(ask, &mut object)?;
        wipe(&mut object);
        prepare::completed(ask, &mut object);
        managed::note_update(ask, &json!({"metadata": {}}), &mut object, &self.stamp());
        let created = self.create_object(ask, object).await?;
        Ok(read::shown(ask, &created))
    }

    /// Admits, completes and stores a new object; its managers are noted already.
    pub(super) async fn create_object(&self, ask: &Ask, mut object: Value) -> Result<Value, Refusal> {
        let name = meta::text(&object, "name").to_owned();
        self.in_a_namespace(ask, &name, true)?;
        prepare::completed(ask, &mut object);
        let mut attempt = Attempt { ask, operation: "CREATE", name, old: None, options: "CreateOptions" };
        let mut object = self.mutate(&attempt, Some(object)).await?.unwrap_or_default();
        write::placed(ask, &mut object)?;
        let generate = meta::text(&object, "generateName").to_owned();
        let generated = meta::text(&object, "name").is_empty() && !generate.is_empty();
        meta::set(&mut object, "uid", json!(self.0.ids.uid()));
        meta::set(&mut object, "creationTimestamp", json!(self.stamp()));
        prepare::created(&ask.kind, &mut object);
        if !matches!(meta::text(&object, "resourceVersion"), "" | "0") {
            return Err(Refusal::version_of_nothing());
        }
        meta::set(&mut object, "resourceVersion", Value::Null);
        for tried in 1..=TRIES {
            if generated {
                let room = generate.char_indices().nth(58).map_or(generate.len(), |(at, _)| at);
                meta::set(&mut object, "name", json!(format!("{}{}", &generate[..room], self.0.ids.suffix())));
            }
            let name = meta::text(&object, "name").to_owned();
            validate::created(ask, &object)?;
            attempt.name.clone_from(&name);
            self.validate_by_hooks(&attempt, Some(&object)).await?;
            let key = key(&ask.kind, &ask.namespace, &name);
            if ask.dry_run() {
                if self.store().get(&key).is_some() {
                    return Err(Refusal::exists(&ask.kind, &name));
                }
                return Ok(object);
            }
            let stored = ask.kind.stored(&object);
            if let Some(stored) = self.commit(&key, None, stored) {
                return Ok(stored.as_ref().clone());
            }
            if !generated || tried == TRIES {
                return Err(Refusal::exists(&ask.kind, &name));
            }
        }
        Err(Refusal::exists(&ask.kind, &generate))
    }
}

/// Takes away what only the server sets.
fn wipe(object: &mut Value) {
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        meta::set(object, field, Value::Null);
    }
}
