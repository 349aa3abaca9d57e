//! The `apply` step: objects written with server-side apply as the runner's service account, pruned when they are
//! no longer made, deleted with their resource.

use super::error::{StepError, has_no_namespace, is_status, is_terminating};
use super::impersonate::ServiceAccount;
use crate::api::{Apply, ObjectRef, TargetRef, labels};
use crate::plan::scope::Scope;
use crate::plan::{expression::Expression, template::Template};
use kube::Client;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PatchParams, Preconditions, PropagationPolicy, Request};
use kube::core::GroupVersionKind;
use kube::core::params::Patch;
use kube::discovery::{self, Scope as KindScope};
use kube::{Resource, api::ValidationDirective};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// An object that is to be applied.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub object: Value,
    pub reference: ObjectRef,
}

/// The kinds that the cluster serves, as far as anybody asked.
#[derive(Default)]
pub struct Kinds(Mutex<HashMap<GroupVersionKind, (ApiResource, KindScope)>>);

impl Kinds {
    pub(super) async fn find(
        &self,
        client: &Client,
        api_version: &str,
        kind: &str,
    ) -> Result<(ApiResource, KindScope), kube::Error> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = GroupVersionKind::gvk(group, version, kind);
        if let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&kind) {
            return Ok(known.clone());
        }
        let (resource, capabilities) = discovery::pinned_kind(client, &kind).await?;
        let found = (resource, capabilities.scope);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(kind, found.clone());
        Ok(found)
    }
}

