//! Executing a run: which steps begin, what is written down before they do, and what becomes of their results.
//!
//! The status in the API server is written before anything is acted on, so that another replica can go on from it at
//! any point. Only the executor that the status names writes it while the run is open.

use super::Engine;
use super::error::{EngineError, is_status};
use super::index::RunEntry;
use super::jobs::{Done, Failure, Job};
use super::life::{self, Effect, Event, Life};
use super::outputs::{self, Outputs};
use super::queue::Place;
use super::script::ScriptPods;
use crate::api::{ObjectRef, PhaseRun, PhaseRunStatus, RunResource, StepKind, StepState, StepStatus};
use crate::plan::message::with_causes;
use crate::plan::{message, room, shown, undo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The step that deletes what the resource's `apply` steps made.
const DELETE_APPLIED: &str = "delete-applied";
/// How long progress that nothing depends on may go unwritten.
const SAVED_WITHIN: Duration = Duration::from_millis(100);
/// How often it is looked what the pods of steps wait for.
const LOOK: Duration = Duration::from_secs(5);

/// What a run says of itself that waits for its turn.
const WAITS: &str = "waits for its turn: as many phases are at work as may be";

pub(super) struct Execution {
    pub(super) engine: Arc<Engine>,
    pub(super) run: PhaseRun,
    pub(super) status: PhaseRunStatus,
    pub(super) outputs: Arc<Mutex<Outputs>>,
    /// For each resource that has scripts, its pods.
    pub(super) pods: BTreeMap<usize, Arc<ScriptPods>>,
    /// For each entry of `status.steps` its resource and, unless it is [`DELETE_APPLIED`], its step.
    pub(super) layout: Vec<(usize, Option<usize>)>,
    /// It has ended so many executors that no step of it is begun any more.
    worn_out: bool,
    /// It was at work before, and not all that was done then may be known.
    is_resumed: bool,
    /// Bytes that the status may have.
    room: usize,
    /// The `apply` steps of which something may have been written.
    pub(super) written: BTreeSet<usize>,
    /// Jobs of steps whose turn has not come, and whose objects are written down already.
    pub(super) foreseen: BTreeMap<usize, Job>,
    /// Whether the status must be stored before anything else is done.
    pub(super) must_save: bool,
    pub(super) saved_at: Instant,
}

/// Executes a run from wherever it stands to its end.
pub(super) async fn execute(engine: Arc<Engine>, run: PhaseRun) -> Result<PhaseRun, EngineError> {
    let mut execution = Execution::prepare(engine.clone(), run).await?;
    let _place = execution.take_turn(&engine).await?;
    execution.work().await?;
    execution.finish().await?;
    Ok(execution.run)
}

impl Execution {
    async fn prepare(engine: Arc<Engine>, run: PhaseRun) -> Result<Self, EngineError> {
        let mut status = run.status.clone().unwrap_or_default();
        let layout = layout(&run.spec.resources);
        if status.steps.is_empty() {
            status.steps = layout.iter().map(|(r, s)| pending(&run.spec.resources[*r], *s)).collect();
        }
        let entry = RunEntry::from(&run);
        let before = Life::from(&entry);
        let own = engine.replicas.own().to_string();
        let orphaned = before.executor.as_ref().is_some_and(|executor| !engine.replicas.is_alive(executor));
        let claimed = Event::Claimed { by: own.clone(), orphaned };
        let (life, effects) = life::transition(&before, &claimed)
            .map_err(|source| EngineError::Refused { run: run.name_any(), source })?;
        life.write_into(&mut status);
        let is_resumed = before.executor.is_some();
        let is_takeover = entry.executor.or(entry.begun_by).is_some_and(|process| *process != *own);
        let room = room::for_status(&run.spec);
        let shared = Arc::new(run.clone());
        let pods = run
            .spec
            .resources
            .iter()
            .enumerate()
            .filter(|(_, resource)| resource.steps.iter().any(|step| step.script.is_some()))
            .map(|(index, _)| (index, Arc::new(ScriptPods::new(engine.clone(), shared.clone(), index, own.clone()))))
            .collect();
        let worn_out = effects.contains(&Effect::GiveUp);
        let outputs = Arc::new(Mutex::new(Outputs::default()));
        let mut execution = Self {
            engine,
            run,
            status,
            outputs,
            pods,
            layout,
            worn_out,
            is_resumed,
            room,
            written: BTreeSet::new(),
            foreseen: BTreeMap::new(),
            must_save: false,
            saved_at: Instant::now(),
        };
        if is_takeover {
            // Counted before anything else: what ended the last executor may end this one.
            execution.save().await?;
        }
        let engine = &execution.engine;
        let earlier = outputs::seen_by(&RunEntry::from(&execution.run), engine.earlier_runs(&execution.run));
        let loaded = outputs::load(&engine.client, &engine.settings.namespace, &earlier).await?;
        *execution.outputs.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(execution)
    }

    /// Waits for the run's turn. That it does is written down, so that all know whose it is.
    async fn take_turn<'a>(&mut self, engine: &'a Engine) -> Result<Place<'a>, EngineError> {
        let name = self.run.name_any();
        if self.status.started_at.is_some() {
            return Ok(engine.queue.go_on(&name));
        }
        let place = match engine.queue.enter(&engine.index, &name) {
            Some(place) => place,
            None => {
                self.status.message = Some(WAITS.to_owned());
                self.save().await?;
                let place = tokio::select! {
                    place = engine.queue.wait(&engine.index, &name) => place,
                    () = engine.stop.cancelled() => return Err(EngineError::Lost { run: name }),
                };
                self.status.message = None;
                place
            }
        };
        self.status.started_at = Some(now());
        Ok(place)
    }

    async fn work(&mut self) -> Result<(), EngineError> {
        if self.worn_out {
            self.wear_out();
            return Ok(());
        }
        let started = self.status.started_at.as_ref().map_or_else(Timestamp::now, |t| t.0);
        let limit = Duration::from_secs(self.run.spec.timeout_seconds.into());
        let left = limit.saturating_sub(life::since(Some(started), Timestamp::now()));
        let deadline = Instant::now() + left;
        let mut expired = false;
        let mut tasks: JoinSet<(usize, Result<Done, Failure>)> = JoinSet::new();
        let mut begun: Vec<(usize, Job)> = Vec::new();
        let mut look = tokio::time::interval_at(Instant::now() + LOOK, LOOK);
        // Steps that another executor had begun are joined, or done again.
        for index in 0..self.layout.len() {
            if self.status.steps[index].state == StepState::Running {
                self.begin(index, &mut begun).await;
            }
        }
        loop {
            while self.begin_ready(expired, &mut begun).await {}
            if self.must_save {
                self.save().await?;
            }
            self.release_pods();
            for (index, job) in begun.drain(..) {
                tasks.spawn(async move { (index, job.await) });
            }
            if tasks.is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                // First, so that a process that stood still learns that it lost the run before it does anything for it.
                () = tokio::time::sleep_until(self.saved_at + SAVED_WITHIN), if self.is_unsaved() => self.save().await?,
                Some(joined) = tasks.join_next() => match joined {
                    Ok((index, result)) => self.ended(index, result, &mut begun).await,
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => tracing::error!(run = %self.run.name_any(), error = with_causes(&error), "a step's task broke"),
                },
                () = tokio::time::sleep_until(deadline), if !expired => {
                    expired = true;
                    tasks.shutdown().await;
                    self.expire();
                }
                _ = look.tick() => self.tell_what_pods_wait_for(),
                () = self.engine.stop.cancelled() => {
                    self.save().await?;
                    return Err(EngineError::Lost { run: self.run.name_any() });
                }
            }
        }
    }

    async fn finish(&mut self) -> Result<(), EngineError> {
        // A step whose task broke has no result, and must not pass for one that succeeded.
        for step in self.status.steps.iter_mut().filter(|step| step.state == StepState::Running) {
            step.state = StepState::Failed;
            step.finished_at = Some(now());
            step.message = Some("a fault in Sluice ended the step: see Sluice's log, and report it".to_owned());
        }
        for index in 0..self.layout.len() {
            if self.status.steps[index].state != StepState::Pending {
                continue;
            }
            let hopeless = self.is_hopeless(self.layout[index].0);
            let step = &mut self.status.steps[index];
            // What was not done though nothing of it failed must not pass for done.
            step.state = if hopeless { StepState::Skipped } else { StepState::Failed };
            let why = if hopeless { "an earlier step failed" } else { "the phase ended before its turn came" };
            step.message = Some(why.to_owned());
            self.forget_unwritten(index);
        }
        self.status.finished_at = Some(now());
        self.status.message = Some(message::summary(&self.run.spec, &self.status));
        let before = RunEntry::from(&self.with_status());
        let failed = self.has_failed();
        let mut undo = None;
        if failed && !before.ignorable && self.run.spec.compensates.is_none() {
            undo = self.engine.undoing(&self.run, &self.status.steps).await?.map(|spec| super::name_of(&spec));
        }
        let by = self.engine.replicas.own().to_string();
        let ended = Event::Ended { by, failed, ignorable: before.ignorable, undo };
        let refused = |source| EngineError::Refused { run: self.run.name_any(), source };
        let (mut life, _) = life::transition(&Life::from(&before), &ended).map_err(refused)?;
        if life.role.awaits_commit(life.state, life.ignorable) {
            for admission in self.engine.waiting.let_through(&before.name, now().0) {
                (life, _) = life::transition(&life, &Event::Admitted(admission)).map_err(refused)?;
            }
        }
        life.write_into(&mut self.status);
        for run in undo::useless_outputs(&self.run.name_any(), &self.run.spec, &self.status, before.ignorable) {
            let steps = if run == self.run.name_any() {
                outputs::leaving(&self.run.spec)
            } else {
                self.engine.index.get(&run).map(|entry| entry.left_outputs()).unwrap_or_default()
            };
            outputs::forget(&self.engine.client, &self.engine.settings.namespace, &run, &steps).await?;
        }
        self.save().await
    }

    /// What a step was to apply and never did needs no undoing.
    pub(super) fn forget_unwritten(&mut self, index: usize) {
        if !self.is_resumed && !self.written.contains(&index) {
            self.status.steps[index].applied.clear();
        }
    }

    fn is_unsaved(&self) -> bool {
        self.run.status.as_ref() != Some(&self.status)
    }

    fn with_status(&self) -> PhaseRun {
        PhaseRun { status: Some(self.status.clone()), ..self.run.clone() }
    }

    /// Writes the status, if it is another than what is stored and this process still is the executor.
    async fn save(&mut self) -> Result<(), EngineError> {
        self.must_save = false;
        self.saved_at = Instant::now();
        shown::settle(&mut self.status);
        room::fit(&mut self.status, self.room);
        while self.is_unsaved() {
            let patch: Value = json!({
                "metadata": {"resourceVersion": self.run.resource_version()},
                "status": self.status,
            });
            let name = self.run.name_any();
            let runs = self.engine.runs();
            match runs.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(run) => {
                    self.engine.index.observe(&run);
                    self.status = run.status.clone().unwrap_or_default();
                    self.run = run;
                }
                Err(error) if is_status(&error, 409) => {
                    let found = runs.get(&name).await.map_err(EngineError::api("read a run"))?;
                    self.engine.index.observe(&found);
                    let theirs = found.status.as_ref();
                    let open = theirs.is_none_or(|s| s.state.is_open());
                    let executor = theirs.and_then(|s| s.executor.clone());
                    let taken = executor.is_some_and(|executor| executor != self.engine.replicas.own().to_string());
                    if !open || taken {
                        return Err(EngineError::Lost { run: name });
                    }
                    self.run.metadata.resource_version = found.resource_version();
                    self.run.status = found.status;
                }
                Err(error) => return Err(EngineError::api("write down how far a run is")(error)),
            }
        }
        Ok(())
    }
}

