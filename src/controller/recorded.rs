//! The record of a sandbox that is there: made when the sandbox is seen first, and brought up to date with what is stored.

use super::{Context, ControllerError, post, records, unseen};
use crate::api::{Phase, PhaseRunSpec, SandboxRecord, SandboxRecordSpec, TargetRef, labels, origin};
use crate::certs::webhook_spec;
use crate::client::lists::Pages;
use crate::engine::WatchedRun;
use crate::plan::runs;
use crate::webhook::hold::new_routing_key;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::Value;

/// The record of a sandbox, made where none was found and brought up to date.
pub(super) async fn record(
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
        let api: Api<WatchedRun> = Api::all(context.client.clone());
        let mut pages = Pages::of(named);
        while let Some(found) = pages.objects(&api).await.map_err(ControllerError::api("list the runs of a sandbox"))? {
            for run in found {
                context.engine.index.observe_entry(run.entry);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

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
}
