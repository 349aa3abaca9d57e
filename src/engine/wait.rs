//! The `wait` step: an object is watched until an expression over it holds.

use super::error::StepError;
use super::objects::Objects;
use crate::api::ObjectRef;
use crate::plan::expression::{Expression, ExpressionError};
use crate::plan::message::with_causes;
use crate::plan::scope::Scope;
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Waits until `until` holds over the object, for `seconds` at most. Gives the object as it was then; null where there
/// was none.
pub async fn wait(
    objects: &Objects<'_>,
    reference: &ObjectRef,
    until: &Expression,
    scope: &Scope,
    seconds: u32,
) -> Result<Value, StepError> {
    let (resource, _) = objects.kind(&reference.api_version, &reference.kind).await?;
    let what = || format!("{reference} could not be watched");
    let client = objects.account.client(objects.client).map_err(StepError::api(what()))?;
    let api: Api<DynamicObject> = match &reference.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    let config = watcher::Config::default().fields(&format!("metadata.name={}", reference.name));
    let mut events = watcher(api, config).default_backoff().boxed();
    let deadline = Instant::now() + Duration::from_secs(seconds.into());
    let mut object = Value::Null;
    let mut why = "the API server has not answered yet".to_owned();
    loop {
        let Ok(event) = timeout_at(deadline, events.try_next()).await else {
            return Err(StepError::Failed(format!(
                "wait.until did not hold within {seconds} s for {reference}: {why}"
            )));
        };
        match event {
            Ok(Some(Event::Init)) => {
                object = Value::Null;
                continue;
            }
            Ok(Some(Event::InitApply(found))) => {
                object = json(found)?;
                continue;
            }
            Ok(Some(Event::Apply(found))) => object = json(found)?,
            Ok(Some(Event::Delete(_))) => object = Value::Null,
            Ok(Some(Event::InitDone)) => {}
            Ok(None) => return Err(StepError::Failed(format!("the watch of {reference} ended"))),
            Err(error) => match refusal(error) {
                Ok(error) => return Err(StepError::api(what())(error)),
                Err(error) => {
                    why = with_causes(&error);
                    continue;
                }
            },
        }
        let seen = scope.with("object", &object).map_err(|e| StepError::Failed(format!("wait.until: {e}")))?;
        match until.evaluate_bool_bounded(&seen).await {
            Ok(true) => return Ok(object),
            Ok(false) if object.is_null() => why = "there is no such object".to_owned(),
            Ok(false) => why = "it is false".to_owned(),
            Err(ExpressionError::Evaluation { .. }) if object.is_null() => why = "there is no such object".to_owned(),
            // What it reads may not be there yet.
            Err(ExpressionError::Evaluation { message, .. }) => why = message,
            Err(error) => return Err(StepError::Failed(format!("wait.until: {error}"))),
        }
    }
}

fn json(object: DynamicObject) -> Result<Value, StepError> {
    serde_json::to_value(object).map_err(|e| StepError::Failed(format!("an object could not be read: {e}")))
}

/// The API server's answer where it will not be another later; the error itself where it may.
fn refusal(error: watcher::Error) -> Result<kube::Error, watcher::Error> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if matches!(status.code, 400 | 401 | 403 | 404 | 405) =>
        {
            Ok(kube::Error::Api(status))
        }
        other => Err(other),
    }
}
