//! Reconciles a sandbox: its record, its forks, its post-phases and its status.

use super::forks::{self, Forks};
use super::heavy::NO_ROOM;
use super::kept::{KeptFork, KeptSandbox};
use super::status::{self, Progress};
use super::{Context, ControllerError, RETRY_AFTER, SandboxStore, alone, post, recorded, sandboxes_in, sweep, unseen};
use crate::api::{SandboxRecord, SandboxRecordSpec, SandboxStatus, TargetRef, Ttl, TtlOffset, labels, origin};
use crate::engine::{WatchedRun, all};
use crate::plan::message::with_causes;
use crate::plan::runs;
use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A time to live may be longer than timers are.
const LATEST: Duration = Duration::from_secs(24 * 60 * 60);
/// How often a fork that cannot be made is tried again.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Reconciles at once.
const CONCURRENCY: u16 = 32;

/// The controller's work and the store of sandboxes that it keeps.
pub fn controller(context: Arc<Context>) -> (impl Future<Output = ()>, SandboxStore) {
    let sandboxes: Api<KeptSandbox> = Api::all(context.client.clone());
    let forks: Api<KeptFork> = Api::all(context.client.clone());
    let runs: Api<WatchedRun> = Api::all(context.client.clone());
    let of_forks = all().labels(labels::SANDBOX_UID);
    let engine = context.engine.clone();
    let controller = Controller::new(sandboxes, all())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .owns(forks, of_forks)
        .watches(runs, all(), move |run: WatchedRun| {
            // Taken in before the reconcile that it causes looks at the index.
            let target = run.entry.target.clone();
            engine.index.observe_entry(run.entry);
            Some(ObjectRef::<KeptSandbox>::new(&target.name).within(&target.namespace))
        });
    let store = controller.store();
    let work = controller.run(reconcile, on_error, context).for_each(|result| async {
        if let Err(error) = result {
            tracing::debug!(error = with_causes(&error), "a sandbox's reconcile did not end");
        }
    });
    (work, store)
}

/// Looks at the sandboxes again now and then.
pub async fn sweep(store: SandboxStore, context: Arc<Context>) {
    let again = async |sandbox: Arc<KeptSandbox>| {
        let uid = sandbox.metadata.uid.as_deref().unwrap_or_default();
        let _turn = context.turns.take(uid).await;
        match sweep::still_there(&store, &sandbox) {
            Some(sandbox) => alone(reconcile_in_turn(&sandbox, &context)).await,
            None => Ok(Action::await_change()),
        }
    };
    sweep::sweep(store.clone(), again).await;
}

#[expect(clippy::needless_pass_by_value, reason = "the controller hands its arguments over")]
fn on_error(object: Arc<KeptSandbox>, error: &ControllerError, _: Arc<Context>) -> Action {
    tracing::warn!(
        namespace = object.namespace(),
        name = object.name_any(),
        reason = error.reason(),
        error = with_causes(error),
        "a sandbox could not be reconciled"
    );
    Action::requeue(RETRY_AFTER)
}

async fn reconcile(object: Arc<KeptSandbox>, context: Arc<Context>) -> Result<Action, ControllerError> {
    let _turn = context.turns.take(object.metadata.uid.as_deref().unwrap_or_default()).await;
    alone(reconcile_in_turn(&object, &context)).await
}

async fn reconcile_in_turn(kept: &KeptSandbox, context: &Context) -> Result<Action, ControllerError> {
    if context.engine.is_closed(&kept.namespace().unwrap_or_default()) {
        // No admission lets one in; it came while none was asked. Its author may be nobody who may read what is there.
        return Ok(Action::await_change());
    }
    let Some(_place) = context.heavy.place(&kept.namespace().unwrap_or_default(), kept.weight).await else {
        return Ok(Action::requeue(NO_ROOM));
    };
    let uid = kept.metadata.uid.as_deref().unwrap_or_default();
    let records: Api<SandboxRecord> = Api::all(context.client.clone());
    // The record first: it never tells of a newer sandbox than the one that is then looked at, and where there is none
    // of a sandbox that is still there, its last phases have not run.
    let found = records.get_opt(uid).await.map_err(ControllerError::api("read a sandbox's record"))?;
    let Some(object) = stored(context, kept).await? else { return Ok(Action::await_change()) };
    let target = runs::target(&object);
    let mut record = recorded::record(context, found, &object, &target).await?;
    if !object["metadata"]["deletionTimestamp"].is_null() {
        // What follows is the record's matter, once the object is gone.
        return Ok(Action::await_change());
    }
    if let Some(left) = time_to_live(&object, &record.spec, Timestamp::now())
        && left.is_zero()
    {
        return expire(context, &target).await;
    }
    let forks = Box::pin(forks::reconcile(context, &object, &record.spec.routing_key)).await?;
    if forks == Forks::NotAdmitted && !status::tells_of_unadmitted(&object) {
        context.recorder.warning(&target, status::UNADMITTED, "Fork", forks::NOT_ADMITTED).await;
    }
    // Ready is told before the first post-phase begins: their order is then in the API server's own record.
    let told = if post::is_next(&record) {
        match write_status(context, &object, &target, &record, &forks, &Progress::Settling).await? {
            Written::AsItWas => None,
            Written::Anew(object) => Some(object),
            Written::TooLate => return Ok(Action::requeue(RETRY_AFTER)),
        }
    } else {
        None
    };
    let (progress, after) = post::advance(context, &mut record, forks == Forks::Ready, false).await?;
    if !origin::is_sealed(&record.metadata) {
        post::save(context, &mut record).await?;
    }
    let last = told.as_ref().unwrap_or(&object);
    let written = write_status(context, last, &target, &record, &forks, &progress).await?;
    // A newer generation brings a reconcile of its own; somebody who labels a sandbox again and again must not keep its
    // status from being told.
    if matches!(written, Written::TooLate)
        && let Some(now) = stored(context, kept).await?
        && unseen::generation(&now) == unseen::generation(&object)
        && now["metadata"]["deletionTimestamp"].is_null()
    {
        write_status(context, &now, &target, &record, &forks, &progress).await?;
    }
    let ttl = time_to_live(&object, &record.spec, Timestamp::now());
    // What is in the way may go without an event that would lead here.
    let again = matches!(forks, Forks::Invalid(_)).then_some(LOOK_AGAIN);
    Ok([after, ttl, again]
        .into_iter()
        .flatten()
        .min()
        .map_or_else(Action::await_change, |soon| Action::requeue(soon.min(LATEST))))
}