fn layout(resources: &[RunResource]) -> Vec<(usize, Option<usize>)> {
    let of_resource = |(index, resource): (usize, &RunResource)| {
        let steps = (0..resource.steps.len()).map(Some).chain(resource.delete_applied.then_some(None));
        steps.map(move |step| (index, step)).collect::<Vec<_>>()
    };
    resources.iter().enumerate().flat_map(of_resource).collect()
}

fn pending(resource: &RunResource, step: Option<usize>) -> StepStatus {
    let (step, kind) = match step.map(|s| &resource.steps[s]) {
        None => (DELETE_APPLIED.to_owned(), StepKind::DeleteApplied),
        Some(step) => (step.name.clone(), step.kind()),
    };
    StepStatus { resource: resource.name.clone(), step, kind, ..StepStatus::default() }
}

/// The moment, to the microsecond that the API server keeps.
pub(super) fn now() -> MicroTime {
    let now = Timestamp::now();
    MicroTime(Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now))
}

/// What a set of runs applied.
pub(super) fn applied<'a>(
    runs: impl Iterator<Item = &'a RunEntry>,
    resource: &str,
    step: Option<&str>,
) -> BTreeSet<ObjectRef> {
    runs.flat_map(|run| run.applied.iter())
        .filter(|(r, s, _)| r == resource && step.is_none_or(|step| s == step))
        .map(|(_, _, object)| object.clone())
        .collect()
}
