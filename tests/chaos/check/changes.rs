//! Every stored change has its phases, and every phase that counts as committed a stored change; clients were told so.

use super::history::{History, Run, Told, Verb, Version};
use super::{Violation, broken};
use sluice::api::{Phase, RunState};
use std::collections::BTreeMap;

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    for versions in history.lives().values() {
        life(history, versions, &mut used, &mut found);
    }
    for run in history.runs.values().filter(|run| run.is_pre() && run.state() == RunState::Committed) {
        match used.get(run.name.as_str()) {
            Some(1) => {}
            Some(_) => found.push(broken("one run, several changes", describe(run))),
            // It was let through, and the deletion that came first took all that it had done.
            None if run.is(Phase::PreUpdate) && went_before(history, run) => {}
            None => found.push(broken("committed without a stored change", describe(run))),
        }
    }
    found.extend(calls(history));
    found
}

/// Whether the sandbox of a run was gone when it was committed.
fn went_before(history: &History, run: &Run) -> bool {
    let committed = run.reached(RunState::Committed).unwrap_or_default();
    history.sandboxes.iter().any(|v| v.deleted && Some(&v.uid) == run.uid.as_ref() && v.revision < committed)
}

/// The life of one sandbox, from its create to its end.
fn life<'a>(
    history: &'a History,
    versions: &[&Version],
    used: &mut BTreeMap<&'a str, usize>,
    found: &mut Vec<Violation>,
) {
    let Some(first) = versions.first() else { return };
    let uid = first.uid.as_str();
    for version in versions {
        let (phase, generation) = match (version.deleted, version.generation == first.generation) {
            (true, _) => (Phase::PreDelete, None),
            (false, true) => (Phase::PreCreate, Some(version.generation)),
            (false, false) => (Phase::PreUpdate, Some(version.generation)),
        };
        let fits = |run: &&Run| {
            let (stored_uid, stored_generation) = run.stored_as.clone().unwrap_or_default();
            run.is(phase)
                && run.target == version.target
                && run.state() == RunState::Committed
                && stored_uid == uid
                && generation.is_none_or(|g| g == stored_generation && run.change == version.change)
        };
        let what = format!("{phase} of {} ({}, revision {})", version.target, version.change, version.revision);
        let runs: Vec<&Run> = history.runs.values().filter(fits).collect();
        match runs.as_slice() {
            [] => found.push(broken("stored without its pre-phase", what)),
            [run] => {
                *used.entry(&run.name).or_default() += 1;
                if run.reached(RunState::Succeeded).is_none_or(|at| at >= version.revision) {
                    found.push(broken("stored before its pre-phase had succeeded", format!("{what}: {}", run.name)));
                }
                let admitted = |(at, u, g): &(u64, String, i64)| {
                    *at < version.revision && u == uid && generation.is_none_or(|generation| generation == *g)
                };
                if !run.admissions.iter().any(admitted) {
                    found.push(broken("stored before it was admitted", format!("{what}: {}", run.name)));
                }
            }
            several => {
                several.iter().for_each(|run| *used.entry(&run.name).or_default() += 1);
                let names: Vec<_> = several.iter().map(|run| run.name.as_str()).collect();
                found.push(broken("several pre-phases of one change", format!("{what}: {}", names.join(", "))));
            }
        }
    }
    posts(history, versions, found);
}

