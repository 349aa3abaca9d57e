//! What becomes of runs: commit or abandonment of finished pre-phases, orphans, history, and events about all of it.

use super::{Context, ControllerError, RecordStore, SandboxStore, history, leftovers, records, sandboxes_in};
use crate::api::{Admitted, Phase, PhaseRun, RunState, TargetRef, labels};
use crate::engine::index::RunEntry;
use crate::engine::life::{self, Admission, Event, Fate, Stored};
use crate::plan::message::with_causes;
use crate::plan::{key, message, timing};
use futures::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The longest pause between two looks; news of a run or a sandbox cause one sooner.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// News that come together are looked at together.
const GATHER: Duration = Duration::from_millis(50);
/// How many runs are looked at, and told of, at once: a slow answer about one must not keep the others waiting.
const AT_ONCE: usize = 16;
/// So many runs are tidied away in one round, so that tens of thousands keep nothing else waiting.
const AT_A_TIME: usize = 500;
/// How often history is tidied; clients that wait for that are told to come again as soon.
pub const TIDY_EVERY: Duration = Duration::from_secs(5);
/// How often it is looked for what else is left behind.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// The pause before a failed undoing is tried again, times the number of its tries so far.
const UNDO_PAUSE: Duration = Duration::from_secs(5);
/// What is said of a run that is not of this cluster.
const INERT: &str = "Sluice did not write this run in this cluster: it was restored from a backup, or created by hand. \
    Nothing is done for it. Delete it when you do not need it any more.";
/// Of runs that ended longer ago no event is written: another leader did it.
const NEWS: Duration = Duration::from_secs(120);

