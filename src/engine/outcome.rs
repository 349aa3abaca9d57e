//! What becomes of a run after its steps: each change of its life is decided by [`life::transition`], written down
//! against the version that was seen, and only then acted upon.

use super::life::{self, Admission, Effect, Event, Life};
use super::{Engine, EngineError, execute, name_of, outputs};
use crate::api::{Phase, PhaseRun, PhaseRunSpec, RunState, StepStatus, TargetRef};
use crate::engine::index::RunEntry;
use crate::plan::undo;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many changes of pre-phases this process saw stored, given up and undone, and how many deletions were let go
/// without their pre-delete.
#[derive(Debug, Default)]
pub struct Outcomes {
    pub committed: AtomicU64,
    pub abandoned: AtomicU64,
    pub compensated: AtomicU64,
    pub skipped: AtomicU64,
}

impl Outcomes {
    fn count(&self, state: RunState) {
        let counter = match state {
            RunState::Committed => &self.committed,
            RunState::Abandoned => &self.abandoned,
            RunState::Compensated => &self.compensated,
            RunState::Pending | RunState::Running | RunState::Succeeded | RunState::Failed | RunState::Inert => {
                return;
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Engine {
    /// Lets an event happen to a run: decides, writes the new life down against the version that was seen, and
    /// counts it. What else follows is the caller's.
    ///
    /// # Errors
    /// [`EngineError::Refused`] where it cannot happen to the run as it was seen; a conflict of the API server where
    /// the run is another by now.
    pub async fn transition(&self, entry: &RunEntry, event: &Event) -> Result<Arc<RunEntry>, EngineError> {
        let before = Life::from(entry);
        let (after, effects) = life::transition(&before, event)
            .map_err(|source| EngineError::Refused { run: entry.name.clone(), source })?;
        if after == before {
            return Ok(Arc::new(entry.clone()));
        }
        let patch = json!({"metadata": {"resourceVersion": entry.version.to_string()}, "status": after.patch(&before)});
        let written = self.runs().patch_status(&entry.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let run = written.map_err(EngineError::api("write down what became of a run"))?;
        for effect in effects {
            if let Effect::Announce(state) = effect {
                self.outcomes.count(state);
            }
        }
        Ok(self.index.observe(&run))
    }

    /// Notes the request that is let through on the strength of a run.
    pub async fn admit(&self, entry: &RunEntry, uid: &str, generation: i64) -> Result<Arc<RunEntry>, EngineError> {
        let admission = Admission { uid: uid.to_owned(), generation, at: Some(execute::now().0) };
        self.transition(entry, &Event::Admitted(admission)).await
    }

    /// Notes that a client was told of a failure.
    pub async fn reported(&self, entry: &RunEntry) -> Result<Arc<RunEntry>, EngineError> {
        self.transition(entry, &Event::Reported { at: execute::now().0 }).await
    }

    /// Gives a finished pre-phase up whose change was not stored, and begins to undo it.
    pub async fn abandon(self: &Arc<Self>, entry: &RunEntry) -> Result<(), EngineError> {
        self.give_up(entry, |undo| Event::NotStored { undo }).await
    }

    /// Gives a finished pre-phase up that nobody was let through on, because another change is to take its place.
    pub async fn supersede(self: &Arc<Self>, entry: &RunEntry) -> Result<(), EngineError> {
        self.give_up(entry, |undo| Event::Superseded { undo }).await
    }

    async fn give_up(
        self: &Arc<Self>,
        entry: &RunEntry,
        event: impl FnOnce(Option<String>) -> Event,
    ) -> Result<(), EngineError> {
        let Some(run) = self.read(&entry.name).await? else {
            self.index.forget(&entry.name);
            return Ok(());
        };
        let steps = run.status.clone().unwrap_or_default().steps;
        let undo = self.undoing(&run, &steps).await?.map(|spec| name_of(&spec));
        let is_useless = undo.is_none() && run.spec.phase != Phase::PreDelete;
        self.transition(entry, &event(undo)).await?;
        if is_useless {
            let steps = outputs::leaving(&run.spec);
            outputs::forget(&self.client, &self.settings.namespace, &entry.name, &steps).await?;
        }
        match self.read(&entry.name).await? {
            Some(run) => self.undo(&run).await,
            None => Ok(()),
        }
    }

    /// Begins the run that undoes this one, where its status promises one.
    pub async fn undo(self: &Arc<Self>, run: &PhaseRun) -> Result<(), EngineError> {
        self.undo_as(run, 1).await
    }

    /// Begins the run that undoes this one as its attempt `attempt`.
    pub async fn undo_as(self: &Arc<Self>, run: &PhaseRun, attempt: u32) -> Result<(), EngineError> {
        let status = run.status.clone().unwrap_or_default();
        if status.compensated_by.is_none() {
            return Ok(());
        }
        match self.undoing(run, &status.steps).await? {
            Some(spec) => self.begin(PhaseRunSpec { attempt, ..spec }, None).await.map(|_| ()),
            None => self.transition(&RunEntry::from(run), &Event::NothingToUndo).await.map(|_| ()),
        }
    }

    /// The run that would undo this one as things are now.
    pub(super) async fn undoing(
        &self,
        run: &PhaseRun,
        steps: &[StepStatus],
    ) -> Result<Option<PhaseRunSpec>, EngineError> {
        let live = self.live(&run.spec.target).await?;
        // What a create made may be another object's of that name by now: its UID was that of an attempt. A pre-update
        // can be run again for its own object alone.
        let own = |live: &Value| live["metadata"]["uid"].as_str() == run.spec.target.uid.as_deref();
        let live = live.filter(|live| run.spec.phase == Phase::PreCreate || own(live));
        Ok(undo::undo(&run.name_any(), &run.spec, steps, live.as_ref()))
    }

    /// What is stored under a target's name now, whatever its kind.
    pub(super) async fn live(&self, target: &TargetRef) -> Result<Option<Value>, EngineError> {
        let what = "read the target of a run";
        let (kind, _) =
            self.kinds.find(&self.client, &target.api_version, &target.kind).await.map_err(EngineError::api(what))?;
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &target.namespace, &kind);
        let found = objects.get_opt(&target.name).await.map_err(EngineError::api(what))?;
        Ok(found.and_then(|found| serde_json::to_value(found).ok()))
    }
}
