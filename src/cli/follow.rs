//! The watch of plugins.

use crate::api::ResourcePlugin;
use crate::plan::message::with_causes;
use crate::plan::plugins::Plugins;
use crate::webhook::find::warn_left_out;
use futures::{StreamExt, TryStreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Plugins asked for at once: one may have more than a megabyte.
const PAGE: u32 = 10;

/// Follows every plugin, for as long as the future is polled. `synced` turns true when the first list is in, and is sent
/// again with every change. Once there is room again for one that was left out, all are read anew.
pub async fn follow_plugins(client: Client, plugins: Arc<RwLock<Plugins>>, synced: watch::Sender<bool>) {
    let api: Api<ResourcePlugin> = Api::all(client);
    let follow = || watcher(api.clone(), watcher::Config::default().page_size(PAGE)).default_backoff().boxed();
    let mut events = follow();
    let mut fresh = Plugins::default();
    loop {
        let known = || plugins.write().unwrap_or_else(PoisonError::into_inner);
        match events.try_next().await {
            Ok(Some(Event::Init)) => fresh = Plugins::default(),
            Ok(Some(Event::InitApply(plugin))) => warn_left_out(&fresh.insert(plugin)),
            Ok(Some(Event::InitDone)) => {
                *known() = std::mem::take(&mut fresh);
                synced.send_replace(true);
            }
            Ok(Some(Event::Apply(plugin))) => {
                let left_out = known().insert(plugin);
                warn_left_out(&left_out);
                synced.send_replace(true);
                if known().has_room_again() {
                    events = follow();
                }
            }
            Ok(Some(Event::Delete(plugin))) => {
                known().remove(&plugin.name_any());
                synced.send_replace(true);
                if known().has_room_again() {
                    events = follow();
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "the watch of plugins broke and is made again");
            }
        }
    }
}
