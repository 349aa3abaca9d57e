//! Tests of what `make chaos` judges by: that it finds nothing in a good history, and each kind of violation in a bad.

// Clippy takes only the test functions themselves for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

#[path = "check/mod.rs"]
mod check;

use check::history::{Call, Effect, History, Run, Told, Verb, Version};
use rstest::rstest;
use sluice::api::{Phase, RunState};

const TARGET: &str = "chaos/s";
const UID: &str = "u1";

fn version(revision: u64, generation: i64, change: &str) -> Version {
    Version { revision, target: TARGET.into(), uid: UID.into(), generation, change: change.into(), deleted: false }
}

/// A run that was written at a revision, ended four later in this state, and did what it does in between.
fn run(history: &mut History, name: &str, phase: Phase, change: &str, from: u64, end: RunState) {
    use RunState::{Pending, Running};
    let run = Run {
        name: name.into(),
        target: TARGET.into(),
        uid: (phase != Phase::PreCreate).then(|| UID.into()),
        phase: Some(phase),
        key: name.into(),
        attempt: 1,
        change: change.into(),
        states: vec![(from, Pending), (from + 1, Running), (from + 4, end)],
        begun: true,
        last_revision: from + 4,
        ..Run::default()
    };
    history.runs.insert(name.into(), run);
    let target = TARGET.to_owned();
    history.effects.push(Effect { revision: from + 2, target, phase, change: Some(change.to_owned()) });
}

/// Lets a request through on a run's strength, which is stored at a revision.
fn commit(history: &mut History, name: &str, generation: i64, stored: u64) {
    let run = history.runs.get_mut(name).unwrap();
    run.admissions.push((stored - 1, UID.into(), generation));
    run.states.push((stored + 1, RunState::Committed));
    run.stored_as = Some((UID.into(), generation));
    run.last_revision = stored + 1;
}

/// A sandbox that is created (c1), updated twice before it settles (c2, c3), and deleted; and a create of its name (c9)
/// that is refused by a quota afterwards.
fn good() -> History {
    use Phase::{PostCreate, PostDelete, PostUpdate, PreCreate, PreDelete, PreUpdate};
    use RunState::{Abandoned, Compensated, Succeeded};
    let mut h = History::default();
    run(&mut h, "pre-create", PreCreate, "c1", 10, Succeeded);
    commit(&mut h, "pre-create", 1, 20);
    run(&mut h, "pre-update-2", PreUpdate, "c2", 30, Succeeded);
    commit(&mut h, "pre-update-2", 2, 40);
    run(&mut h, "pre-update-3", PreUpdate, "c3", 50, Succeeded);
    commit(&mut h, "pre-update-3", 3, 60);
    run(&mut h, "post-create", PostCreate, "c1", 70, Succeeded);
    run(&mut h, "post-update", PostUpdate, "c3", 80, Succeeded);
    h.runs.get_mut("post-update").unwrap().before = Some("c1".into());
    run(&mut h, "pre-delete", PreDelete, "c3", 90, Succeeded);
    commit(&mut h, "pre-delete", 3, 100);
    run(&mut h, "post-delete", PostDelete, "c3", 110, Succeeded);
    let gone = |revision| Effect { revision, target: TARGET.into(), phase: PreCreate, change: None };
    h.effects.push(gone(113));
    h.sandboxes = vec![version(20, 1, "c1"), version(40, 2, "c2"), version(60, 3, "c3")];
    h.sandboxes.push(Version { deleted: true, ..version(100, 3, "c3") });
    run(&mut h, "refused", PreCreate, "c9", 120, Succeeded);
    let refused = h.runs.get_mut("refused").unwrap();
    refused.admissions.push((125, "u2".into(), 1));
    refused.states.extend([(140, Abandoned), (150, Compensated)]);
    refused.compensated_by = Some("undo".into());
    refused.last_revision = 150;
    run(&mut h, "undo", PostDelete, "c9", 141, Succeeded);
    h.effects.push(gone(144));
    h.runs.get_mut("undo").unwrap().compensates = Some("refused".into());
    h.calls = vec![
        call("c1", Verb::Create, Told::Made),
        call("c2", Verb::Update, Told::Unknown),
        call("c3", Verb::Update, Told::Made),
        call("c9", Verb::Create, Told::Refused),
    ];
    h
}

fn call(change: &str, verb: Verb, told: Told) -> Call {
    Call { target: TARGET.into(), change: change.into(), verb, told, message: String::new() }
}

#[test]
fn a_good_history_has_no_violations() {
    assert_eq!(check::check(&good()), []);
}

fn of<'a>(history: &'a mut History, name: &str) -> &'a mut Run {
    history.runs.get_mut(name).unwrap()
}

fn end(history: &mut History, name: &str, state: RunState) {
    of(history, name).states.last_mut().unwrap().1 = state;
}

