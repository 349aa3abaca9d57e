//! The watch of plugins.

use crate::api::ResourcePlugin;
use crate::plan::message::with_causes;
use crate::plan::plugins::Plugins;
use futures::{StreamExt, TryStreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Follows every plugin, for as long as the future is polled. `synced` turns true when the first list is in, and is sent
/// again with every change.
pub async fn follow_plugins(client: Client, plugins: Arc<RwLock<Plugins>>, synced: watch::Sender<bool>) {
    let api: Api<ResourcePlugin> = Api::all(client);
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    let mut fresh = Plugins::default();
    loop {
        let known = || plugins.write().unwrap_or_else(PoisonError::into_inner);
        match events.try_next().await {
            Ok(Some(Event::Init)) => fresh = Plugins::default(),
            Ok(Some(Event::InitApply(plugin))) => fresh.insert(plugin),
            Ok(Some(Event::InitDone)) => {
                *known() = std::mem::take(&mut fresh);
                synced.send_replace(true);
            }
            Ok(Some(Event::Apply(plugin))) => {
                known().insert(plugin);
                synced.send_replace(true);
            }
            Ok(Some(Event::Delete(plugin))) => {
                known().remove(&plugin.name_any());
                synced.send_replace(true);
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "the watch of plugins broke and is made again");
            }
        }
    }
}