/// Follows every run for as long as the future is polled.
pub async fn follow(context: Arc<Context>, sandboxes: SandboxStore, records: RecordStore) {
    if sandboxes.wait_until_ready().await.is_err() || records.wait_until_ready().await.is_err() {
        return;
    }
    let mut changes = context.engine.index.changes();
    let (mut tidied, mut swept) = (Instant::now(), Instant::now());
    let mut told = BTreeSet::new();
    loop {
        let open: Vec<Arc<RunEntry>> = context.engine.index.unsettled();
        let looks = open.iter().map(|run| async {
            if let Err(error) = look(&context, &sandboxes, &records, run).await {
                tracing::warn!(
                    run = run.name,
                    error = with_causes(&error),
                    "what becomes of a run could not be written down"
                );
            }
        });
        stream::iter(looks).for_each_concurrent(AT_ONCE, |look| look).await;
        tell(&context, &mut told).await;
        mark_inert(&context).await;
        if tidied.elapsed() >= TIDY_EVERY {
            tidied = Instant::now();
            if let Err(error) = tidy(&context, &sandboxes, &records).await {
                tracing::warn!(error = with_causes(&error), "the history of runs could not be tidied");
            }
        }
        if swept.elapsed() >= SWEEP_EVERY {
            swept = Instant::now();
            let living: BTreeSet<String> = sandboxes.state().iter().filter_map(|s| s.uid()).collect();
            context.sightings.retain(|uid| living.contains(uid));
            if let Err(error) = leftovers::sweep(&context).await {
                tracing::warn!(error = with_causes(&error), "pods that runs have left stay for now");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            Ok(()) = changes.changed() => tokio::time::sleep(GATHER).await,
        }
    }
}

async fn look(
    context: &Arc<Context>,
    sandboxes: &SandboxStore,
    records: &RecordStore,
    run: &Arc<RunEntry>,
) -> Result<(), ControllerError> {
    if run.state.is_open() {
        context.engine.adopt(run).await?;
        return Ok(());
    }
    if run.owes_undo() {
        return follow_undo(context, run).await;
    }
    // The phases of one change succeed one after the other; none is given up while another is at work.
    if run.admitted.is_none() && works_on(context, run) {
        return Ok(());
    }
    let stored = stored(context, sandboxes, &run.target);
    let is_known = |a: &&Admitted| {
        stored.as_ref().is_some_and(|s| s.uid == a.uid)
            || records.get(&ObjectRef::new(&a.uid)).is_some()
            || has_later_runs(context, &run.target, &a.uid)
    };
    let known = run.admissions().find(is_known);
    let seen = run.admissions().find(|a| !run.removes_target && was_seen(context, a, &run.spec_hash));
    let fate = match run.phase {
        // Though it may be gone by now.
        _ if seen.is_some() => Fate::Committed,
        Some(Phase::PreCreate) if known.is_some_and(|a| a.generation == 1) => Fate::Committed,
        _ => life::fate(run, stored.as_ref(), Timestamp::now(), context.settings.commit_grace),
    };
    match fate {
        Fate::Undecided(_) => Ok(()),
        Fate::Committed => {
            let stored = seen.or(known).or(run.admitted.as_ref());
            if let Some(stored) = stored
                && !is_remembered(context, records, run, &stored.uid).await?
            {
                return Ok(());
            }
            commit(context, run, stored).await
        }
        Fate::Abandoned if is_stored_after_all(context, run).await? => Ok(()),
        Fate::Abandoned => Ok(context.engine.abandon(run).await?),
    }
}

/// Whether the record is there, or need not be, that the last phases will be run by; made where the object is gone
/// already. A run that is committed is looked at no more.
async fn is_remembered(
    context: &Context,
    records: &RecordStore,
    run: &RunEntry,
    uid: &str,
) -> Result<bool, ControllerError> {
    if records.get(&ObjectRef::new(uid)).is_some() {
        return Ok(true);
    }
    // Of what is there still, a reconcile writes the record, which knows more.
    if !run.removes_target && records::uid_of(context, &run.target).await?.as_deref() == Some(uid) {
        return Ok(false);
    }
    records::remember(context, run, uid).await?;
    Ok(true)
}

/// Whether another pre-phase of the run's change is at work, or ended so short a time ago that its request still is.
fn works_on(context: &Context, run: &RunEntry) -> bool {
    let now = Timestamp::now();
    let grace = context.settings.commit_grace;
    let of_change = |other: &RunEntry| {
        let pre = other.phase.is_some_and(Phase::is_pre) && other.compensates.is_none();
        pre && other.name != run.name && other.spec_hash == run.spec_hash && other.phase != run.phase
    };
    let works = |other: &RunEntry| other.state.is_open() || life::since(other.finished_at, now) < grace;
    let runs = context.engine.index.of_name(&run.target.namespace, &run.target.name);
    runs.iter().any(|other| of_change(other) && works(other) && other.state != RunState::Committed)
}

/// Whether the object was seen with this spec in the generation that a request was let through for.
fn was_seen(context: &Context, admitted: &Admitted, spec_hash: &str) -> bool {
    context.sightings.of(&admitted.uid).get(&admitted.generation).is_some_and(|seen| seen == spec_hash)
}

/// Whether a phase was run for an object of this UID after its creation: then it was stored, whoever saw it.
fn has_later_runs(context: &Context, target: &TargetRef, uid: &str) -> bool {
    let later = |run: &Arc<RunEntry>| {
        run.compensates.is_none() && run.phase != Some(Phase::PreCreate) && run.target.uid.as_deref() == Some(uid)
    };
    context.engine.index.of_name(&target.namespace, &target.name).iter().any(later)
}

/// Asks the API server and no cache, before what was done for a change is undone: a watch that broke may be far behind
/// when the grace is over. It will show what is stored in time, and only then is the run marked.
async fn is_stored_after_all(context: &Context, run: &RunEntry) -> Result<bool, ControllerError> {
    let found = sandboxes_in(&context.client, &run.target.namespace)
        .get_opt(&run.target.name)
        .await
        .map_err(ControllerError::api("read a sandbox"))?;
    let stored = found.as_ref().map(|found| as_stored(context, &found.metadata, key::hash(&found.data["spec"])));
    Ok(life::fate(run, stored.as_ref(), Timestamp::now(), context.settings.commit_grace) != Fate::Abandoned)
}

fn stored(context: &Context, sandboxes: &SandboxStore, target: &TargetRef) -> Option<Stored> {
    let found = sandboxes.get(&ObjectRef::new(&target.name).within(&target.namespace))?;
    Some(as_stored(context, &found.metadata, found.spec_hash.clone()))
}

fn as_stored(context: &Context, metadata: &ObjectMeta, spec_hash: String) -> Stored {
    let uid = metadata.uid.clone().unwrap_or_default();
    Stored {
        before: context.sightings.of(&uid),
        uid,
        generation: metadata.generation.unwrap_or_default(),
        spec_hash,
        deleting: metadata.deletion_timestamp.is_some(),
    }
}

async fn commit(context: &Arc<Context>, run: &Arc<RunEntry>, stored: Option<&Admitted>) -> Result<(), ControllerError> {
    let stored = Event::Stored { admission: stored.map(Admission::from) };
    let entry = context.engine.transition(run, &stored).await?;
    if let Some(uid) = entry.uid() {
        let label = json!({"metadata": {"labels": {labels::UID: uid}}});
        let runs: Api<PhaseRun> = Api::all(context.client.clone());
        let labelled = runs.patch(&run.name, &PatchParams::default(), &Patch::Merge(&label)).await;
        context.engine.index.observe(&labelled.map_err(ControllerError::api("label a run"))?);
    }
    if entry.phase == Some(Phase::PreCreate) {
        let target = TargetRef { uid: entry.uid().map(str::to_owned), ..(*entry.target).clone() };
        let note = format!(
            "pre-create ran before the sandbox was stored: {}; run {}",
            entry.message.as_deref().unwrap_or("done"),
            entry.name
        );
        context.recorder.normal(&target, "PreCreateSucceeded", "PreCreate", &note).await;
    }
    Ok(())
}

async fn follow_undo(context: &Arc<Context>, run: &Arc<RunEntry>) -> Result<(), ControllerError> {
    let undo = context.engine.index.undo_of(&run.name);
    let attempt = match undo {
        // It was promised and not begun; or it ended so long ago that it is history, as the run soon is.
        None if life::since(run.finished_at, Timestamp::now()) < context.settings.history_age => 1,
        Some(undo) if undo.state == RunState::Succeeded && run.state == RunState::Abandoned => {
            context.engine.transition(run, &Event::Undone).await?;
            return Ok(());
        }
        Some(undo) if !undo.state.is_open() && life::undo_is_due(&undo) => {
            if life::since(undo.finished_at, Timestamp::now()) < UNDO_PAUSE * undo.attempt {
                return Ok(());
            }
            undo.attempt + 1
        }
        _ => return Ok(()),
    };
    if let Some(whole) = context.engine.read(&run.name).await? {
        context.engine.undo_as(&whole, attempt).await?;
    }
    Ok(())
}

/// What an event tells of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum News {
    /// Its change waits for it longer than one request can.
    Long,
    Ended,
    Gone,
}