/// The account, the client and the resource that objects are applied for.
pub struct Applier<'a> {
    pub client: &'a Client,
    pub kinds: &'a Kinds,
    pub account: ServiceAccount,
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
        let failed = |error: &dyn std::error::Error| StepError::Failed(error.to_string());
        let mut scopes = Vec::new();
        match &apply.for_each {
            None => scopes.push(scope.clone()),
            Some(source) => {
                let list = Expression::parse(source).map_err(|e| failed(&e))?;
                let name = apply.as_.as_deref().unwrap_or("item");
                for item in list.evaluate_list_bounded(scope).await.map_err(|e| failed(&e))? {
                    scopes.push(scope.with(name, &item).map_err(|e| failed(&e))?);
                }
            }
        }
        let mut manifests: Vec<Manifest> = Vec::new();
        for (index, manifest) in apply.manifests.iter().enumerate() {
            let template =
                Template::parse_at(&format!("apply.manifests[{index}]"), manifest).map_err(|e| failed(&e))?;
            for scope in &scopes {
                let object = template.render_bounded(scope).await.map_err(|e| failed(&e))?;
                let manifest = self.complete(object, index).await?;
                if manifests.iter().any(|other| other.reference == manifest.reference) {
                    return Err(StepError::Failed(format!(
                        "apply.manifests[{index}]: {} is made twice: its name must tell the items of forEach apart",
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
        let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        if name.is_empty() {
            return Err(StepError::Failed(format!("apply.manifests[{index}].metadata.name is empty")));
        }
        let what = || format!("{kind} ({api_version}) is not a kind that this cluster serves");
        let (_, scope) = self.kinds.find(self.client, &api_version, &kind).await.map_err(StepError::api(what()))?;
        let namespace = match (scope, text("/metadata/namespace")) {
            (KindScope::Cluster, _) => None,
            (KindScope::Namespaced, given) if given.is_empty() => Some(self.target.namespace.clone()),
            (KindScope::Namespaced, given) => Some(given),
        };
        for (field, value) in [("name", Some(&name)), ("namespace", namespace.as_ref())] {
            if let Some(value) = value.filter(|value| !is_path_segment(value)) {
                return Err(StepError::Failed(format!(
                    "apply.manifests[{index}].metadata.{field}: {value:?} cannot name an object: use letters, digits, -, _, . and :"
                )));
            }
        }
        object["metadata"]["namespace"] = json!(namespace);
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
        Ok(Manifest { object, reference: ObjectRef { api_version, kind, namespace, name } })
    }

    /// Writes the objects, then deletes those of `before` that are not among them. An object that is there already
    /// and belongs to nobody's resource, or to another's, is left alone.
    pub async fn apply(&self, manifests: &[Manifest], before: &BTreeSet<ObjectRef>) -> Result<String, StepError> {
        let mut applied = 0;
        for manifest in manifests {
            let reference = &manifest.reference;
            if !before.contains(reference)
                && let Some(found) = self.get(reference).await?
                && !self.is_ours(&found)
            {
                return Err(StepError::Foreign { object: reference.clone() });
            }
            let mut params = PatchParams::apply(&self.manager());
            params.field_validation = Some(ValidationDirective::Strict);
            let request =
                self.request(reference).await?.patch(&reference.name, &params, &Patch::Apply(&manifest.object));
            match self.send(request, || format!("{reference} could not be applied")).await {
                Ok(_) => applied += 1,
                // It would be gone at once; failing would keep the namespace, and what is in it, for ever.
                Err(StepError::Api { source, .. }) if is_terminating(&source) || self.is_gone(reference, &source) => {}
                Err(error) => return Err(error),
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
            let Some(found) = self.get(reference).await? else { continue };
            if !self.is_ours(&found) || (whose == Whose::Plugin && !self.is_plugins(&found)) {
                continue;
            }
            let params = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Background),
                preconditions: Some(Preconditions {
                    uid: found["metadata"]["uid"].as_str().map(str::to_owned),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            let request = self.request(reference).await?.delete(&reference.name, &params);
            match self.send(request, || format!("{reference} could not be deleted")).await {
                Ok(_) => deleted += 1,
                Err(StepError::Api { source, .. }) if is_status(&source, 404) || is_status(&source, 409) => {}
                Err(error) => return Err(error),
            }
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

    async fn get(&self, reference: &ObjectRef) -> Result<Option<Value>, StepError> {
        let request = match self.request(reference).await {
            Ok(request) => request,
            // A kind that is no longer served has no objects either.
            Err(StepError::Api { source, .. }) if is_status(&source, 404) => return Ok(None),
            Err(error) => return Err(error),
        };
        let request = request.get(&reference.name, &kube::api::GetParams::default());
        match self.send(request, || format!("{reference} could not be read")).await {
            Ok(found) => Ok(Some(found)),
            Err(StepError::Api { source, .. }) if is_status(&source, 404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn request(&self, reference: &ObjectRef) -> Result<Request, StepError> {
        let what = || format!("{} ({}) is not a kind that this cluster serves", reference.kind, reference.api_version);
        let (resource, _) = self
            .kinds
            .find(self.client, &reference.api_version, &reference.kind)
            .await
            .map_err(StepError::api(what()))?;
        Ok(Request::new(DynamicObject::url_path(&resource, reference.namespace.as_deref())))
    }

    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
        what: impl Fn() -> String,
    ) -> Result<Value, StepError> {
        let request = request.map_err(|e| StepError::api(what())(kube::Error::BuildRequest(e)))?;
        self.account.send(self.client, request).await.map_err(StepError::api(what()))
    }
}

/// Whether a name can be one segment of a path as it is. Expressions make names of what users write: with `/` or `?` in
/// it a name would lead to another object, and one that no request can be made of could never be deleted either.
fn is_path_segment(name: &str) -> bool {
    let safe = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':');
    !matches!(name, "" | "." | "..") && name.bytes().all(safe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("web-1.example", true)]
    #[case("system:reader", true)]
    #[case("Upper_case", true)]
    #[case("", false)]
    #[case("..", false)]
    #[case("a b", false)]
    #[case("../../secrets/s", false)]
    #[case("web?dryRun=All", false)]
    #[case("web#", false)]
    #[case("web%2fscale", false)]
    #[case("größe", false)]
    fn a_name_leads_to_no_other_object(#[case] name: &str, #[case] right: bool) {
        assert_eq!(is_path_segment(name), right);
    }
}
