//! Reconciles the record of a sandbox that is gone: its last phases run, then the record goes too.

use super::{Context, ControllerError, RETRY_AFTER, RecordStore, forks, post, sandbox_resource, sandboxes_in};
use crate::api::{PhaseRun, SandboxRecord};
use crate::engine::outputs;
use crate::plan::message::with_causes;
use futures::StreamExt;
use kube::api::{DeleteParams, DynamicObject};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How often the pods of a gone sandbox's forks are looked for.
const LOOK_FOR_PODS: Duration = Duration::from_millis(500);
const RESYNC: Duration = Duration::from_secs(300);
/// Reconciles at once.
const CONCURRENCY: u16 = 32;

/// The controller's work and the store of records that it keeps.
pub fn controller(context: Arc<Context>) -> (impl Future<Output = ()>, RecordStore) {
    let records: Api<SandboxRecord> = Api::all(context.client.clone());
    let kind = sandbox_resource();
    let targets: Api<DynamicObject> = Api::all_with(context.client.clone(), &kind);
    let runs: Api<PhaseRun> = Api::all(context.client.clone());
    let engine = context.engine.clone();
    let seeing = context.clone();
    let controller = Controller::new(records, watcher::Config::default())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .watches_with(targets, kind, watcher::Config::default(), move |target: DynamicObject| {
            seeing.sightings.see(&target);
            target.uid().map(|uid| ObjectRef::<SandboxRecord>::new(&uid))
        })
        .watches(runs, watcher::Config::default(), move |run: PhaseRun| {
            engine.index.observe(&run);
            run.spec.target.uid.as_deref().map(ObjectRef::<SandboxRecord>::new)
        });
    let store = controller.store();
    let work = controller.run(reconcile, on_error, context).for_each(|result| async {
        if let Err(error) = result {
            tracing::debug!(error = with_causes(&error), "a record's reconcile did not end");
        }
    });
    (work, store)
}

#[expect(clippy::needless_pass_by_value, reason = "the controller hands its arguments over")]
fn on_error(record: Arc<SandboxRecord>, error: &ControllerError, _: Arc<Context>) -> Action {
    tracing::warn!(
        target = %record.spec.target,
        reason = error.reason(),
        error = with_causes(error),
        "a sandbox's record could not be reconciled"
    );
    Action::requeue(RETRY_AFTER)
}

async fn reconcile(record: Arc<SandboxRecord>, context: Arc<Context>) -> Result<Action, ControllerError> {
    if exists(&context, &record).await? {
        return Ok(Action::requeue(RESYNC));
    }
    let target = record.spec.target.clone();
    let open = context.engine.index.of_target(&target).into_iter().find(|run| run.state.is_open());
    let is_owed =
        |key: &str| record.spec.owed.as_ref().is_some_and(|o| o.deletion && o.runs.iter().any(|r| r.key == key));
    if let Some(run) = open.filter(|run| !is_owed(&run.key)) {
        // A phase that was begun before the deletion ends before what follows it begins.
        context.engine.adopt(&run).await?;
        return Ok(Action::requeue(LOOK_FOR_PODS));
    }
    if !forks::are_gone(&context, &target).await? {
        return Ok(Action::requeue(LOOK_FOR_PODS));
    }
    let records: Api<SandboxRecord> = Api::all(context.client.clone());
    let name = record.name_any();
    let Some(mut record) = records.get_opt(&name).await.map_err(ControllerError::api("read a sandbox's record"))?
    else {
        return Ok(Action::await_change());
    };
    if record.spec.owed.as_ref().is_some_and(|owed| !owed.deletion) {
        record.spec.owed = None;
        post::save(&context, &mut record).await?;
    }
    let (progress, after) = post::advance(&context, &mut record, true, true).await?;
    if progress != super::status::Progress::Complete {
        return Ok(Action::requeue(after.unwrap_or(RESYNC)));
    }
    forget_outputs(&context, &record).await?;
    match records.delete(&name, &DeleteParams::default()).await {
        Ok(_) => Ok(Action::await_change()),
        Err(error) if crate::engine::is_status(&error, 404) => Ok(Action::await_change()),
        Err(error) => Err(ControllerError::api("delete the record of a gone sandbox")(error)),
    }
}

/// Asks the API server and no cache: the news of a deletion comes once, and by another watch than any cache's. A cache
/// that is a moment behind it would leave the record for the next resync.
async fn exists(context: &Context, record: &SandboxRecord) -> Result<bool, ControllerError> {
    let target = &record.spec.target;
    let found = sandboxes_in(&context.client, &target.namespace)
        .get_metadata_opt(&target.name)
        .await
        .map_err(ControllerError::api("read a sandbox"))?;
    Ok(found.is_some_and(|found| found.uid() == target.uid))
}

/// What the sandbox's steps left is needed by nobody any more.
async fn forget_outputs(context: &Context, record: &SandboxRecord) -> Result<(), ControllerError> {
    for run in context.engine.index.of_target(&record.spec.target).iter().filter(|run| !run.outputs.is_empty()) {
        outputs::forget(&context.client, context.engine.namespace(), &run.name).await?;
    }
    Ok(())
}
