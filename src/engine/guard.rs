//! What a run looks at once more after it was written down and before it begins.
//!
//! Two processes that write a run each and then look cannot both overlook the other's; two that look and then write can.

use super::life::{self, Role, Stored};
use super::{Engine, EngineError};
use crate::api::{Phase, TargetRef};
use crate::engine::index::RunEntry;
use crate::plan::message::with_causes;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::DynamicObject;
use std::time::Duration;

/// How long a new run waits to be shown by this process's own watch.
const WATCHED_WITHIN: Duration = Duration::from_secs(10);

/// What must hold for a run to begin; else it is taken back.
#[derive(Clone, Debug)]
pub enum Guard {
    /// Of a pre-phase: no other change of the target was quicker, and the target is still there.
    Change {
        /// The keys of every run of its own change.
        keys: Vec<String>,
        /// The target as the request shows it stored.
        stored: Option<Stored>,
    },
    /// Of the last phases of a target that is gone: whatever else was begun for it has ended. Whoever began a
    /// pre-phase without knowing that the target was gone wrote it down before.
    Deletion,
}

/// Whether runs of this kind are begun with a guard, so that none may go on with one which its writer has not begun.
pub(super) fn is_guarded(run: &RunEntry) -> bool {
    match Role::of(run) {
        Role::Pre | Role::Deletion => true,
        Role::Post => run.phase == Some(Phase::PostDelete),
        Role::Undo => false,
    }
}

impl Engine {
    /// Whether a run may begin. `own` is the run as it was written.
    pub(super) async fn may_begin(&self, own: &RunEntry, guard: &Guard) -> bool {
        let watched = tokio::time::timeout(WATCHED_WITHIN, self.index.until_watched(&own.name));
        let (watched, there) = tokio::join!(watched, self.is_still_there(&own.target, guard));
        if watched.is_err() {
            tracing::warn!(run = own.name, "a run is taken back: the watch of runs is late");
            return false;
        }
        match there {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                tracing::warn!(run = own.name, error = with_causes(&error), "a run is taken back");
                return false;
            }
        }
        if self.index.get(&own.name).is_none_or(|known| known.version() < own.version()) {
            return false;
        }
        match guard {
            Guard::Change { keys, stored } => {
                let runs = self.index.of_name(&own.target.namespace, &own.target.name);
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                !life::is_blocked(own, &runs, &keys, stored.as_ref(), Timestamp::now())
            }
            Guard::Deletion => !life::is_early(own, &self.index.of_target(&own.target)),
        }
    }

    /// Whether what a change is to change has not gone meanwhile: a request may have been held up on its way for as
    /// long as a deletion takes.
    async fn is_still_there(&self, target: &TargetRef, guard: &Guard) -> Result<bool, EngineError> {
        match guard {
            Guard::Change { stored: Some(stored), .. } => self.has(target, &stored.uid).await,
            Guard::Change { stored: None, .. } | Guard::Deletion => Ok(true),
        }
    }

    /// Whether the API server has this target under this UID.
    pub async fn has(&self, target: &TargetRef, uid: &str) -> Result<bool, EngineError> {
        let what = "read the target of a change";
        let (kind, _) =
            self.kinds.find(&self.client, &target.api_version, &target.kind).await.map_err(EngineError::api(what))?;
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &target.namespace, &kind);
        let found = objects.get_metadata_opt(&target.name).await.map_err(EngineError::api(what))?;
        Ok(found.is_some_and(|found| found.metadata.uid.as_deref() == Some(uid)))
    }
}
