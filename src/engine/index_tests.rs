//! Tests of the index of runs.

use super::*;
use crate::api::{PhaseRunSpec, PhaseRunStatus};
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
