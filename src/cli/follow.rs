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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::body::Body;
    use axum::extract::{RawQuery, State};
    use axum::response::{IntoResponse as _, Response};
    use axum::routing::get;
    use serde_json::{Value, json};
    use std::sync::Mutex;
    use std::time::Duration;

    /// A plugin of a little more than 20 MiB.
    fn large(name: &str, created: &str) -> Value {
        let metadata = json!({"name": name, "creationTimestamp": created, "resourceVersion": "1"});
        let spec = json!({"description": "x".repeat(20 * 1024 * 1024)});
        json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "ResourcePlugin", "metadata": metadata, "spec": spec})
    }

    /// Two plugins, of which the first watch shows the older one's end; each list's query is noted.
    async fn answer(State(lists): State<Arc<Mutex<Vec<String>>>>, RawQuery(query): RawQuery) -> Response {
        let query = query.unwrap_or_default();
        let (old, young) = (large("old", "2026-01-01T00:00:00Z"), large("young", "2026-01-02T00:00:00Z"));
        let count = lists.lock().unwrap().len();
        if query.contains("watch=true") {
            let gone = (count == 1)
                .then(|| Ok::<_, std::io::Error>(format!("{}\n", json!({"type": "DELETED", "object": old}))));
            return Body::from_stream(futures::stream::iter(gone).chain(futures::stream::pending())).into_response();
        }
        lists.lock().unwrap().push(query);
        let items = if count == 0 { vec![old, young] } else { vec![young] };
        axum::Json(json!({"kind": "ResourcePluginList", "apiVersion": "sluice.dev/v1alpha1", "metadata": {"resourceVersion": "1"}, "items": items}))
            .into_response()
    }

    #[tokio::test]
    async fn t05_plugins_are_read_a_few_at_a_time_and_one_that_was_left_out_once_there_is_room() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let lists = Arc::<Mutex<Vec<String>>>::default();
        let path = "/apis/sluice.dev/v1alpha1/resourceplugins";
        let router = Router::new().route(path, get(answer)).with_state(lists.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::try_from(kube::Config::new(url)).unwrap();
        let plugins = Arc::<RwLock<Plugins>>::default();
        let (synced, mut news) = watch::channel(false);
        tokio::spawn(follow_plugins(client, plugins.clone(), synced));
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last| last != "young") {
            tokio::time::timeout(Duration::from_secs(60), news.changed()).await.unwrap().unwrap();
            seen.extend(plugins.read().unwrap().iter().map(|(name, _)| name.clone()));
        }
        assert!(seen.iter().all(|name| name == "old" || name == "young"));
        let lists = lists.lock().unwrap();
        assert!(lists.len() >= 2 && lists.iter().all(|query| query.contains("limit=10")), "{lists:?}");
    }
}
