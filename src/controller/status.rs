//! The status of a sandbox, as a pure function of what was seen.

use super::forks::{Forks, NOT_ADMITTED};
use crate::api::{Condition, Phase, PhaseSummary, RunState, SandboxStatus};
use crate::engine::index::RunEntry;
use crate::plan::shown;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::sync::Arc;

/// Every fork runs.
pub const READY: &str = "Ready";
/// Every phase of the newest change has run.
pub const PHASES_COMPLETE: &str = "PhasesComplete";

/// The reason of a sandbox whose forks no admission has seen.
pub const UNADMITTED: &str = "NotAdmitted";

/// Where the post-phases of a target stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Every phase of what is stored has run.
    Complete,
    /// The change has not settled yet.
    Settling,
    /// This phase is running, or its turn is next.
    Running(Phase),
    /// This phase has failed, for good or to be tried again.
    Failed { phase: Phase, run: String, message: String },
    /// The phases cannot be planned.
    Blocked(String),
}

/// The status that a sandbox should have. `runs` are its own, oldest first.
pub fn status(
    known: &SandboxStatus,
    generation: i64,
    routing_key: &str,
    forks: &Forks,
    progress: &Progress,
    runs: &[Arc<RunEntry>],
    now: Timestamp,
) -> SandboxStatus {
    let ready = match forks {
        Forks::Ready => ("True", "ForksReady", String::new()),
        Forks::Progressing(what) => ("False", "ForksProgressing", what.clone()),
        Forks::Invalid(why) => ("False", "ForkInvalid", why.clone()),
        Forks::NotAdmitted => ("False", UNADMITTED, NOT_ADMITTED.to_owned()),
    };
    let complete = match progress {
        Progress::Complete => ("True", "Complete".to_owned(), String::new()),
        Progress::Settling => {
            ("False", "AwaitingReady".to_owned(), "the post-phases run once the sandbox is ready".to_owned())
        }
        Progress::Running(phase) => ("False", format!("{phase:?}Running"), String::new()),
        Progress::Failed { phase, run, message } => {
            ("False", format!("{phase:?}Failed"), format!("run {run}: {message}"))
        }
        Progress::Blocked(why) => ("False", "Blocked".to_owned(), why.clone()),
    };
    let conditions =
        [(READY, ready.0, ready.1.to_owned(), ready.2), (PHASES_COMPLETE, complete.0, complete.1, complete.2)];
    SandboxStatus {
        observed_generation: Some(generation),
        routing_key: Some(routing_key.to_owned()),
        conditions: conditions
            .into_iter()
            .map(|(type_, status, reason, message)| {
                let new = Condition {
                    type_: type_.to_owned(),
                    status: status.to_owned(),
                    reason,
                    message: shown::lines(&message).into_owned(),
                    last_transition_time: None,
                    observed_generation: Some(generation),
                };
                transition(&known.conditions, new, now)
            })
            .collect(),
        phases: phases(runs),
    }
}

/// Whether the status of an object says already that no admission has seen its forks.
pub fn tells_of_unadmitted(object: &Value) -> bool {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == READY && condition["reason"] == UNADMITTED)
}

/// The condition with its transition time, kept where the status did not change.
fn transition(known: &[Condition], mut new: Condition, now: Timestamp) -> Condition {
    let same = known.iter().find(|c| c.type_ == new.type_ && c.status == new.status);
    new.last_transition_time = match same {
        Some(same) => same.last_transition_time.clone(),
        // The API server keeps whole seconds.
        None => Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now))),
    };
    new
}

/// The last run of each phase, in the order of a sandbox's life. What undid something is no phase of the sandbox, nor
/// is yet what runs before a change that is still on its way: a status written meanwhile would bring the change that
/// waits for it into conflict (`kubectl replace` and `edit` name the version that they were made from).
fn phases(runs: &[Arc<RunEntry>]) -> Vec<PhaseSummary> {
    Phase::ALL
        .into_iter()
        .filter_map(|phase| {
            let last = runs.iter().rev().find(|run| {
                run.phase == Some(phase)
                    && run.compensates.is_none()
                    && !matches!(run.state, RunState::Abandoned | RunState::Compensated)
                    && !(phase.is_pre() && is_on_its_way(run))
            })?;
            Some(PhaseSummary {
                phase,
                state: last.state,
                run: last.name.clone(),
                finished_at: last.finished_at.map(MicroTime),
                message: last.message.as_deref().map(|message| shown::lines(message).into_owned()),
            })
        })
        .collect()
}

/// Whether the change that a pre-phase ran for may still be a request that waits.
fn is_on_its_way(run: &RunEntry) -> bool {
    run.state.is_open() || run.state == RunState::Succeeded || (run.state == RunState::Failed && run.ignorable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn run(phase: Phase, name: &str, state: RunState) -> Arc<RunEntry> {
        Arc::new(RunEntry { phase: Some(phase), name: name.into(), state, ..RunEntry::default() })
    }

    #[test]
    fn a_condition_keeps_the_time_of_its_last_turn() {
        let first = status(&SandboxStatus::default(), 1, "r", &Forks::Ready, &Progress::Settling, &[], at(1));
        let second = status(&first, 2, "r", &Forks::Ready, &Progress::Complete, &[], at(9));
        assert_eq!(second.conditions[0].last_transition_time, Some(Time(at(1))));
        assert_eq!(second.conditions[1].last_transition_time, Some(Time(at(9))));
        assert_eq!(second.conditions[1].observed_generation, Some(2));
    }

    #[test]
    fn t08_forks_that_no_admission_has_seen_are_not_ready_and_it_is_said_what_to_do() {
        let status = status(&SandboxStatus::default(), 1, "r", &Forks::NotAdmitted, &Progress::Settling, &[], at(1));
        let ready = &status.conditions[0];
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "NotAdmitted"));
        assert!(
            ready.message.contains("webhooks were not in force") && ready.message.contains("apply the sandbox again")
        );
    }

    #[test]
    fn nothing_new_is_nothing_to_write() {
        let first = status(&SandboxStatus::default(), 1, "r", &Forks::Ready, &Progress::Complete, &[], at(1));
        assert_eq!(status(&first, 1, "r", &Forks::Ready, &Progress::Complete, &[], at(9)), first);
    }

    #[test]
    fn the_last_run_of_each_phase_is_shown() {
        let runs = [
            run(Phase::PreCreate, "a", RunState::Abandoned),
            run(Phase::PreCreate, "b", RunState::Committed),
            run(Phase::PreUpdate, "c", RunState::Committed),
            run(Phase::PreUpdate, "d", RunState::Failed),
        ];
        let shown: Vec<_> = phases(&runs).into_iter().map(|p| p.run).collect();
        assert_eq!(shown, ["b", "d"]);
    }

    #[test]
    fn a_phase_of_a_change_that_is_on_its_way_is_not_shown_yet() {
        let committed = run(Phase::PreUpdate, "a", RunState::Committed);
        for state in [RunState::Pending, RunState::Running, RunState::Succeeded] {
            let runs = [committed.clone(), run(Phase::PreUpdate, "b", state)];
            assert_eq!(phases(&runs)[0].run, "a", "{state}");
        }
        let running = run(Phase::PostUpdate, "c", RunState::Running);
        assert_eq!(phases(&[running])[0].run, "c", "a post-phase keeps no request waiting");
    }
}
