//! What a sandbox's author must be allowed to do, asked of the API server: a Sandbox gives nobody a right that they
//! lack.

use super::review::UserInfo;
use crate::api::labels;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a granted right counts without being asked for again.
const GRANTED_FOR: Duration = Duration::from_secs(10);
/// More answers than this are not remembered.
const REMEMBERED: usize = 4096;

/// A right that a change needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Right {
    pub verb: &'static str,
    pub group: &'static str,
    pub resource: &'static str,
    pub namespace: Option<String>,
    pub name: Option<String>,
    /// The field that asks for it.
    pub field: String,
}

/// Why a right could not be established.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not say what {user} may do")]
pub struct RightsError {
    user: String,
    source: Box<kube::Error>,
}

/// The rights that a change needs: `use` of each plugin whose resource is new or changed, and the creation of
/// workloads and of Services where a fork is.
pub fn needed(namespace: &str, old: &Value, new: &Value, plugin_of: impl Fn(&str) -> Option<String>) -> Vec<Right> {
    let mut rights = Vec::new();
    for (index, resource) in added(old, new, "resources") {
        if let Some(plugin) = resource["name"].as_str().and_then(&plugin_of) {
            rights.push(Right {
                verb: "use",
                group: crate::api::GROUP,
                resource: "resourceplugins",
                namespace: None,
                name: Some(plugin),
                field: format!("spec.resources[{index}].plugin"),
            });
        }
    }
    if let Some((index, _)) = added(old, new, "forks").next() {
        for (group, resource) in [("apps", "deployments"), ("", "services")] {
            rights.push(Right {
                verb: "create",
                group,
                resource,
                namespace: Some(namespace.to_owned()),
                name: None,
                field: format!("spec.forks[{index}].forkOf"),
            });
        }
    }
    rights
}

/// The items of a list of the spec that were not in it before, with their places.
fn added<'a>(old: &'a Value, new: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    let [before, after] = [old, new].map(|object| object["spec"][field].as_array().map_or(&[][..], Vec::as_slice));
    // Mostly an item is where it was.
    let was_there = move |(index, item): &(usize, &Value)| before.get(*index) == Some(*item) || before.contains(item);
    after.iter().enumerate().filter(move |item| !was_there(item))
}

/// The right to skip the pre-delete of a sandbox, where a change newly asks for that.
pub fn needed_to_skip(old: &Value, new: &Value) -> Option<Right> {
    let reason = |object: &Value| object["metadata"]["annotations"][labels::SKIP_PRE_DELETE].clone();
    if reason(new).is_null() || reason(new) == reason(old) {
        return None;
    }
    Some(Right {
        verb: "skip",
        group: crate::api::GROUP,
        resource: "sandboxes",
        namespace: new["metadata"]["namespace"].as_str().map(str::to_owned),
        name: new["metadata"]["name"].as_str().map(str::to_owned),
        field: format!("metadata.annotations[{}]", labels::SKIP_PRE_DELETE),
    })
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{} {}{dot}{}", self.verb, self.resource, self.group)?;
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace:?}"),
            None => Ok(()),
        }
    }
}

impl Right {
    /// What to tell a user that lacks it.
    pub fn refusal(&self, user: &str) -> String {
        format!(
            "{}: {user:?} may not {self}; ask a cluster admin for a role with verb \"{}\" on it",
            self.field, self.verb
        )
    }
}

/// Asks the API server, and remembers for a moment what it granted.
pub struct Rights {
    client: Client,
    granted: Mutex<HashMap<(UserInfo, Right), Instant>>,
}

impl Rights {
    pub fn new(client: Client) -> Self {
        Self { client, granted: Mutex::default() }
    }

    /// Whether `user` has `right`.
    pub async fn has(&self, user: &UserInfo, right: &Right) -> Result<bool, RightsError> {
        let key = (user.clone(), Right { field: String::new(), ..right.clone() });
        if self
            .granted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key)
            .is_some_and(|at| at.elapsed() < GRANTED_FOR)
        {
            return Ok(true);
        }
        let review = SubjectAccessReview {
            metadata: ObjectMeta::default(),
            spec: SubjectAccessReviewSpec {
                user: Some(user.username.clone()),
                uid: user.uid.clone(),
                groups: user.groups.clone(),
                extra: user.extra.clone(),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(right.verb.to_owned()),
                    group: Some(right.group.to_owned()),
                    resource: Some(right.resource.to_owned()),
                    namespace: right.namespace.clone(),
                    name: right.name.clone(),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            status: None,
        };
        let answer = Api::<SubjectAccessReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await
            .map_err(|source| RightsError { user: user.username.clone(), source: Box::new(source) })?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        if allowed {
            let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
            if granted.len() >= REMEMBERED {
                granted.clear();
            }
            granted.insert(key, Instant::now());
        }
        Ok(allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_to_skip_is_asked_for_when_the_annotation_comes_or_changes_and_not_when_it_goes() {
        let with = |reason: Option<&str>| json!({"metadata": {"name": "x", "namespace": "shop", "annotations": {labels::SKIP_PRE_DELETE: reason}}});
        let needed = |old: Option<&str>, new: Option<&str>| needed_to_skip(&with(old), &with(new)).is_some();
        assert!(needed(None, Some("broken")));
        assert!(needed(Some("a"), Some("b")));
        assert!(!needed(Some("a"), Some("a")));
        assert!(!needed(Some("a"), None));
        assert!(needed_to_skip(&Value::Null, &with(Some("broken"))).is_some());
    }
    use serde_json::json;

    #[test]
    fn only_what_is_new_or_changed_needs_a_right() {
        let old = json!({"spec": {"resources": [{"name": "a", "plugin": "p"}], "forks": [{"forkOf": {"name": "x"}}]}});
        let new = json!({"spec": {"resources": [{"name": "a", "plugin": "p"}, {"name": "b", "plugin": "q"}], "forks": [{"forkOf": {"name": "x"}}]}});
        let rights = needed("shop", &old, &new, |name| Some(format!("plugin-of-{name}")));
        assert_eq!(rights.len(), 1);
        assert_eq!(
            rights[0].refusal("alice"),
            "spec.resources[1].plugin: \"alice\" may not use resourceplugins.sluice.dev \"plugin-of-b\"; ask a cluster admin for a role with verb \"use\" on it"
        );
        assert_eq!(needed("shop", &Value::Null, &old, |_| None)[0].verb, "create");
    }
}
