//! Reconciles the record of a sandbox that is gone: its last phases run, then the record goes too.

use super::heavy::NO_ROOM;
use super::kept::{KeptRecord, KeptSandbox};
use super::{Context, ControllerError, RETRY_AFTER, RecordStore, alone, forks, post, sandboxes_in, sweep, unseen};
use crate::api::{Phase, PhaseRunSpec, RunState, SandboxRecord, SandboxRecordSpec, TargetRef, labels, origin};
use crate::engine::index::RunEntry;
use crate::engine::outputs;
use crate::engine::{WatchedRun, all};
use crate::plan::message::with_causes;
use crate::webhook::hold::new_routing_key;
use futures::StreamExt;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether what is at work for a gone sandbox has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// What is said of a record that is not of this cluster.
const INERT: &str = "Sluice did not write this record in this cluster: it was restored from a backup, or created by hand. \
    Nothing is done for it. Delete it when you do not need it any more.";
/// So many snapshots of its sandbox a record mostly has.
const SNAPSHOTS: usize = 2;
/// Reconciles at once.
const CONCURRENCY: u16 = 32;

/// The controller's work and the store of records that it keeps.
pub fn controller(context: Arc<Context>) -> (impl Future<Output = ()>, RecordStore) {
    let records: Api<KeptRecord> = Api::all(context.client.clone());
    let targets: Api<KeptSandbox> = Api::all(context.client.clone());
    let runs: Api<WatchedRun> = Api::all(context.client.clone());
    let engine = context.engine.clone();
    let seeing = context.clone();
    let controller = Controller::new(records, all())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .watches(targets, all(), move |target: KeptSandbox| {
            seeing.sightings.see(&target);
            target.uid().map(|uid| ObjectRef::<KeptRecord>::new(&uid))
        })
        .watches(runs, all(), move |run: WatchedRun| {
            let target = run.entry.target.clone();
            engine.index.observe_entry(run.entry);
            target.uid.as_deref().map(ObjectRef::<KeptRecord>::new)
        });
    let store = controller.store();
    let work = controller.run(reconcile, on_error, context).for_each(|result| async {
        if let Err(error) = result {
            tracing::debug!(error = with_causes(&error), "a record's reconcile did not end");
        }
    });
    (work, store)
}

/// Looks at the records again now and then.
pub async fn sweep(store: RecordStore, context: Arc<Context>) {
    let again = async |record: Arc<KeptRecord>| {
        let _turn = context.turns.take(&record.name_any()).await;
        match sweep::still_there(&store, &record) {
            Some(record) => alone(reconcile_in_turn(&record, &context)).await,
            None => Ok(Action::await_change()),
        }
    };
    sweep::sweep(store.clone(), again).await;
}

#[expect(clippy::needless_pass_by_value, reason = "the controller hands its arguments over")]
fn on_error(record: Arc<KeptRecord>, error: &ControllerError, _: Arc<Context>) -> Action {
    tracing::warn!(
        target = %record.spec.target,
        reason = error.reason(),
        error = with_causes(error),
        "a sandbox's record could not be reconciled"
    );
    Action::requeue(RETRY_AFTER)
}

async fn reconcile(record: Arc<KeptRecord>, context: Arc<Context>) -> Result<Action, ControllerError> {
    let _turn = context.turns.take(&record.name_any()).await;
    alone(reconcile_in_turn(&record, &context)).await
}

