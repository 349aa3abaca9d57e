//! Objects of any kind, reached as a runner's service account.

use super::error::{StepError, is_status};
use super::impersonate::ServiceAccount;
use crate::api::{ObjectRef, ObjectTemplate};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GetParams, Preconditions, PropagationPolicy, Request};
use kube::core::GroupVersionKind;
use kube::discovery::{self, Scope as KindScope};
use kube::{Client, Resource};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

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

/// The objects that an account may reach.
pub struct Objects<'a> {
    pub client: &'a Client,
    pub kinds: &'a Kinds,
    pub account: ServiceAccount,
}

impl Objects<'_> {
    /// The kind of an object, and whether it lives in namespaces.
    pub async fn kind(&self, api_version: &str, kind: &str) -> Result<(ApiResource, KindScope), StepError> {
        // It becomes a path of the API.
        let is_name = |part: &str| is_path_segment(part) && !part.contains(':');
        let (group, version) = api_version.split_once('/').unwrap_or(("v", api_version));
        if ![group, version, kind].into_iter().all(is_name) {
            return Err(StepError::Unserved { kind: kind.to_owned(), api_version: api_version.to_owned() });
        }
        self.kinds.find(self.client, api_version, kind).await.map_err(|error| {
            if matches!(error, kube::Error::Discovery(_)) || is_status(&error, 404) {
                return StepError::Unserved { kind: kind.to_owned(), api_version: api_version.to_owned() };
            }
            StepError::api(format!("{kind} ({api_version}) could not be looked up"))(error)
        })
    }

    /// What a template names, its expressions evaluated: in `namespace` where it names none and its kind has one.
    /// `field` is where `name` and `namespace` stand.
    pub async fn reference(
        &self,
        template: &ObjectTemplate,
        namespace: &str,
        field: &str,
    ) -> Result<ObjectRef, StepError> {
        if template.name.is_empty() {
            return Err(StepError::Failed(format!("{field}.name is empty")));
        }
        let (_, scope) = self.kind(&template.api_version, &template.kind).await?;
        let namespace = match scope {
            KindScope::Cluster => None,
            KindScope::Namespaced => Some(template.namespace.clone().unwrap_or_else(|| namespace.to_owned())),
        };
        for (part, value) in [("name", Some(&template.name)), ("namespace", namespace.as_ref())] {
            if let Some(value) = value.filter(|value| !is_path_segment(value)) {
                return Err(StepError::Failed(format!(
                    "{field}.{part}: {value:?} cannot name an object: use letters, digits, -, _, . and :"
                )));
            }
        }
        let (api_version, kind) = (template.api_version.clone(), template.kind.clone());
        Ok(ObjectRef { api_version, kind, namespace, name: template.name.clone() })
    }

    /// Deletes an object, if it still is the one with this UID where one is given; tells whether there was one.
    pub async fn delete(&self, reference: &ObjectRef, uid: Option<String>) -> Result<bool, StepError> {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None }),
            ..DeleteParams::default()
        };
        let request = self.request(reference).await?.delete(&reference.name, &params);
        match self.send(request, || format!("{reference} could not be deleted")).await {
            Ok(_) => Ok(true),
            Err(StepError::Api { source, .. }) if is_status(&source, 404) || is_status(&source, 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The object as it is; none where there is none.
    pub async fn get(&self, reference: &ObjectRef) -> Result<Option<Value>, StepError> {
        let request = match self.request(reference).await {
            Ok(request) => request,
            // A kind that is no longer served has no objects either.
            Err(StepError::Unserved { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let request = request.get(&reference.name, &GetParams::default());
        match self.send(request, || format!("{reference} could not be read")).await {
            Ok(found) => Ok(Some(found)),
            Err(StepError::Api { source, .. }) if is_status(&source, 404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// How requests for an object of this kind are made.
    pub async fn request(&self, reference: &ObjectRef) -> Result<Request, StepError> {
        let (resource, _) = self.kind(&reference.api_version, &reference.kind).await?;
        Ok(Request::new(DynamicObject::url_path(&resource, reference.namespace.as_deref())))
    }

    /// Sends a request as the account; `what` says what could not be done.
    pub async fn send(
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
