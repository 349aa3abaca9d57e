//! What becomes of a finished pre-phase: its change is stored, or it is not.

use super::since;
use crate::api::Phase;
use crate::engine::index::RunEntry;
use crate::plan::{key, timing};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a finished pre-phase has come to, given the target as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its change is stored.
    Committed,
    /// Its change was not stored in time, or cannot be any more.
    Abandoned,
    /// Too early to say; look again after this long.
    Undecided(Duration),
}

/// The target as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stored {
    pub uid: String,
    pub generation: i64,
    pub spec_hash: String,
    pub deleting: bool,
    /// The hashes of the specs that were seen stored under earlier generations of the same object.
    pub before: BTreeMap<i64, String>,
}

impl Stored {
    /// What an object tells of itself, as it is stored now.
    pub fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        Self {
            uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            spec_hash: key::hash(&object["spec"]),
            deleting: !metadata["deletionTimestamp"].is_null(),
            ..Self::default()
        }
    }

    /// Whether another look has found the same spec of the same object, in the same generation.
    pub fn is_still(&self, live: &Self) -> bool {
        (&self.uid, self.generation, &self.spec_hash) == (&live.uid, live.generation, &live.spec_hash)
    }

    /// Whether this spec was stored under this generation; unknown where nobody saw.
    fn had(&self, generation: i64, spec_hash: &str) -> Option<bool> {
        let seen = if generation == self.generation { Some(&self.spec_hash) } else { self.before.get(&generation) };
        seen.map(|seen| seen == spec_hash)
    }
}

/// Whether what is stored proves that a run's change was, or makes it all the same. A request shows the target as it is
/// at one moment: of a later generation than the change's it proves nothing, and the leader, which saw them all, decides.
pub(super) fn is_proven(run: &RunEntry, stored: Option<&Stored>) -> bool {
    is_committed(run, stored, false)
}

/// Whether the change may have been stored and followed by others, so that only the leader can tell.
pub(super) fn is_for_the_leader(run: &RunEntry, stored: Option<&Stored>) -> bool {
    !is_committed(run, stored, false) && is_committed(run, stored, true)
}

fn is_committed(run: &RunEntry, stored: Option<&Stored>, unseen: bool) -> bool {
    use Phase::{PreCreate, PreDelete, PreUpdate};
    match (run.phase, &run.admitted, stored) {
        // The object was there when the deletion was admitted; that it is gone now is the deletion.
        (Some(PreDelete), Some(admitted), Some(stored)) if run.removes_target => {
            stored.uid != admitted.uid || stored.deleting
        }
        (Some(PreDelete), Some(_), None) => true,
        // Nothing is left that could be undone: the deletion came after it, and takes all that the object had.
        (Some(PreUpdate), Some(_), None) => true,
        (Some(PreUpdate | PreDelete), Some(admitted), Some(stored)) if stored.uid != admitted.uid => true,
        (Some(PreCreate | PreUpdate | PreDelete), _, Some(stored)) => run.admissions().any(|admitted| {
            admitted.uid == stored.uid
                && stored.generation >= admitted.generation
                && stored.had(admitted.generation, &run.spec_hash).unwrap_or(unseen)
        }),
        _ => false,
    }
}

/// Whether another change was stored under the generation that every admitted request of this one would have had.
fn is_lost(run: &RunEntry, stored: Option<&Stored>) -> bool {
    let Some(stored) = stored else { return false };
    let lost = |admitted: &crate::api::Admitted| {
        admitted.uid == stored.uid && stored.had(admitted.generation, &run.spec_hash) == Some(false)
    };
    let updates = matches!(run.phase, Some(Phase::PreUpdate | Phase::PreDelete | Phase::PreCreate));
    updates && !run.removes_target && run.admitted.is_some() && run.admissions().all(lost)
}

/// What became of a pre-phase's change. `run` has succeeded, or failed under `failurePolicy: Ignore`.
pub fn fate(run: &RunEntry, stored: Option<&Stored>, now: Timestamp, grace: Duration) -> Fate {
    // A generation that nobody saw is taken for the change's own: an update seldom loses its turn.
    if is_committed(run, stored, true) {
        return Fate::Committed;
    }
    if is_lost(run, stored) {
        return Fate::Abandoned;
    }
    let limit = Duration::from_secs(run.timeout_seconds.into());
    let ran = run.started_at.map_or(Duration::ZERO, |started| since(Some(started), run.finished_at.unwrap_or(now)));
    let admitted_at = run.admitted.as_ref().and_then(|a| a.at.as_ref()).map(|t| t.0);
    let waits = timing::commit_grace(limit, ran, admitted_at.is_some(), grace);
    let waited = since(admitted_at.or(run.finished_at), now);
    if waited >= waits { Fate::Abandoned } else { Fate::Undecided(waits - waited) }
}
