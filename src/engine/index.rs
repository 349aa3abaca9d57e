//! What this replica knows of every run: a summary of each, fed by a watch and by this replica's own writes.
//!
//! Tens of thousands of ended runs fit in memory because the snapshots and workflows stay in the API server.

use super::life::{self, Asker};
use crate::api::{Admitted, ObjectRef, Phase, PhaseRun, RunResource, RunState, StepState, TargetRef, labels};
use crate::plan::key;
use crate::plan::queue::Use;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;

/// What decisions about a run need of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunEntry {
    pub name: String,
    /// The UID of the run itself.
    pub id: String,
    pub resource_version: String,
    pub phase: Option<Phase>,
    pub key: String,
    pub attempt: u32,
    pub target: TargetRef,
    pub timeout_seconds: u32,
    pub routing_key: Option<String>,
    pub requested_by: Option<String>,
    pub compensates: Option<String>,
    /// Whether it runs before the target itself is deleted, not before a resource leaves it.
    pub removes_target: bool,
    /// Who asked for it.
    pub asked_by: Asker,
    /// What tells runs apart that do other work: a hash of phase and workflows.
    pub work: u64,
    /// A hash of the spec that the target has after the change.
    pub spec_hash: String,
    /// The generation of the snapshot that the run was planned with.
    pub generation: i64,
    pub created_at: Option<Timestamp>,
    pub state: RunState,
    /// The process that wrote it.
    pub begun_by: Option<String>,
    pub executor: Option<String>,
    pub takeovers: u32,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub message: Option<String>,
    pub admitted: Option<Admitted>,
    pub also_admitted: Vec<Admitted>,
    /// When a client was told of the failure.
    pub reported_at: Option<Timestamp>,
    pub compensated_by: Option<String>,
    /// `RESOURCE/STEP` that runs now, its place and how many there are.
    pub current: Option<(String, usize, usize)>,
    /// What is known of that step beside, as what its pod waits for.
    pub current_message: Option<String>,
    /// Resource, step and output.
    pub outputs: Vec<(String, String, String)>,
    /// Resource, step and object.
    pub applied: Vec<(String, String, ObjectRef)>,
    /// The resources whose `failurePolicy` lets a change through though the phase failed.
    pub ignorable: bool,
    /// The plugins that an open run works with.
    pub uses: Vec<Use>,
}

impl RunEntry {
    /// Every request that was let through on the strength of the run, newest first.
    pub fn admissions(&self) -> impl Iterator<Item = &Admitted> {
        self.admitted.iter().chain(self.also_admitted.iter())
    }

    /// Whether the run is of the object with this UID, or may be.
    pub fn may_be_of(&self, uid: &str) -> bool {
        self.target.uid.as_deref() == Some(uid) || self.admissions().any(|a| a.uid == uid)
    }

    /// How old what is known of the run is: greater is newer (resource versions of one kind can be compared as
    /// numbers, KEP-5504).
    pub fn version(&self) -> u64 {
        self.resource_version.parse().unwrap_or_default()
    }

    /// Whether nothing is left to do for it: it ended, its change is stored or given up, and what it did is undone
    /// where it must be.
    pub fn is_over(&self) -> bool {
        !(self.state.is_open() || self.awaits_commit() || self.owes_undo())
    }

    /// Whether it is a pre-phase that passed, and its change not known to be stored or given up.
    pub fn awaits_commit(&self) -> bool {
        let passed = self.state == RunState::Succeeded || (self.state == RunState::Failed && self.ignorable);
        self.phase.is_some_and(Phase::is_pre) && self.compensates.is_none() && passed
    }

    /// Whether what it did is to be undone, and that has not succeeded yet.
    pub fn owes_undo(&self) -> bool {
        self.compensated_by.is_some() && matches!(self.state, RunState::Failed | RunState::Abandoned)
    }

    /// How long its steps took; none before they have ended.
    pub fn took(&self) -> Option<Duration> {
        self.finished_at.map(|finished| life::since(self.started_at, finished))
    }

