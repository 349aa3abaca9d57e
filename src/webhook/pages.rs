//! Which plugins the stored sandboxes name: all of them, a few at a time, and nothing else of what they hold, which may be
//! more than a megabyte each.

use crate::api::{API_VERSION, SandboxRecord, TargetRef, origin};
use crate::client::pages::MOST_OBJECTS;
use crate::controller::sandbox_resource;
use futures::{Stream, TryStreamExt, stream};
use kube::api::{ListMeta, ListParams, ObjectMeta};
use kube::core::Request;
use kube::{Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// What of a sandbox tells which plugins it uses.
#[derive(Debug, Default, Deserialize)]
pub struct Stored {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Debug, Default, Deserialize)]
struct Annotations {
    /// As [`crate::api::labels::LATEST`] says.
    #[serde(default, rename = "sluice.dev/latest")]
    latest: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    #[serde(default)]
    resources: Option<Vec<Named>>,
}

#[derive(Debug, Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
    #[serde(default)]
    plugin: String,
}

/// A record, of which only that counts which is stored of its sandbox.
#[derive(Debug, Deserialize)]
struct Record {
    #[serde(default)]
    metadata: ObjectMeta,
    spec: RecordSpec,
}

#[derive(Debug, Deserialize)]
struct RecordSpec {
    #[serde(default)]
    stored: Stored,
}

impl Stored {
    /// What there is of it; a garbled object uses nothing.
    pub fn of(object: &Value) -> Self {
        Self::deserialize(object).unwrap_or_default()
    }

    /// As a refusal names it.
    pub fn shown(&self) -> String {
        let Metadata { namespace, name, .. } = &self.metadata;
        let target = TargetRef {
            api_version: API_VERSION.to_owned(),
            kind: "Sandbox".to_owned(),
            namespace: namespace.clone(),
            name: name.clone(),
            uid: None,
        };
        format!("sandbox {target}")
    }

    /// What its resources name, and what each `@latest` was found to mean.
    pub fn plugins(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let text = self.metadata.annotations.as_ref().and_then(|annotations| annotations.latest.as_deref());
        let latest: BTreeMap<&str, &str> = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let named = self.spec.resources.iter().flatten();
        named.map(move |resource| (resource.plugin.as_str(), latest.get(resource.name.as_str()).copied()))
    }
}

/// Every sandbox that is there.
pub fn pages(client: Client) -> impl Stream<Item = Result<Stored, kube::Error>> {
    let path = kube::api::DynamicObject::url_path(&sandbox_resource(), None);
    all(client, path)
}

/// Every sandbox of which there is a record of this cluster: those that are gone too, and whose last phases are owed.
pub fn record_pages(client: Client) -> impl Stream<Item = Result<Stored, kube::Error>> {
    let records = all(client, SandboxRecord::url_path(&(), None));
    records.try_filter_map(|record: Record| async move {
        // A sandbox that is there is found by itself, and a record of another cluster uses nothing.
        Ok(origin::is_own_record(&record.metadata, false).then_some(record.spec.stored))
    })
}

#[derive(Deserialize)]
struct Page<K> {
    #[serde(default)]
    metadata: ListMeta,
    items: Vec<K>,
}

/// Every object at a path, page by page.
fn all<K: DeserializeOwned + Send + 'static>(
    client: Client,
    path: String,
) -> impl Stream<Item = Result<K, kube::Error>> {
    let first = Some(ListParams::default().limit(MOST_OBJECTS));
    stream::try_unfold(first, move |next| {
        let (client, path) = (client.clone(), path.clone());
        async move {
            let Some(params) = next else { return Ok::<_, kube::Error>(None) };
            let request = Request::new(path).list(&params).map_err(kube::Error::BuildRequest)?;
            let page: Page<K> = client.request(request).await?;
            let next = page.metadata.continue_.filter(|token| !token.is_empty());
            let next = next.map(|token| ListParams::default().limit(MOST_OBJECTS).continue_token(&token));
            Ok(Some((stream::iter(page.items.into_iter().map(Ok)), next)))
        }
    })
    .try_flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::labels;
    use axum::Router;
    use axum::extract::{Query, State};
    use axum::routing::get;
    use serde_json::json;
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    #[test]
    fn the_annotation_that_is_read_is_the_one_that_is_written() {
        let stored = Stored::of(&json!({
            "metadata": {"name": "x", "namespace": "shop", "annotations": {labels::LATEST: "{\"a\":\"db.1.0.0\"}"}},
            "spec": {"resources": [{"name": "a", "plugin": "db@latest", "params": {"x": "y"}}, {"name": "b", "plugin": "q"}]},
        }));
        assert_eq!(stored.plugins().collect::<Vec<_>>(), [("db@latest", Some("db.1.0.0")), ("q", None)]);
        assert_eq!(stored.shown(), "sandbox shop/x");
        let garbled = json!({"metadata": {"annotations": {labels::LATEST: "{"}}, "spec": {"resources": [{"name": "a", "plugin": "p"}]}});
        assert_eq!(Stored::of(&garbled).plugins().collect::<Vec<_>>(), [("p", None)]);
        assert_eq!(Stored::of(&json!({"metadata": {"annotations": null}, "spec": {}})).plugins().count(), 0);
    }

    type Asked = Arc<Mutex<Vec<u32>>>;

    async fn list(State(asked): State<Asked>, Query(query): Query<HashMap<String, String>>) -> axum::Json<Value> {
        let limit: u32 = query["limit"].parse().unwrap();
        let from: u32 = query.get("continue").map_or(0, |token| token.parse().unwrap());
        asked.lock().unwrap().push(limit);
        let to = (from + limit).min(23);
        let sandbox = |n: u32| {
            json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox", "metadata": {"name": format!("x-{n}"), "namespace": "shop"},
                "spec": {"resources": [{"name": "a", "plugin": "p", "params": {"x": "y".repeat(1000)}}]}})
        };
        let items: Vec<Value> = (from..to).map(sandbox).collect();
        let token = if to < 23 { to.to_string() } else { String::new() };
        axum::Json(json!({"kind": "SandboxList", "metadata": {"continue": token}, "items": items}))
    }

    #[tokio::test]
    async fn t05_all_sandboxes_are_read_a_few_at_a_time() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let asked = Asked::default();
        let path = kube::api::DynamicObject::url_path(&sandbox_resource(), None);
        let router = Router::new().route(&path, get(list)).with_state(asked.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = crate::client::connect(kube::Config::new(url)).unwrap();
        let all: Vec<Stored> = pages(client).try_collect().await.unwrap();
        assert_eq!((all.len(), all[22].shown().as_str()), (23, "sandbox shop/x-22"));
        assert_eq!(*asked.lock().unwrap(), [10, 20]);
    }
}
