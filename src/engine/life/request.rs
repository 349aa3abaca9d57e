//! What a request for a change does, given the runs of its target.

use super::fate::{Stored, is_for_the_leader, is_proven};
use super::{UNDO_ATTEMPTS, since};
use crate::api::{Phase, RunState};
use crate::engine::index::RunEntry;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// How long a failure that no client has heard of is told to the next one, rather than tried again.
pub const FAILURE_TTL: Duration = Duration::from_secs(60);

/// How long a failure is told again after it was told first. The API server repeats an update or a deletion by itself
/// when its copy of the object was not the newest, denied or not; that is no new try. No person is as fast.
pub const TOLD_AGAIN_WITHIN: Duration = Duration::from_secs(1);

/// After this long an undo that is not there is history, not late.
const UNDO_WRITTEN_WITHIN: Duration = Duration::from_secs(600);

/// The pause after the first failure of a deletion that a machine asks for again and again; each further one is three
/// times as long.
const FIRST_MACHINE_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_MACHINE_PAUSE: Duration = Duration::from_secs(600);

/// How often a pre-delete may fail that the cluster's own cleaning up asks for, before the object is let go.
pub const CLEANUP_ATTEMPTS: u32 = 3;

/// Who asks for a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Asker {
    /// Somebody who reads what is answered, or a program on their behalf: each request is a new try.
    #[default]
    Person,
    /// Sluice itself, which asks again until it succeeds.
    Sluice,
    /// The cluster's own cleaning up, of a namespace or of what an owner left. It asks every few seconds, reads no
    /// answer, and whatever waits for it waits for ever.
    Cleanup,
}

/// The users that the cluster's own cleaning up asks as; the last where controllers share one.
const CLEANERS: [&str; 3] = [
    "system:serviceaccount:kube-system:namespace-controller",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:kube-controller-manager",
];

impl Asker {
    /// Who a user is. `own` is what Sluice is called itself.
    pub fn of(user: Option<&str>, own: Option<&str>) -> Self {
        match user {
            Some(user) if CLEANERS.contains(&user) => Self::Cleanup,
            Some(user) if own == Some(user) => Self::Sluice,
            _ => Self::Person,
        }
    }
}

/// A request, as far as it counts.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    pub by: Asker,
    /// The target as the request itself shows it stored.
    pub stored: Option<&'a Stored>,
    pub now: Timestamp,
}

/// What a request for a change does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Begin this attempt.
    Start { attempt: u32 },
    /// Wait for this run, which is open.
    Join { run: String },
    /// The run has succeeded: let the request through on its strength.
    Reuse { run: String },
    /// The run has failed: tell of it.
    Report { run: String },
    /// The run has failed, and so often that the target is let go all the same.
    LetGo { run: String },
    /// The run has succeeded, and only the leader can tell whether its change was stored since; wait for that.
    AwaitDecision { run: String },
    /// An earlier attempt is being undone; wait for that first.
    AwaitUndo { undo: String },
}

/// What a request does, given the newest run of its key and the newest run that undoes that one.
pub fn next(latest: Option<&RunEntry>, undo: Option<&RunEntry>, asking: Asking<'_>) -> Next {
    let Some(latest) = latest else { return Next::Start { attempt: 1 } };
    let run = latest.name.clone();
    let again = || match (&latest.compensated_by, undo) {
        (Some(name), None) if promises(latest, asking.now) => Next::AwaitUndo { undo: name.clone() },
        (Some(_), Some(undo)) if undo_is_due(undo) => Next::AwaitUndo { undo: undo.name.clone() },
        _ => Next::Start { attempt: latest.attempt + 1 },
    };
    match latest.state {
        RunState::Pending | RunState::Running => Next::Join { run },
        // Its change was stored, though nobody has written that down yet: this is the same change once more.
        RunState::Succeeded if is_proven(latest, asking.stored) && !latest.removes_target => again(),
        RunState::Succeeded if is_for_the_leader(latest, asking.stored) => Next::AwaitDecision { run },
        RunState::Succeeded => Next::Reuse { run },
        RunState::Failed if latest.ignorable => Next::Reuse { run },
        RunState::Failed if latest.removes_target && !is_outdated(latest, asking.stored) => {
            if asking.by == Asker::Cleanup && latest.asked_by == Asker::Cleanup && latest.attempt >= CLEANUP_ATTEMPTS {
                Next::LetGo { run }
            } else if is_to_be_told(latest, asking) {
                Next::Report { run }
            } else {
                again()
            }
        }
        RunState::Failed if !latest.removes_target && is_to_be_told(latest, asking) => Next::Report { run },
        // A deletion that is under way runs its pre-delete no second time, however often it is asked for.
        RunState::Committed if latest.removes_target => Next::Reuse { run },
        RunState::Failed | RunState::Committed | RunState::Abandoned | RunState::Compensated | RunState::Inert => {
            again()
        }
    }
}

