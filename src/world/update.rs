//! UPDATE, and the loop that every change of a stored object goes through.

use super::World;
use super::admission::Attempt;
use super::ask::{Ask, Part};
use super::refusal::Refusal;
use super::{managed, meta, prepare, read, scale, validate, write};
use serde_json::{Value, json};
use std::sync::Arc;

/// How often a change is made anew because somebody else wrote in between.
const TRIES: u32 = 5;

/// What a change makes of the object that is there.
pub(super) type Make<'a> = dyn Fn(&Value) -> Result<Value, Refusal> + Send + Sync + 'a;

impl World {
    /// Whether it created something, and what is stored now.
    pub(super) async fn update(&self, ask: &Ask) -> Result<(bool, Value), Refusal> {
        write::options(ask)?;
        let mut object = write::body(ask)?;
        write::placed(ask, &mut object)?;
        if ask.part == Part::Scale {
            let changed = self.change(ask, false, &|live| scale::over(ask, live, &object)).await?;
            return Ok((false, scale::of(&ask.kind, &changed)));
        }
        if self.live(ask).is_none() && ask.kind.create_on_update && ask.part == Part::Whole {
            prepare::completed(ask, &mut object);
            managed::note_update(ask, &json!({"metadata": {}}), &mut object, &self.stamp());
            let created = self.create_object(ask, object).await?;
            return Ok((true, read::shown(ask, &created)));
        }
        let uid = meta::text(&object, "uid").to_owned();
        let changed = self.change(ask, false, &|live| same_uid(ask, live, &uid).map(|()| object.clone())).await?;
        Ok((false, read::shown(ask, &changed)))
    }

    /// Reads, changes, admits and stores; and again, when somebody else wrote in between and the request did not name
    /// a version.
    pub(super) async fn change(&self, ask: &Ask, applied: bool, make: &Make<'_>) -> Result<Value, Refusal> {
        for _ in 0..TRIES {
            let live = self.live(ask).ok_or_else(|| Refusal::not_found(&ask.kind, &ask.name))?;
            if let Some(changed) = self.change_once(ask, applied, &live, make).await? {
                return Ok(changed);
            }
        }
        Err(Refusal::stale(&ask.kind, &ask.name))
    }

    async fn change_once(
        &self,
        ask: &Ask,
        applied: bool,
        live: &Arc<Value>,
        make: &Make<'_>,
    ) -> Result<Option<Value>, Refusal> {
        let old = read::shown(ask, live);
        let mut object = make(&old)?;
        self.in_a_namespace(ask, &ask.name, false)?;
        prepare::completed(ask, &mut object);
        if !applied {
            managed::note_update(ask, &old, &mut object, &self.stamp());
        }
        let attempt =
            Attempt { ask, operation: "UPDATE", name: ask.name.clone(), old: Some(&old), options: "UpdateOptions" };
        let mut object = self.mutate(&attempt, Some(object)).await?.unwrap_or_default();
        write::placed(ask, &mut object)?;
        version(ask, &old, &mut object)?;
        prepare::updated(ask, &old, &mut object);
        validate::updated(ask, &old, &object)?;
        let stored = ask.kind.stored(&object);
        self.validate_by_hooks(&attempt, Some(&object)).await?;
        if *live.as_ref() == stored || ask.dry_run() {
            return Ok(Some(stored));
        }
        let key = self.key(ask);
        if ends(live, &stored) {
            return Ok(self.erase(&key, live).then_some(stored));
        }
        Ok(self.commit(&key, Some(live), stored).map(|stored| stored.as_ref().clone()))
    }
}

/// The last finalizer of an object that is being deleted went.
fn ends(live: &Value, object: &Value) -> bool {
    let held = object["kind"] == "Namespace" && object["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    meta::deleting(live) && meta::strings(object, "finalizers").is_empty() && !held
}

fn same_uid(ask: &Ask, live: &Value, uid: &str) -> Result<(), Refusal> {
    let found = meta::text(live, "uid");
    if uid.is_empty() || uid == found {
        return Ok(());
    }
    Err(Refusal::conflict(
        &ask.kind,
        &ask.name,
        &format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"),
    ))
}

/// The version that a change names must be that of what is there.
fn version(ask: &Ask, live: &Value, object: &mut Value) -> Result<(), Refusal> {
    let found = meta::text(live, "resourceVersion");
    match meta::text(object, "resourceVersion") {
        "" if ask.kind.unconditional_update => {
            let found = json!(found);
            meta::set(object, "resourceVersion", found);
            Ok(())
        }
        "" | "0" => {
            let error = super::refusal::FieldError::invalid(
                "metadata.resourceVersion",
                &json!(0),
                "must be specified for an update",
            );
            Err(Refusal::invalid(&ask.kind.group, &ask.kind.plural, &ask.name, &[error]))
        }
        named if named == found => Ok(()),
        _ => Err(Refusal::stale(&ask.kind, &ask.name)),
    }
}
