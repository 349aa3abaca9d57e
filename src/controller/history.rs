//! Which ended runs are kept, as a pure rule.

use crate::api::{Phase, RunState};
use crate::engine::index::RunEntry;
use crate::engine::life::since;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The runs that can be deleted: ended, older than `age` or beyond the newest `limit` of their target, and needed by
/// nobody. `living` are the UIDs of targets that are still there: the newest run that left an output or an object of
/// one of theirs stays, and so does what waits for its change to be stored.
pub fn superfluous(
    runs: &[Arc<RunEntry>],
    living: &BTreeSet<String>,
    limit: usize,
    age: Duration,
    now: Timestamp,
) -> Vec<String> {
    let mut by_target: BTreeMap<(&str, &str), Vec<&Arc<RunEntry>>> = BTreeMap::new();
    for run in runs {
        by_target.entry((&run.target.namespace, &run.target.name)).or_default().push(run);
    }
    let mut superfluous = Vec::new();
    for runs in by_target.values_mut() {
        runs.sort_by_key(|run| std::cmp::Reverse((run.started_at.or(run.created_at), run.attempt)));
        let mut kept = 0;
        let mut provided = BTreeSet::new();
        let mut ended = Vec::new();
        for run in runs.iter() {
            let pre = run.phase.is_some_and(Phase::is_pre) && run.compensates.is_none();
            let awaits_commit = pre && run.state == RunState::Succeeded;
            if run.state.is_open() || awaits_commit {
                continue;
            }
            // Outputs of what failed or was given up are nobody's; its objects are still to be deleted.
            let provides = run.state == RunState::Committed || run.state == RunState::Succeeded;
            let alive = run.uid().is_some_and(|uid| living.contains(uid));
            let outputs = run.outputs.iter().map(|(r, s, o)| format!("{r}/{s}/{o}"));
            let objects = run.applied.iter().map(|(r, s, o)| format!("{r}/{s}/{o}"));
            // Collected whole, so that each of them counts as provided.
            let what = outputs.filter(|_| provides).chain(objects);
            let new: Vec<bool> = what.map(|what| provided.insert(what)).collect();
            if alive && new.contains(&true) {
                continue;
            }
            kept += 1;
            if kept > limit || since(run.finished_at, now) > age {
                ended.push(run.name.as_str());
            }
        }
        // An undo stays as long as what it undid, which would be undone again else; and the oldest go first, so that
        // none is left behind where this ends in between.
        let is_kept = |name: &str| !ended.contains(&name) && runs.iter().any(|run| run.name == name);
        let undoes_kept =
            |name: &&str| runs.iter().any(|run| run.name == **name && run.compensates.as_deref().is_some_and(is_kept));
        superfluous.extend(ended.iter().rev().filter(|name| !undoes_kept(name)).map(|name| (*name).to_owned()));
    }
    superfluous
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::TargetRef;

    fn run(name: &str, second: i64, state: RunState, output: Option<&str>) -> Arc<RunEntry> {
        let at = Timestamp::from_second(second).unwrap();
        Arc::new(RunEntry {
            name: name.into(),
            phase: Some(Phase::PreUpdate),
            state,
            target: TargetRef { uid: Some("u".into()), ..TargetRef::default() }.into(),
            started_at: Some(at),
            finished_at: Some(at),
            outputs: output.map(|o| ("db".to_owned(), "s".to_owned(), o.to_owned())).into_iter().collect(),
            ..RunEntry::default()
        })
    }

    fn pruned(runs: &[Arc<RunEntry>], living: &[&str], limit: usize, now: i64) -> Vec<String> {
        let living = living.iter().map(|u| (*u).to_owned()).collect();
        superfluous(runs, &living, limit, Duration::from_secs(100), Timestamp::from_second(now).unwrap())
    }

    #[test]
    fn the_newest_are_kept_and_what_is_open_or_waits_is_not_counted() {
        let runs = [
            run("a", 1, RunState::Committed, None),
            run("b", 2, RunState::Failed, None),
            run("c", 3, RunState::Succeeded, None),
            run("d", 4, RunState::Running, None),
        ];
        assert_eq!(pruned(&runs, &["u"], 1, 5), ["a"]);
        assert_eq!(pruned(&runs, &["u"], 9, 500), ["a", "b"]);
    }

    #[test]
    fn what_a_living_sandbox_still_needs_stays() {
        let runs = [
            run("a", 1, RunState::Committed, Some("host")),
            run("b", 2, RunState::Committed, Some("port")),
            run("c", 3, RunState::Committed, Some("host")),
        ];
        assert_eq!(pruned(&runs, &["u"], 0, 500), ["a"]);
        assert_eq!(pruned(&runs, &[], 0, 500), ["a", "b", "c"]);
    }

    #[test]
    fn outputs_of_a_failed_run_take_no_other_s_place() {
        let runs = [run("a", 1, RunState::Committed, Some("host")), run("b", 2, RunState::Failed, Some("host"))];
        assert_eq!(pruned(&runs, &["u"], 0, 500), ["b"]);
    }

    #[test]
    fn an_undo_stays_as_long_as_what_it_undid() {
        let undo = RunEntry { compensates: Some("a".into()), ..(*run("b", 2, RunState::Succeeded, None)).clone() };
        let of = |age| pruned(&[run("a", age, RunState::Failed, None), Arc::new(undo.clone())], &["u"], 1, 3);
        assert_eq!(of(3), Vec::<String>::new());
        assert_eq!(of(1), ["a"]);
    }
}
