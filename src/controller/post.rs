//! The post-phases of a target: what is owed is written into its record first, then run in order.

use super::status::Progress;
use super::{Context, ControllerError};
use crate::api::{
    OwedPhases, Phase, PhaseRunSpec, RunState, SandboxRecord, SandboxRecordSpec, SandboxResource, origin,
};
use crate::engine::life;
use crate::engine::{Engine, Guard};
use crate::plan::plugins::Plugins;
use crate::plan::runs::{self, Change, PlanError, PlannedRun, Side};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
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
    let mut is_just_saved = false;
    loop {
        if let Some(owed) = record.spec.owed.clone() {
            match run_owed(context, record, &owed, is_just_saved).await? {
                Owed::Waiting { progress, after } => return Ok((progress, after)),
                // The record goes next, and whoever finds it before that must find that nothing is owed but this.
                Owed::Ended if owed.deletion => return Ok((Progress::Complete, None)),
                Owed::Ended => {
                    record.spec.settled = Some(owed.object);
                    record.spec.owed = None;
                    save(context, record).await?;
                }
            }
            continue;
        }
        let Some(change) = next_change(&record.spec, deleted) else { return Ok((last_failure(context, record), None)) };
        let before = change.before(&record.spec);
        if !ready && !deleted {
            return Ok((Progress::Settling, None));
        }
        let planned = {
            let plugins = context.plugins.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            plan(&change, &before, &plugins)
        };
        let planned = match planned {
            Ok(planned) => planned,
            Err(error) => return Ok((Progress::Blocked(error.to_string()), Some(super::RETRY_AFTER))),
        };
        let object = change.object().clone();
        let owed: Vec<PhaseRunSpec> = planned
            .into_iter()
            .map(|planned| {
                // A deletion is one: a leader that plans it once more, not knowing of its end, finds what has run.
                let again = !deleted || planned.old_object.is_some();
                let latest = context.engine.index.latest(&planned.key).filter(|_| again);
                let attempt = latest.map_or(1, |latest| latest.attempt + 1);
                Engine::spec(planned, attempt, None, record.spec.routing_key.clone())
            })
            .collect();
        if change.takes_leave() {
            record.spec.left.clear();
        }
        if owed.is_empty() {
            record.spec.settled = Some(object);
            save(context, record).await?;
            if deleted {
                return Ok((Progress::Complete, None));
            }
        } else {
            record.spec.owed = Some(OwedPhases { object, deletion: deleted, runs: owed });
            save(context, record).await?;
            is_just_saved = true;
        }
    }
}