/// Post-create once, then post-updates that lead from one stored change to another, and at the end post-delete.
fn posts(history: &History, versions: &[&Version], found: &mut Vec<Violation>) {
    let Some(first) = versions.first() else { return };
    let (uid, target) = (first.uid.as_str(), first.target.as_str());
    let gone = versions.iter().find(|v| v.deleted);
    // What it was when everything had settled: up to that, nothing may be missing.
    let settled = match gone {
        Some(gone) if gone.revision < history.rested => None,
        Some(_) => versions.iter().rfind(|v| v.revision < history.rested),
        None => versions.last(),
    };

    let creates = ended(history.of(uid, Phase::PostCreate), settled.is_none(), found);
    match creates.as_slice() {
        [] if settled.is_none() => {}
        [] => found.push(broken("a post-phase is missing", format!("post-create of {target} ({})", first.change))),
        [run] => {
            if run.change != first.change {
                found.push(broken(
                    "a post-phase of another change",
                    format!("{} is not {}", describe(run), first.change),
                ));
            }
            after(run, first, found);
        }
        several => found.push(broken("a post-phase ran more than once", names(several))),
    }

    let mut reached = first.change.as_str();
    let mut came_to = vec![reached];
    for run in ended(history.of(uid, Phase::PostUpdate), settled.is_none(), found) {
        if run.before.as_deref() != Some(reached) {
            let from = run.before.as_deref().unwrap_or("nothing");
            let what = format!("{} leads from {from}, but post-phases had come to {reached}", describe(run));
            found.push(broken("post-updates leave a change out", what));
        }
        match versions.iter().find(|v| !v.deleted && v.change == run.change) {
            Some(version) => after(run, version, found),
            None => found.push(broken("a post-phase of a change that was not stored", describe(run))),
        }
        reached = &run.change;
        came_to.push(reached);
    }
    if let Some(settled) = settled.filter(|settled| !came_to.contains(&settled.change.as_str())) {
        let what = format!("post-update of {target} to {} (they came to {reached})", settled.change);
        found.push(broken("a post-phase is missing", what));
    }

    let deletes = ended(history.of(uid, Phase::PostDelete), false, found);
    match (gone, deletes.as_slice()) {
        (None, []) => {}
        (Some(gone), [run]) => after(run, gone, found),
        (None, runs) => found.push(broken("post-delete of a living sandbox", names(runs))),
        (Some(_), []) => found.push(broken("a post-phase is missing", format!("post-delete of {target} ({uid})"))),
        (Some(_), several) => found.push(broken("a post-phase ran more than once", names(several))),
    }
}

/// The last attempt of each; the others must have failed. What was still to be tried again when its sandbox was deleted
/// is `forgiven`.
fn ended<'a>(runs: Vec<&'a Run>, forgiven: bool, found: &mut Vec<Violation>) -> Vec<&'a Run> {
    let mut last: Vec<&Run> = Vec::new();
    for run in runs {
        match last.iter_mut().find(|other| other.key == run.key) {
            Some(other) => {
                if other.state() != RunState::Failed {
                    found.push(broken("a post-phase ran more than once", names(&[other, run])));
                }
                *other = run;
            }
            None => last.push(run),
        }
    }
    for run in &last {
        match run.state() {
            RunState::Succeeded => {}
            RunState::Failed if forgiven || (run.doomed && run.attempt >= 3) => {}
            _ => found.push(broken("a post-phase did not succeed", describe(run))),
        }
    }
    last
}

fn after(run: &Run, version: &Version, found: &mut Vec<Violation>) {
    if run.created() < version.revision {
        found.push(broken("a post-phase before its change was stored", describe(run)));
    }
}

/// What clients were told is what was.
fn calls(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for call in history.calls.iter().filter(|call| call.verb != Verb::Delete) {
        let stored = history.sandboxes.iter().any(|v| v.target == call.target && v.change == call.change);
        let what = || format!("{:?} {} of {}: {}", call.verb, call.change, call.target, call.message);
        // The same change may have been asked for several times.
        let all_refused = history.calls.iter().filter(|c| c.change == call.change).all(|c| c.told == Told::Refused);
        if call.told == Told::Made && !stored {
            found.push(broken("told that it was made, and it was not", what()));
        }
        if all_refused && stored {
            found.push(broken("told that it was refused, and it was made", what()));
        }
    }
    found
}

pub fn describe(run: &Run) -> String {
    let phase = run.phase.map_or("no phase", Phase::slug);
    format!("{phase} run {} of {} ({}), {}", run.name, run.target, run.change, run.state())
}

fn names(runs: &[&Run]) -> String {
    runs.iter().map(|run| describe(run)).collect::<Vec<_>>().join("; ")
}