#[rstest]
#[case::no_pre_create("stored without its pre-phase", |h: &mut History| { h.runs.remove("pre-create"); })]
#[case::no_pre_update("stored without its pre-phase", |h: &mut History| { h.runs.remove("pre-update-3"); })]
#[case::no_pre_delete("stored without its pre-phase", |h: &mut History| { h.runs.remove("pre-delete"); })]
#[case::pre_phase_of_another_change("stored without its pre-phase", |h: &mut History| of(h, "pre-update-2").change = "x".into())]
#[case::pre_phase_too_late("stored before its pre-phase had succeeded", |h: &mut History| of(h, "pre-update-2").states[2].0 = 41)]
#[case::admitted_too_late("stored before it was admitted", |h: &mut History| of(h, "pre-create").admissions[0].0 = 21)]
#[case::committed_for_nothing("committed without a stored change", |h: &mut History| { h.sandboxes.remove(1); })]
#[case::two_committed("several pre-phases of one change", |h: &mut History| {
    let twin = Run { name: "twin".into(), ..of(h, "pre-update-2").clone() };
    h.runs.insert("twin".into(), twin);
})]
#[case::no_post_create("post-phases out of order", |h: &mut History| { h.runs.remove("post-create"); })]
#[case::no_post_create_of_a_living_one("a post-phase is missing", |h: &mut History| { h.sandboxes.truncate(3); h.runs.remove("post-create"); })]
#[case::no_post_update_of_a_living_one("a post-phase is missing", |h: &mut History| { h.sandboxes.truncate(3); h.runs.remove("post-update"); })]
#[case::no_post_create_of_one_that_lived_long("a post-phase is missing", |h: &mut History| { h.rested = 95; h.runs.remove("post-create"); })]
#[case::no_post_update_of_one_that_lived_long("a post-phase is missing", |h: &mut History| { h.rested = 95; h.runs.remove("post-update"); })]
#[case::no_post_delete("a post-phase is missing", |h: &mut History| { h.runs.remove("post-delete"); })]
#[case::post_update_from_the_middle("post-updates leave a change out", |h: &mut History| of(h, "post-update").before = Some("c2".into()))]
#[case::post_update_of_what_was_refused("a post-phase of a change that was not stored", |h: &mut History| of(h, "post-update").change = "c8".into())]
#[case::post_create_too_early("a post-phase before its change was stored", |h: &mut History| of(h, "post-create").states[0].0 = 19)]
#[case::post_phase_twice("a post-phase ran more than once", |h: &mut History| run(h, "again", Phase::PostDelete, "c3", 160, RunState::Succeeded))]
#[case::post_phase_failed("a post-phase did not succeed", |h: &mut History| end(h, "post-delete", RunState::Failed))]
#[case::post_delete_of_a_living_one("post-delete of a living sandbox", |h: &mut History| { h.sandboxes.truncate(3); })]
#[case::open("stuck", |h: &mut History| end(h, "post-delete", RunState::Running))]
#[case::undecided("stuck", |h: &mut History| { of(h, "refused").states.truncate(3); })]
#[case::deleted("a run was deleted, so history is not whole", |h: &mut History| of(h, "post-create").lost = true)]
#[case::not_undone("ran for nothing and was not undone", |h: &mut History| { h.runs.remove("undo"); of(h, "refused").states.truncate(4); })]
#[case::not_undone_after_a_failure("ran for nothing and was not undone", |h: &mut History| run(h, "failed", Phase::PreCreate, "c10", 160, RunState::Failed))]
#[case::says_that_it_was_undone("counts as undone, and was not", |h: &mut History| { h.runs.remove("undo"); })]
#[case::does_not_say_so("undone, but does not say so", |h: &mut History| { of(h, "refused").states.truncate(4); })]
#[case::undone_twice("undone more than once", |h: &mut History| {
    let twin = Run { name: "undo-again".into(), ..of(h, "undo").clone() };
    h.runs.insert("undo-again".into(), twin);
})]
#[case::committed_and_undone("the undo of a committed run", |h: &mut History| of(h, "undo").compensates = Some("pre-create".into()))]
#[case::undone_while_it_ran("an undo of what still ran", |h: &mut History| of(h, "undo").states[0].0 = 123)]
#[case::undo_failed("an undo did not succeed", |h: &mut History| end(h, "undo", RunState::Failed))]
#[case::undo_of_nothing("an undo of nothing", |h: &mut History| of(h, "undo").compensates = Some("nothing".into()))]
#[case::second_attempt_alone("an attempt without the one before", |h: &mut History| of(h, "pre-create").attempt = 2)]
#[case::attempts_at_once("two attempts at once", |h: &mut History| {
    let states = vec![(12, RunState::Pending), (14, RunState::Failed)];
    let second = Run { name: "second".into(), attempt: 2, states, begun: false, ..of(h, "pre-create").clone() };
    h.runs.insert("second".into(), second);
})]
#[case::changes_at_once("two changes of one target at once", |h: &mut History| of(h, "pre-update-3").states[1].0 = 39)]
#[case::change_during_an_undo("two changes of one target at once", |h: &mut History| run(h, "other", Phase::PreCreate, "c10", 143, RunState::Failed))]
#[case::posts_at_once("post-phases out of order", |h: &mut History| of(h, "post-update").states[0].0 = 72)]
#[case::post_delete_beside_another("post-delete before another phase had ended", |h: &mut History| of(h, "pre-update-3").states[2].0 = 115)]
#[case::create_before_post_delete("a create before the last phases of its name", |h: &mut History| of(h, "refused").states[1].0 = 112)]
#[case::late_write("an effect outside of every run", |h: &mut History| {
    h.effects.push(Effect { revision: 35, target: TARGET.into(), phase: Phase::PreCreate, change: Some("c1".into()) });
})]
#[case::late_deletion("an effect outside of every run", |h: &mut History| {
    h.effects.push(Effect { revision: 35, target: TARGET.into(), phase: Phase::PreCreate, change: None });
})]
#[case::no_effect("a run without its effect", |h: &mut History| { h.effects.remove(0); })]
#[case::two_effects("an effect more than once", |h: &mut History| { let first = h.effects[0].clone(); h.effects.push(first); })]
#[case::lied_that_it_was_made("told that it was made, and it was not", |h: &mut History| h.calls.push(call("c8", Verb::Update, Told::Made)))]
#[case::lied_that_it_was_refused("told that it was refused, and it was made", |h: &mut History| h.calls[0].told = Told::Refused)]
#[case::left_over("left over", |h: &mut History| h.left.push("pod x".into()))]
fn every_kind_of_violation_is_found(#[case] rule: &str, #[case] spoil: fn(&mut History)) {
    let mut history = good();
    spoil(&mut history);
    let found = check::check(&history);
    assert!(found.iter().any(|violation| violation.rule == rule), "{rule:?} is not among {found:#?}");
}