    /// The UID of the object that the run is known to be of.
    pub fn uid(&self) -> Option<&str> {
        self.admitted.as_ref().map(|a| a.uid.as_str()).or(self.target.uid.as_deref())
    }
}

impl From<&PhaseRun> for RunEntry {
    fn from(run: &PhaseRun) -> Self {
        let status = run.status.clone().unwrap_or_default();
        let moment =
            |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime>| time.as_ref().map(|t| t.0);
        let running = status.steps.iter().position(|s| s.state == StepState::Running);
        let current = running
            .map(|at| (format!("{}/{}", status.steps[at].resource, status.steps[at].step), at + 1, status.steps.len()));
        let current_message = running.and_then(|at| status.steps[at].message.clone());
        let steps = || status.steps.iter();
        let failing = steps().filter(|s| s.has_failed()).map(|s| &s.resource);
        let ignorable = failing.clone().next().is_some()
            && failing.into_iter().all(|name| {
                run.spec
                    .resources
                    .iter()
                    .any(|r| r.name == *name && r.failure_policy == crate::api::FailurePolicy::Ignore)
            });
        Self {
            name: run.name_any(),
            id: run.metadata.uid.clone().unwrap_or_default(),
            resource_version: run.resource_version().unwrap_or_default(),
            phase: Some(run.spec.phase),
            key: run.spec.key.clone(),
            attempt: run.spec.attempt,
            target: run.spec.target.clone(),
            timeout_seconds: run.spec.timeout_seconds,
            routing_key: run.spec.routing_key.clone(),
            requested_by: run.spec.requested_by.clone(),
            compensates: run.spec.compensates.clone(),
            removes_target: run.spec.phase == Phase::PreDelete
                && run.spec.old_object.is_none()
                && run.spec.compensates.is_none(),
            asked_by: Asker::of(run.spec.requested_by.as_deref(), None),
            work: key::work(run.spec.phase, &run.spec.resources),
            spec_hash: key::hash(&run.spec.object["spec"]),
            generation: run.spec.object["metadata"]["generation"].as_i64().unwrap_or_default(),
            created_at: run.metadata.creation_timestamp.as_ref().map(|t| t.0),
            state: status.state,
            begun_by: run.annotations().get(labels::BEGUN_BY).cloned(),
            executor: status.executor.clone(),
            takeovers: status.takeovers,
            started_at: moment(&status.started_at),
            finished_at: moment(&status.finished_at),
            message: status.message.clone(),
            admitted: status.admitted.clone(),
            also_admitted: status.also_admitted.clone(),
            reported_at: moment(&status.reported_at),
            compensated_by: status.compensated_by.clone(),
            current,
            current_message,
            outputs: steps()
                .flat_map(|s| s.outputs.iter().map(|o| (s.resource.clone(), s.step.clone(), o.clone())))
                .collect(),
            applied: steps()
                .flat_map(|s| s.applied.iter().map(|o| (s.resource.clone(), s.step.clone(), o.clone())))
                .collect(),
            ignorable,
            uses: if status.state.is_open() { run.spec.resources.iter().map(uses).collect() } else { Vec::new() },
        }
    }
}

/// What counts towards the limits of a plugin and of a runner namespace.
pub fn uses(resource: &RunResource) -> Use {
    Use {
        plugin: resource.plugin.split('.').next().unwrap_or_default().to_owned(),
        namespace: resource.runner.namespace.clone().unwrap_or_default(),
        most: resource.max_running.map(|most| most as usize),
    }
}

#[derive(Default)]
struct Entries {
    by_name: HashMap<String, Arc<RunEntry>>,
    by_key: HashMap<String, BTreeMap<u32, String>>,
    by_target: HashMap<(String, String), BTreeSet<String>>,
    open: HashSet<String>,
    /// Those that the watch has shown: every run that was written before one of them is known too.
    watched: HashSet<String>,
    /// The UIDs of runs that were deleted last: several watches and reads tell of a run, and one that is late must not
    /// bring it back.
    gone: VecDeque<String>,
    /// How long work of a kind took when it was done last.
    took: HashMap<u64, VecDeque<Duration>>,
}

