//! What the port of probes and metrics answers.

use crate::engine::Engine;
use crate::metrics::Metrics;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Whether this replica can answer reviews.
#[derive(Clone)]
pub struct Ready {
    /// Whether runs, replicas and plugins have been seen.
    pub synced: [watch::Receiver<bool>; 3],
    pub stop: CancellationToken,
}

impl Ready {
    fn is_ready(&self) -> bool {
        !self.stop.is_cancelled() && self.synced.iter().all(|synced| *synced.borrow())
    }

    /// Waits until everything has been seen.
    pub async fn wait(&self) {
        for synced in &self.synced {
            // The sender lives as long as the process.
            let _ = synced.clone().wait_for(|synced| *synced).await;
        }
    }
}

/// What the kubelet and scrapers ask.
pub fn probes(ready: Ready, metrics: Arc<Metrics>, engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route(
            "/readyz",
            get(move || async move {
                if ready.is_ready() { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready") }
            }),
        )
        .route(
            "/metrics",
            get(move || async move { metrics.text(&engine).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR) }),
        )
}