async fn reconcile_in_turn(record: &KeptRecord, context: &Context) -> Result<Action, ControllerError> {
    if uid_of(context, &record.spec.target).await? == record.spec.target.uid {
        return Ok(Action::await_change());
    }
    let Some(_place) = context.heavy.place(&record.spec.target.namespace, record.weight() / SNAPSHOTS).await else {
        return Ok(Action::requeue(NO_ROOM));
    };
    if !record.is_own() {
        let records: Api<SandboxRecord> = Api::all(context.client.clone());
        let found =
            records.get_opt(&record.name_any()).await.map_err(ControllerError::api("read a sandbox's record"))?;
        let Some(found) = found else { return Ok(Action::await_change()) };
        if !origin::is_own_record(&found.metadata, false) {
            mark_inert(context, found).await?;
            return Ok(Action::await_change());
        }
    }
    let target = record.spec.target.clone();
    let open = context.engine.index.of_target(&target).into_iter().find(|run| run.state.is_open());
    let is_owed =
        |key: &str| record.spec.owed.as_ref().is_some_and(|o| o.deletion && o.runs.iter().any(|r| r.key == key));
    if let Some(run) = open.filter(|run| !is_owed(&run.key)) {
        // A phase that was begun before the deletion ends before what follows it begins.
        context.engine.adopt(&run).await?;
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    let uid = target.uid.as_deref().unwrap_or_default();
    if !forks::are_gone(context, &target).await? {
        return Ok(Action::requeue(context.pauses.next(uid)));
    }
    context.pauses.end(uid);
    let records: Api<SandboxRecord> = Api::all(context.client.clone());
    let name = record.name_any();
    let Some(mut record) = records.get_opt(&name).await.map_err(ControllerError::api("read a sandbox's record"))?
    else {
        return Ok(Action::await_change());
    };
    let is_planned = record.spec.owed.as_ref().is_some_and(|owed| owed.deletion);
    if !is_planned && !unseen::take_in(context, &mut record.spec, i64::MAX).await? {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    if record.spec.owed.as_ref().is_some_and(|owed| !owed.deletion) {
        let has_run = |run: &PhaseRunSpec| {
            let latest = context.engine.index.latest(&run.key).filter(|latest| latest.attempt >= run.attempt);
            latest.is_some_and(|latest| latest.state == RunState::Succeeded)
        };
        post::drop_owed(&mut record.spec, has_run);
        post::save(context, &mut record).await?;
        // From now on none of them is begun; one that was being begun this moment is waited for.
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    let (progress, after) = post::advance(context, &mut record, true, true).await?;
    if progress != super::status::Progress::Complete {
        return Ok(after.map_or_else(Action::await_change, Action::requeue));
    }
    forget_outputs(context, &record).await?;
    match records.delete(&name, &DeleteParams::default()).await {
        Ok(_) => Ok(Action::await_change()),
        Err(error) if crate::engine::is_status(&error, 404) => Ok(Action::await_change()),
        Err(error) => Err(ControllerError::api("delete the record of a gone sandbox")(error)),
    }
}

/// Writes a record for a sandbox that has none and is gone, or being deleted: it came and went while no leader was at
/// work, or before one looked. What is known of it is a run before one of its changes. Nothing is written where another
/// sandbox has its name by now: what the gone one had is that one's, and must not be taken away.
pub(super) async fn remember(context: &Context, run: &RunEntry, uid: &str) -> Result<(), ControllerError> {
    let is_last = |run: &Arc<RunEntry>| {
        run.phase == Some(Phase::PostDelete) && run.compensates.is_none() && run.target.uid.as_deref() == Some(uid)
    };
    let target = &run.target;
    if context.engine.index.of_name(&target.namespace, &target.name).iter().any(is_last) {
        return Ok(());
    }
    let records: Api<SandboxRecord> = Api::all(context.client.clone());
    let found = records.get_opt(uid).await.map_err(ControllerError::api("read a sandbox's record"))?;
    if found.is_some() || uid_of(context, target).await?.is_some_and(|other| other != uid) {
        return Ok(());
    }
    let Some(run) = context.engine.read(&run.name).await? else { return Ok(()) };
    let mut object = run.spec.object;
    if object["metadata"]["uid"].is_null() {
        // Before a create it is not final.
        object["metadata"]["uid"] = json!(uid);
        object["metadata"]["generation"] = json!(1);
    }
    let target = TargetRef { uid: Some(uid.to_owned()), ..run.spec.target };
    let spec = SandboxRecordSpec {
        target,
        routing_key: run.spec.routing_key.unwrap_or_else(new_routing_key),
        created: object.clone(),
        stored: object,
        updated_at: None,
        settled: None,
        left: Vec::new(),
        owed: None,
    };
    let record = new(context, spec);
    match records.create(&PostParams::default(), &record).await {
        Ok(_) => Ok(()),
        Err(error) if crate::engine::is_status(&error, 409) => Ok(()),
        Err(error) => Err(ControllerError::api("write a sandbox's record")(error)),
    }
}

/// A record that is written now. It is named after the UID of its target.
pub(super) fn new(context: &Context, spec: SandboxRecordSpec) -> SandboxRecord {
    let mut labels = labels::of_target(&spec.target);
    labels.extend(origin::no_backup());
    let mut record = SandboxRecord::new(&spec.target.uid.clone().unwrap_or_default(), spec);
    record.metadata.labels = Some(labels);
    record.metadata.annotations = Some(origin::written(context.engine.replicas.server_now()));
    record
}

/// Says of a record that Sluice did not write it in this cluster, where it says nothing yet. What it owes is not run: it
/// would be the last phases of a sandbox that is to be brought back, or of another cluster's.
async fn mark_inert(context: &Context, mut record: SandboxRecord) -> Result<(), ControllerError> {
    if record.annotations().contains_key(labels::INERT) {
        return Ok(());
    }
    let (name, target) = (record.name_any(), record.spec.target.clone());
    tracing::warn!(record = name, %target, "a record is inert: Sluice did not write it in this cluster");
    record.annotations_mut().insert(labels::INERT.to_owned(), INERT.to_owned());
    let records: Api<SandboxRecord> = Api::all(context.client.clone());
    match records.replace(&name, &PostParams::default(), &record).await {
        Ok(_) => Ok(()),
        // What has become of it is news of its own.
        Err(error) if crate::engine::is_status(&error, 404) || crate::engine::is_status(&error, 409) => Ok(()),
        Err(error) => Err(ControllerError::api("mark a record")(error)),
    }
}

/// The UID of the sandbox that has a name now. Asks the API server and no cache: the news of a deletion comes once, and
/// by another watch than any cache's. A cache that is a moment behind it would leave the record for the next sweep.
pub(super) async fn uid_of(context: &Context, target: &TargetRef) -> Result<Option<String>, ControllerError> {
    let found = sandboxes_in(&context.client, &target.namespace).get_metadata_opt(&target.name).await;
    Ok(found.map_err(ControllerError::api("read a sandbox"))?.and_then(|found| found.uid()))
}

/// What the sandbox's steps left is needed by nobody any more.
async fn forget_outputs(context: &Context, record: &SandboxRecord) -> Result<(), ControllerError> {
    for run in context.engine.index.of_target(&record.spec.target).iter().filter(|run| !run.outputs.is_empty()) {
        outputs::forget(&context.client, context.engine.namespace(), &run.name, &run.left_outputs()).await?;
    }
    Ok(())
}
