//! Which ended runs are kept, as a pure rule.

use crate::api::RunState;
use crate::engine::index::RunEntry;
use crate::engine::life::{FAILURE_TTL, since, undo_is_due};
use crate::plan::queue::Kept;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The runs that can be deleted, oldest first: ended and needed by nobody, and older than `age`, beyond the newest
/// `limit` of their target, or past what is kept of targets that are not there. `living` are the UIDs of targets that
/// are: the newest run that left an output or an object of one of theirs stays, and so does what waits for its change to
/// be stored, or for what it did to be undone.
pub fn superfluous(
    runs: &[Arc<RunEntry>],
    living: &BTreeSet<String>,
    limit: usize,
    age: Duration,
    now: Timestamp,
) -> Vec<String> {
    let known = Known::of(runs);
    let mut by_target: BTreeMap<(&str, &str), Vec<&RunEntry>> = BTreeMap::new();
    for run in runs {
        by_target.entry((&run.target.namespace, &run.target.name)).or_default().push(run);
    }
    let mut given_up: BTreeSet<&str> = BTreeSet::new();
    // Of targets that are not there.
    let mut left = Vec::new();
    for runs in by_target.values_mut() {
        runs.sort_by_key(|run| std::cmp::Reverse(moment(run)));
        let mut kept = 0;
        let mut provided = BTreeSet::new();
        for run in runs.iter().copied() {
            if run.state.is_open() || run.awaits_commit() || known.awaits_undo(run, age, now) {
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
            let ago = since(run.finished_at, now);
            if kept > limit || ago > age {
                given_up.insert(&run.name);
            } else if !alive && ago >= FAILURE_TTL {
                // Until then somebody may still come to be told.
                left.push(run);
            }
        }
    }
    // What undoes a run is as old as that run, so that both go together.
    left.sort_by_key(|run| std::cmp::Reverse((known.undone(run).unwrap_or(run).finished_at, moment(run))));
    let mut by_namespace: BTreeMap<&str, Vec<&RunEntry>> = BTreeMap::new();
    for run in &left {
        by_namespace.entry(&run.target.namespace).or_default().push(run);
    }
    for runs in by_namespace.values() {
        given_up.extend(past(runs, Kept::IN_NAMESPACE));
    }
    left.retain(|run| !given_up.contains(&*run.name));
    given_up.extend(past(&left, Kept::IN_ALL));
    // An undo stays as long as what it undid, which would be undone again else.
    let undoes_kept = |run: &RunEntry| known.undone(run).is_some_and(|undone| !given_up.contains(&*undone.name));
    let gone = given_up.iter().filter_map(|name| known.by_name.get(name));
    let mut gone: Vec<&RunEntry> = gone.copied().filter(|run| !undoes_kept(run)).collect();
    gone.sort_by_key(|run| moment(run));
    gone.into_iter().map(|run| run.name.clone()).collect()
}

fn moment(run: &RunEntry) -> (Option<Timestamp>, u32) {
    (run.started_at.or(run.created_at), run.attempt)
}

/// Those past `most`, of runs from the newest on.
fn past<'a>(runs: &[&'a RunEntry], most: Kept) -> impl Iterator<Item = &'a str> {
    let mut kept = Kept::default();
    let fits = move |run: &&'a RunEntry| {
        kept.add(run.size);
        !kept.is_past(most)
    };
    runs.iter().copied().skip_while(fits).map(|run| &*run.name)
}

/// How runs are found.
struct Known<'a> {
    by_name: BTreeMap<&'a str, &'a RunEntry>,
    /// The newest try to undo a run, by that run.
    undoes: BTreeMap<&'a str, &'a RunEntry>,
}

impl<'a> Known<'a> {
    fn of(runs: &'a [Arc<RunEntry>]) -> Self {
        let mut undoes: BTreeMap<&str, &RunEntry> = BTreeMap::new();
        for run in runs {
            let Some(undone) = run.compensates.as_deref() else { continue };
            let newest = undoes.entry(undone).or_insert(run);
            if newest.attempt < run.attempt {
                *newest = run;
            }
        }
        Self { by_name: runs.iter().map(|run| (&*run.name, &**run)).collect(), undoes }
    }