/// Whether a failure is the answer to a request: where no client has heard of it, or one has just now, or a machine
/// asks that has been told not long ago.
fn is_to_be_told(failed: &RunEntry, asking: Asking<'_>) -> bool {
    if asking.by != Asker::Person {
        let pause = FIRST_MACHINE_PAUSE * 3_u32.saturating_pow(failed.attempt.saturating_sub(1).min(6));
        return since(failed.finished_at, asking.now) < pause.min(LONGEST_MACHINE_PAUSE);
    }
    match failed.reported_at {
        None => since(failed.finished_at, asking.now) < FAILURE_TTL,
        Some(told) => since(Some(told), asking.now) < TOLD_AGAIN_WITHIN,
    }
}

/// Whether a deletion failed of an object that has been changed since: what it failed of may be mended by that. The
/// key of any other change has the spec in it.
fn is_outdated(failed: &RunEntry, stored: Option<&Stored>) -> bool {
    stored.is_some_and(|stored| stored.generation != failed.generation)
}

/// Whether an undo is at work, or will be tried again.
pub fn undo_is_due(undo: &RunEntry) -> bool {
    undo.state.is_open() || (undo.state == RunState::Failed && undo.attempt < UNDO_ATTEMPTS)
}

/// What stands in the way of a new run for a target: nothing may run for it while another change is undecided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// This run of another change is open; wait for its end.
    Open(String),
    /// This one has succeeded and no request was let through on it: the newer change takes its place.
    Superseded(String),
    /// This one was let through; whether it is stored is not known yet.
    Undecided(String),
}

/// The first obstacle to a change with these keys. `runs` are all of the target's name.
pub fn obstacle(runs: &[Arc<RunEntry>], own: &[&str], stored: Option<&Stored>, now: Timestamp) -> Option<Obstacle> {
    let others = runs.iter().filter(|run| !own.contains(&&*run.key));
    let mut obstacles: Vec<Obstacle> = others.filter_map(|run| as_obstacle(run, runs, stored, now)).collect();
    // A change that is at work has phases that have succeeded already; they must not be taken from under it.
    obstacles.sort_by_key(|obstacle| matches!(obstacle, Obstacle::Superseded(_)));
    obstacles.into_iter().next()
}

fn as_obstacle(run: &RunEntry, runs: &[Arc<RunEntry>], stored: Option<&Stored>, now: Timestamp) -> Option<Obstacle> {
    let pre = run.phase.is_some_and(Phase::is_pre) && run.compensates.is_none();
    // What leaves may come back by the change, and must be gone by then.
    let leaves = run.phase == Some(Phase::PostDelete);
    if run.state.is_open() && (pre || leaves || run.compensates.is_some()) {
        return Some(Obstacle::Open(run.name.clone()));
    }
    if let Some(undo) = promised_undo(run, runs, now) {
        return Some(Obstacle::Open(undo));
    }
    let passed = run.state == RunState::Succeeded || (run.state == RunState::Failed && run.ignorable);
    // That the target is gone is a deletion's proof, but its name is free only once the leader has taken note: from
    // then on a record tells what is still to run.
    let is_noted = !run.removes_target || stored.is_some();
    if !pre || !passed || (is_noted && is_proven(run, stored)) {
        return None;
    }
    let name = run.name.clone();
    Some(if run.admitted.is_some() { Obstacle::Undecided(name) } else { Obstacle::Superseded(name) })
}

/// Whether a run that was written down and not begun has to stand back for another change of its target.
///
/// Each of two changes that begin at once writes its run, waits until its own watch has shown that run to it, so that
/// it knows every run that was written before, and then looks. The one that was written first goes on: that is the one
/// that has been begun, or, while neither is, the one with the lower resource version, which is still that of its
/// creation.
pub fn is_blocked(
    own: &RunEntry,
    runs: &[Arc<RunEntry>],
    keys: &[&str],
    stored: Option<&Stored>,
    now: Timestamp,
) -> bool {
    let version = own.version;
    let earlier = |run: &Arc<RunEntry>| run.executor.is_some() || run.version < version;
    let earlier: Vec<_> = runs.iter().filter(|run| run.name != own.name && earlier(run)).cloned().collect();
    obstacle(&earlier, keys, stored, now).is_some()
}

/// Whether a run of a gone target's last phases was written before something else for it has ended; `runs` are all of
/// that target, known as far as `own`.
pub fn is_early(own: &RunEntry, runs: &[Arc<RunEntry>]) -> bool {
    runs.iter().any(|run| run.name != own.name && run.state.is_open())
}

/// Whether an undo that is not written yet still will be. Of a failure it was promised when the run ended.
fn promises(run: &RunEntry, now: Timestamp) -> bool {
    run.state == RunState::Abandoned || since(run.finished_at, now) < UNDO_WRITTEN_WITHIN
}

/// The undo that a run promises and that is not written yet or will be tried again; one that is at work is an obstacle
/// of its own.
fn promised_undo(run: &RunEntry, runs: &[Arc<RunEntry>], now: Timestamp) -> Option<String> {
    let promised = run.compensated_by.as_ref()?;
    let owed = matches!(run.state, RunState::Failed | RunState::Abandoned);
    let undo =
        runs.iter().filter(|other| other.compensates.as_ref() == Some(&run.name)).max_by_key(|undo| undo.attempt);
    let due = undo.map_or_else(|| promises(run, now), |undo| undo_is_due(undo));
    (owed && due).then(|| undo.map_or_else(|| promised.clone(), |undo| undo.name.clone()))
}
