//! The rules about requests and fates, one by one.

use super::request::*;
use super::*;
use crate::api::{Admitted, TargetRef};
use crate::api::{Phase, RunState};
use crate::engine::index::RunEntry;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

fn decide(latest: Option<&RunEntry>, undo: Option<&RunEntry>, stored: Option<&Stored>, now: Timestamp) -> Next {
    next(latest, undo, Asking { by: Asker::Person, stored, now })
}

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
        target: TargetRef { uid: Some("0".into()), ..TargetRef::default() }.into(),
        ..RunEntry::default()
    }
}

fn admitted(mut run: RunEntry, uid: &str, generation: i64, second: i64) -> RunEntry {
    run.admitted = Some(Admitted { uid: uid.into(), generation, at: Some(MicroTime(at(second))) });
    run
}

fn stored(uid: &str, generation: i64, spec: &str) -> Stored {
    Stored { uid: uid.into(), generation, spec_hash: spec.into(), ..Stored::default() }
}

#[test]
fn the_first_request_starts_and_the_others_join() {
    assert_eq!(decide(None, None, None, at(0)), Next::Start { attempt: 1 });
    assert_eq!(decide(Some(&run(RunState::Pending)), None, None, at(0)), Next::Join { run: "r-1".into() });
    assert_eq!(decide(Some(&run(RunState::Running)), None, None, at(0)), Next::Join { run: "r-1".into() });
    assert_eq!(decide(Some(&run(RunState::Succeeded)), None, None, at(99)), Next::Reuse { run: "r-1".into() });
}

#[test]
fn a_failure_is_told_once_and_not_for_ever() {
    let mut failed = run(RunState::Failed);
    assert_eq!(decide(Some(&failed), None, None, at(11)), Next::Report { run: "r-1".into() });
    assert_eq!(decide(Some(&failed), None, None, at(71)), Next::Start { attempt: 2 });
    failed.reported_at = Some(at(11));
    assert_eq!(decide(Some(&failed), None, None, at(11)), Next::Report { run: "r-1".into() });
    assert_eq!(decide(Some(&failed), None, None, at(12)), Next::Start { attempt: 2 });
}

#[test]
fn a_failed_deletion_of_an_object_that_was_changed_since_is_tried_anew_at_once() {
    let failed =
        RunEntry { phase: Some(Phase::PreDelete), removes_target: true, generation: 1, ..run(RunState::Failed) };
    let asked = |generation| decide(Some(&failed), None, Some(&stored("0", generation, "s")), at(11));
    assert_eq!(asked(1), Next::Report { run: "r-1".into() });
    assert_eq!(asked(2), Next::Start { attempt: 2 });
}

#[test]
fn a_new_attempt_waits_until_the_last_one_is_undone() {
    let mut failed = run(RunState::Failed);
    failed.reported_at = Some(at(10));
    failed.compensated_by = Some("u-1".into());
    let waits = Next::AwaitUndo { undo: "u-1".into() };
    assert_eq!(decide(Some(&failed), None, None, at(11)), waits);
    let undo = |state, attempt| RunEntry { name: "u-1".into(), attempt, ..run(state) };
    let after = |undo: RunEntry| decide(Some(&failed), Some(&undo), None, at(11));
    assert_eq!(after(undo(RunState::Running, 1)), waits);
    assert_eq!(after(undo(RunState::Failed, 1)), waits, "it is tried again");
    assert_eq!(after(undo(RunState::Failed, UNDO_ATTEMPTS)), Next::Start { attempt: 2 });
    assert_eq!(after(undo(RunState::Succeeded, 1)), Next::Start { attempt: 2 });
}

#[test]
fn the_same_change_after_it_was_stored_is_a_new_one_but_not_a_deletion() {
    assert_eq!(decide(Some(&run(RunState::Committed)), None, None, at(11)), Next::Start { attempt: 2 });
    let deletion = RunEntry { phase: Some(Phase::PreDelete), removes_target: true, ..run(RunState::Committed) };
    assert_eq!(decide(Some(&deletion), None, None, at(11)), Next::Reuse { run: "r-1".into() });
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
    let also_admitted = first.admitted.iter().cloned().collect();
    let both = RunEntry { also_admitted, ..admitted(first, "b", 1, 12) };
    assert_eq!(fate(&both, Some(&stored("a", 1, "s")), at(13), GRACE), Fate::Committed);
    assert_eq!(fate(&both, Some(&stored("b", 1, "s")), at(13), GRACE), Fate::Committed);
    assert!(matches!(fate(&both, Some(&stored("c", 1, "s")), at(13), GRACE), Fate::Undecided(_)));
}

