//! DELETE and DELETECOLLECTION.

use super::World;
use super::admission::Attempt;
use super::ask::{Ask, Part};
use super::refusal::{FieldError, Refusal};
use super::store::Key;
use super::{meta, read, write};
use serde_json::{Value, json};
use std::sync::Arc;

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

/// How often a deletion is tried anew because somebody else wrote in between.
const TRIES: u32 = 5;

/// What a deletion asks for.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    preconditions: Option<Preconditions>,
    dry_run: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl Options {
    fn read(ask: &Ask) -> Result<Self, Refusal> {
        let mut options: Self = if ask.body.iter().all(u8::is_ascii_whitespace) {
            Self::default()
        } else {
            serde_json::from_slice(&ask.body).map_err(|error| {
                Refusal::bad_request(format!("DeleteOptions cannot be handled as DeleteOptions: {error}"))
            })?
        };
        let policy = ask.option("propagationPolicy");
        if !policy.is_empty() {
            options.propagation_policy = Some(policy.to_owned());
        }
        let known = ["Foreground", "Background", "Orphan"];
        if let Some(policy) = options.propagation_policy.as_deref().filter(|policy| !known.contains(policy)) {
            let known = [json!("Foreground"), json!("Background"), json!("Orphan"), Value::Null];
            let error = FieldError::unsupported("propagationPolicy", &json!(policy), &known);
            return Err(Refusal::invalid("meta.k8s.io", "DeleteOptions", "", &[error]));
        }
        Ok(options)
    }

    fn check(&self, ask: &Ask, live: &Value) -> Result<(), Refusal> {
        let Some(wanted) = &self.preconditions else { return Ok(()) };
        let namespace = ask.kind.qualified() == "namespaces";
        let differs = |wanted: &Option<String>, field: &str| {
            let found = meta::text(live, field);
            wanted.as_deref().filter(|wanted| *wanted != found).map(|wanted| (wanted.to_owned(), found.to_owned()))
        };
        let name = meta::text(live, "name");
        if let Some((wanted, found)) = differs(&wanted.uid, "uid") {
            return Err(if namespace {
                let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
                Refusal::conflict(&ask.kind, name, &why)
            } else {
                let why = format!(
                    "the UID in the precondition ({wanted}) does not match the UID in record ({found}). The object \
                     might have been deleted and then recreated"
                );
                Refusal::precondition(&ask.kind, name, &why)
            });
        }
        if let Some((wanted, found)) = differs(&wanted.resource_version, "resourceVersion") {
            return Err(if namespace {
                let why = format!(
                    "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: \
                     {found}"
                );
                Refusal::conflict(&ask.kind, name, &why)
            } else {
                let why = format!(
                    "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
                     ({found}). The object might have been modified"
                );
                Refusal::precondition(&ask.kind, name, &why)
            });
        }
        Ok(())
    }

    fn dry_run(&self, ask: &Ask) -> bool {
        ask.dry_run() || self.dry_run.as_ref().is_some_and(|dry| dry.iter().any(|dry| dry == "All"))
    }

    /// The finalizers of an object that this deletion leaves behind.
    fn finalizers(&self, ask: &Ask, live: &Value) -> Vec<String> {
        let known = meta::strings(live, "finalizers");
        let has = |name: &str| known.iter().any(|known| known == name);
        let (orphan, foreground) = match (self.orphan_dependents, self.propagation_policy.as_deref()) {
            (Some(orphan), _) => (orphan, false),
            (None, Some(policy)) => (policy == "Orphan", policy == "Foreground"),
            (None, None) if has(ORPHAN) || has(FOREGROUND) => (has(ORPHAN), has(FOREGROUND)),
            // The first version of Job orphaned its pods, and its deletions still do.
            (None, None) => (ask.kind.qualified() == "jobs.batch", false),
        };
        let mut finalizers: Vec<String> =
            known.into_iter().filter(|name| name != ORPHAN && name != FOREGROUND).collect();
        finalizers.extend(orphan.then(|| ORPHAN.to_owned()));
        finalizers.extend(foreground.then(|| FOREGROUND.to_owned()));
        finalizers
    }
}

