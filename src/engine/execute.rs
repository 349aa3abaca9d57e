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
use super::script::StepPod;
use crate::agent::protocol::LOG_LIMIT;
use crate::api::{FailurePolicy, ObjectRef, PhaseRun, PhaseRunStatus, RunResource, StepKind, StepState, StepStatus};
use crate::plan::message::with_causes;
use crate::plan::{message, order, undo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// The step that deletes what the resource's `apply` steps made.
const DELETE_APPLIED: &str = "delete-applied";
/// The longest pause between two tries of a step.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

pub(super) struct Execution {
    pub(super) engine: Arc<Engine>,
    pub(super) run: PhaseRun,
    pub(super) status: PhaseRunStatus,
    pub(super) outputs: Arc<Mutex<Outputs>>,
    /// For each resource that has scripts, its pod.
    pub(super) pods: BTreeMap<usize, Arc<StepPod>>,
    /// For each entry of `status.steps` its resource and, unless it is [`DELETE_APPLIED`], its step.
    pub(super) layout: Vec<(usize, Option<usize>)>,
    /// It has ended so many executors that no step of it is begun any more.
    worn_out: bool,
}

/// Executes a run from wherever it stands to its end.
pub(super) async fn execute(engine: Arc<Engine>, run: PhaseRun) -> Result<PhaseRun, EngineError> {
    let mut execution = Execution::prepare(engine, run).await?;
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
        let before = Life::from(&RunEntry::from(&run));
        let own = engine.replicas.own().to_string();
        let orphaned = before.executor.as_ref().is_some_and(|executor| !engine.replicas.is_alive(executor));
        let claimed = Event::Claimed { by: own.clone(), orphaned };
        let (life, effects) = life::transition(&before, &claimed)
            .map_err(|source| EngineError::Refused { run: run.name_any(), source })?;
        life.write_into(&mut status);
        status.started_at.get_or_insert_with(now);
        let is_takeover = before.executor.is_some_and(|executor| executor != own);
        let shared = Arc::new(run.clone());
        let pods = run
            .spec
            .resources
            .iter()
            .enumerate()
            .filter(|(_, resource)| resource.steps.iter().any(|step| step.script.is_some()))
            .map(|(index, _)| {
                let pod = StepPod::new(engine.client.clone(), engine.pods.clone(), &shared, index, own.clone());
                (index, Arc::new(pod))
            })
            .collect();
        let worn_out = effects.contains(&Effect::GiveUp);
        let outputs = Arc::new(Mutex::new(Outputs::default()));
        let mut execution = Self { engine, run, status, outputs, pods, layout, worn_out };
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

    async fn work(&mut self) -> Result<(), EngineError> {
        if self.worn_out {
            self.wear_out();
            return Ok(());
        }
        let started = self.status.started_at.as_ref().map_or_else(Timestamp::now, |t| t.0);
        let limit = Duration::from_secs(self.run.spec.timeout_seconds.into());
        let left = limit.saturating_sub(life::since(Some(started), Timestamp::now()));
        let deadline = tokio::time::Instant::now() + left;
        let mut expired = false;
        let mut tasks: JoinSet<(usize, Result<Done, Failure>)> = JoinSet::new();
        let mut begun: Vec<(usize, Job)> = Vec::new();
        // Steps that another executor had begun are joined, or done again.
        for index in 0..self.layout.len() {
            if self.status.steps[index].state == StepState::Running {
                self.begin(index, &mut begun).await;
            }
        }
        loop {
            while self.begin_ready(expired, &mut begun).await {}
            self.save().await?;
            for (index, job) in begun.drain(..) {
                tasks.spawn(async move { (index, job.await) });
            }
            if tasks.is_empty() {
                return Ok(());
            }
            tokio::select! {
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
                () = self.engine.stop.cancelled() => {
                    return Err(EngineError::Lost { run: self.run.name_any() });
                }
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.status.steps.iter().any(|step| step.state == StepState::Failed)
    }

    /// Whether the resource's next steps have no chance: one of its own has failed, or one of a resource whose failure
    /// denies the change. The failure of a resource that is ignored ends that one alone.
    fn is_hopeless(&self, resource: usize) -> bool {
        self.status.steps.iter().zip(&self.layout).any(|(step, (of, _))| {
            let denies = self.run.spec.resources[*of].failure_policy == FailurePolicy::Fail;
            step.state == StepState::Failed && (*of == resource || denies)
        })
    }

    /// Begins every step that can begin; tells whether one ended at once, so that others may be ready by it.
    async fn begin_ready(&mut self, expired: bool, begun: &mut Vec<(usize, Job)>) -> bool {
        let mut ended_at_once = false;
        for resource in 0..self.run.spec.resources.len() {
            let steps = self.run.spec.resources[resource].steps.clone();
            let base = self.layout.iter().position(|(r, _)| *r == resource).unwrap_or_default();
            if !self.is_hopeless(resource) && !expired {
                let states: Vec<_> = (0..steps.len()).map(|s| self.status.steps[base + s].state).collect();
                for step in order::ready(&steps, &states) {
                    self.begin(base + step, begun).await;
                    ended_at_once |= self.status.steps[base + step].state.is_ended();
                }
            }
            // What was applied goes though a script failed: nobody would ask for it again.
            let last = base + steps.len();
            let is_last = self.layout.get(last).is_some_and(|entry| *entry == (resource, None));
            let quiet = (base..last).all(|i| self.status.steps[i].state.is_ended())
                || (self.is_hopeless(resource)
                    && (base..last).all(|i| self.status.steps[i].state != StepState::Running));
            if is_last && quiet && !expired && self.status.steps[last].state == StepState::Pending {
                self.begin(last, begun).await;
            }
        }
        ended_at_once
    }

    /// Marks a step as running and makes its job; it is not started before that is saved.
    async fn begin(&mut self, index: usize, begun: &mut Vec<(usize, Job)>) {
        let fresh = self.status.steps[index].state == StepState::Pending;
        if fresh {
            let status = &mut self.status.steps[index];
            status.state = StepState::Running;
            status.attempt = 1;
            status.started_at = Some(now());
        }
        match self.job(index, fresh).await {
            Ok(Some(job)) => begun.push((index, job)),
            Ok(None) => {
                let status = &mut self.status.steps[index];
                status.state = StepState::Skipped;
                status.message = Some("when is false".to_owned());
                status.finished_at = Some(now());
            }
            Err(failure) => self.failed(index, failure),
        }
    }

    async fn ended(&mut self, index: usize, result: Result<Done, Failure>, begun: &mut Vec<(usize, Job)>) {
        let (resource_index, step_index) = self.layout[index];
        let resource = self.run.spec.resources[resource_index].clone();
        self.status.takeovers = 0;
        match result {
            Ok(done) => {
                let step = self.status.steps[index].step.clone();
                let status = &mut self.status.steps[index];
                status.state = StepState::Succeeded;
                status.finished_at = Some(now());
                status.exit_code = done.exit_code;
                status.message = done.message;
                status.outputs = done.outputs.keys().cloned().collect();
                let mut known = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
                for (output, content) in done.outputs {
                    known.insert((resource.name.clone(), step.clone(), output), content);
                }
                status.log = done.log.map(|log| message::tail(&known.masked(&log), LOG_LIMIT / 4));
            }
            Err(failure) => {
                let retries = step_index.and_then(|s| resource.steps[s].retries).unwrap_or(0);
                if self.status.steps[index].attempt > retries || self.is_hopeless(resource_index) {
                    self.failed(index, failure);
                    return;
                }
                let status = &mut self.status.steps[index];
                status.message = Some(format!("attempt {} failed: {}", status.attempt, with_causes(&failure.error)));
                let pause = Duration::from_secs(1 << (status.attempt - 1).min(5)).min(LONGEST_BACKOFF);
                status.attempt += 1;
                match self.job(index, false).await {
                    Ok(Some(job)) => begun.push((
                        index,
                        Box::pin(async move {
                            tokio::time::sleep(pause).await;
                            job.await
                        }),
                    )),
                    Ok(None) => {}
                    Err(failure) => self.failed(index, failure),
                }
            }
        }
    }

    fn failed(&mut self, index: usize, failure: Failure) {
        let known = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        let status = &mut self.status.steps[index];
        status.state = StepState::Failed;
        status.finished_at = Some(now());
        status.exit_code = failure.exit_code;
        status.message = Some(message::cut(&known.masked(&with_causes(&failure.error)), 1024));
        status.log = failure.log.map(|log| message::tail(&known.masked(&log), LOG_LIMIT / 2));
    }

    /// Fails every step that still runs: the phase's time is up.
    fn expire(&mut self) {
        let seconds = self.run.spec.timeout_seconds;
        for index in 0..self.layout.len() {
            if self.status.steps[index].state != StepState::Running {
                continue;
            }
            let waits_for = self.pods.get(&self.layout[index].0).and_then(|pod| pod.waits_for());
            let status = &mut self.status.steps[index];
            status.state = StepState::Failed;
            status.finished_at = Some(now());
            let why = waits_for.map_or_else(String::new, |why| format!("; its pod was waiting: {why}"));
            status.message = Some(format!("the phase's time limit of {seconds} s was reached{why}"));
        }
    }

    /// Fails the step that the run was at each time that its executor was lost.
    fn wear_out(&mut self) {
        let open = |step: &StepStatus| !step.state.is_ended();
        if let Some(step) = self.status.steps.iter_mut().find(|step| open(step)) {
            step.state = StepState::Failed;
            step.finished_at = Some(now());
            step.message = Some(format!(
                "given up: {} processes of Sluice in a row ended while they were at it; see their logs and why their pods ended",
                self.status.takeovers
            ));
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
        let (life, _) = life::transition(&Life::from(&before), &ended)
            .map_err(|source| EngineError::Refused { run: self.run.name_any(), source })?;
        life.write_into(&mut self.status);
        for run in undo::useless_outputs(&self.run.name_any(), &self.run.spec, &self.status, before.ignorable) {
            outputs::forget(&self.engine.client, &self.engine.settings.namespace, &run).await?;
        }
        self.save().await
    }

    fn with_status(&self) -> PhaseRun {
        PhaseRun { status: Some(self.status.clone()), ..self.run.clone() }
    }

    /// Writes the status, if it is another than what is stored and this process still is the executor.
    async fn save(&mut self) -> Result<(), EngineError> {
        while self.run.status.as_ref() != Some(&self.status) {
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
        Some(step) if step.apply.is_some() => (step.name.clone(), StepKind::Apply),
        Some(step) => (step.name.clone(), StepKind::Script),
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
    runs.flat_map(|run| &run.applied)
        .filter(|(r, s, _)| r == resource && step.is_none_or(|step| s == step))
        .map(|(_, _, object)| object.clone())
        .collect()
}