/// The next change whose post-phases are to be run.
enum NextChange<'a> {
    Create(&'a Value),
    Update(&'a Value, &'a Value),
    Delete(&'a Value),
}

/// The runs of a change, those first that take leave of what it finds no more.
fn plan(change: &NextChange<'_>, before: &Value, plugins: &Plugins) -> Result<Vec<PlannedRun>, PlanError> {
    match change {
        NextChange::Create(new) => runs::plan(Change::Create { new }, Side::Post, plugins),
        NextChange::Update(_, new) => runs::plan(Change::Update { old: before, new }, Side::Post, plugins),
        NextChange::Delete(old) => {
            let mut planned = Vec::new();
            if before["spec"] != old["spec"] {
                planned = runs::plan(Change::Update { old: before, new: old }, Side::Post, plugins)?;
                planned.retain(|run| run.phase == Phase::PostDelete);
            }
            planned.extend(runs::plan(Change::Delete { old }, Side::Post, plugins)?);
            Ok(planned)
        }
    }
}

/// The resources that a stored spec has no more and that the settled one never had: only their pre-create has run.
pub fn leaves(record: &SandboxRecordSpec, stored: &Value) -> Vec<SandboxResource> {
    let of = |object: &Value| runs::declared(object).unwrap_or_default();
    let is_among = |list: &[SandboxResource], resource: &SandboxResource| {
        list.iter().any(|other| other.name == resource.name && other.plugin == resource.plugin)
    };
    let known = of(record.settled.as_ref().unwrap_or(&record.created));
    let mut leaving = of(&record.stored);
    let now = of(stored);
    leaving.retain(|r| !is_among(&now, r) && !is_among(&known, r) && !is_among(&record.left, r));
    leaving
}

/// Owes no more what a deletion makes needless: of a change that has not settled only the leave of resources is taken,
/// by the deletion's own runs, and where it `has_run` not again.
pub fn drop_owed(record: &mut SandboxRecordSpec, has_run: impl Fn(&PhaseRunSpec) -> bool) {
    let Some(owed) = record.owed.take() else { return };
    for run in owed.runs.iter().filter(|run| run.phase == Phase::PostDelete) {
        let old = run.old_object.as_ref().unwrap_or(&run.object);
        let named = |r: &SandboxResource| run.resources.iter().any(|leaving| leaving.name == r.name);
        let leaving = runs::declared(old).unwrap_or_default().into_iter().filter(named);
        let mut settled = record.settled.as_ref().and_then(|s| runs::declared(s).ok()).unwrap_or_default();
        for resource in leaving {
            if has_run(run) {
                settled.retain(|other| other != &resource);
            } else if !settled.contains(&resource) {
                record.left.push(resource);
            }
        }
        if let Some(object) = &mut record.settled {
            object["spec"]["resources"] = json!(settled);
        }
    }
}

impl NextChange<'_> {
    /// What was there before: the settled object with what joined and left since.
    fn before(&self, record: &SandboxRecordSpec) -> Value {
        let mut before = match self {
            Self::Create(object) | Self::Update(object, _) => (*object).clone(),
            Self::Delete(_) => record.settled.as_ref().unwrap_or(&record.created).clone(),
        };
        let mut resources = runs::declared(&before).unwrap_or_default();
        let stored = runs::declared(&record.stored).unwrap_or_default();
        for left in record.left.iter().filter(|left| !stored.contains(left)) {
            // Of two plugins under one name only the last can be told apart by it.
            resources.retain(|known| known.name != left.name);
            resources.push(left.clone());
        }
        if !record.left.is_empty() {
            before["spec"]["resources"] = json!(resources);
        }
        before
    }

    /// Whether what has left is taken leave of by its runs.
    fn takes_leave(&self) -> bool {
        !matches!(self, Self::Create(_))
    }

    fn object(&self) -> &Value {
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
        Some(settled) if settled["spec"] != record.stored["spec"] || !record.left.is_empty() => {
            Some(NextChange::Update(settled, &record.stored))
        }
        Some(_) => None,
    }
}

async fn run_owed(
    context: &Context,
    record: &mut SandboxRecord,
    owed: &OwedPhases,
    is_just_saved: bool,
) -> Result<Owed, ControllerError> {
    let guard = || owed.deletion.then_some(Guard::Deletion);
    for spec in &owed.runs {
        let latest = context.engine.index.latest(&spec.key).filter(|latest| latest.attempt >= spec.attempt);
        let Some(latest) = latest else {
            // Refused where the record is another by now: a leader that stood still learns here that others have gone on.
            if !is_just_saved {
                save(context, record).await?;
            }
            context.engine.begin(spec.clone(), guard()).await?;
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
                    save(context, record).await?;
                    context.engine.begin(PhaseRunSpec { attempt: latest.attempt + 1, ..spec.clone() }, guard()).await?;
                    return Ok(Owed::Waiting { progress: Progress::Running(spec.phase), after: None });
                }
                let note = format!("; this was try {tries} of {ATTEMPTS}, and it is tried again");
                return Ok(Owed::Waiting { progress: failed(&latest, &note), after: Some(pause - waited) });
            }
            _ => {}
        }
    }
    Ok(Owed::Ended)
}

fn failed(entry: &crate::engine::index::RunEntry, note: &str) -> Progress {
    Progress::Failed {
        phase: entry.phase.unwrap_or(Phase::PostUpdate),
        run: entry.name.clone(),
        message: format!("{}{note}", entry.message.as_deref().unwrap_or_default()),
    }
}