/// A sandbox as it is stored now; none where it is gone.
async fn stored(context: &Context, kept: &KeptSandbox) -> Result<Option<Value>, ControllerError> {
    let named = sandboxes_in(&context.client, &kept.namespace().unwrap_or_default()).get_opt(&kept.name_any()).await;
    let named = named.map_err(ControllerError::api("read a sandbox"))?;
    named.filter(|named| named.metadata.uid == kept.metadata.uid).map(json_of).transpose()
}

/// What has come of a status that was to be written.
enum Written {
    /// It is stored as it was.
    AsItWas,
    /// It is stored anew.
    Anew(Value),
    /// The object is not any more what was looked at.
    TooLate,
}

/// Writes the status that `object` should have, where it has another. A reconcile that looks at an old object must not
/// write: it would know nothing of the last turn of a condition, and bring changes that are on their way into conflict
/// for nothing.
async fn write_status(
    context: &Context,
    object: &Value,
    target: &TargetRef,
    record: &SandboxRecord,
    forks: &Forks,
    progress: &Progress,
) -> Result<Written, ControllerError> {
    let known: SandboxStatus = serde::Deserialize::deserialize(&object["status"]).unwrap_or_default();
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
    let runs = context.engine.index.of_target(target);
    let new = status::status(&known, generation, &record.spec.routing_key, forks, progress, &runs, Timestamp::now());
    if new == known {
        return Ok(Written::AsItWas);
    }
    let patch = json!({
        "apiVersion": target.api_version, "kind": target.kind,
        "metadata": {
            "name": target.name,
            "namespace": target.namespace,
            "uid": target.uid,
            "resourceVersion": object["metadata"]["resourceVersion"],
        },
        "status": new,
    });
    let written = sandboxes_in(&context.client, &target.namespace)
        .patch_status(&target.name, &PatchParams::apply(labels::MANAGER).force(), &Patch::Apply(&patch))
        .await;
    match written {
        Ok(written) => Ok(Written::Anew(json_of(written)?)),
        // It has changed, which brings a reconcile of its own, or is gone: then the record goes on with it.
        Err(error) if crate::engine::is_status(&error, 404) || crate::engine::is_status(&error, 409) => {
            Ok(Written::TooLate)
        }
        Err(error) => Err(ControllerError::api("write a sandbox's status")(error)),
    }
}

fn json_of(sandbox: DynamicObject) -> Result<Value, ControllerError> {
    serde_json::to_value(sandbox).map_err(ControllerError::shape("a sandbox"))
}

/// How long a sandbox has still to live; none where it has no end.
fn time_to_live(object: &Value, record: &SandboxRecordSpec, now: Timestamp) -> Option<Duration> {
    let ttl: Ttl = serde::Deserialize::deserialize(&object["spec"]["ttl"]).ok()?;
    let created = object["metadata"]["creationTimestamp"].as_str()?.parse::<Timestamp>().ok()?;
    let from = match ttl.offset_from.unwrap_or_default() {
        TtlOffset::CreatedAt => created,
        TtlOffset::UpdatedAt => record.updated_at.as_ref().map_or(created, |at| at.0),
    };
    let lived = crate::engine::life::since(Some(from), now);
    Some(lifetime(&ttl.duration)?.saturating_sub(lived))
}

/// `90m`, `8h`, `3d`, `2w`.
fn lifetime(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
}

/// Deletes a sandbox whose time is up, the way that a person would: its pre-delete runs, and may refuse.
async fn expire(context: &Context, target: &TargetRef) -> Result<Action, ControllerError> {
    let only_this = Preconditions { uid: target.uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
    let sandboxes = sandboxes_in(&context.client, &target.namespace);
    match sandboxes.delete(&target.name, &params).await {
        Ok(_) => {
            context.recorder.normal(target, "Expired", "Delete", "spec.ttl has passed").await;
            Ok(Action::await_change())
        }
        Err(error) if crate::engine::is_status(&error, 404) || crate::engine::is_status(&error, 409) => {
            Ok(Action::await_change())
        }
        Err(error) => Err(ControllerError::api("delete a sandbox whose spec.ttl has passed")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("90m", Some(5400))]
    #[case("2w", Some(1_209_600))]
    #[case("m", None)]
    #[case("3", None)]
    #[case("", None)]
    fn a_lifetime_is_a_number_and_a_unit(#[case] text: &str, #[case] seconds: Option<u64>) {
        assert_eq!(lifetime(text).map(|d| d.as_secs()), seconds);
    }
}
