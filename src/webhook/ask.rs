//! What the admission of sandboxes asks before it lets a change run anything: whether the requester may.

use super::admit::{Admission, Judged, busy};
use super::review::{Answer, Request};
use super::rights::{self, Right};
use super::trail::Trail;
use crate::api::{Phase, SandboxResource};
use crate::plan::message;
use crate::plan::plugins::Resolved;
use crate::plan::runs;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::time::Instant;

impl Admission {
    pub(super) async fn check_rights(&self, request: &Request, deadline: Instant, trail: &mut Trail) -> Judged<()> {
        let (old, new) = (&request.old_object, &request.object);
        let seen = self.is_sealed(request, old);
        let declared = runs::declared(new).unwrap_or_default();
        let plugin_of = |name: &str| {
            let resource = declared.iter().find(|r| r.name == name)?;
            self.plugin_of(new, resource).map(|plugin| plugin.name)
        };
        let needed = rights::needed(&request.namespace, old, new, seen, plugin_of);
        if let Some(fault) = rights::too_many(&needed) {
            return Err(Answer::deny(fault));
        }
        self.require(request, &needed, deadline, trail).await
    }

    /// Refuses a request whose user may not let a pre-delete be skipped, where it asks for that or for an owner.
    pub(super) async fn check_skips(&self, request: &Request, deadline: Instant, trail: &mut Trail) -> Judged<()> {
        let (old, new) = (&request.old_object, &request.object);
        let by_owner = rights::needed_to_own(old, new, |resource| self.has_pre_delete(new, resource));
        let rights: Vec<Right> = rights::needed_to_skip(old, new).into_iter().chain(by_owner).collect();
        self.require(request, &rights, deadline, trail).await
    }

    /// Whether forks are made from now on that nobody was asked about when they were stored.
    pub(super) fn seals_anew(&self, request: &Request) -> bool {
        !self.is_sealed(request, &request.old_object) && self.is_sealed(request, &request.object)
    }

    /// Refuses forks that would be stored without a seal: they would not be made.
    pub(super) fn refuse_unsealed(&self, new: &Value) -> Judged<()> {
        let namespace = new["metadata"]["namespace"].as_str().unwrap_or_default();
        let deleting = !new["metadata"]["deletionTimestamp"].is_null();
        if deleting || self.sealer.holds(namespace, new) {
            return Ok(());
        }
        Err(busy(
            "spec.forks: that they are admitted is not noted: another webhook has changed them since, or Sluice's mutating webhook is not in force",
        ))
    }

    /// Whether an admission has seen the forks of an object.
    fn is_sealed(&self, request: &Request, object: &Value) -> bool {
        self.sealer.holds(&request.namespace, object)
    }

    fn plugin_of(&self, object: &Value, resource: &SandboxResource) -> Option<Resolved> {
        let latest = runs::latest(object);
        let plugins = self.plugins.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        plugins.resolve(&resource.plugin, latest.get(&resource.name).map(String::as_str)).ok()
    }

    /// Whether a resource may have a pre-delete: so may one whose plugin is not known.
    fn has_pre_delete(&self, object: &Value, resource: &Value) -> bool {
        let resource = SandboxResource::deserialize(resource).ok();
        let plugin = resource.and_then(|resource| self.plugin_of(object, &resource));
        plugin.is_none_or(|plugin| !plugin.spec.workflow(Phase::PreDelete).is_empty())
    }

    /// Refuses a request whose user lacks one of these rights.
    async fn require(&self, request: &Request, rights: &[Right], deadline: Instant, trail: &mut Trail) -> Judged<()> {
        let lacks = self.rights.lacks(&request.namespace, &request.user_info, rights);
        match tokio::time::timeout_at(deadline, lacks).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(right))) => {
                trail.lacks(right);
                let refusal = right.refusal(&request.user_info.username);
                Err(Answer::forbid(message::cut(&refusal, message::DENIAL_LIMIT)))
            }
            Ok(Err(error)) => Err(Answer::broken(message::with_causes(&error))),
            Err(_) => Err(busy("the API server did not say in time what the requester may do")),
        }
    }
}
