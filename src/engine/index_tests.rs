//! Tests of the index of runs.

use super::*;
use crate::api::{Phase, PhaseRunSpec, PhaseRunStatus};
use serde_json::json;

fn run(name: &str, attempt: u32, version: &str, state: RunState) -> PhaseRun {
    let spec = PhaseRunSpec {
        phase: Phase::PreCreate,
        target: TargetRef { namespace: "shop".into(), name: "x".into(), ..TargetRef::default() },
        key: "k".into(),
        attempt,
        requested_by: None,
        routing_key: None,
        compensates: None,
        timeout_seconds: 1,
        resources: vec![],
        object: json!({}),
        old_object: None,
    };
    let mut run = PhaseRun::new(name, spec);
    run.metadata.resource_version = Some(version.into());
    run.status = Some(PhaseRunStatus { state, ..PhaseRunStatus::default() });
    run
}

#[test]
fn news_that_come_late_do_not_undo_what_is_known() {
    let index = RunIndex::default();
    index.observe(&run("r-1", 1, "10", RunState::Succeeded));
    index.observe(&run("r-1", 1, "9", RunState::Running));
    assert_eq!(index.get("r-1").unwrap().state, RunState::Succeeded);
}

#[test]
fn t10_what_was_refused_in_a_namespace_is_known_by_its_size_until_it_is_deleted_or_stored() {
    let index = RunIndex::default();
    let mut large = run("r-1", 1, "1", RunState::Running);
    large.spec.object = json!({"spec": {"description": "x".repeat(400_000)}});
    index.observe(&large);
    index.observe(&run("r-2", 2, "2", RunState::Running));
    let mut of_stored = run("r-3", 3, "3", RunState::Failed);
    of_stored.spec.target.uid = Some("u".into());
    index.observe(&of_stored);
    large.metadata.resource_version = Some("4".into());
    large.status = Some(PhaseRunStatus { state: RunState::Failed, ..PhaseRunStatus::default() });
    index.observe(&large);
    let kept = index.unstored("shop");
    assert!(kept.runs == 2 && (400_000..410_000).contains(&kept.bytes), "{kept:?}");
    assert_eq!(index.unstored("another"), Kept::default());
    index.observe(&run("r-2", 2, "5", RunState::Committed));
    assert_eq!(index.unstored("shop").runs, 1);
    index.forget("r-1");
    assert_eq!(index.unstored("shop"), Kept::default());
}

#[test]
fn the_latest_attempt_of_a_key_is_found_until_it_is_forgotten() {
    let index = RunIndex::default();
    index.observe(&run("r-2", 2, "2", RunState::Running));
    index.observe(&run("r-1", 1, "1", RunState::Failed));
    assert_eq!(index.latest("k").unwrap().name, "r-2");
    index.forget("r-2");
    assert_eq!(index.latest("k").unwrap().name, "r-1");
    index.retain(&BTreeSet::new());
    assert!(index.is_empty() && index.latest("k").is_none());
}

#[test]
fn a_run_that_was_deleted_does_not_come_back_by_news_that_is_late() {
    let index = RunIndex::default();
    let mut withdrawn = run("r", 1, "5", RunState::Pending);
    withdrawn.metadata.uid = Some("first".into());
    index.observe(&withdrawn);
    index.forget("r");
    index.observe(&withdrawn);
    assert!(index.get("r").is_none() && index.latest("k").is_none());

    let mut next = run("r", 1, "9", RunState::Pending);
    next.metadata.uid = Some("second".into());
    index.observe(&next);
    assert!(index.get("r").is_some());

    // What a list did not show may have been written after it.
    index.retain(&BTreeSet::new());
    index.observe(&next);
    assert!(index.get("r").is_some());
}

#[test]
fn what_is_the_same_in_all_runs_of_a_target_is_kept_once() {
    let index = RunIndex::default();
    let of = |name: &str, attempt, executor: &str| {
        let mut run = run(name, attempt, "1", RunState::Committed);
        run.status.as_mut().unwrap().executor = Some(executor.into());
        index.observe(&run)
    };
    let (first, second, third) = (of("r-1", 1, "a"), of("r-2", 2, "a"), of("r-3", 3, "b"));
    assert!(Arc::ptr_eq(&first.target, &second.target) && Arc::ptr_eq(&second.target, &third.target));
    let executor = |run: &RunEntry| run.executor.clone().unwrap();
    assert!(Arc::ptr_eq(&executor(&first), &executor(&second)));
    assert_eq!(&*executor(&third), "b");
}

