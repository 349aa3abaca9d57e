//! The two paths that the API server calls, who is taken for the API server, and how an answer always leaves in time.

use super::admit::Admission;
use super::exposure;
use super::mutate;
use super::plugin::PluginAdmission;
use super::review::{Answer, Request, Review, timeout};
use crate::api::GROUP;
use crate::certs::token::accept::Accepted;
use crate::certs::webhook_spec::{MUTATE_PATH, VALIDATE_PATH};
use crate::metrics::Metrics;
use crate::plan::timing;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, Request as Call, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use serde::Deserialize;
use std::sync::Arc;
use tokio::time::Instant;

/// A review carries two whole objects, of at most 1.5 MiB each.
const BODY_LIMIT: usize = 8 * 1024 * 1024;

/// What the webhooks need.
pub struct Webhooks {
    pub sandboxes: Admission,
    pub plugins: PluginAdmission,
    pub metrics: Arc<Metrics>,
}

#[derive(Debug, Deserialize)]
struct Given {
    timeout: Option<String>,
}

/// Answers whoever knows a token that is `accepted`, and nobody else.
pub fn router(webhooks: Arc<Webhooks>, accepted: Arc<Accepted>) -> Router {
    let metrics = webhooks.metrics.clone();
    let routes = Router::new()
        .route(&format!("{VALIDATE_PATH}/{{token}}"), post(validate))
        .route(&format!("{MUTATE_PATH}/{{token}}"), post(default))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(webhooks);
    guarded(routes, accepted, metrics)
}

/// `routes`, for whoever knows the token. It stands before everything else: nothing of a stranger's body is read.
fn guarded(routes: Router, accepted: Arc<Accepted>, metrics: Arc<Metrics>) -> Router {
    let guard = move |call: Call, next: Next| {
        let (accepted, metrics) = (accepted.clone(), metrics.clone());
        async move {
            let given = token(call.uri().path()).unwrap_or_default().to_owned();
            if !accepted.lets_in(&given).await {
                metrics.stranger();
                return StatusCode::NOT_FOUND.into_response();
            }
            exposure::watched(accepted, given, call, next).await
        }
    };
    routes.layer(middleware::from_fn(guard))
}

/// The token in a path of ours.
fn token(path: &str) -> Option<&str> {
    let below = |base| path.strip_prefix(base)?.strip_prefix('/');
    below(VALIDATE_PATH).or_else(|| below(MUTATE_PATH))
}

async fn validate(State(webhooks): State<Arc<Webhooks>>, Query(given): Query<Given>, body: Bytes) -> Response {
    let began = Instant::now();
    let request = match request(&body) {
        Ok(request) => request,
        Err(refusal) => return (StatusCode::BAD_REQUEST, refusal).into_response(),
    };
    let deadline = began + timing::hold(given.timeout.as_deref().and_then(timeout));
    let answer = match kind(&request) {
        Some(Kind::Sandbox) => webhooks.sandboxes.sandbox(&request, deadline).await,
        Some(Kind::Plugin) => webhooks.plugins.plugin(&request).await,
        None => Answer::allow(),
    };
    webhooks.metrics.admission(&request, &answer, began.elapsed());
    if let Answer::Deny { code, message, .. } = &answer {
        tracing::info!(namespace = request.namespace, name = request.name, operation = ?request.operation, user = request.user_info.username, code, message, "denied");
    }
    Json(answer.into_review(&request.uid)).into_response()
}

async fn default(State(webhooks): State<Arc<Webhooks>>, body: Bytes) -> Response {
    let request = match request(&body) {
        Ok(request) => request,
        Err(refusal) => return (StatusCode::BAD_REQUEST, refusal).into_response(),
    };
    let answer = match kind(&request) {
        Some(Kind::Sandbox) => {
            let plugins = webhooks.sandboxes.plugins.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            mutate::sandbox(&request, &plugins)
        }
        _ => Answer::allow(),
    };
    Json(answer.into_review(&request.uid)).into_response()
}

enum Kind {
    Sandbox,
    Plugin,
}

/// What a review is about; none where no rule of ours asks for it.
fn kind(request: &Request) -> Option<Kind> {
    let subresource = request.sub_resource.as_deref().is_some_and(|s| !s.is_empty());
    if request.resource.group != GROUP || subresource {
        return None;
    }
    match request.resource.resource.as_str() {
        "sandboxes" => Some(Kind::Sandbox),
        "resourceplugins" => Some(Kind::Plugin),
        _ => None,
    }
}

/// The request in a review, or what to say of a body that holds none.
fn request(body: &[u8]) -> Result<Request, String> {
    let review: Review = serde_json::from_slice(body).map_err(|e| format!("this is no AdmissionReview: {e}"))?;
    review.request.ok_or_else(|| "the AdmissionReview has no request".to_owned())
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
