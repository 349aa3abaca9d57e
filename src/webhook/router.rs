//! The two paths that the API server calls, who is taken for the API server, and how an answer always leaves in time.

use super::admit::Admission;
use super::body::Room;
use super::exposure;
use super::guests::Caller;
use super::mutate;
use super::plugin::PluginAdmission;
use super::review::{Answer, Request};
use crate::api::GROUP;
use crate::certs::token::accept::Accepted;
use crate::certs::webhook_spec::{MUTATE_PATH, VALIDATE_PATH};
use crate::metrics::Metrics;
use crate::plan::timing;
use axum::Router;
use axum::extract::{Request as Call, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use std::sync::Arc;
use tokio::time::Instant;

/// What the webhooks need.
pub struct Webhooks {
    pub sandboxes: Admission,
    pub plugins: PluginAdmission,
    pub metrics: Arc<Metrics>,
    pub room: Room,
}

/// Answers whoever knows a token that is `accepted`, and nobody else.
pub fn router(webhooks: Arc<Webhooks>, accepted: Arc<Accepted>) -> Router {
    let metrics = webhooks.metrics.clone();
    let routes = Router::new()
        .route(&format!("{VALIDATE_PATH}/{{token}}"), post(validate))
        .route(&format!("{MUTATE_PATH}/{{token}}"), post(default))
        .with_state(webhooks);
    guarded(routes, accepted, metrics)
}

/// `routes`, for whoever knows the token. It stands before everything else: nothing of a stranger's body is read. A
/// connection that has just brought the token is not one of a stranger's, until it brings a wrong one.
fn guarded(routes: Router, accepted: Arc<Accepted>, metrics: Arc<Metrics>) -> Router {
    let guard = move |call: Call, next: Next| {
        let (accepted, metrics) = (accepted.clone(), metrics.clone());
        async move {
            let given = token(call.uri().path()).unwrap_or_default().to_owned();
            let caller = call.extensions().get::<Caller>();
            if !accepted.lets_in(&given).await {
                metrics.stranger();
                if let Some(caller) = caller {
                    caller.refuse();
                }
                return StatusCode::NOT_FOUND.into_response();
            }
            if let Some(caller) = caller {
                caller.vouch();
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

async fn validate(State(webhooks): State<Arc<Webhooks>>, call: Call) -> Response {
    let began = Instant::now();
    let deadline = began + timing::hold(exposure::timeout(call.uri().query()));
    let (request, _room) = match webhooks.room.receive(call.into_body(), deadline).await {
        Ok(received) => received,
        Err(answer) => return answer,
    };
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

async fn default(State(webhooks): State<Arc<Webhooks>>, call: Call) -> Response {
    let deadline = Instant::now() + timing::hold(exposure::timeout(call.uri().query()));
    let (request, _room) = match webhooks.room.receive(call.into_body(), deadline).await {
        Ok(received) => received,
        Err(answer) => return answer,
    };
    let answer = match kind(&request) {
        Some(Kind::Sandbox) => {
            let plugins = webhooks.sandboxes.plugins.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            mutate::sandbox(&request, &plugins, &webhooks.sandboxes.sealer)
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

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
