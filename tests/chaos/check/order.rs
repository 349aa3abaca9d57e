//! In which order runs of one target come: pre-phases one at a time, and the phases of a life one after another.

use super::changes::describe;
use super::history::{History, Run};
use super::{Violation, broken};
use sluice::api::{Phase, RunState};
use std::collections::BTreeMap;

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut targets: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    for run in history.runs.values() {
        targets.entry(&run.target).or_default().push(run);
    }
    for runs in targets.values() {
        one_at_a_time(history, runs, &mut found);
    }
    for (uid, versions) in history.lives() {
        if let Some(first) = versions.first() {
            one_after_another(history, uid, &first.target, first.revision, &mut found);
        }
    }
    found
}

/// Nothing begins for a target while a change of it runs, is being undone, or may still be stored.
fn one_at_a_time(history: &History, runs: &[&Run], found: &mut Vec<Violation>) {
    let mut busy: Vec<(u64, u64, &Run)> = runs
        .iter()
        .filter(|run| run.is_pre() || run.compensates.is_some())
        .map(|run| (run.taken_up(), until(history, run), *run))
        .collect();
    busy.sort_by_key(|(from, ..)| *from);
    for (at, (_, until, run)) in busy.iter().enumerate() {
        for (from, _, later) in &busy[at + 1..] {
            // A deletion that is under way is let through again by the same run; its undo is its own matter.
            let same = later.compensates.as_ref() == Some(&run.name);
            if from < until && !same {
                found.push(broken(
                    "two changes of one target at once",
                    format!("{}; {}", describe(run), describe(later)),
                ));
            }
        }
    }
}

/// Up to when a run keeps others from beginning.
fn until(history: &History, run: &Run) -> u64 {
    let ended = run.ended().unwrap_or(u64::MAX);
    let stored = run.stored_as.as_ref().and_then(|(uid, generation)| {
        let deletion = run.is(Phase::PreDelete);
        let stores = |v: &&super::history::Version| {
            v.uid == *uid && (v.deleted == deletion) && (deletion || v.generation == *generation)
        };
        history.sandboxes.iter().find(stores).map(|v| v.revision)
    });
    match (run.state(), stored) {
        (RunState::Committed, Some(stored)) => stored,
        (RunState::Abandoned | RunState::Compensated, _) => run.reached(RunState::Abandoned).unwrap_or(ended),
        _ => ended,
    }
}

/// Post-create, then post-updates, then post-delete, each when the one before has ended; then the next of that name.
fn one_after_another(history: &History, uid: &str, target: &str, stored: u64, found: &mut Vec<Violation>) {
    let mut posts = Vec::new();
    for phase in [Phase::PostCreate, Phase::PostUpdate, Phase::PostDelete] {
        posts.extend(history.of(uid, phase));
    }
    for pair in posts.windows(2) {
        if let [before, after] = pair
            && before.ended().is_none_or(|ended| ended > after.created())
        {
            found.push(broken("post-phases out of order", format!("{}; {}", describe(before), describe(after))));
        }
    }
    if history.of(uid, Phase::PostCreate).is_empty() && !history.of(uid, Phase::PostUpdate).is_empty() {
        found.push(broken("post-phases out of order", format!("post-update of {target} ({uid}) without post-create")));
    }
    let Some(last) = posts.iter().rfind(|run| run.is(Phase::PostDelete)) else { return };
    let own = |run: &&Run| run.uid.as_deref() == Some(uid) && run.name != last.name && !run.is(Phase::PostDelete);
    for run in history.runs.values().filter(own) {
        if run.ended().is_none_or(|ended| ended > last.created()) && run.created() < last.created() {
            found.push(broken(
                "post-delete before another phase had ended",
                format!("{}; {}", describe(run), describe(last)),
            ));
        }
    }
    let next = |run: &&Run| run.is(Phase::PreCreate) && run.target == target && run.taken_up() > stored;
    for run in history.runs.values().filter(next) {
        // One that is refused because the name is taken may have begun while this one lived; it is undone.
        let lived = history.at(target, run.taken_up()).is_some_and(|v| v.uid == uid);
        if !lived && last.ended().is_none_or(|ended| ended > run.taken_up()) {
            found.push(broken(
                "a create before the last phases of its name",
                format!("{}; {}", describe(last), describe(run)),
            ));
        }
    }
}
