//! A run as it is kept in memory: what decisions about it need, and no more.

use super::life::{self, Asker};
use crate::api::{
    Admitted, FailurePolicy, ObjectRef, Phase, PhaseRun, RunResource, RunState, StepState, TargetRef, labels, origin,
};
use crate::plan::key;
use crate::plan::queue::Use;
use crate::plan::room;
use crate::plan::runs::PlannedRun;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// What decisions about a run need of it. What is mostly the same in all runs of a target is shared by them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunEntry {
    pub name: String,
    /// The UID of the run itself.
    pub id: String,
    /// How old what is known of the run is: greater is newer (resource versions of one kind can be compared as
    /// numbers, KEP-5504).
    pub version: u64,
    pub phase: Option<Phase>,
    pub key: Arc<str>,
    pub attempt: u32,
    pub target: Arc<TargetRef>,
    pub timeout_seconds: u32,
    pub routing_key: Option<Arc<str>>,
    pub requested_by: Option<Arc<str>>,
    pub compensates: Option<String>,
    /// Whether it runs before the target itself is deleted, not before a resource leaves it.
    pub removes_target: bool,
    /// Who asked for it.
    pub asked_by: Asker,
    /// What tells runs apart that do other work: a hash of phase and workflows.
    pub work: u64,
    /// A hash of the spec that the target has after the change.
    pub spec_hash: Arc<str>,
    /// The generation of the snapshot that the run was planned with.
    pub generation: i64,
    pub created_at: Option<Timestamp>,
    pub state: RunState,
    /// The process that wrote it.
    pub begun_by: Option<Arc<str>>,
    pub executor: Option<Arc<str>>,
    pub takeovers: u32,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub message: Option<Arc<str>>,
    pub admitted: Option<Admitted>,
    pub also_admitted: Vec<Admitted>,
    /// When a client was told of the failure.
    pub reported_at: Option<Timestamp>,
    pub compensated_by: Option<String>,
    /// `RESOURCE/STEP` that runs now, its place and how many there are.
    pub current: Option<Box<(String, usize, usize)>>,
    /// What is known of that step beside, as what its pod waits for.
    pub current_message: Option<Box<str>>,
    /// Resource, step and output.
    pub outputs: Arc<[(String, String, String)]>,
    /// Resource, step and object.
    pub applied: Arc<[(String, String, ObjectRef)]>,
    /// The resources whose `failurePolicy` lets a change through though the phase failed.
    pub ignorable: bool,
    /// The plugins that an open run works with.
    pub uses: Vec<Use>,
    /// Whether Sluice did not write it in this cluster, so that nothing is done for it.
    pub is_inert: bool,
    /// The bytes of the whole run as JSON, about what it takes in etcd.
    pub size: usize,
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

    /// Whether the run is of this planned phase of this change, and not of another that has the same key: whoever could
    /// make two such changes would pass the phase of one with the other.
    pub fn is_of(&self, planned: &PlannedRun) -> bool {
        let target = &planned.target;
        let is_same = |one: &TargetRef| {
            (&one.api_version, &one.kind, &one.namespace, &one.name)
                == (&target.api_version, &target.kind, &target.namespace, &target.name)
        };
        // As in the key: the UID of a create is another in each attempt, and a deletion is one whatever the spec.
        let is_same_object = planned.phase == Phase::PreCreate || self.target.uid == target.uid;
        let is_same_spec = self.removes_target || *self.spec_hash == *key::hash(&planned.object["spec"]);
        self.phase == Some(planned.phase) && is_same(&self.target) && is_same_object && is_same_spec
    }

    /// Whether it is of a create that is not known to be stored, or undoes one: no quota counts what was refused.
    pub fn is_of_unstored_create(&self) -> bool {
        self.target.uid.is_none() && self.state != RunState::Committed
    }

    /// Whether nothing is left to do for it: it ended, its change is stored or given up, and what it did is undone
    /// where it must be.
    pub fn is_over(&self) -> bool {
        !(self.state.is_open() || self.awaits_commit() || self.owes_undo())
    }

    /// Whether it is a pre-phase that passed, and its change not known to be stored or given up.
    pub fn awaits_commit(&self) -> bool {
        life::Role::of(self).awaits_commit(self.state, self.ignorable)
    }

    /// Whether what it did is to be undone, and that has not succeeded yet.
    pub fn owes_undo(&self) -> bool {
        self.compensated_by.is_some() && matches!(self.state, RunState::Failed | RunState::Abandoned)
    }

    /// How long its steps took; none before they have ended.
    pub fn took(&self) -> Option<Duration> {
        self.finished_at.map(|finished| life::since(self.started_at, finished))
    }

    /// The resources and steps that have left outputs.
    pub fn left_outputs(&self) -> BTreeSet<(String, String)> {
        self.outputs.iter().map(|(resource, step, _)| (resource.clone(), step.clone())).collect()
    }

    /// Whether what its steps left is of the object as it is stored at `generation`: not of a change that is still on
    /// its way, was refused, or is undone.
    pub fn is_of_stored(&self, generation: i64) -> bool {
        let is_pre = self.phase.is_some_and(Phase::is_pre);
        match self.state {
            _ if self.compensates.is_some() => false,
            RunState::Pending | RunState::Running | RunState::Abandoned | RunState::Compensated | RunState::Inert => {
                false
            }
            _ if self.awaits_commit() => self.admissions().any(|admitted| admitted.generation <= generation),
            RunState::Failed => !is_pre,
            RunState::Succeeded | RunState::Committed => true,
        }
    }

    /// Takes what is the same in another run of the target from there.
    pub(super) fn share_with(&mut self, other: &Self) {
        fn share<T: PartialEq + ?Sized>(own: &mut Arc<T>, other: &Arc<T>) {
            if own == other {
                own.clone_from(other);
            }
        }
        share(&mut self.target, &other.target);
        share(&mut self.spec_hash, &other.spec_hash);
        share(&mut self.outputs, &other.outputs);
        share(&mut self.applied, &other.applied);
        let texts = [
            (&mut self.routing_key, &other.routing_key),
            (&mut self.requested_by, &other.requested_by),
            (&mut self.begun_by, &other.begun_by),
            (&mut self.executor, &other.executor),
            (&mut self.message, &other.message),
        ];
        for (own, other) in texts {
            if let (Some(own), Some(other)) = (own, other) {
                share(own, other);
            }
        }
    }

    /// The UID of the object that the run is known to be of.
    pub fn uid(&self) -> Option<&str> {
        self.admitted.as_ref().map(|a| a.uid.as_str()).or(self.target.uid.as_deref())
    }
}

