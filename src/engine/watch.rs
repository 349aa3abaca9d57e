//! Keeps the index of runs and the table of replicas as the API server has them.

use super::Engine;
use super::replicas::COMPONENT;
use crate::api::PhaseRun;
use crate::plan::message::with_causes;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::watch;

const PAGE: u32 = 100;

/// How all objects of a kind are followed that there may be tens of thousands of: a page of them takes twenty times the
/// memory that is kept of it, so it is small.
pub fn all() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Follows every run, for as long as the future is polled. `synced` turns true when the first list is in.
pub async fn follow_runs(engine: Arc<Engine>, synced: watch::Sender<bool>) {
    let runs: Api<PhaseRun> = Api::all(engine.client().clone());
    let mut events = watcher(runs, all()).default_backoff().boxed();
    let mut listed = BTreeSet::new();
    loop {
        match events.try_next().await {
            Ok(Some(Event::Init)) => listed.clear(),
            Ok(Some(Event::InitApply(run))) => {
                listed.insert(run.name_any());
                engine.index.observe(&run);
            }
            Ok(Some(Event::InitDone)) => {
                engine.index.retain(&listed);
                engine.index.mark_watched(std::mem::take(&mut listed));
                synced.send_replace(true);
            }
            Ok(Some(Event::Apply(run))) => engine.index.observe_watched(&run),
            Ok(Some(Event::Delete(run))) => engine.index.forget_watched(&run),
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "the watch of runs broke and is made again");
            }
        }
    }
}

/// Follows every replica's Lease, for as long as the future is polled.
pub async fn follow_replicas(engine: Arc<Engine>, synced: watch::Sender<bool>) {
    let leases: Api<Lease> = Api::namespaced(engine.client().clone(), engine.namespace());
    let config = watcher::Config::default().labels(&format!("{COMPONENT}=true"));
    let mut events = watcher(leases, config).default_backoff().boxed();
    loop {
        match events.try_next().await {
            Ok(Some(Event::InitApply(lease) | Event::Apply(lease))) => engine.replicas.observe(&lease),
            Ok(Some(Event::Delete(lease))) => engine.replicas.forget(&lease.name_any()),
            Ok(Some(Event::InitDone)) => {
                synced.send_replace(true);
            }
            Ok(Some(Event::Init)) => {}
            Ok(None) => return,
            Err(error) => tracing::warn!(error = with_causes(&error), "the watch of replicas broke and is made again"),
        }
    }
}
