//! Keeps the index of runs and the table of replicas as the API server has them.

use super::Engine;
use super::replicas::COMPONENT;
use super::watched::WatchedRun;
use crate::client::pages::MOST_OBJECTS;
use crate::plan::message::with_causes;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::watch;

/// How all objects of a kind are followed that there may be tens of thousands of. How many a page has is decided by
/// their size: a page of small ones takes twenty times the memory that is kept of it, and one of large ones more.
pub fn all() -> watcher::Config {
    watcher::Config::default().page_size(MOST_OBJECTS)
}

/// Follows every run, for as long as the future is polled. `synced` turns true when the first list is in.
pub async fn follow_runs(engine: Arc<Engine>, synced: watch::Sender<bool>) {
    let runs: Api<WatchedRun> = Api::all(engine.client().clone());
    let mut events = watcher(runs, all()).default_backoff().boxed();
    let mut listed = BTreeSet::new();
    loop {
        match events.try_next().await {
            Ok(Some(Event::Init)) => listed.clear(),
            Ok(Some(Event::InitApply(run))) => {
                listed.insert(run.name_any());
                engine.index.observe_entry(run.entry);
            }
            Ok(Some(Event::InitDone)) => {
                engine.index.retain(&listed);
                engine.index.mark_watched(std::mem::take(&mut listed));
                synced.send_replace(true);
            }
            Ok(Some(Event::Apply(run))) => engine.index.observe_watched(run.entry),
            Ok(Some(Event::Delete(run))) => engine.index.forget_watched(&run.entry),
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