/// How many deleted runs are remembered: more than are deleted while news is on its way.
const GONE_KEPT: usize = 256;

/// How many times are remembered for work of a kind, and for how many kinds.
const TIMES_KEPT: usize = 5;
const KINDS_KEPT: usize = 4096;

/// Every run that is known, and a way to wait for news of them.
pub struct RunIndex {
    entries: RwLock<Entries>,
    changed: watch::Sender<u64>,
}

impl Default for RunIndex {
    fn default() -> Self {
        Self { entries: RwLock::default(), changed: watch::channel(0).0 }
    }
}

impl RunIndex {
    /// Takes in a run as it was read. What is older than what is known is passed over.
    pub fn observe(&self, run: &PhaseRun) -> Arc<RunEntry> {
        let entry = Arc::new(RunEntry::from(run));
        {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            if entries.gone.contains(&entry.id) {
                return entry;
            }
            if let Some(known) = entries.by_name.get(&entry.name)
                && known.version() > entry.version()
            {
                return known.clone();
            }
            entries.by_key.entry(entry.key.clone()).or_default().insert(entry.attempt, entry.name.clone());
            let target = (entry.target.namespace.clone(), entry.target.name.clone());
            entries.by_target.entry(target).or_default().insert(entry.name.clone());
            let known = entries.by_name.insert(entry.name.clone(), entry.clone());
            if entry.state.is_open() {
                entries.open.insert(entry.name.clone());
            } else {
                entries.open.remove(&entry.name);
            }
            if entry.executor.is_some() {
                entries.watched.remove(&entry.name);
            }
            let has_ended = known.is_none_or(|known| known.state.is_open()) && !entry.state.is_open();
            if let Some(took) = entry.took().filter(|_| has_ended && entry.state != RunState::Failed) {
                entries.remember(entry.work, took);
            }
        }
        self.changed.send_modify(|n| *n += 1);
        entry
    }

    /// Takes in a run as the watch shows it, so in the order in which runs were written.
    pub fn observe_watched(&self, run: &PhaseRun) {
        let known = self.observe(run);
        // Late news of one that was taken back says nothing of another of that name.
        if run.metadata.uid.as_ref().is_none_or(|uid| *uid == known.id) {
            self.mark_watched([run.name_any()]);
        }
    }

    /// Takes in that the watch has shown a run's deletion.
    pub fn forget_watched(&self, run: &PhaseRun) {
        let name = run.name_any();
        if self.get(&name).is_some_and(|known| run.metadata.uid.as_ref().is_none_or(|uid| *uid == known.id)) {
            self.forget(&name);
        }
    }

    /// Notes that the watch has shown these, and all that were written before them.
    pub fn mark_watched(&self, names: impl IntoIterator<Item = String>) {
        {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            let Entries { by_name, watched, .. } = &mut *entries;
            // Whoever began one waits for this until it is begun, and nobody afterwards.
            let waits = |name: &String| by_name.get(name).is_some_and(|run| run.executor.is_none());
            watched.extend(names.into_iter().filter(waits));
        }
        self.changed.send_modify(|n| *n += 1);
    }