/// A phase that failed for good stays visible until the next change's phases have run.
fn last_failure(context: &Context, record: &SandboxRecord) -> Progress {
    let runs = context.engine.index.of_target(&record.spec.target);
    let last = runs.iter().rev().find(|run| run.phase.is_some_and(|p| !p.is_pre()) && run.compensates.is_none());
    match last {
        Some(entry) if entry.state == RunState::Failed && !entry.ignorable => failed(entry, ""),
        _ => Progress::Complete,
    }
}

/// Writes a record, against the version that was read. From its first write on it is told from a copy of it.
pub async fn save(context: &Context, record: &mut SandboxRecord) -> Result<(), ControllerError> {
    origin::seal(&mut record.metadata);
    let records: Api<SandboxRecord> = Api::all(context.client.clone());
    *record = records
        .replace(&record.name_any(), &PostParams::default(), record)
        .await
        .map_err(ControllerError::api("write a sandbox's record"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(resources: &[(&str, &str)]) -> Value {
        let resources: Vec<_> =
            resources.iter().map(|(name, plugin)| json!({"name": name, "plugin": plugin})).collect();
        json!({"metadata": {"name": "x", "namespace": "shop", "uid": "u"}, "spec": {"resources": resources}})
    }

    fn record(settled: Option<Value>, stored: Value) -> SandboxRecordSpec {
        SandboxRecordSpec {
            target: runs::target(&stored),
            routing_key: "r".into(),
            created: object(&[]),
            stored,
            updated_at: None,
            settled,
            left: Vec::new(),
            owed: None,
        }
    }

    fn plugins() -> Plugins {
        let step = crate::api::Step { name: "s".into(), script: Some("#!/bin/sh\n".into()), ..Default::default() };
        let all = Some(vec![step]);
        let spec = crate::api::ResourcePluginSpec { post_create: all.clone(), post_delete: all, ..Default::default() };
        Plugins::new([("p".to_owned(), spec)])
    }

    fn runs_of(record: &SandboxRecordSpec, deleted: bool) -> Vec<String> {
        let change = next_change(record, deleted).unwrap();
        let planned = plan(&change, &change.before(record), &plugins()).unwrap();
        let names = |run: &PlannedRun| run.resources.iter().map(|r| r.name.clone()).collect::<Vec<_>>().join("+");
        planned.iter().map(|run| format!("{} {}", run.phase, names(run))).collect()
    }

    #[test]
    fn a_resource_that_left_is_taken_leave_of_though_the_sandbox_is_deleted_before_that_settled() {
        let record = record(Some(object(&[("db", "p"), ("web", "p")])), object(&[("web", "p")]));
        assert_eq!(runs_of(&record, false), ["post-delete db"]);
        assert_eq!(runs_of(&record, true), ["post-delete db", "post-delete web"]);
    }

    #[test]
    fn a_resource_that_left_is_taken_leave_of_though_not_even_the_creation_had_settled() {
        let mut record = record(None, object(&[("web", "p"), ("db", "p")]));
        record.created = object(&[("web", "p")]);
        let next = object(&[("queue", "p")]);
        record.left = leaves(&record, &next);
        record.stored = next;
        assert_eq!(runs_of(&record, true), ["post-delete web+db", "post-delete queue"]);
    }

    #[test]
    fn a_resource_that_joined_and_left_before_either_settled_is_taken_leave_of() {
        let mut record = record(Some(object(&[("web", "p")])), object(&[("web", "p"), ("db", "p")]));
        let next = object(&[("web", "p")]);
        record.left = leaves(&record, &next);
        record.stored = next;
        assert_eq!(record.left.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["db"]);
        assert_eq!(runs_of(&record, false), ["post-delete db"]);
        assert_eq!(runs_of(&record, true), ["post-delete db", "post-delete web"]);
        record.stored = object(&[("web", "p"), ("db", "p")]);
        assert_eq!(runs_of(&record, false), ["post-create db"], "it has come back");
    }
}
