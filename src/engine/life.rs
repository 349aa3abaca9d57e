//! The life of a run as pure rules: what a request for its change does, and what becomes of it afterwards.

use super::index::RunEntry;
use crate::api::{Phase, RunState};
use crate::plan::timing;
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
    /// An earlier attempt is being undone; wait for that first.
    AwaitUndo { undo: String },
}

/// What a request does, given the newest run of its key, the run that undoes that one, and the target as the request
/// itself shows it stored.
pub fn next(latest: Option<&RunEntry>, undo: Option<&RunEntry>, stored: Option<&Stored>, now: Timestamp) -> Next {
    let Some(latest) = latest else { return Next::Start { attempt: 1 } };
    let run = latest.name.clone();
    let again = || match (&latest.compensated_by, undo) {
        (Some(name), None) => Next::AwaitUndo { undo: name.clone() },
        (Some(name), Some(undo)) if undo.state.is_open() => Next::AwaitUndo { undo: name.clone() },
        _ => Next::Start { attempt: latest.attempt + 1 },
    };
    match latest.state {
        RunState::Pending | RunState::Running => Next::Join { run },
        // Its change was stored, though nobody has written that down yet: this is the same change once more.
        RunState::Succeeded if is_committed(latest, stored) && latest.phase != Some(Phase::PreDelete) => again(),
        RunState::Succeeded => Next::Reuse { run },
        RunState::Failed if latest.ignorable => Next::Reuse { run },
        RunState::Failed if is_to_be_told(latest, now) && !is_outdated(latest, stored) => Next::Report { run },
        // A deletion that is under way runs its pre-delete no second time, however often it is asked for.
        RunState::Committed if latest.phase == Some(Phase::PreDelete) => Next::Reuse { run },
        RunState::Failed | RunState::Committed | RunState::Abandoned | RunState::Compensated => again(),
    }
}

/// Whether a failure is the answer to a request: where no client has heard of it, or one has just now.
fn is_to_be_told(failed: &RunEntry, now: Timestamp) -> bool {
    match failed.reported_at {
        None => since(failed.finished_at, now) < FAILURE_TTL,
        Some(told) => since(Some(told), now) < TOLD_AGAIN_WITHIN,
    }
}

/// Whether a deletion failed of an object that has been changed since: what it failed of may be mended by that. The
/// key of any other change has the spec in it.
fn is_outdated(failed: &RunEntry, stored: Option<&Stored>) -> bool {
    failed.phase == Some(Phase::PreDelete) && stored.is_some_and(|stored| stored.generation != failed.generation)
}

/// What a finished pre-phase has come to, given the target as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its change is stored.
    Committed,
    /// Its change was not stored in time.
    Abandoned,
    /// Too early to say; look again after this long.
    Undecided(Duration),
}

/// The target as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub uid: String,
    pub generation: i64,
    pub spec_hash: String,
    pub deleting: bool,
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

/// The first obstacle to a change with these keys. `runs` are all of the target's name; `stored` is the target as the
/// request shows it.
pub fn obstacle(runs: &[Arc<RunEntry>], own: &[&str], stored: Option<&Stored>, now: Timestamp) -> Option<Obstacle> {
    runs.iter().filter(|run| !own.contains(&run.key.as_str())).find_map(|run| {
        let pre = run.phase.is_some_and(Phase::is_pre) && run.compensates.is_none();
        if run.state.is_open() && (pre || run.compensates.is_some()) {
            return Some(Obstacle::Open(run.name.clone()));
        }
        if let Some(undo) = promised_undo(run, runs, now) {
            return Some(Obstacle::Open(undo));
        }
        let passed = run.state == RunState::Succeeded || (run.state == RunState::Failed && run.ignorable);
        if !pre || !passed || is_committed(run, stored) {
            return None;
        }
        let name = run.name.clone();
        Some(if run.admitted.is_some() { Obstacle::Undecided(name) } else { Obstacle::Superseded(name) })
    })
}

