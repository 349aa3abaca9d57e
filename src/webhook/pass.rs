//! One phase of a change, run or joined as far as time allows, and what is said where the change does not come past it.

use super::admit::{Admission, Judged, WARNING_LIMIT, is_named_anew, later};
use super::hold::{Outcome, Wish};
use super::review::Answer;
use super::trail::Trail;
use super::waits;
use crate::controller::TIDY_EVERY;
use crate::engine::index::RunEntry;
use crate::plan::message;
use crate::plan::timing::{self, Waiting};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How a change comes past one of its phases.
pub(super) enum Passed {
    On {
        run: Arc<RunEntry>,
        /// That the request is let through is written down.
        admitted: bool,
        warning: Option<String>,
    },
    /// Though it failed.
    LetGo { why: String },
    /// Not yet: another change was quicker.
    Overtaken,
}

impl Admission {
    /// Runs one phase, or joins it, as far as time allows.
    pub(super) async fn pass(&self, wish: Wish<'_>, trail: &mut Trail) -> Judged<Passed> {
        let (planned, deadline) = (&wish.planned, wish.deadline);
        let phase = planned.phase;
        let limit = Duration::from_secs(planned.timeout_seconds.into());
        let namespace = planned.target.namespace.clone();
        let target = format!("{} {}", planned.target.kind, planned.target);
        let anew = is_named_anew(planned);
        let (key, held) = (planned.key.clone(), wish.seat.is_some());
        let settled = self.holder.settle(&self.engine, wish).await;
        if let Some((run, outcome)) = settled.as_ref().ok().and_then(Outcome::told) {
            trail.ran(phase, run, outcome);
        }
        match settled {
            Ok(Outcome::Passed { entry, admitted }) if entry.ignorable => {
                let why = entry.message.clone().unwrap_or_default();
                let warning = format!("{phase} failed and its failurePolicy is Ignore (run {}): {why}", entry.name);
                Ok(Passed::On { run: entry, admitted, warning: Some(message::cut(&warning, WARNING_LIMIT)) })
            }
            Ok(Outcome::Passed { entry: run, admitted }) => {
                self.waits.forget(&key);
                Ok(Passed::On { run, admitted, warning: None })
            }
            Ok(Outcome::Overtaken) => Ok(Passed::Overtaken),
            Ok(Outcome::LetGo(entry)) => Ok(Passed::LetGo {
                why: format!(
                    "it has failed {} times, last in run {}, and the cluster's cleaning up would wait for ever",
                    entry.attempt, entry.name
                ),
            }),
            Ok(Outcome::Failed(entry)) => Err(self.denial(&entry, deadline).await),
            Ok(Outcome::Running { entry, .. }) if anew && Instant::now() >= deadline => Err(Answer::failed(format!(
                "{phase} of {target} takes longer than one request can wait, and metadata.generateName gives the next one another name, so that it would begin anew: set metadata.name instead. What run {} does is undone.",
                entry.name
            ))),
            Ok(Outcome::Running { entry, held }) => {
                let waiting = Waiting { limit, ..waits::waiting(&self.engine.index, &entry, held) };
                let gap = timing::retry_after(self.waits.since_first_asked(&key, waiting));
                let waits = entry.executor.is_some() && entry.started_at.is_none();
                let (current, ran) = (entry.current.as_deref(), Some(waiting.elapsed).filter(|_| !waits));
                let why = entry.current_message.as_deref();
                let text = message::still_running(&entry.name, phase.slug(), &target, current, why, ran);
                Err(Answer::later(text, gap))
            }
            Ok(Outcome::Undecided(run)) => {
                let why = format!(
                    "this change of {target} was let through moments ago and whether it is stored is not known yet (run {run})"
                );
                Err(later(&why, waits::gap_until_decided(&self.engine.index, &run)))
            }
            Ok(Outcome::Undoing(undo)) => {
                let gap = waits::gap_until(&self.engine.index, self.engine.index.get(&undo).as_deref(), held);
                let why = "an earlier attempt of this change failed and is being undone";
                Err(later(&format!("{why}: kubectl get phaserun {undo} -w"), gap))
            }
            Ok(Outcome::Busy) => {
                let why = format!("{phase} of {target} waits for its turn: every worker is busy");
                Err(later(&why, self.waits.gap(&key, limit)))
            }
            Ok(Outcome::Behind) => {
                let why = format!(
                    "runs of changes that were refused are still being cleaned up in namespace {namespace:?}, so {phase} of {target} cannot begin"
                );
                Err(later(&why, TIDY_EVERY))
            }
            Err(error) => Err(Answer::broken(message::cut(&message::with_causes(&error), message::DENIAL_LIMIT))),
        }
    }

    async fn denial(&self, entry: &RunEntry, deadline: Instant) -> Answer {
        let read = tokio::time::timeout_at(deadline + timing::ANSWER_MARGIN / 2, self.engine.read(&entry.name)).await;
        let (undo, run) = (
            entry
                .compensated_by
                .as_ref()
                .and_then(|name| self.engine.index.get(name).map(|undo| (name.clone(), undo.state))),
            read.ok().and_then(Result::ok).flatten(),
        );
        match run {
            Some(run) => {
                let status = run.status.clone().unwrap_or_default();
                let undo = undo.as_ref().map(|(name, state)| (name.as_str(), *state));
                Answer::failed(message::denial(&entry.name, &run.spec, &status, undo))
            }
            None => Answer::failed(format!(
                "run {} failed: {}",
                entry.name,
                entry.message.as_deref().unwrap_or("see kubectl get phaserun")
            )),
        }
    }
}