fn news(run: &RunEntry, now: Timestamp) -> Option<News> {
    if run.state.is_open() {
        let waited_for = run.phase.is_some_and(Phase::is_pre) && run.compensates.is_none();
        let long = life::since(run.started_at, now) > timing::LONGEST_HOLD;
        return (waited_for && long).then_some(News::Long);
    }
    let gone = matches!(run.state, RunState::Abandoned | RunState::Compensated);
    let recent = run.finished_at.is_some() && life::since(run.finished_at, now) < NEWS;
    recent.then_some(if gone { News::Gone } else { News::Ended })
}

/// Writes an event for each run that ended, once, and others where it takes long or was abandoned.
async fn tell(context: &Arc<Context>, told: &mut BTreeSet<(String, News)>) {
    let now = Timestamp::now();
    let untold = |run: &RunEntry| news(run, now).is_some_and(|news| !told.contains(&(run.name.clone(), news)));
    let ended = context.engine.index.filter(untold);
    told.extend(ended.iter().filter_map(|run| Some((run.name.clone(), news(run, now)?))));
    let events = ended.iter().map(|run| async move {
        let (Some(phase), Some(news)) = (run.phase, news(run, now)) else { return };
        let (name, message) = (&run.name, run.message.as_deref().unwrap_or("done"));
        let target = TargetRef { uid: run.uid().map(str::to_owned), ..(*run.target).clone() };
        let action = format!("{phase:?}");
        let reason =
            |undo: &str, ended| if run.compensates.is_some() { undo.to_owned() } else { format!("{phase:?}{ended}") };
        let purpose = run.compensates.as_ref().map_or_else(String::new, |of| format!(", undoing {of}"));
        if news == News::Long {
            let (of, ran) = (format!("{} {target}", target.kind), life::since(run.started_at, now));
            let (current, why) = (run.current.as_deref(), run.current_message.as_deref());
            let note = message::still_running(name, phase.slug(), &of, current, why, Some(ran));
            context.recorder.normal(&target, &format!("{phase:?}Running"), &action, &note).await;
        } else if news == News::Gone {
            let undo = run.compensated_by.as_ref();
            let undone = undo
                .map_or_else(|| "there is nothing to undo".to_owned(), |undo| format!("run {undo} undoes what it did"));
            let note = format!("the change that {phase} ran for was never stored (run {name}): {undone}");
            context.recorder.warning(&target, "Abandoned", "Undo", &note).await;
        } else if run.state == RunState::Failed {
            let whole = context.engine.read(name).await.ok().flatten();
            let note = whole.map_or_else(
                || format!("{phase}{purpose} failed: {message}; run {name}"),
                |whole| message::failure(name, &whole.spec, &whole.status.unwrap_or_default()),
            );
            context.recorder.warning(&target, &reason("UndoFailed", "Failed"), &action, &note).await;
        } else if phase != Phase::PreCreate {
            let note = format!("{phase}{purpose} ran: {message}; run {name}");
            context.recorder.normal(&target, &reason("Undone", "Succeeded"), &action, &note).await;
        }
    });
    stream::iter(events).for_each_concurrent(AT_ONCE, |event| event).await;
    told.retain(|(name, _)| context.engine.index.get(name).is_some_and(|run| news(&run, now).is_some()));
}

