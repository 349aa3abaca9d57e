//! PATCH: JSON patch, merge patch, strategic merge patch, and server-side apply.

use super::World;
use super::ask::{Ask, Part};
use super::refusal::{FieldError, Refusal};
use super::shape::Shape;
use super::{apply, meta, prepare, read, scale, strategic, write};
use serde_json::{Value, json};

#[derive(Debug, Clone)]
enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

impl World {
    /// Whether it created something, and what is stored now.
    pub(super) async fn patch(&self, ask: &Ask) -> Result<(bool, Value), Refusal> {
        write::options(ask)?;
        if ask.content_type == APPLY {
            return self.apply(ask).await;
        }
        if ask.option("force") == "true" {
            let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
            return Err(Refusal::invalid("meta.k8s.io", "PatchOptions", "", &[error]));
        }
        let patch = parse(ask)?;
        let changed = self.change(ask, false, &|live| patched(ask, &patch, live)).await?;
        Ok((false, if ask.part == Part::Scale { scale::of(&ask.kind, &changed) } else { read::shown(ask, &changed) }))
    }

    async fn apply(&self, ask: &Ask) -> Result<(bool, Value), Refusal> {
        if ask.option("fieldManager").is_empty() {
            let error = FieldError::required("fieldManager", "is required for apply patch");
            return Err(Refusal::invalid("meta.k8s.io", "PatchOptions", "", &[error]));
        }
        let unread = |error: String| Refusal::bad_request(format!("error decoding YAML: {error}"));
        let text = std::str::from_utf8(&ask.body).map_err(|error| unread(error.to_string()))?;
        let config: Value = serde_saphyr::from_str(text).map_err(|error| unread(error.to_string()))?;
        let mut config = write::typed(ask, without_nulls(config))?;
        apply::check(ask, &config)?;
        meta::set(&mut config, "name", json!(ask.name));
        write::placed(ask, &mut config)?;
        let now = self.stamp();
        if self.live(ask).is_none() {
            if ask.part != Part::Whole {
                return Err(Refusal::not_found(&ask.kind, &ask.name));
            }
            let uid = meta::text(&config, "uid");
            if !uid.is_empty() {
                let why =
                    format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
                return Err(Refusal::conflict(&ask.kind, &ask.name, &why));
            }
            let object = apply::apply(ask, &apply::nothing(), &config, &now)?;
            let created = self.create_object(ask, object).await?;
            return Ok((true, read::shown(ask, &created)));
        }
        let make = |live: &Value| {
            let live = read::shown(ask, live);
            let version = meta::text(&config, "resourceVersion");
            if !version.is_empty() && version != meta::text(&live, "resourceVersion") {
                return Err(Refusal::stale(&ask.kind, &ask.name));
            }
            let mut config = config.clone();
            if ask.part == Part::Whole {
                prepare::without_status(&ask.kind, &mut config);
            }
            apply::apply(ask, &live, &config, &now)
        };
        let changed = self.change(ask, true, &make).await?;
        Ok((false, read::shown(ask, &changed)))
    }
}

fn parse(ask: &Ask) -> Result<Patch, Refusal> {
    let known: &[&str] = if ask.kind.custom { &[JSON, MERGE, APPLY] } else { &[JSON, MERGE, STRATEGIC, APPLY] };
    if !known.contains(&ask.content_type.as_str()) {
        return Err(Refusal::media_type(&ask.content_type, known));
    }
    let unread = |error: serde_json::Error| Refusal::bad_request(format!("error decoding patch: {error}"));
    if ask.content_type == JSON {
        return serde_json::from_slice(&ask.body).map(Patch::Json).map_err(unread);
    }
    let patch: Value = serde_json::from_slice(&ask.body).map_err(unread)?;
    if !patch.is_object() {
        return Err(Refusal::bad_request("error decoding patch: it is no map"));
    }
    Ok(if ask.content_type == MERGE { Patch::Merge(patch) } else { Patch::Strategic(patch) })
}

fn patched(ask: &Ask, patch: &Patch, live: &Value) -> Result<Value, Refusal> {
    let mut object = match ask.part {
        Part::Scale => scale::of(&ask.kind, live),
        _ => read::shown(ask, live),
    };
    match patch {
        Patch::Json(patch) => json_patch::patch(&mut object, patch).map_err(|_| Refusal::unprocessable())?,
        Patch::Merge(patch) => json_patch::merge(&mut object, patch),
        Patch::Strategic(patch) => strategic::merge(&mut object, patch, Shape::BUILTIN),
    }
    let mut object = write::typed(ask, object)?;
    write::placed(ask, &mut object)?;
    if ask.part == Part::Scale { scale::over(ask, live, &object) } else { Ok(object) }
}

/// A field that is applied as null is not applied.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name, without_nulls(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