#[test]
fn a_refused_create_of_what_exists_and_a_deletion_that_failed_first_are_no_violations() {
    let mut history = good();
    run(&mut history, "failed-delete", Phase::PreDelete, "c3", 84, RunState::Failed);
    assert_eq!(check::check(&history), []);
}

#[test]
fn an_update_that_a_deletion_came_before_and_a_run_that_was_taken_back_are_no_violations() {
    let mut history = good();
    run(&mut history, "outrun", Phase::PreUpdate, "c4", 84, RunState::Succeeded);
    commit(&mut history, "outrun", 4, 104);
    assert_eq!(check::check(&history), []);

    let pending = serde_json::json!({"spec": {"phase": "PreCreate", "key": "k", "attempt": 1}});
    history.run(200, "quick", Some(&pending));
    assert_ne!(check::check(&history), []);
    history.run(201, "quick", None);
    assert_eq!(check::check(&history), []);
    assert_eq!(history.taken_back, 1);
}

#[test]
fn what_was_stored_is_read_from_the_objects() {
    let object = |generation: i64, change: &str| serde_json::json!({"metadata": {"uid": UID, "generation": generation}, "spec": {"description": change}});
    let mut history = History::default();
    history.sandbox(5, TARGET, Some(&object(1, "c1")));
    history.sandbox(6, TARGET, Some(&object(1, "c1")));
    history.sandbox(7, TARGET, Some(&object(2, "c2")));
    history.sandbox(8, TARGET, None);
    let seen: Vec<_> = history.sandboxes.iter().map(|v| (v.revision, v.generation, v.deleted)).collect();
    assert_eq!(seen, [(5, 1, false), (7, 2, false), (8, 2, true)]);
    assert_eq!(history.at(TARGET, 7).unwrap().change, "c2");
    assert_eq!(history.at(TARGET, 8), None);

    let run = |status: serde_json::Value| {
        serde_json::json!({
            "spec": {"phase": "PreUpdate", "key": "k", "attempt": 1, "target": {"namespace": "chaos", "name": "s", "uid": UID},
                "object": {"spec": {"description": "c2"}}, "oldObject": {"spec": {"description": "c1"}},
                "resources": [{"params": {"fail": "PreUpdate"}}]},
            "status": status,
        })
    };
    history.run(5, "r", Some(&run(serde_json::json!({}))));
    let steps = serde_json::json!([{"state": "Running"}]);
    history.run(6, "r", Some(&run(serde_json::json!({"state": "Running", "steps": steps}))));
    history.run(7, "r", Some(&run(serde_json::json!({"state": "Failed", "compensatedBy": "u"}))));
    let run = &history.runs["r"];
    assert_eq!((run.created(), run.ended(), run.state()), (5, Some(7), RunState::Failed));
    assert!(run.begun && run.doomed && run.target == TARGET && run.before.as_deref() == Some("c1"));
    assert_eq!((run.change.as_str(), run.compensated_by.as_deref()), ("c2", Some("u")));
}