/// The undo that a run promises and that is not written yet; one that is written is an obstacle of its own.
fn promised_undo(run: &RunEntry, runs: &[Arc<RunEntry>], now: Timestamp) -> Option<String> {
    let undo = run.compensated_by.as_ref()?;
    let owed = matches!(run.state, RunState::Failed | RunState::Abandoned);
    let written = runs.iter().any(|other| other.name == *undo);
    (owed && !written && since(run.finished_at, now) < UNDO_WRITTEN_WITHIN).then(|| undo.clone())
}

/// Whether what is stored proves that a run's change was, or makes it all the same.
fn is_committed(run: &RunEntry, stored: Option<&Stored>) -> bool {
    use Phase::{PreCreate, PreDelete, PreUpdate};
    match (run.phase, &run.admitted, stored) {
        // The object was there when the deletion was admitted; that it is gone now is the deletion.
        (Some(PreDelete), Some(admitted), Some(stored)) => stored.uid != admitted.uid || stored.deleting,
        (Some(PreDelete), Some(_), None) => true,
        // Nothing is left that could be undone: the deletion came after it, and takes all that the object had.
        (Some(PreUpdate), Some(_), None) => true,
        (Some(PreUpdate), Some(admitted), Some(stored)) if stored.uid != admitted.uid => true,
        (Some(PreCreate | PreUpdate), _, Some(stored)) => run.admissions().any(|admitted| {
            admitted.uid == stored.uid
                && (stored.generation > admitted.generation
                    || (stored.generation == admitted.generation && stored.spec_hash == run.spec_hash))
        }),
        _ => false,
    }
}

/// What became of a pre-phase's change. `run` has succeeded, or failed under `failurePolicy: Ignore`.
pub fn fate(run: &RunEntry, stored: Option<&Stored>, now: Timestamp, grace: Duration) -> Fate {
    if is_committed(run, stored) {
        return Fate::Committed;
    }
    let limit = Duration::from_secs(run.timeout_seconds.into());
    let ran = run.started_at.map_or(Duration::ZERO, |started| since(Some(started), run.finished_at.unwrap_or(now)));
    let admitted_at = run.admitted.as_ref().and_then(|a| a.at.as_ref()).map(|t| t.0);
    let waits = timing::commit_grace(limit, ran, admitted_at.is_some(), grace);
    let waited = since(admitted_at.or(run.finished_at), now);
    if waited >= waits { Fate::Abandoned } else { Fate::Undecided(waits - waited) }
}

