//! What steps did, by the objects that they wrote: once for each run, and never outside of one.

use super::changes::describe;
use super::history::{Effect, History, Run};
use super::{Violation, broken};
use sluice::api::{Phase, RunState};

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for effect in &history.effects {
        if !history.runs.values().any(|run| explains(run, effect)) {
            let verb = effect.change.as_ref().map_or("deleted".to_owned(), |change| format!("written for {change}"));
            let what = format!("the {} object of {} was {verb} at {}", effect.phase, effect.target, effect.revision);
            found.push(broken("an effect outside of every run", what));
        }
    }
    for run in history.runs.values().filter(|run| run.state() != RunState::Failed && run.ended().is_some()) {
        let done = history.effects.iter().filter(|e| e.change.is_some() && explains(run, e)).count();
        // What undoes an update, or tries again, may find that the object is as it should be.
        let may_be_there = run.attempt > 1 || run.compensates.is_some();
        if done == 0 && !may_be_there && run.is_begun_phase() {
            found.push(broken("a run without its effect", describe(run)));
        }
        if done > 1 {
            found.push(broken("an effect more than once", format!("{done} times: {}", describe(run))));
        }
    }
    found
}

impl Run {
    fn is_begun_phase(&self) -> bool {
        self.begun && self.compensates.is_none()
    }
}

/// Whether an object was written, or deleted, while this run was at work and by what its plugin does.
fn explains(run: &Run, effect: &Effect) -> bool {
    let within = run.taken_up() < effect.revision && run.ended().is_none_or(|ended| effect.revision < ended);
    let same = match &effect.change {
        Some(change) => run.phase == Some(effect.phase) && run.change == *change,
        None => run.phase == Some(Phase::PostDelete),
    };
    within && same && run.target == effect.target
}
