//! What a run looks at once more after it was written down and before it begins.
//!
//! Two processes that write a run each and then look cannot both overlook the other's; two that look and then write can.

use super::life::{self, Stored};
use super::{Engine, EngineError};
use crate::api::{SandboxRecord, TargetRef, labels, origin};
use crate::engine::index::RunEntry;
use crate::plan::message::with_causes;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ListParams, ObjectMeta};
use std::time::Duration;

/// How long a new run waits to be shown by this process's own watch.
const WATCHED_WITHIN: Duration = Duration::from_secs(10);

/// What must hold for a run to begin; else it is taken back.
#[derive(Clone, Debug)]
pub enum Guard {
    /// Of a pre-phase: no other change of the target was quicker, and the target is still there, or its name free.
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

impl Engine {
    /// Whether a run may begin. `own` is the run as it was written.
    pub(super) async fn may_begin(&self, own: &RunEntry, guard: &Guard) -> bool {
        if tokio::time::timeout(WATCHED_WITHIN, self.index.until_watched(&own.name)).await.is_err() {
            tracing::warn!(run = own.name, "a run is taken back: the watch of runs is late");
            return false;
        }
        if self.index.get(&own.name).is_none_or(|known| known.version < own.version) {
            return false;
        }
        let (keys, stored) = match guard {
            Guard::Change { keys, stored } => (keys, stored.as_ref()),
            Guard::Deletion => return !life::is_early(own, &self.index.of_target(&own.target)),
        };
        let runs = self.index.of_name(&own.target.namespace, &own.target.name);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        if life::is_blocked(own, &runs, &keys, stored, Timestamp::now()) {
            return false;
        }
        // Asked last: a change whose run is known to be over was stored before, if it ever was.
        match self.is_as_asked(&own.target, stored).await {
            Ok(is_so) => is_so,
            Err(error) => {
                tracing::warn!(run = own.name, error = with_causes(&error), "a run is taken back");
                false
            }
        }
    }

    /// Whether what a change is to change is stored as the request shows it, and what it is to create is not there. A
    /// request may have been held up on its way for as long as other changes take; and a review that somebody forged
    /// must not run a phase of what is not so.
    async fn is_as_asked(&self, target: &TargetRef, stored: Option<&Stored>) -> Result<bool, EngineError> {
        match stored {
            Some(stored) => Ok(self.stored_now(target).await?.is_some_and(|live| stored.is_still(&live))),
            None => {
                let (uid, has_record) = tokio::try_join!(self.uid_of(target), self.has_record(target))?;
                Ok(uid.is_none() && !has_record)
            }
        }
    }

    /// What the API server has under a target's name now.
    pub async fn stored_now(&self, target: &TargetRef) -> Result<Option<Stored>, EngineError> {
        Ok(self.live(target).await?.as_ref().map(Stored::of))
    }

    /// The UID of what the API server has under a target's name now.
    pub async fn uid_of(&self, target: &TargetRef) -> Result<Option<String>, EngineError> {
        let what = "read the target of a change";
        let (kind, _) =
            self.kinds.find(&self.client, &target.api_version, &target.kind).await.map_err(EngineError::api(what))?;
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &target.namespace, &kind);
        let found = objects.get_metadata_opt(&target.name).await.map_err(EngineError::api(what))?;
        Ok(found.and_then(|found| found.metadata.uid))
    }

    /// Whether the last phases of a gone target of this name are still to run.
    ///
    /// A list that is sure to be up to date takes the API server up to 100 ms where its cache of records has not moved
    /// since the last write of anything, as always after the write of a run: it waits for etcd to say how far it is
    /// (KEP-2340). A record is as old as its target, so the cache has it; the one that may be young is asked for by name.
    /// It is asked for without a limit, with which no list is answered from the cache; Sluice alone writes records, and
    /// there are few of one name.
    pub async fn has_record(&self, target: &TargetRef) -> Result<bool, EngineError> {
        let records: Api<SandboxRecord> = Api::all(self.client.clone());
        let of_name = ListParams::default().labels(&labels::selector(&target.namespace, &target.name));
        let cached = of_name.match_any();
        let runs = self.index.of_name(&target.namespace, &target.name);
        let last = runs.iter().rev().find_map(|run| run.uid());
        let by_uid = async {
            let Some(uid) = last else { return Ok(None) };
            records.get_metadata_opt(uid).await
        };
        let found = tokio::try_join!(records.list_metadata(&cached), by_uid);
        let (listed, by_uid) = found.map_err(EngineError::api("look for a record of the target's name"))?;
        // One that was restored from a backup stands in nobody's way: the sandbox that comes back has another UID.
        let is_own = |metadata: &ObjectMeta| origin::is_own_record(metadata, false);
        let mut records = by_uid.iter().chain(&listed).map(|record| &record.metadata);
        Ok(records.any(is_own))
    }
}
