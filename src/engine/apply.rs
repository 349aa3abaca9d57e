//! The `apply` step: objects written with server-side apply as the runner's service account, pruned when they are
//! no longer made, deleted with their resource.

use super::error::{StepError, has_no_namespace, is_terminating};
use super::objects::Objects;
use super::{repeat, values};
use crate::api::{Apply, ObjectRef, ObjectTemplate, TargetRef, labels};
use crate::plan::bounds;
use crate::plan::scope::Scope;
use futures::{StreamExt, stream};
use kube::api::{PatchParams, ValidationDirective};
use kube::core::params::Patch;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// How many objects are looked for at once.
const LOOKED_FOR_AT_ONCE: usize = 8;

/// Objects that one step makes, and the bytes that all of them have together.
const MOST_OBJECTS: usize = 4096;
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// The bytes that are left for the objects of one step, which are all made before the first is written.
struct Room(usize);

impl Room {
    fn for_objects(objects: usize) -> Result<Self, StepError> {
        if objects <= MOST_OBJECTS {
            return Ok(Self(MOST_BYTES));
        }
        Err(StepError::Failed(format!(
            "apply: it would make {objects} objects, and one step makes at most {MOST_OBJECTS}: give forEach a shorter list"
        )))
    }

    fn take(&mut self, field: &str, object: &Value) -> Result<(), StepError> {
        let left = bounds::measure(object, 0).and_then(|size| self.0.checked_sub(size.bytes));
        self.0 = left.ok_or_else(|| {
            StepError::Failed(format!(
                "{field}: the objects of one step can have {} MiB together, and each can nest {} deep: make fewer, or smaller ones",
                MOST_BYTES / (1024 * 1024),
                bounds::DEEPEST
            ))
        })?;
        Ok(())
    }
}

/// An object that is to be applied.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub object: Value,
    pub reference: ObjectRef,
}

/// The account, the client and the resource that objects are applied for.
pub struct Applier<'a> {
    pub objects: Objects<'a>,
    pub target: &'a TargetRef,
    pub resource: &'a str,
    pub plugin: &'a str,
}

/// Which of a resource's objects are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All of them, whichever plugin wrote them.
    Resource,
    /// Those that this plugin wrote last: the resource lives on with another, which may have taken some over.
    Plugin,
}