impl World {
    pub(super) async fn delete(&self, ask: &Ask) -> Result<Value, Refusal> {
        write::options(ask)?;
        if ask.part != Part::Whole {
            return Err(Refusal::unsupported_method());
        }
        let options = Options::read(ask)?;
        self.delete_named(ask, &self.key(ask), &options, ask.name.clone()).await
    }

    pub(super) async fn delete_collection(&self, ask: &Ask) -> Result<Value, Refusal> {
        write::options(ask)?;
        let options = Options::read(ask)?;
        let selector = read::selector(ask)?;
        let kind = ask.kind.id();
        let found: Vec<(Key, Arc<Value>)> = self
            .store()
            .of_kind(&kind, &ask.namespace)
            .filter(|(_, object)| selector.matches(object))
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        for (key, _) in &found {
            // Somebody else may have deleted it in between.
            match self.delete_named(ask, key, &options, String::new()).await {
                Err(refusal) if refusal.code() == 404 => {}
                other => drop(other?),
            }
        }
        let items: Vec<Value> = found.iter().map(|(_, object)| read::shown(ask, object)).collect();
        Ok(json!({"kind": format!("{}List", ask.kind.kind), "apiVersion": ask.api_version(),
            "metadata": {"resourceVersion": self.version().to_string()}, "items": items}))
    }

    async fn delete_named(&self, ask: &Ask, key: &Key, options: &Options, name: String) -> Result<Value, Refusal> {
        let mut asked = ask.clone();
        if options.dry_run(ask) {
            asked.query.insert("dryRun".to_owned(), "All".to_owned());
        }
        for _ in 0..TRIES {
            let live = self.store().get(key).ok_or_else(|| Refusal::not_found(&ask.kind, &key.name))?;
            options.check(ask, &live)?;
            if ask.kind.qualified() == "namespaces" && IMMORTAL.contains(&key.name.as_str()) {
                return Err(Refusal::forbidden(&ask.kind, &key.name, "this namespace may not be deleted"));
            }
            let attempt = Attempt {
                ask: &asked,
                operation: "DELETE",
                name: name.clone(),
                old: Some(&live),
                options: "DeleteOptions",
            };
            self.mutate(&attempt, None).await?;
            self.validate_by_hooks(&attempt, None).await?;
            if let Some(answer) = self.delete_once(&asked, key, options, &live) {
                return Ok(answer);
            }
        }
        Err(Refusal::stale(&ask.kind, &key.name))
    }

    /// None when somebody else wrote in between.
    fn delete_once(&self, ask: &Ask, key: &Key, options: &Options, live: &Arc<Value>) -> Option<Value> {
        let finalizers = options.finalizers(ask, live);
        let namespace = ask.kind.qualified() == "namespaces";
        let held = namespace && live["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if finalizers.is_empty() && !held {
            if !ask.dry_run() && !self.erase(key, live) {
                return None;
            }
            return Some(if ask.kind.returns_deleted { read::shown(ask, live) } else { gone(ask, live) });
        }
        let mut object = live.as_ref().clone();
        meta::set(&mut object, "finalizers", json!(finalizers));
        if !meta::deleting(live) {
            let generation = meta::generation(live);
            if generation > 0 && !namespace {
                meta::set(&mut object, "generation", json!(generation + 1));
            }
            meta::set(&mut object, "deletionTimestamp", json!(self.stamp()));
            if namespace {
                object["status"]["phase"] = json!("Terminating");
            } else {
                meta::set(&mut object, "deletionGracePeriodSeconds", json!(0));
            }
        }
        if ask.dry_run() || object == *live.as_ref() {
            return Some(read::shown(ask, &object));
        }
        self.commit(key, Some(live), object).map(|stored| read::shown(ask, &stored))
    }
}

const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

fn gone(ask: &Ask, object: &Value) -> Value {
    let mut details =
        json!({"name": meta::text(object, "name"), "kind": ask.kind.plural, "uid": meta::text(object, "uid")});
    if !ask.kind.group.is_empty() {
        details["group"] = json!(ask.kind.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