#[test]
fn an_update_is_committed_by_generation_and_spec() {
    let update = RunEntry {
        phase: Some(Phase::PreUpdate),
        target: TargetRef { uid: Some("a".into()), ..TargetRef::default() }.into(),
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
    let deletion = admitted(
        RunEntry { phase: Some(Phase::PreDelete), removes_target: true, ..run(RunState::Succeeded) },
        "a",
        1,
        11,
    );
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
    assert_eq!(decide(Some(&update), None, Some(&stored("a", 3, "s")), at(12)), Next::Start { attempt: 2 });
    // It may have been stored and followed by another, or have lost its turn: the API server asks again then.
    assert_eq!(
        decide(Some(&update), None, Some(&stored("a", 4, "t")), at(12)),
        Next::AwaitDecision { run: "r-1".into() }
    );
    assert_eq!(decide(Some(&update), None, Some(&stored("a", 2, "t")), at(12)), Next::Reuse { run: "r-1".into() });
}

#[test]
fn another_change_waits_until_the_one_before_it_is_decided() {
    let other = |run: RunEntry| vec![Arc::new(RunEntry { key: "other".into(), ..run })];
    let name = || "r-1".to_owned();
    assert_eq!(obstacle(&other(run(RunState::Running)), &["own"], None, at(12)), Some(Obstacle::Open(name())));
    assert_eq!(obstacle(&other(run(RunState::Running)), &["other"], None, at(12)), None);
    assert_eq!(obstacle(&other(run(RunState::Succeeded)), &["own"], None, at(12)), Some(Obstacle::Superseded(name())));
    let let_through = other(admitted(run(RunState::Succeeded), "a", 1, 11));
    assert_eq!(obstacle(&let_through, &["own"], None, at(12)), Some(Obstacle::Undecided(name())));
    assert_eq!(obstacle(&let_through, &["own"], Some(&stored("a", 1, "s")), at(12)), None);
    assert_eq!(obstacle(&other(run(RunState::Committed)), &["own"], None, at(12)), None);
    let post = RunEntry { phase: Some(Phase::PostCreate), ..run(RunState::Running) };
    assert_eq!(obstacle(&other(post), &["own"], None, at(12)), None);

    let leaves = RunEntry { phase: Some(Phase::PostDelete), ..run(RunState::Running) };
    assert_eq!(obstacle(&other(leaves), &["own"], None, at(12)), Some(Obstacle::Open(name())));

    let promised = |state| other(RunEntry { compensated_by: Some("u-1".into()), ..run(state) });
    let waits = Some(Obstacle::Open("u-1".into()));
    for state in [RunState::Failed, RunState::Abandoned] {
        assert_eq!(obstacle(&promised(state), &["own"], None, at(12)), waits);
    }
    // A failure promised it when the run ended, an abandonment just now.
    assert_eq!(obstacle(&promised(RunState::Failed), &["own"], None, at(9999)), None);
    assert_eq!(obstacle(&promised(RunState::Abandoned), &["own"], None, at(9999)), waits);
}

#[test]
fn a_name_is_free_when_the_leader_has_taken_note_of_its_deletion() {
    let deletion = |state| {
        let deletion = RunEntry { phase: Some(Phase::PreDelete), removes_target: true, key: "d".into(), ..run(state) };
        [Arc::new(admitted(deletion, "a", 1, 11))]
    };
    let succeeded = deletion(RunState::Succeeded);
    assert_eq!(obstacle(&succeeded, &["own"], None, at(12)), Some(Obstacle::Undecided("r-1".into())));
    assert_eq!(obstacle(&deletion(RunState::Committed), &["own"], None, at(12)), None);
}

#[test]
fn a_change_that_is_at_work_is_waited_for_though_a_phase_of_it_has_succeeded_already() {
    let first = RunEntry { name: "first".into(), key: "first".into(), ..run(RunState::Succeeded) };
    let second = RunEntry { name: "second".into(), key: "second".into(), ..run(RunState::Running) };
    let runs = [Arc::new(first), Arc::new(second)];
    assert_eq!(obstacle(&runs, &["own"], None, at(12)), Some(Obstacle::Open("second".into())));
}

fn deletion(attempt: u32, asked_by: Asker) -> RunEntry {
    let phase = Some(Phase::PreDelete);
    RunEntry { phase, removes_target: true, attempt, asked_by, reported_at: Some(at(10)), ..run(RunState::Failed) }
}

#[test]
fn a_machine_that_asks_for_a_deletion_again_and_again_is_told_of_the_last_failure_with_growing_pauses() {
    let asks =
        |attempt, by, second| next(Some(&deletion(attempt, by)), None, Asking { by, stored: None, now: at(second) });
    for by in [Asker::Cleanup, Asker::Sluice] {
        assert_eq!(asks(1, by, 19), Next::Report { run: "r-1".into() });
        assert_eq!(asks(1, by, 20), Next::Start { attempt: 2 });
        assert_eq!(asks(2, by, 39), Next::Report { run: "r-1".into() });
        assert_eq!(asks(2, by, 40), Next::Start { attempt: 3 });
    }
    assert_eq!(asks(1, Asker::Person, 12), Next::Start { attempt: 2 });
    assert_eq!(asks(9, Asker::Sluice, 609), Next::Report { run: "r-1".into() });
    assert_eq!(asks(9, Asker::Sluice, 610), Next::Start { attempt: 10 });
}

#[test]
fn the_clusters_own_cleaning_up_is_not_kept_waiting_for_ever() {
    let asks = |attempt, last: Asker| {
        next(Some(&deletion(attempt, last)), None, Asking { by: Asker::Cleanup, stored: None, now: at(5000) })
    };
    assert_eq!(asks(2, Asker::Cleanup), Next::Start { attempt: 3 });
    assert_eq!(asks(3, Asker::Cleanup), Next::LetGo { run: "r-1".into() });
    assert_eq!(asks(3, Asker::Person), Next::Start { attempt: 4 }, "a person may have mended it since");
}

#[test]
fn who_asks_is_known_by_name() {
    let namespaces = "system:serviceaccount:kube-system:namespace-controller";
    assert_eq!(Asker::of(Some(namespaces), None), Asker::Cleanup);
    assert_eq!(
        Asker::of(Some("system:serviceaccount:s:sluice"), Some("system:serviceaccount:s:sluice")),
        Asker::Sluice
    );
    assert_eq!(Asker::of(Some("system:serviceaccount:argocd:argocd"), None), Asker::Person);
    assert_eq!(Asker::of(None, None), Asker::Person);
}

#[test]
fn an_update_that_lost_its_turn_is_known_at_once_by_what_was_stored_in_its_place() {
    let update = RunEntry { phase: Some(Phase::PreUpdate), ..run(RunState::Succeeded) };
    let update = admitted(update, "a", 3, 11);
    let decided = |stored: &Stored| fate(&update, Some(stored), at(12), GRACE);
    assert_eq!(decided(&stored("a", 3, "another")), Fate::Abandoned);
    let followed = |before: &str| Stored { before: [(3, before.to_owned())].into(), ..stored("a", 4, "third") };
    assert_eq!(decided(&followed("another")), Fate::Abandoned);
    assert_eq!(decided(&followed("s")), Fate::Committed);
}

#[test]
fn a_resource_that_leaves_is_a_change_like_others_and_no_deletion() {
    let leaves = RunEntry { phase: Some(Phase::PreDelete), ..run(RunState::Succeeded) };
    let leaves = admitted(leaves, "a", 3, 11);
    assert_eq!(fate(&leaves, Some(&stored("a", 3, "s")), at(12), GRACE), Fate::Committed);
    let committed = RunEntry { state: RunState::Committed, ..leaves };
    assert_eq!(decide(Some(&committed), None, None, at(12)), Next::Start { attempt: 2 }, "it may join and leave again");
}

#[test]
fn of_two_changes_that_are_written_down_at_once_the_first_goes_on() {
    let written =
        |name: &str, version: u64| RunEntry { name: name.into(), key: name.into(), version, ..run(RunState::Pending) };
    let (a, b) = (written("a", 10), written("b", 11));
    let both = [Arc::new(a.clone()), Arc::new(b.clone())];
    assert!(!is_blocked(&a, &both, &["a"], None, at(1)));
    assert!(is_blocked(&b, &both, &["b"], None, at(1)));
    let begun = RunEntry { executor: Some("x".into()), version: 12, ..run(RunState::Running) };
    let begun = RunEntry { name: "a".into(), key: "a".into(), ..begun };
    assert!(is_blocked(&b, &[Arc::new(begun)], &["b"], None, at(1)), "what is begun was first");
    assert!(!is_blocked(&b, &both, &["a", "b"], None, at(1)), "runs of one change are no obstacle to each other");
}

#[test]
fn the_last_phases_of_a_target_wait_for_whatever_was_begun_without_knowing_that_it_was_gone() {
    let named = |name: &str, state: RunState| Arc::new(RunEntry { name: name.into(), ..run(state) });
    let last = named("post-delete", RunState::Pending);
    let early = |others: &[Arc<RunEntry>]| is_early(&last, &[std::slice::from_ref(&last), others].concat());
    assert!(!early(&[named("pre-delete", RunState::Committed), named("pre-update", RunState::Failed)]));
    assert!(early(&[named("pre-update", RunState::Pending)]));
    assert!(early(&[named("pre-update", RunState::Running)]));
}