/// Says of each run that Sluice did not write in this cluster that nothing is done for it.
async fn mark_inert(context: &Context) {
    let runs: Api<PhaseRun> = Api::all(context.client.clone());
    for run in context.engine.index.inert().into_iter().filter(|run| run.state != RunState::Inert) {
        tracing::warn!(run = run.name, target = %run.target, "a run is inert: Sluice did not write it in this cluster");
        let status = inert_status(&run);
        match runs.patch_status(&run.name, &PatchParams::default(), &Patch::Merge(&status)).await {
            Ok(marked) => drop(context.engine.index.observe(&marked)),
            Err(error) if crate::engine::is_status(&error, 404) => {
                context.engine.index.forget_inert(&run.name, Some(&run.id));
            }
            // It is not any more what was looked at; what it is now is news of its own.
            Err(error) if crate::engine::is_status(&error, 409) => {}
            Err(error) => {
                tracing::warn!(run = run.name, error = with_causes(&error), "an inert run could not be marked");
            }
        }
    }
}

/// What is written into an inert run, as it was looked at and no other: the next of its name, or one that somebody has
/// begun since, must not be marked.
fn inert_status(run: &RunEntry) -> Value {
    let metadata = json!({"uid": run.id, "resourceVersion": run.version.to_string()});
    json!({"metadata": metadata, "status": {"state": RunState::Inert, "message": INERT}})
}

async fn tidy(context: &Arc<Context>, sandboxes: &SandboxStore, records: &RecordStore) -> Result<(), ControllerError> {
    let mut living: BTreeSet<String> = sandboxes.state().iter().filter_map(|s| s.uid()).collect();
    living.extend(records.state().iter().map(|record| record.name_any()));
    let runs = context.engine.index.filter(|_| true);
    let settings = &context.settings;
    let now = Timestamp::now();
    let gone = history::superfluous(&runs, &living, settings.history_limit, settings.history_age, now);
    // What undoes a run is younger than it, so no part of the list has an undo without what it undid.
    let gone: BTreeSet<String> = gone.into_iter().take(AT_A_TIME).collect();
    let mut gone: Vec<_> = runs.into_iter().filter(|run| gone.contains(&run.name)).collect();
    let inert = context.engine.index.inert();
    gone.extend(inert.into_iter().filter(|run| life::since(run.created_at, now) > settings.history_age));
    // What undoes a run goes after it: the run would be undone again if it were left behind alone.
    let (undoes, others): (Vec<_>, Vec<_>) = gone.into_iter().partition(|run| run.compensates.is_some());
    delete(context, others).await?;
    delete(context, undoes).await
}

/// Deletes runs, each as it was looked at: one of its name that was begun since is another. All are tried.
async fn delete(context: &Context, runs: Vec<Arc<RunEntry>>) -> Result<(), ControllerError> {
    let api: Api<PhaseRun> = Api::all(context.client.clone());
    let failed = Mutex::new(None);
    let deletes = runs.iter().map(|run| async {
        let this = Preconditions { uid: Some(run.id.clone()), resource_version: None };
        match api.delete(&run.name, &DeleteParams::default().preconditions(this)).await {
            Err(error) if crate::engine::is_status(&error, 404) => context.engine.index.forget(&run.name),
            Err(error) if !crate::engine::is_status(&error, 409) => {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            _ => {}
        }
    });
    stream::iter(deletes).for_each_concurrent(AT_ONCE, |delete| delete).await;
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), |error| Err(ControllerError::api("delete a run that is history")(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t16_only_the_run_that_was_looked_at_is_marked_as_inert() {
        let run = RunEntry { name: "r-1".into(), id: "u".into(), version: 7, ..RunEntry::default() };
        let patch = inert_status(&run);
        assert_eq!(patch["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        assert_eq!(patch["status"]["state"], "Inert");
    }
}
