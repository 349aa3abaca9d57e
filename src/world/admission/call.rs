//! One call of a webhook: the time that it has, what its silence means, and what its answer means.

use super::Attempt;
use crate::world::World;
use crate::world::refusal::Refusal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::core::Status;
use kube::core::response::StatusSummary;
use serde_json::{Value, json};
use std::time::Duration;

/// A webhook that a request goes to.
pub struct Hook {
    /// Its configuration and its place there.
    pub id: String,
    name: String,
    webhook: Value,
}

/// Why a call came to nothing.
type Failure = String;

impl Hook {
    pub fn new(id: String, webhook: &Value) -> Self {
        Self { id, name: webhook["name"].as_str().unwrap_or_default().to_owned(), webhook: webhook.clone() }
    }

    pub fn again_if_needed(&self) -> bool {
        self.webhook["reinvocationPolicy"] == "IfNeeded"
    }

    fn timeout(&self) -> u64 {
        self.webhook["timeoutSeconds"].as_u64().unwrap_or(10)
    }

    /// The path of its service or its URL.
    fn path(&self) -> String {
        let config = &self.webhook["clientConfig"];
        if let Some(url) = config["url"].as_str() {
            return url::Url::parse(url).map(|url| url.path().to_owned()).unwrap_or_default();
        }
        config["service"]["path"].as_str().unwrap_or("/").to_owned()
    }

    fn address(&self) -> String {
        let config = &self.webhook["clientConfig"];
        if let Some(url) = config["url"].as_str() {
            return format!("{url}?timeout={}s", self.timeout());
        }
        let text = |field: &str| config["service"][field].as_str().unwrap_or_default().to_owned();
        let port = config["service"]["port"].as_u64().unwrap_or(443);
        format!("https://{}.{}.svc:{port}{}?timeout={}s", text("name"), text("namespace"), self.path(), self.timeout())
    }

    fn minds_dry_run(&self) -> bool {
        !matches!(self.webhook["sideEffects"].as_str(), Some("None" | "NoneOnDryRun"))
    }
}

impl World {
    /// Calls a webhook; what it returns is the patch that it asks for.
    pub(super) async fn call(
        &self,
        hook: &Hook,
        attempt: &Attempt<'_>,
        object: Option<&Value>,
    ) -> Result<Option<json_patch::Patch>, Refusal> {
        if attempt.ask.dry_run() && hook.minds_dry_run() {
            return Err(Refusal::bad_request(format!("admission webhook {:?} does not support dry run", hook.name)));
        }
        let uid = self.0.ids.uid();
        match self.reach(hook, &uid, attempt, object).await.and_then(|response| read(&uid, response)) {
            Ok(Answer::Allowed(patch)) => Ok(patch),
            Ok(Answer::Denied(status)) => Err(denied(&hook.name, *status)),
            Err(_) if hook.webhook["failurePolicy"] == "Ignore" => Ok(None),
            Err(why) => Err(Refusal::internal(&format!(
                "failed calling webhook {:?}: failed to call webhook: {why}",
                hook.name
            ))),
        }
    }

    async fn reach(
        &self,
        hook: &Hook,
        uid: &str,
        attempt: &Attempt<'_>,
        object: Option<&Value>,
    ) -> Result<Value, Failure> {
        let address = hook.address();
        let handler = self.0.hooks.at(&hook.path()).ok_or_else(|| format!("Post {address:?}: connection refused"))?;
        let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "request": attempt.request(uid, object)});
        let timeout = self.0.clock.sleep(Duration::from_secs(hook.timeout()));
        tokio::select! {
            biased;
            answer = handler.review(review) => Ok(answer),
            () = timeout => Err(format!("Post {address:?}: context deadline exceeded")),
        }
    }
}

enum Answer {
    Allowed(Option<json_patch::Patch>),
    Denied(Box<Status>),
}

fn read(uid: &str, mut review: Value) -> Result<Answer, Failure> {
    let response = review["response"].take();
    if !response.is_object() {
        return Err("webhook response is missing the response field".to_owned());
    }
    if response["uid"] != uid {
        return Err(format!("expected response.uid={uid:?}, got {}", response["uid"]));
    }
    if response["allowed"] != true {
        let status = serde_json::from_value(response["status"].clone()).unwrap_or_default();
        return Ok(Answer::Denied(Box::new(status)));
    }
    let Some(patch) = response["patch"].as_str().filter(|patch| !patch.is_empty()) else {
        return Ok(Answer::Allowed(None));
    };
    if response["patchType"] != "JSONPatch" {
        return Err("webhook returned response.patch but not response.patchType".to_owned());
    }
    let bytes = STANDARD.decode(patch).map_err(|error| error.to_string())?;
    serde_json::from_slice(&bytes).map(|patch| Answer::Allowed(Some(patch))).map_err(|error| error.to_string())
}

fn denied(name: &str, mut status: Status) -> Refusal {
    let by = format!("admission webhook {name:?} denied the request");
    status.message = if !status.message.is_empty() {
        format!("{by}: {}", status.message)
    } else if !status.reason.is_empty() {
        format!("{by}: {}", status.reason)
    } else {
        format!("{by} without explanation")
    };
    status.code = if status.code < 400 { 400 } else { status.code };
    status.status = Some(StatusSummary::Failure);
    Refusal::of(status)
}
