//! Changes that were stored, and followed by the next or by the deletion before a reconcile looked. Their phases have
//! run, so what they made must be taken leave of: their runs tell what was stored.

use super::{Context, ControllerError, post};
use crate::api::{Admitted, Phase, RunState, SandboxRecordSpec};
use crate::engine::index::RunEntry;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Takes the generations below `next` into a record that does not have them; false where it is not known yet whether a
/// change was stored that made something.
pub async fn take_in(context: &Context, record: &mut SandboxRecordSpec, next: i64) -> Result<bool, ControllerError> {
    let uid = record.target.uid.clone().unwrap_or_default();
    let generations = generation(&record.stored) + 1..next;
    if generations.is_empty() {
        return Ok(true);
    }
    let seen = context.sightings.of(&uid);
    let was_seen = |generation: i64, spec_hash: &str| seen.get(&generation).is_some_and(|seen| seen == spec_hash);
    let told = tell(&context.engine.index.of_target(&record.target), &uid, &generations, was_seen);
    for name in told.stored.values() {
        if let Some(run) = context.engine.read(name).await? {
            note(record, run.spec.object);
        }
    }
    Ok(told.is_decided)
}

/// Takes what is stored now into a record.
pub fn note(record: &mut SandboxRecordSpec, stored: Value) {
    record.left.extend(post::leaves(record, &stored));
    if record.stored["spec"] != stored["spec"] {
        record.updated_at = Some(MicroTime(Timestamp::now()));
    }
    record.stored = stored;
}

pub fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or_default()
}

#[derive(Debug, PartialEq)]
struct Told {
    /// The run that knows the object, by generation.
    stored: BTreeMap<i64, String>,
    is_decided: bool,
}

/// What runs tell of these generations of an object. A pre-update counts as committed also where its object is gone, so
/// only what was seen proves it; of what joins, the commit itself does.
fn tell(runs: &[Arc<RunEntry>], uid: &str, generations: &Range<i64>, was_seen: impl Fn(i64, &str) -> bool) -> Told {
    let mut told = Told { stored: BTreeMap::new(), is_decided: true };
    let passed = |run: &&Arc<RunEntry>| {
        let before_a_change = run.phase.is_some_and(Phase::is_pre) && run.compensates.is_none() && !run.removes_target;
        before_a_change && (run.state == RunState::Committed || run.awaits_commit())
    };
    for run in runs.iter().filter(passed) {
        let joins = run.phase == Some(Phase::PreCreate);
        let is_the_one = |admitted: &Admitted| run.admitted.as_ref() == Some(admitted);
        for admitted in run.admissions().filter(|a| a.uid == uid && generations.contains(&a.generation)) {
            let committed = joins && run.state == RunState::Committed && is_the_one(admitted);
            if committed || was_seen(admitted.generation, &run.spec_hash) {
                told.stored.insert(admitted.generation, run.name.clone());
            } else if joins && run.awaits_commit() {
                told.is_decided = false;
            }
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn run(phase: Phase, state: RunState, generations: &[i64]) -> Arc<RunEntry> {
        let admitted = |generation: &i64| Admitted { uid: "u".into(), generation: *generation, at: None };
        Arc::new(RunEntry {
            name: format!("{phase}-{}", generations[0]),
            phase: Some(phase),
            state,
            spec_hash: "own".into(),
            admitted: generations.first().map(admitted),
            also_admitted: generations.iter().skip(1).map(admitted).collect(),
            ..RunEntry::default()
        })
    }

    #[rstest]
    #[case::joined(Phase::PreCreate, RunState::Committed, None, &[2], true)]
    #[case::joined_and_seen_before_it_is_marked(Phase::PreCreate, RunState::Succeeded, Some(2), &[2], true)]
    #[case::may_have_joined(Phase::PreCreate, RunState::Succeeded, None, &[], false)]
    #[case::updated(Phase::PreUpdate, RunState::Committed, Some(2), &[2], true)]
    #[case::taken_for_updated(Phase::PreUpdate, RunState::Committed, None, &[], true)]
    #[case::never_stored(Phase::PreCreate, RunState::Abandoned, None, &[], true)]
    fn a_run_tells_what_was_stored(
        #[case] phase: Phase,
        #[case] state: RunState,
        #[case] seen: Option<i64>,
        #[case] stored: &[i64],
        #[case] is_decided: bool,
    ) {
        let was_seen = |generation: i64, hash: &str| seen == Some(generation) && hash == "own";
        let told = tell(&[run(phase, state, &[2])], "u", &(2..i64::MAX), was_seen);
        assert_eq!((told.stored.keys().copied().collect::<Vec<_>>(), told.is_decided), (stored.to_vec(), is_decided));
    }

    #[test]
    fn only_what_the_record_lacks_is_told_and_each_generation_once() {
        let runs = [
            run(Phase::PreCreate, RunState::Committed, &[1]),
            run(Phase::PreCreate, RunState::Committed, &[3, 2]),
            run(Phase::PreUpdate, RunState::Committed, &[3]),
            run(Phase::PreCreate, RunState::Committed, &[4]),
        ];
        let told = tell(&runs, "u", &(2..4), |_, _| false);
        assert_eq!(told.stored.into_iter().collect::<Vec<_>>(), [(3, "pre-create-3".to_owned())]);
        assert!(told.is_decided);
        assert!(tell(&runs, "another", &(2..4), |_, _| true).stored.is_empty());
    }
}
