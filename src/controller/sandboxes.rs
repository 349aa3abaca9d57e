//! Reconciles a sandbox: its record, its forks, its post-phases and its status.

use super::forks::{self, Forks};
use super::kept::KeptSandbox;
use super::status::{self, Progress};
use super::{Context, ControllerError, RETRY_AFTER, SandboxStore, alone, post, records, sandboxes_in, sweep, unseen};
use crate::api::{
    Phase, PhaseRun, PhaseRunSpec, SandboxRecord, SandboxRecordSpec, SandboxStatus, TargetRef, Ttl, TtlOffset, labels,
    origin,
};
use crate::certs::webhook_spec;
use crate::engine::all;
use crate::plan::message::with_causes;
use crate::plan::runs;
use crate::webhook::hold::new_routing_key;
use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
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
    let forks: Api<Deployment> = Api::all(context.client.clone());
    let runs: Api<PhaseRun> = Api::all(context.client.clone());
    let of_forks = watcher::Config::default().labels(labels::SANDBOX_UID);
    let engine = context.engine.clone();
    let controller = Controller::new(sandboxes, all())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .owns(forks, of_forks)
        .watches(runs, all(), move |run: PhaseRun| {
            // Taken in before the reconcile that it causes looks at the index.
            engine.index.observe(&run);
            let target = &run.spec.target;
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
    let uid = kept.metadata.uid.as_deref().unwrap_or_default();
    let records: Api<SandboxRecord> = Api::all(context.client.clone());
    // The record first: it never tells of a newer sandbox than the one that is then looked at, and where there is none
    // of a sandbox that is still there, its last phases have not run.
    let found = records.get_opt(uid).await.map_err(ControllerError::api("read a sandbox's record"))?;
    let Some(object) = stored(context, kept).await? else { return Ok(Action::await_change()) };
    let target = runs::target(&object);
    let mut record = record(context, found, &object, &target).await?;
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

/// The record of a sandbox, made where none was found and brought up to date.
async fn record(
    context: &Context,
    found: Option<SandboxRecord>,
    object: &Value,
    target: &TargetRef,
) -> Result<SandboxRecord, ControllerError> {
    let snapshot = runs::snapshot(object);
    if let Some(mut record) = found {
        // What somebody writes into an object that is being deleted had no pre-phase, so it has no post-phase either.
        let deleting = !snapshot["metadata"]["deletionTimestamp"].is_null();
        if !deleting && !is_same(&record.spec.stored, &snapshot) {
            unseen::take_in(context, &mut record.spec, unseen::generation(&snapshot)).await?;
            unseen::note(&mut record.spec, snapshot);
            post::save(context, &mut record).await?;
        } else if !origin::is_sealed(&record.metadata) {
            post::save(context, &mut record).await?;
        }
        return Ok(record);
    }
    let mut runs = context.engine.index.of_target(target);
    if runs.is_empty() {
        // The watch of runs may be behind that of sandboxes, and what a run chose must not be chosen again.
        let named = ListParams::default().labels(&labels::selector(&target.namespace, &target.name));
        let found = Api::<PhaseRun>::all(context.client.clone()).list(&named).await;
        for run in found.map_err(ControllerError::api("list the runs of a sandbox"))? {
            context.engine.index.observe(&run);
        }
        runs = context.engine.index.of_target(target);
    }
    let adopted = runs.is_empty() && was_stored_unseen(context, object).await?;
    let created = if snapshot["metadata"]["generation"].as_i64() == Some(1) {
        snapshot.clone()
    } else {
        // The record comes late: the object has been updated already, and its creation is owed a post-create all the same.
        let mut before = Vec::new();
        for run in runs.iter().filter(|run| run.admissions().any(|a| Some(&a.uid) == target.uid.as_ref())) {
            before.extend(context.engine.read(&run.name).await?.map(|run| run.spec));
        }
        as_created(&snapshot, &before)
    };
    let known_key = object["status"]["routingKey"].as_str().map(str::to_owned);
    let spec = SandboxRecordSpec {
        target: target.clone(),
        routing_key: known_key
            .or_else(|| runs.iter().rev().find_map(|run| run.routing_key.as_deref().map(str::to_owned)))
            .unwrap_or_else(new_routing_key),
        created,
        stored: snapshot.clone(),
        updated_at: None,
        settled: adopted.then_some(snapshot),
        left: Vec::new(),
        owed: None,
    };
    let name = target.uid.as_deref().unwrap_or_default();
    let api: Api<SandboxRecord> = Api::all(context.client.clone());
    let record = records::new(context, spec);
    let record = match api.create(&PostParams::default(), &record).await {
        Ok(record) => {
            // Its pre-create is committed now.
            context.engine.index.nudge();
            record
        }
        Err(error) if crate::engine::is_status(&error, 409) => {
            api.get(name).await.map_err(ControllerError::api("read a sandbox's record"))?
        }
        Err(error) => return Err(ControllerError::api("write a sandbox's record")(error)),
    };
    if adopted {
        let note = "The sandbox was stored while Sluice's webhooks were not in force: no phase has run for its creation, and none will. Its next change and its deletion run theirs.";
        context.recorder.warning(target, "Adopted", "Adopt", note).await;
    }
    Ok(record)
}

/// Whether two snapshots differ in nothing that anybody but the API server wrote: each new status is a new version.
fn is_same(one: &Value, other: &Value) -> bool {
    let without_version = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"].take();
        object
    };
    without_version(one) == without_version(other)
}

/// An object as it was first stored, as far as the runs before its changes tell; they come oldest first.
fn as_created(snapshot: &Value, runs: &[PhaseRunSpec]) -> Value {
    let earliest = runs.iter().filter(|run| run.compensates.is_none()).find_map(|run| match run.phase {
        Phase::PreCreate => Some(&run.object),
        Phase::PreUpdate | Phase::PreDelete => run.old_object.as_ref(),
        _ => None,
    });
    let Some(mut created) = earliest.cloned() else { return snapshot.clone() };
    for field in ["uid", "creationTimestamp"] {
        // A run before a create knows neither.
        created["metadata"][field] = snapshot["metadata"][field].clone();
    }
    created
}

/// Whether an object was stored before our webhooks were in force, by the API server's clock and our own note.
async fn was_stored_unseen(context: &Context, object: &Value) -> Result<bool, ControllerError> {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(context.client.clone());
    let found = configurations
        .get_opt(&context.validating_webhook)
        .await
        .map_err(ControllerError::api("read the webhook configuration"))?;
    let live = serde_json::to_value(found).map_err(ControllerError::shape("the webhook configuration"))?;
    Ok(is_unseen(&live, object))
}

/// The note of a configuration that our webhook was taken out of says nothing: a new one is written with the webhook.
fn is_unseen(live: &Value, object: &Value) -> bool {
    let since = webhook_spec::ours(live, webhook_spec::Kind::Validating).and(webhook_spec::registered_at(live));
    let created = object["metadata"]["creationTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    since.is_none_or(|since| created.is_some_and(|created| created.as_second() < since.as_second()))
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
    #[case::before_it(Some("2026-01-01T00:00:02Z"), true, true)]
    #[case::after_it(Some("2026-01-01T00:00:01Z"), true, false)]
    #[case::never_registered(None, false, true)]
    #[case::taken_out_since(Some("2026-01-01T00:00:00Z"), false, true)]
    fn a_sandbox_is_unseen_that_no_webhook_was_there_for(
        #[case] registered: Option<&str>,
        #[case] webhook: bool,
        #[case] unseen: bool,
    ) {
        let webhooks = if webhook { json!([{"name": webhook_spec::VALIDATE_NAME}]) } else { Value::Null };
        let live = json!({"metadata": {"annotations": {labels::REGISTERED_AT: registered}}, "webhooks": webhooks});
        let object = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:01Z"}});
        assert_eq!(is_unseen(&live, &object), unseen);
    }

    #[test]
    fn a_new_version_of_the_same_is_no_news() {
        let object = |version: &str, label: &str| json!({"metadata": {"name": "x", "resourceVersion": version, "labels": {"a": label}}, "spec": {}});
        assert!(is_same(&object("1", "b"), &object("2", "b")));
        assert!(!is_same(&object("1", "b"), &object("2", "c")));
    }

    #[test]
    fn a_record_that_comes_late_still_has_the_object_as_it_was_created() {
        let object = |generation: i64, description: &str| json!({"metadata": {"name": "x", "uid": "u", "generation": generation}, "spec": {"description": description}});
        let run = |phase: Phase, object: Value, old_object: Option<Value>| PhaseRunSpec {
            phase,
            target: TargetRef::default(),
            key: "k".into(),
            attempt: 1,
            requested_by: None,
            routing_key: None,
            compensates: None,
            timeout_seconds: 9,
            resources: Vec::new(),
            object,
            old_object,
        };
        let mut created = object(1, "first");
        created["metadata"]["uid"] = json!(null);
        let snapshot = object(3, "third");
        let create = run(Phase::PreCreate, created, None);
        let update = run(Phase::PreUpdate, object(2, "second"), Some(object(1, "first")));
        assert_eq!(as_created(&snapshot, &[create, update.clone()])["spec"]["description"], "first");
        let known = as_created(&snapshot, &[update]);
        assert_eq!((&known["spec"]["description"], &known["metadata"]["uid"]), (&json!("first"), &json!("u")));
        assert_eq!(as_created(&snapshot, &[]), snapshot);
    }

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