impl From<&PhaseRun> for RunEntry {
    fn from(run: &PhaseRun) -> Self {
        let status = run.status.clone().unwrap_or_default();
        let moment = |time: &Option<MicroTime>| time.as_ref().map(|t| t.0);
        let running = status.steps.iter().position(|s| s.state == StepState::Running);
        let current_message = running.and_then(|at| status.steps[at].message.as_deref()).map(Box::from);
        let current = running.map(|at| {
            let step = format!("{}/{}", status.steps[at].resource, status.steps[at].step);
            Box::new((step, at + 1, status.steps.len()))
        });
        let has_begun = status.executor.is_some() || status.state != RunState::default();
        let steps = || status.steps.iter();
        let failing = steps().filter(|s| s.has_failed()).map(|s| &s.resource);
        let ignorable = failing.clone().next().is_some()
            && failing.into_iter().all(|name| {
                run.spec.resources.iter().any(|r| r.name == *name && r.failure_policy == FailurePolicy::Ignore)
            });
        Self {
            name: run.name_any(),
            id: run.metadata.uid.clone().unwrap_or_default(),
            version: run.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default(),
            phase: Some(run.spec.phase),
            key: run.spec.key.as_str().into(),
            attempt: run.spec.attempt,
            target: Arc::new(run.spec.target.clone()),
            timeout_seconds: run.spec.timeout_seconds,
            routing_key: run.spec.routing_key.as_deref().map(Arc::from),
            requested_by: run.spec.requested_by.as_deref().map(Arc::from),
            compensates: run.spec.compensates.clone(),
            removes_target: run.spec.phase == Phase::PreDelete
                && run.spec.old_object.is_none()
                && run.spec.compensates.is_none(),
            asked_by: Asker::of(run.spec.requested_by.as_deref(), None),
            work: key::work(run.spec.phase, &run.spec.resources),
            spec_hash: key::hash(&run.spec.object["spec"]).into(),
            generation: run.spec.object["metadata"]["generation"].as_i64().unwrap_or_default(),
            created_at: run.metadata.creation_timestamp.as_ref().map(|t| t.0),
            state: status.state,
            begun_by: run.annotations().get(labels::BEGUN_BY).map(|by| by.as_str().into()),
            executor: status.executor.as_deref().map(Arc::from),
            takeovers: status.takeovers,
            started_at: moment(&status.started_at),
            finished_at: moment(&status.finished_at),
            message: status.message.as_deref().map(Arc::from),
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
            is_inert: status.state == RunState::Inert || !origin::is_own_run(&run.metadata, has_begun),
            uses: if status.state.is_open() { run.spec.resources.iter().map(uses).collect() } else { Vec::new() },
            size: room::size(run),
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn run(phase: Phase, state: RunState, admitted: Option<i64>) -> RunEntry {
        let admitted = admitted.map(|generation| Admitted { generation, ..Admitted::default() });
        RunEntry { phase: Some(phase), state, admitted, ..RunEntry::default() }
    }

    #[rstest]
    #[case::stored(Phase::PreUpdate, RunState::Committed, Some(2), true)]
    #[case::stored_but_not_yet_marked(Phase::PreUpdate, RunState::Succeeded, Some(3), true)]
    #[case::first_stored_this_moment(Phase::PreCreate, RunState::Succeeded, Some(1), true)]
    #[case::on_its_way(Phase::PreUpdate, RunState::Succeeded, Some(4), false)]
    #[case::not_let_through(Phase::PreUpdate, RunState::Succeeded, None, false)]
    #[case::at_work(Phase::PreUpdate, RunState::Running, None, false)]
    #[case::refused(Phase::PreUpdate, RunState::Failed, None, false)]
    #[case::given_up(Phase::PreUpdate, RunState::Abandoned, Some(4), false)]
    #[case::undone(Phase::PreUpdate, RunState::Compensated, Some(4), false)]
    #[case::after_it(Phase::PostUpdate, RunState::Succeeded, None, true)]
    #[case::after_it_in_vain(Phase::PostUpdate, RunState::Failed, None, true)]
    fn a_fork_is_given_outputs_of_what_is_stored_alone(
        #[case] phase: Phase,
        #[case] state: RunState,
        #[case] admitted: Option<i64>,
        #[case] expected: bool,
    ) {
        assert_eq!(run(phase, state, admitted).is_of_stored(3), expected);
        let undo = RunEntry { compensates: Some("r".into()), ..run(phase, state, admitted) };
        assert!(!undo.is_of_stored(3));
    }
}