#[test]
fn the_same_news_twice_is_news_once() {
    let index = RunIndex::default();
    let changes = index.changes();
    let first = index.observe(&run("r-1", 1, "10", RunState::Running));
    let told = *changes.borrow();
    assert!(Arc::ptr_eq(&first, &index.observe(&run("r-1", 1, "10", RunState::Running))));
    assert_eq!(*changes.borrow(), told);
    assert_eq!(index.of_name("shop", "x").len(), 1);
}

#[test]
fn a_failure_is_settled_when_what_it_did_is_undone_or_given_up_to_be() {
    let index = RunIndex::default();
    let mut failed = run("r-1", 1, "1", RunState::Failed);
    failed.status.as_mut().unwrap().compensated_by = Some("u-1".into());
    let failed = index.observe(&failed);
    let undone = |attempt: u32, state: RunState| {
        let mut undo = run(&format!("u-{attempt}"), attempt, "2", state);
        undo.spec.key = key::of_undo("r-1");
        undo.spec.compensates = Some("r-1".into());
        index.observe(&undo);
        index.is_settled(&failed)
    };
    assert!(!index.is_settled(&failed));
    assert!(!undone(1, RunState::Failed), "it is tried again");
    assert!(!undone(2, RunState::Running));
    assert!(undone(3, RunState::Failed));
    assert!(undone(4, RunState::Succeeded));
    let abandoned = RunEntry { state: RunState::Abandoned, ..(*failed).clone() };
    assert!(!index.is_settled(&abandoned), "that it is undone is still to be written down");
}

fn restored(name: &str) -> PhaseRun {
    let mut run = run(name, 1, "7", RunState::Pending);
    let written: BTreeMap<_, _> = crate::api::origin::written("2026-01-01T00:00:00Z".parse().unwrap());
    run.metadata.annotations = Some(written);
    run.metadata.uid = Some("restored".into());
    run.metadata.creation_timestamp = serde_json::from_value(json!("2026-01-02T00:00:00Z")).unwrap();
    run
}

#[test]
fn t16_nothing_is_known_of_a_run_that_was_restored_but_that_it_is_there() {
    let index = RunIndex::default();
    index.observe(&restored("r-1"));
    assert!(index.get("r-1").is_none() && index.latest("k").is_none() && index.open().is_empty());
    assert!(index.unsettled().is_empty() && index.of_name("shop", "x").is_empty());
    assert_eq!(index.inert()[0].name, "r-1");
    index.forget_watched(&RunEntry::from(&restored("r-1")));
    assert!(index.inert().is_empty());
}

#[test]
fn t16_a_run_that_was_restored_with_its_status_is_inert_too() {
    let index = RunIndex::default();
    let mut run = restored("r-1");
    run.status =
        Some(PhaseRunStatus { state: RunState::Running, executor: Some("gone/1".into()), ..PhaseRunStatus::default() });
    index.observe(&run);
    assert!(index.open().is_empty() && index.inert().len() == 1);
}

#[test]
fn t06_a_run_with_the_key_of_another_change_is_not_joined() {
    let planned = |spec: serde_json::Value| crate::plan::runs::PlannedRun {
        phase: Phase::PreCreate,
        key: "k".into(),
        target: TargetRef { namespace: "shop".into(), name: "x".into(), ..TargetRef::default() },
        timeout_seconds: 1,
        resources: vec![],
        object: json!({"spec": spec}),
        old_object: None,
    };
    let mut run = run("r-1", 1, "1", RunState::Succeeded);
    run.spec.object = json!({"spec": {"params": "good"}});
    let entry = RunIndex::default().observe(&run);
    assert!(entry.is_of(&planned(json!({"params": "good"}))));
    assert!(!entry.is_of(&planned(json!({"params": "evil"}))));
    let elsewhere = |namespace: &str, name: &str| {
        let target = TargetRef { namespace: namespace.into(), name: name.into(), ..TargetRef::default() };
        crate::plan::runs::PlannedRun { target, ..planned(json!({"params": "good"})) }
    };
    assert!(!entry.is_of(&elsewhere("shop", "y")) && !entry.is_of(&elsewhere("other", "x")));
    let later = crate::plan::runs::PlannedRun { phase: Phase::PreUpdate, ..planned(json!({"params": "good"})) };
    assert!(!entry.is_of(&later));
}