impl Applier<'_> {
    /// What tells this resource's objects from all others.
    fn mark(&self) -> String {
        labels::short_hash(&format!(
            "{}/{}/{}/{}",
            self.target.kind, self.target.namespace, self.target.name, self.resource
        ))
    }

    fn manager(&self) -> String {
        labels::name(&format!("sluice:{}/{}/{}", self.target.namespace, self.target.name, self.resource), 128)
    }

    /// Every object of the step, its expressions evaluated.
    pub async fn render(&self, apply: &Apply, scope: &Scope) -> Result<Vec<Manifest>, StepError> {
        let scopes = repeat::scopes(apply.for_each.as_deref(), apply.as_.as_deref(), scope).await?;
        let mut room = Room::for_objects(scopes.len().saturating_mul(apply.manifests.len()))?;
        let mut manifests: Vec<Manifest> = Vec::new();
        for (index, manifest) in apply.manifests.iter().enumerate() {
            let field = format!("apply.manifests[{index}]");
            let template = values::template(&field, manifest)?;
            for scope in &scopes {
                let object = values::rendered(&template, scope).await?;
                room.take(&field, &object)?;
                let manifest = self.complete(object, index).await?;
                if manifests.iter().any(|other| other.reference == manifest.reference) {
                    return Err(StepError::Failed(format!(
                        "{field}: {} is made twice: its name must tell the items of forEach apart",
                        manifest.reference
                    )));
                }
                manifests.push(manifest);
            }
        }
        Ok(manifests)
    }

    async fn complete(&self, mut object: Value, index: usize) -> Result<Manifest, StepError> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let template = ObjectTemplate {
            api_version: text("/apiVersion"),
            kind: text("/kind"),
            namespace: Some(text("/metadata/namespace")).filter(|namespace| !namespace.is_empty()),
            name: text("/metadata/name"),
        };
        let field = format!("apply.manifests[{index}].metadata");
        let reference = self.objects.reference(&template, &self.target.namespace, &field).await?;
        object["metadata"]["namespace"] = json!(reference.namespace);
        let marks = [
            (labels::APPLIED_BY, self.mark()),
            (labels::NAMESPACE, labels::value(&self.target.namespace)),
            (labels::NAME, labels::value(&self.target.name)),
            (labels::RESOURCE, labels::value(self.resource)),
            (labels::PLUGIN, labels::value(self.plugin)),
        ];
        if !object["metadata"]["labels"].is_object() {
            object["metadata"]["labels"] = json!({});
        }
        for (label, value) in marks {
            object["metadata"]["labels"][label] = json!(value);
        }
        Ok(Manifest { object, reference })
    }

    /// Those of the objects that are not there. One that could not be looked for is not among them.
    pub async fn absent(&self, objects: Vec<ObjectRef>) -> BTreeSet<ObjectRef> {
        let looked = stream::iter(objects).map(async |reference| {
            let found = self.objects.get(&reference).await;
            matches!(found, Ok(None)).then_some(reference)
        });
        looked.buffer_unordered(LOOKED_FOR_AT_ONCE).filter_map(std::future::ready).collect().await
    }

    /// Writes the objects, then deletes those of `before` that are not among them. An object that is there already
    /// and belongs to nobody's resource, or to another's, is left alone; those of `absent` were not there a moment ago.
    pub async fn apply(
        &self,
        manifests: &[Manifest],
        before: &BTreeSet<ObjectRef>,
        absent: &BTreeSet<ObjectRef>,
    ) -> Result<String, StepError> {
        let mut applied = 0;
        let mut is_unwritten = true;
        let unwritten = |error, is_so| if is_so { StepError::Unwritten(Box::new(error)) } else { error };
        for manifest in manifests {
            let reference = &manifest.reference;
            if !before.contains(reference)
                && !absent.contains(reference)
                && let Some(found) = self.objects.get(reference).await.map_err(|e| unwritten(e, is_unwritten))?
                && !self.is_ours(&found)
            {
                return Err(unwritten(StepError::Foreign { object: reference.clone() }, is_unwritten));
            }
            let mut params = PatchParams::apply(&self.manager());
            params.field_validation = Some(ValidationDirective::Strict);
            let request =
                self.objects.request(reference).await?.patch(&reference.name, &params, &Patch::Apply(&manifest.object));
            match self.objects.send(request, || format!("{reference} could not be applied")).await {
                Ok(_) => {
                    applied += 1;
                    is_unwritten = false;
                }
                // It would be gone at once; failing would keep the namespace, and what is in it, for ever.
                Err(StepError::Api { source, .. }) if is_terminating(&source) || self.is_gone(reference, &source) => {}
                Err(error) => {
                    is_unwritten &= error.is_refusal();
                    return Err(unwritten(error, is_unwritten));
                }
            }
        }
        let gone: BTreeSet<_> =
            before.iter().filter(|b| !manifests.iter().any(|m| m.reference == **b)).cloned().collect();
        let pruned = self.delete(&gone, Whose::Resource).await?;
        let pruned = if pruned == 0 { String::new() } else { format!(", {pruned} pruned") };
        let left = match manifests.len() - applied {
            0 => String::new(),
            left => format!(", {left} left out: their namespace is going or gone"),
        };
        Ok(format!("{applied} applied{pruned}{left}"))
    }

    /// Deletes those of the objects that are this resource's; tells how many there were.
    pub async fn delete(&self, objects: &BTreeSet<ObjectRef>, whose: Whose) -> Result<usize, StepError> {
        let mut deleted = 0;
        for reference in objects {
            let Some(found) = self.objects.get(reference).await? else { continue };
            if !self.is_ours(&found) || (whose == Whose::Plugin && !self.is_plugins(&found)) {
                continue;
            }
            let uid = found["metadata"]["uid"].as_str().map(str::to_owned);
            deleted += usize::from(self.objects.delete(reference, uid).await?);
        }
        Ok(deleted)
    }

    /// Whether an object cannot be because the target's own namespace is gone, and the target with it.
    fn is_gone(&self, reference: &ObjectRef, error: &kube::Error) -> bool {
        reference.namespace.as_ref() == Some(&self.target.namespace) && has_no_namespace(error)
    }

    fn is_ours(&self, object: &Value) -> bool {
        object["metadata"]["labels"][labels::APPLIED_BY].as_str() == Some(&self.mark())
    }

    fn is_plugins(&self, object: &Value) -> bool {
        object["metadata"]["labels"][labels::PLUGIN].as_str() == Some(&labels::value(self.plugin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t03_what_one_step_makes_is_bounded_in_number_and_in_size() {
        let refused = Room::for_objects(MOST_OBJECTS + 1).err().unwrap().to_string();
        assert!(refused.starts_with("apply: it would make 4097 objects"), "{refused}");
        let mut room = Room::for_objects(MOST_OBJECTS).unwrap();
        let object = json!({"data": {"a": "x".repeat(1_000_000)}});
        let made = (0..).take_while(|_| room.take("apply.manifests[0]", &object).is_ok()).count();
        assert_eq!(made, 8);
        let refused = room.take("apply.manifests[0]", &object).unwrap_err().to_string();
        assert!(refused.starts_with("apply.manifests[0]: the objects of one step can have 8 MiB"), "{refused}");
    }
}
