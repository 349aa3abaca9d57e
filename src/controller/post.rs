//! The post-phases of a target: what is owed is written into its record first, then run in order.

use super::status::Progress;
use super::{Context, ControllerError};
use crate::api::{OwedPhases, PhaseRunSpec, RunState, SandboxRecord, SandboxRecordSpec};
use crate::engine::Engine;
use crate::engine::life;
use crate::plan::runs::{self, Change, Side};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use std::time::Duration;

/// How often a failed post-phase is tried in all.
const ATTEMPTS: u32 = 3;
/// The pause before the second try; each further one is four times as long.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// What the owed runs have come to.
enum Owed {
    /// All have ended; the last that failed for good, if any.
    Ended,
    /// One is running, or is tried again after a while.
    Waiting { progress: Progress, after: Option<Duration> },
}

/// Runs what is owed for the record's stored state, one step further each time it is called. `ready` tells whether
/// the newest change has settled; `deleted` whether the target is gone.
pub async fn advance(
    context: &Context,
    record: &mut SandboxRecord,
    ready: bool,
    deleted: bool,
) -> Result<(Progress, Option<Duration>), ControllerError> {
    loop {
        if let Some(owed) = record.spec.owed.clone() {
            match run_owed(context, &owed).await? {
                Owed::Waiting { progress, after } => return Ok((progress, after)),
                Owed::Ended => {
                    record.spec.settled = Some(owed.object);
                    record.spec.owed = None;
                    save(context, record).await?;
                    if owed.deletion {
                        return Ok((Progress::Complete, None));
                    }
                }
            }
            continue;
        }
        let Some(change) = next_change(&record.spec, deleted) else { return Ok((last_failure(context, record), None)) };
        if !ready && !deleted {
            return Ok((Progress::Settling, None));
        }
        let planned = {
            let plugins = context.plugins.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            runs::plan(change.as_change(), Side::Post, &plugins)
        };
        let planned = match planned {
            Ok(planned) => planned,
            Err(error) => return Ok((Progress::Blocked(error.to_string()), Some(super::RETRY_AFTER))),
        };
        let object = change.object().clone();
        let owed: Vec<PhaseRunSpec> = planned
            .into_iter()
            .map(|planned| {
                let attempt = context.engine.index.latest(&planned.key).map_or(1, |latest| latest.attempt + 1);
                Engine::spec(planned, attempt, None, record.spec.routing_key.clone())
            })
            .collect();
        if owed.is_empty() {
            record.spec.settled = Some(object);
            save(context, record).await?;
            if deleted {
                return Ok((Progress::Complete, None));
            }
        } else {
            record.spec.owed = Some(OwedPhases { object, deletion: deleted, runs: owed });
            save(context, record).await?;
        }
    }
}

/// The next change whose post-phases are to be run.
enum NextChange<'a> {
    Create(&'a serde_json::Value),
    Update(&'a serde_json::Value, &'a serde_json::Value),
    Delete(&'a serde_json::Value),
}

impl NextChange<'_> {
    fn as_change(&self) -> Change<'_> {
        match self {
            Self::Create(new) => Change::Create { new },
            Self::Update(old, new) => Change::Update { old, new },
            Self::Delete(old) => Change::Delete { old },
        }
    }

    fn object(&self) -> &serde_json::Value {
        match self {
            Self::Create(object) | Self::Update(_, object) | Self::Delete(object) => object,
        }
    }
}

/// Whether a change waits for its post-phases and none of them has begun. While one is at work nothing is said of it
/// but what has come of it: two words in turn would be written, and reconciled, for ever.
pub fn is_next(record: &SandboxRecord) -> bool {
    record.spec.owed.is_none() && next_change(&record.spec, false).is_some()
}

fn next_change(record: &SandboxRecordSpec, deleted: bool) -> Option<NextChange<'_>> {
    match &record.settled {
        // A deletion before the creation settled owes no post-create.
        _ if deleted => Some(NextChange::Delete(&record.stored)),
        None => Some(NextChange::Create(&record.created)),
        Some(settled) if settled["spec"] != record.stored["spec"] => Some(NextChange::Update(settled, &record.stored)),
        Some(_) => None,
    }
}

async fn run_owed(context: &Context, owed: &OwedPhases) -> Result<Owed, ControllerError> {
    for spec in &owed.runs {
        let latest = context.engine.index.latest(&spec.key).filter(|latest| latest.attempt >= spec.attempt);
        let Some(latest) = latest else {
            context.engine.begin(spec.clone(), None).await?;
            return Ok(Owed::Waiting { progress: Progress::Running(spec.phase), after: None });
        };
        let tries = latest.attempt - spec.attempt + 1;
        match latest.state {
            RunState::Pending | RunState::Running => {
                context.engine.adopt(&latest).await?;
                return Ok(Owed::Waiting { progress: Progress::Running(spec.phase), after: None });
            }
            RunState::Failed if tries < ATTEMPTS && !latest.ignorable => {
                let pause = FIRST_PAUSE * 4_u32.pow(tries - 1);
                let waited = life::since(latest.finished_at, Timestamp::now());
                if waited >= pause {
                    context.engine.begin(PhaseRunSpec { attempt: latest.attempt + 1, ..spec.clone() }, None).await?;
                    return Ok(Owed::Waiting { progress: Progress::Running(spec.phase), after: None });
                }
                return Ok(Owed::Waiting { progress: failed(&latest), after: Some(pause - waited) });
            }
            _ => {}
        }
    }
    Ok(Owed::Ended)
}

fn failed(entry: &crate::engine::index::RunEntry) -> Progress {
    Progress::Failed {
        phase: entry.phase.unwrap_or(crate::api::Phase::PostUpdate),
        run: entry.name.clone(),
        message: entry.message.clone().unwrap_or_default(),
    }
}

/// A phase that failed for good stays visible until the next change's phases have run.
fn last_failure(context: &Context, record: &SandboxRecord) -> Progress {
    let runs = context.engine.index.of_target(&record.spec.target);
    let last = runs.iter().rev().find(|run| run.phase.is_some_and(|p| !p.is_pre()) && run.compensates.is_none());
    match last {
        Some(entry) if entry.state == RunState::Failed && !entry.ignorable => failed(entry),
        _ => Progress::Complete,
    }
}

/// Writes a record, against the version that was read.
pub async fn save(context: &Context, record: &mut SandboxRecord) -> Result<(), ControllerError> {
    let records: Api<SandboxRecord> = Api::all(context.client.clone());
    *record = records
        .replace(&record.name_any(), &PostParams::default(), record)
        .await
        .map_err(ControllerError::api("write a sandbox's record"))?;
    Ok(())
}