/// The time from `moment` to `now`, nothing where it is unknown or later.
pub fn since(moment: Option<Timestamp>, now: Timestamp) -> Duration {
    moment.and_then(|m| Duration::try_from(now.duration_since(m)).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Admitted, TargetRef};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    const GRACE: Duration = Duration::from_secs(40);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn run(state: RunState) -> RunEntry {
        RunEntry {
            name: "r-1".into(),
            attempt: 1,
            phase: Some(Phase::PreCreate),
            state,
            timeout_seconds: 30,
            started_at: Some(at(0)),
            finished_at: (!state.is_open()).then(|| at(10)),
            spec_hash: "s".into(),
            // That of the first attempt, which a create is stored with only where it needed no second.
            target: TargetRef { uid: Some("0".into()), ..TargetRef::default() },
            ..RunEntry::default()
        }
    }

    fn admitted(mut run: RunEntry, uid: &str, generation: i64, second: i64) -> RunEntry {
        run.admitted = Some(Admitted { uid: uid.into(), generation, at: Some(MicroTime(at(second))) });
        run
    }

    fn stored(uid: &str, generation: i64, spec: &str) -> Stored {
        Stored { uid: uid.into(), generation, spec_hash: spec.into(), deleting: false }
    }

    #[test]
    fn the_first_request_starts_and_the_others_join() {
        assert_eq!(next(None, None, None, at(0)), Next::Start { attempt: 1 });
        assert_eq!(next(Some(&run(RunState::Pending)), None, None, at(0)), Next::Join { run: "r-1".into() });
        assert_eq!(next(Some(&run(RunState::Running)), None, None, at(0)), Next::Join { run: "r-1".into() });
        assert_eq!(next(Some(&run(RunState::Succeeded)), None, None, at(99)), Next::Reuse { run: "r-1".into() });
    }

    #[test]
    fn a_failure_is_told_once_and_not_for_ever() {
        let mut failed = run(RunState::Failed);
        assert_eq!(next(Some(&failed), None, None, at(11)), Next::Report { run: "r-1".into() });
        assert_eq!(next(Some(&failed), None, None, at(71)), Next::Start { attempt: 2 });
        failed.reported_at = Some(at(11));
        assert_eq!(next(Some(&failed), None, None, at(11)), Next::Report { run: "r-1".into() });
        assert_eq!(next(Some(&failed), None, None, at(12)), Next::Start { attempt: 2 });
    }

    #[test]
    fn a_failed_deletion_of_an_object_that_was_changed_since_is_tried_anew_at_once() {
        let failed = RunEntry { phase: Some(Phase::PreDelete), generation: 1, ..run(RunState::Failed) };
        let asked = |generation| next(Some(&failed), None, Some(&stored("0", generation, "s")), at(11));
        assert_eq!(asked(1), Next::Report { run: "r-1".into() });
        assert_eq!(asked(2), Next::Start { attempt: 2 });
    }

    #[test]
    fn a_new_attempt_waits_until_the_last_one_is_undone() {
        let mut failed = run(RunState::Failed);
        failed.reported_at = Some(at(10));
        failed.compensated_by = Some("u-1".into());
        assert_eq!(next(Some(&failed), None, None, at(11)), Next::AwaitUndo { undo: "u-1".into() });
        assert_eq!(
            next(Some(&failed), Some(&run(RunState::Running)), None, at(11)),
            Next::AwaitUndo { undo: "u-1".into() }
        );
        assert_eq!(next(Some(&failed), Some(&run(RunState::Succeeded)), None, at(11)), Next::Start { attempt: 2 });
        assert_eq!(next(Some(&failed), Some(&run(RunState::Failed)), None, at(11)), Next::Start { attempt: 2 });
    }

    #[test]
    fn the_same_change_after_it_was_stored_is_a_new_one_but_not_a_deletion() {
        assert_eq!(next(Some(&run(RunState::Committed)), None, None, at(11)), Next::Start { attempt: 2 });
        let deletion = RunEntry { phase: Some(Phase::PreDelete), ..run(RunState::Committed) };
        assert_eq!(next(Some(&deletion), None, None, at(11)), Next::Reuse { run: "r-1".into() });
    }

    #[test]
    fn a_create_is_committed_by_the_uid_that_was_admitted_last() {
        let run = admitted(run(RunState::Succeeded), "b", 1, 11);
        assert_eq!(fate(&run, Some(&stored("b", 1, "s")), at(12), GRACE), Fate::Committed);
        assert_eq!(fate(&run, Some(&stored("a", 1, "s")), at(12), GRACE), Fate::Undecided(Duration::from_secs(39)));
        assert_eq!(fate(&run, Some(&stored("a", 1, "s")), at(51), GRACE), Fate::Abandoned);
        assert_eq!(fate(&run, None, at(51), GRACE), Fate::Abandoned);
    }

    #[test]
    fn of_two_creates_that_were_let_through_either_may_be_the_one_that_is_stored() {
        let first = admitted(run(RunState::Succeeded), "a", 1, 11);
        let also_admitted = first.admissions_beside("b");
        let both = RunEntry { also_admitted, ..admitted(first, "b", 1, 12) };
        assert_eq!(fate(&both, Some(&stored("a", 1, "s")), at(13), GRACE), Fate::Committed);
        assert_eq!(fate(&both, Some(&stored("b", 1, "s")), at(13), GRACE), Fate::Committed);
        assert!(matches!(fate(&both, Some(&stored("c", 1, "s")), at(13), GRACE), Fate::Undecided(_)));
    }

    #[test]
    fn an_update_is_committed_by_generation_and_spec() {
        let update = RunEntry {
            phase: Some(Phase::PreUpdate),
            target: TargetRef { uid: Some("a".into()), ..TargetRef::default() },
            ..run(RunState::Succeeded)
        };
        let update = admitted(update, "a", 3, 11);
        assert_eq!(fate(&update, Some(&stored("a", 3, "s")), at(12), GRACE), Fate::Committed);
        assert_eq!(fate(&update, Some(&stored("a", 4, "t")), at(12), GRACE), Fate::Committed);
        assert!(matches!(fate(&update, Some(&stored("a", 2, "s")), at(12), GRACE), Fate::Undecided(_)));
        assert_eq!(fate(&update, Some(&stored("a", 3, "t")), at(60), GRACE), Fate::Abandoned);
    }

    #[test]
    fn an_update_of_what_is_gone_is_decided_and_never_undone() {
        let update = RunEntry { phase: Some(Phase::PreUpdate), key: "other".into(), ..run(RunState::Succeeded) };
        let update = admitted(update, "a", 3, 11);
        assert_eq!(fate(&update, None, at(60), GRACE), Fate::Committed);
        assert_eq!(fate(&update, Some(&stored("b", 1, "s")), at(60), GRACE), Fate::Committed);
        assert_eq!(obstacle(&[Arc::new(update)], &["own"], None, at(12)), None, "the name can be used again at once");
    }

    #[test]
    fn a_deletion_is_committed_when_the_object_goes() {
        let deletion = admitted(RunEntry { phase: Some(Phase::PreDelete), ..run(RunState::Succeeded) }, "a", 1, 11);
        assert_eq!(fate(&deletion, None, at(12), GRACE), Fate::Committed);
        let going = Stored { deleting: true, ..stored("a", 2, "s") };
        assert_eq!(fate(&deletion, Some(&going), at(12), GRACE), Fate::Committed);
        assert!(matches!(fate(&deletion, Some(&stored("a", 1, "s")), at(12), GRACE), Fate::Undecided(_)));
    }

    #[test]
    fn a_client_that_was_told_to_come_again_is_waited_for() {
        let unadmitted = run(RunState::Succeeded);
        assert!(matches!(fate(&unadmitted, None, at(55), GRACE), Fate::Undecided(_)));
        assert_eq!(fate(&unadmitted, None, at(90), GRACE), Fate::Abandoned);
    }

    #[test]
    fn a_change_made_again_after_it_was_stored_runs_again_though_nobody_wrote_that_down() {
        let update = RunEntry { phase: Some(Phase::PreUpdate), ..run(RunState::Succeeded) };
        let update = admitted(update, "a", 3, 11);
        assert_eq!(next(Some(&update), None, Some(&stored("a", 4, "t")), at(12)), Next::Start { attempt: 2 });
        assert_eq!(next(Some(&update), None, Some(&stored("a", 2, "t")), at(12)), Next::Reuse { run: "r-1".into() });
    }

    #[test]
    fn another_change_waits_until_the_one_before_it_is_decided() {
        let other = |run: RunEntry| vec![Arc::new(RunEntry { key: "other".into(), ..run })];
        let name = || "r-1".to_owned();
        assert_eq!(obstacle(&other(run(RunState::Running)), &["own"], None, at(12)), Some(Obstacle::Open(name())));
        assert_eq!(obstacle(&other(run(RunState::Running)), &["other"], None, at(12)), None);
        assert_eq!(
            obstacle(&other(run(RunState::Succeeded)), &["own"], None, at(12)),
            Some(Obstacle::Superseded(name()))
        );
        let let_through = other(admitted(run(RunState::Succeeded), "a", 1, 11));
        assert_eq!(obstacle(&let_through, &["own"], None, at(12)), Some(Obstacle::Undecided(name())));
        assert_eq!(obstacle(&let_through, &["own"], Some(&stored("a", 1, "s")), at(12)), None);
        assert_eq!(obstacle(&other(run(RunState::Committed)), &["own"], None, at(12)), None);
        let post = RunEntry { phase: Some(Phase::PostCreate), ..run(RunState::Running) };
        assert_eq!(obstacle(&other(post), &["own"], None, at(12)), None);

        let promised = other(RunEntry { compensated_by: Some("u-1".into()), ..run(RunState::Abandoned) });
        assert_eq!(obstacle(&promised, &["own"], None, at(12)), Some(Obstacle::Open("u-1".into())));
        assert_eq!(obstacle(&promised, &["own"], None, at(9999)), None);
    }
}
