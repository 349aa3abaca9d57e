//! How a run gets on: which steps begin, and what becomes of each.

use super::error::StepError;
use super::execute::{Execution, now};
use super::jobs::{Done, Failure, Job};
use crate::agent::protocol::LOG_LIMIT;
use crate::api::{FailurePolicy, StepKind, StepState, StepStatus};
use crate::plan::message::with_causes;
use crate::plan::{message, order};
use std::sync::PoisonError;
use std::time::Duration;

/// What a step's message begins with whose pod has not begun.
const ITS_POD: &str = "its pod waits: ";
/// The longest pause between two tries of a step.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

impl Execution {
    pub(super) fn has_failed(&self) -> bool {
        self.status.steps.iter().any(StepStatus::has_failed)
    }

    /// Whether the resource's next steps have no chance: one of its own has failed, or one of a resource whose failure
    /// denies the change. The failure of a resource that is ignored ends that one alone.
    pub(super) fn is_hopeless(&self, resource: usize) -> bool {
        self.status.steps.iter().zip(&self.layout).any(|(step, (of, _))| {
            let denies = self.run.spec.resources[*of].failure_policy == FailurePolicy::Fail;
            step.has_failed() && (*of == resource || denies)
        })
    }

    /// Begins every step that can begin; tells whether one ended at once, so that others may be ready by it.
    pub(super) async fn begin_ready(&mut self, expired: bool, begun: &mut Vec<(usize, Job)>) -> bool {
        let mut ended_at_once = false;
        for resource in 0..self.run.spec.resources.len() {
            let steps = self.run.spec.resources[resource].steps.clone();
            let base = self.layout.iter().position(|(r, _)| *r == resource).unwrap_or_default();
            if !self.is_hopeless(resource) && !expired {
                let state = |step: &StepStatus| if step.tolerated { StepState::Skipped } else { step.state };
                let states: Vec<_> = self.status.steps[base..base + steps.len()].iter().map(state).collect();
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
    pub(super) async fn begin(&mut self, index: usize, begun: &mut Vec<(usize, Job)>) {
        let fresh = self.status.steps[index].state == StepState::Pending;
        // Where it is stored that the resource was begun, and which objects the step will have, whoever goes on with the
        // run knows enough: the agent tells of scripts that began, and the rest can be done again.
        let resource = self.layout[index].0;
        let was_begun =
            self.status.steps.iter().zip(&self.layout).any(|(step, (of, _))| *of == resource && step.attempt > 0);
        if fresh {
            let status = &mut self.status.steps[index];
            status.state = StepState::Running;
            status.attempt = 1;
            status.started_at = Some(now());
        }
        if let Some(job) = self.foreseen.remove(&index) {
            begun.push((index, job));
            return;
        }
        self.must_save |= !was_begun || self.status.steps[index].kind == StepKind::Http;
        match self.job(index, fresh).await {
            Ok(Some(job)) => {
                begun.push((index, job));
                if self.status.steps[index].kind == StepKind::Apply {
                    self.must_save = true;
                    self.foresee(resource).await;
                }
            }
            Ok(None) => {
                let status = &mut self.status.steps[index];
                status.state = StepState::Skipped;
                status.message = Some("when is false".to_owned());
                status.finished_at = Some(now());
            }
            Err(failure) => self.failed(index, failure),
        }
    }

    /// Prepares the `apply` steps of a resource that wait for no other than `apply` steps: their objects are known now, so
    /// that one write says it of all of them.
    pub(super) async fn foresee(&mut self, resource: usize) {
        let base = self.layout.iter().position(|(of, _)| *of == resource).unwrap_or_default();
        let steps = self.run.spec.resources[resource].steps.clone();
        let dependencies = order::dependencies(&steps);
        // A step that another one needs stands before it in most plugins; where it does not, its turn comes later.
        for (step, needed) in dependencies.iter().enumerate() {
            let is_known = |needed: &usize| {
                let status = &self.status.steps[base + needed];
                status.state.is_ended()
                    || status.kind == StepKind::Apply && status.state == StepState::Running
                    || self.foreseen.contains_key(&(base + needed))
            };
            let status = &self.status.steps[base + step];
            let waits = status.kind == StepKind::Apply && status.state == StepState::Pending;
            if !waits || self.foreseen.contains_key(&(base + step)) || !needed.iter().all(is_known) {
                continue;
            }
            // What cannot be prepared is done, or fails, when its turn comes.
            if let Ok(Some(job)) = self.job(base + step, true).await {
                self.foreseen.insert(base + step, job);
            }
        }
    }

    pub(super) async fn ended(&mut self, index: usize, result: Result<Done, Failure>, begun: &mut Vec<(usize, Job)>) {
        let (resource_index, step_index) = self.layout[index];
        let resource = self.run.spec.resources[resource_index].clone();
        self.status.takeovers = 0;
        // What may not be done twice is written down at once.
        self.must_save |= self.status.steps[index].kind == StepKind::Http;
        match result {
            Ok(done) => {
                let step = self.status.steps[index].step.clone();
                let status = &mut self.status.steps[index];
                status.state = StepState::Succeeded;
                status.finished_at = Some(now());
                status.exit_code = done.exit_code;
                status.outputs = done.outputs.keys().cloned().collect();
                let mut known = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
                for (output, content) in done.outputs {
                    known.insert((resource.name.clone(), step.clone(), output), content);
                }
                status.message = done.message.map(|message| known.masked(&message));
                status.log = done.log.map(|log| message::tail(&known.masked(&log), LOG_LIMIT / 4));
            }
            Err(failure) => {
                if !matches!(failure.error, StepError::Unwritten(_)) {
                    self.written.insert(index);
                }
                let retries = step_index.and_then(|s| resource.steps[s].retries).unwrap_or(0);
                if self.status.steps[index].attempt > retries || self.is_hopeless(resource_index) {
                    self.failed(index, failure);
                    return;
                }
                let why = self.masked(&with_causes(&failure.error));
                let status = &mut self.status.steps[index];
                status.message = Some(format!("attempt {} failed: {why}", status.attempt));
                let pause = Duration::from_secs(1 << (status.attempt - 1).min(5)).min(LONGEST_BACKOFF);
                status.attempt += 1;
                self.must_save = true;
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

    /// Why a step failed, fit to be read by everybody.
    fn masked(&self, why: &str) -> String {
        message::cut(&self.known_outputs().masked(why), 1024)
    }

    pub(super) fn failed(&mut self, index: usize, failure: Failure) {
        let (resource, step) = self.layout[index];
        let tolerated = step.is_some_and(|step| self.run.spec.resources[resource].steps[step].continue_on_error);
        let message = self.masked(&with_causes(&failure.error));
        let log = failure.log.map(|log| message::tail(&self.known_outputs().masked(&log), LOG_LIMIT / 2));
        let status = &mut self.status.steps[index];
        status.state = StepState::Failed;
        status.tolerated = tolerated;
        status.finished_at = Some(now());
        status.exit_code = failure.exit_code;
        status.message = Some(message);
        status.log = log;
        self.forget_unwritten(index);
    }

    /// What the pod of a step waits for, where it has not begun.
    fn waits_for(&self, index: usize) -> Option<String> {
        let step = &self.status.steps[index];
        self.pods.get(&self.layout[index].0)?.waits_for(&step.step, step.attempt)
    }

    /// Says of each step that runs what its pod waits for, while it does: who waits for the run is told.
    pub(super) fn tell_what_pods_wait_for(&mut self) {
        for index in 0..self.layout.len() {
            let waits_for = self.waits_for(index).map(|why| message::cut(&format!("{ITS_POD}{why}"), 1024));
            let status = &mut self.status.steps[index];
            let told = status.message.as_ref().is_some_and(|message| message.starts_with(ITS_POD));
            if status.state == StepState::Running && (waits_for.is_some() || told) {
                status.message = waits_for;
            }
        }
    }

    /// Lets the pods go of tries whose end is stored: nobody asks for it again.
    pub(super) fn release_pods(&self) {
        let stored = self.run.status.iter().flat_map(|status| &status.steps);
        for (step, (resource, _)) in stored.zip(&self.layout) {
            if let Some(pods) = self.pods.get(resource) {
                pods.release(&step.step, (!step.state.is_ended()).then_some(step.attempt));
            }
        }
    }

    /// Fails every step that still runs: the phase's time is up.
    pub(super) fn expire(&mut self) {
        let seconds = self.run.spec.timeout_seconds;
        for index in 0..self.layout.len() {
            if self.status.steps[index].state != StepState::Running {
                continue;
            }
            let waits_for = self.waits_for(index);
            let status = &mut self.status.steps[index];
            status.state = StepState::Failed;
            status.finished_at = Some(now());
            let why = waits_for.map_or_else(String::new, |why| format!("; its pod was waiting: {why}"));
            status.message = Some(format!("the phase's time limit of {seconds} s was reached{why}"));
        }
    }

    /// Fails the step that the run was at each time that its executor was lost.
    pub(super) fn wear_out(&mut self) {
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
}
