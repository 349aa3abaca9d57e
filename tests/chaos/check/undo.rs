//! What became of each run: none is left under way, and what ran for nothing was undone, once.

use super::changes::describe;
use super::history::{History, Run};
use super::{Violation, broken};
use sluice::api::{Phase, RunState};

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for run in history.runs.values() {
        if run.lost {
            found.push(broken("a run was deleted, so history is not whole", describe(run)));
            continue;
        }
        if run.state().is_open() || (run.is_pre() && run.state() == RunState::Succeeded) {
            found.push(broken("stuck", describe(run)));
        }
        if run.attempt > 1 {
            attempts(history, run, &mut found);
        }
        match &run.compensates {
            Some(of) => undoes(history, run, of, &mut found),
            None if run.is_pre() => undone(history, run, &mut found),
            None => {}
        }
    }
    found
}

/// A further attempt begins when the one before is over.
fn attempts(history: &History, run: &Run, found: &mut Vec<Violation>) {
    let before = history.runs.values().find(|other| other.key == run.key && other.attempt + 1 == run.attempt);
    match before {
        None => found.push(broken("an attempt without the one before", describe(run))),
        Some(before) if before.ended().is_none_or(|ended| ended > run.created()) => {
            found.push(broken("two attempts at once", format!("{}; {}", describe(before), describe(run))));
        }
        Some(_) => {}
    }
}

/// What undoes a run: once, when it had ended, and never one whose change is stored.
fn undoes(history: &History, undo: &Run, of: &str, found: &mut Vec<Violation>) {
    let Some(run) = history.runs.get(of) else {
        found.push(broken("an undo of nothing", format!("{} undoes {of}", describe(undo))));
        return;
    };
    if run.reached(RunState::Committed).is_some() {
        found.push(broken("the undo of a committed run", format!("{} undoes {}", describe(undo), describe(run))));
    }
    if run.ended().is_none_or(|ended| ended > undo.created()) {
        found.push(broken("an undo of what still ran", format!("{} undoes {}", describe(undo), describe(run))));
    }
    // An undo that failed is tried again.
    let mut others = history.runs.values().filter(|r| r.compensates.as_deref() == Some(of) && r.name != undo.name);
    if undo.state() != RunState::Failed && others.any(|other| other.state() != RunState::Failed) {
        found.push(broken("undone more than once", format!("{} undoes {of}", describe(undo))));
    }
    let again = history.runs.values().any(|other| other.key == undo.key && other.attempt > undo.attempt);
    if undo.state() == RunState::Failed && !again {
        found.push(broken("an undo did not succeed", format!("{} undoes {}", describe(undo), describe(run))));
    }
}

/// Whether what a pre-phase did for nothing was undone.
fn undone(history: &History, run: &Run, found: &mut Vec<Violation>) {
    let undos = history.runs.values().filter(|other| other.compensates.as_ref() == Some(&run.name));
    let undo = undos.max_by_key(|undo| undo.attempt);
    let in_vain = match run.state() {
        RunState::Failed | RunState::Abandoned => true,
        RunState::Compensated => {
            if undo.is_none() {
                found.push(broken("counts as undone, and was not", describe(run)));
            }
            return;
        }
        _ => false,
    };
    if !in_vain || !run.begun || undo.is_some_and(|undo| undo.state() == RunState::Succeeded) {
        // An abandoned run that was undone says so.
        if in_vain && undo.is_some() && run.state() == RunState::Abandoned {
            found.push(broken("undone, but does not say so", describe(run)));
        }
        return;
    }
    let living = history.at(&run.target, run.last_revision);
    let nothing_to_undo = match run.phase {
        // What it made belongs to another sandbox of that name.
        Some(Phase::PreCreate) => living.is_some(),
        // The sandbox went, and everything with it.
        Some(Phase::PreUpdate) => living.is_none_or(|living| Some(&living.uid) != run.uid.as_ref()),
        _ => true,
    };
    if undo.is_none() && !nothing_to_undo {
        found.push(broken("ran for nothing and was not undone", describe(run)));
    }
}