    /// What a run has undone, where that is still there.
    fn undone(&self, run: &RunEntry) -> Option<&'a RunEntry> {
        self.by_name.get(run.compensates.as_deref()?).copied()
    }

    /// Whether what a run did is still to be undone, or that it is to be noted: it is what that is done by.
    fn awaits_undo(&self, run: &RunEntry, age: Duration, now: Timestamp) -> bool {
        run.owes_undo()
            && self.undoes.get(&*run.name).map_or_else(
                // What was promised so long ago and is not there is not begun any more.
                || since(run.finished_at, now) < age,
                |undo| undo_is_due(undo) || (run.state == RunState::Abandoned && undo.state == RunState::Succeeded),
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Phase, TargetRef};

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

    /// Of a create in a namespace that failed and was never stored.
    fn refused(namespace: &str, second: i64, size: usize) -> RunEntry {
        let name = format!("{namespace}-{second}");
        let target = TargetRef { namespace: namespace.into(), name: name.clone(), ..TargetRef::default() };
        let phase = Some(Phase::PreCreate);
        RunEntry { phase, target: target.into(), size, ..(*run(&name, second, RunState::Failed, None)).clone() }
    }

    fn tidied(runs: impl IntoIterator<Item = RunEntry>) -> Vec<String> {
        let runs: Vec<_> = runs.into_iter().map(Arc::new).collect();
        superfluous(
            &runs,
            &["u".to_owned()].into(),
            10,
            Duration::from_secs(604_800),
            Timestamp::from_second(5000).unwrap(),
        )
    }

    fn names(namespace: &str, seconds: impl IntoIterator<Item = i64>) -> Vec<String> {
        seconds.into_iter().map(|second| format!("{namespace}-{second}")).collect()
    }

    #[test]
    fn t10_what_is_kept_of_refused_creates_is_bounded_in_a_namespace_whatever_their_names() {
        let large = || (0..482).map(|n| refused("many", n, 400_000));
        let few = refused("few", 0, 400_000);
        // 20 of them have 8 MB, and the newest stay.
        assert_eq!(tidied(large().chain([few])), names("many", 0..462));
        assert_eq!(tidied((0..600).map(|n| refused("many", n, 10))), names("many", 0..100));
    }

    #[test]
    fn t10_what_is_kept_of_refused_creates_is_bounded_in_all_namespaces() {
        let of = |count: i64, size| (0..count).map(move |n| refused(&format!("n{n:04}"), n, size));
        assert_eq!(tidied(of(100, 1 << 20)).len(), 36);
        assert_eq!(tidied(of(4100, 10)).len(), 100);
    }

    #[test]
    fn t10_what_is_still_to_be_done_stays_though_a_namespace_has_too_much() {
        let large = |second| refused("many", second, 9 << 20);
        let owing = |second| RunEntry { compensated_by: Some(format!("undo-{second}")), ..large(second) };
        let undo = |of: i64, state, attempt| RunEntry {
            name: format!("undo-{of}"),
            compensates: Some(format!("many-{of}")),
            state,
            attempt,
            ..refused("many", of + 100, 9 << 20)
        };
        let runs = [
            RunEntry { state: RunState::Running, ..large(1) },
            RunEntry { state: RunState::Succeeded, ..large(2) },
            RunEntry { ignorable: true, ..large(3) },
            RunEntry { target: TargetRef { uid: Some("u".into()), ..TargetRef::default() }.into(), ..large(4) },
            owing(5),
            undo(5, RunState::Running, 1),
            owing(6),
            undo(6, RunState::Failed, 1),
            owing(7),
            RunEntry { state: RunState::Abandoned, ..owing(8) },
            undo(8, RunState::Succeeded, 1),
            // These are all over.
            owing(9),
            undo(9, RunState::Succeeded, 1),
            owing(10),
            undo(10, RunState::Failed, 3),
            large(11),
        ];
        assert_eq!(tidied(runs), ["many-9", "many-10", "many-11", "undo-9", "undo-10"]);
    }

    #[test]
    fn t10_an_undo_goes_with_what_it_undid_and_never_before_it() {
        let pair = |second: i64| {
            let failed = refused("many", second, 3 << 20);
            let undo = RunEntry {
                name: format!("undo-{second}"),
                compensates: Some(failed.name.clone()),
                state: RunState::Succeeded,
                ..refused("many", second + 50, 3 << 20)
            };
            [RunEntry { compensated_by: Some(undo.name.clone()), ..failed }, undo]
        };
        // Of the second pair there is room for one, and it is kept whole or not at all.
        assert_eq!(tidied([pair(1), pair(2), pair(3)].into_iter().flatten()), ["many-1", "many-2", "undo-1", "undo-2"]);
    }
}