    /// Waits until the watch has shown this run, which was written and not begun, so that every run is known that was
    /// written before it; or until it is another's or gone.
    pub async fn until_watched(&self, name: &str) {
        let mut changes = self.changes();
        let waits = || {
            let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
            entries.by_name.get(name).is_some_and(|run| run.executor.is_none()) && !entries.watched.contains(name)
        };
        while waits() {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// How long work of this kind usually takes: the median of the last times that it succeeded.
    pub fn usually_takes(&self, work: u64) -> Option<Duration> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut times: Vec<_> = entries.took.get(&work)?.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }

    /// Forgets a run that was deleted.
    pub fn forget(&self, name: &str) {
        if let Some(entry) = self.take_out(name).filter(|entry| !entry.id.is_empty()) {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            entries.gone.push_front(entry.id.clone());
            entries.gone.truncate(GONE_KEPT);
        }
    }

    fn take_out(&self, name: &str) -> Option<Arc<RunEntry>> {
        let entry = {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            let entry = entries.by_name.remove(name)?;
            entries.watched.remove(name);
            entries.open.remove(name);
            if let Some(attempts) = entries.by_key.get_mut(&entry.key) {
                attempts.remove(&entry.attempt);
                if attempts.is_empty() {
                    entries.by_key.remove(&entry.key);
                }
            }
            let target = (entry.target.namespace.clone(), entry.target.name.clone());
            if let Some(names) = entries.by_target.get_mut(&target) {
                names.remove(name);
                if names.is_empty() {
                    entries.by_target.remove(&target);
                }
            }
            entry
        };
        self.changed.send_modify(|n| *n += 1);
        Some(entry)
    }

    /// Forgets every run that a fresh list no longer has.
    pub fn retain(&self, listed: &BTreeSet<String>) {
        let gone: Vec<String> = {
            let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
            entries.by_name.keys().filter(|name| !listed.contains(*name)).cloned().collect()
        };
        // One of them may have been written after the list, and come by the watch.
        gone.iter().for_each(|name| drop(self.take_out(name)));
    }

    pub fn get(&self, name: &str) -> Option<Arc<RunEntry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).by_name.get(name).cloned()
    }

    /// The newest attempt of a key.
    pub fn latest(&self, key: &str) -> Option<Arc<RunEntry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let (_, name) = entries.by_key.get(key)?.last_key_value()?;
        entries.by_name.get(name).cloned()
    }

    /// The newest attempt to undo a run.
    pub fn undo_of(&self, run: &str) -> Option<Arc<RunEntry>> {
        self.latest(&key::of_undo(run))
    }

    /// Every run of a target's name, oldest first, of whatever UID.
    pub fn of_name(&self, namespace: &str, name: &str) -> Vec<Arc<RunEntry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let names = entries.by_target.get(&(namespace.to_owned(), name.to_owned()));
        let mut runs: Vec<_> = names.into_iter().flatten().filter_map(|n| entries.by_name.get(n).cloned()).collect();
        runs.sort_by_key(|run| (run.started_at.or(run.created_at), run.attempt));
        runs
    }

    /// Every run of one object, oldest first; those of creates that were never stored are not of it.
    pub fn of_target(&self, target: &TargetRef) -> Vec<Arc<RunEntry>> {
        let mut runs = self.of_name(&target.namespace, &target.name);
        runs.retain(|run| target.uid.as_deref().is_some_and(|uid| run.may_be_of(uid)));
        runs
    }

    /// Every run whose steps have not all ended.
    pub fn open(&self) -> Vec<Arc<RunEntry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.open.iter().filter_map(|name| entries.by_name.get(name).cloned()).collect()
    }

    /// Every run that matches.
    pub fn filter(&self, matches: impl Fn(&RunEntry) -> bool) -> Vec<Arc<RunEntry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.by_name.values().filter(|entry| matches(entry)).cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells of every change of any run.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Waits until `done` finds what it looks for in the newest entry of `name`. Ends only with that.
    pub async fn wait_for<T>(&self, name: &str, done: impl Fn(Option<&RunEntry>) -> Option<T>) -> T {
        let mut changes = self.changes();
        loop {
            if let Some(found) = done(self.get(name).as_deref()) {
                return found;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Entries {
    fn remember(&mut self, work: u64, took: Duration) {
        if self.took.len() >= KINDS_KEPT && !self.took.contains_key(&work) {
            self.took.clear();
        }
        let times = self.took.entry(work).or_default();
        times.push_back(took);
        if times.len() > TIMES_KEPT {
            times.pop_front();
        }
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
