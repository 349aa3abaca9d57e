//! An API server of a few objects in memory, over real HTTP: enough of get, list, watch, create, update and apply.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{Method, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::sync::broadcast;

pub const SECRETS: &str = "/api/v1/namespaces/sluice-system/secrets";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/sluice-system/endpointslices";
pub const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
pub const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";

const COLLECTIONS: [(&str, &str, &str); 4] = [
    (SECRETS, "v1", "Secret"),
    (SLICES, "discovery.k8s.io/v1", "EndpointSlice"),
    (VALIDATING, "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    (MUTATING, "admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
];

#[derive(Default)]
struct Objects {
    by_path: BTreeMap<String, Value>,
    version: u64,
    writes: Vec<String>,
}

#[derive(Clone)]
pub struct FakeApi {
    objects: Arc<Mutex<Objects>>,
    events: broadcast::Sender<(String, Value)>,
    pub client: kube::Client,
}

impl FakeApi {
    pub async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let client = kube::Client::try_from(kube::Config::new(url)).unwrap();
        let api = Self { objects: Arc::default(), events: broadcast::channel(100).0, client };
        let router = Router::new().fallback(answer).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        api
    }

    /// Writes an object as somebody else would.
    pub fn put(&self, collection: &str, name: &str, mut object: Value) {
        let path = format!("{collection}/{name}");
        let (_, api_version, kind) = COLLECTIONS.iter().find(|known| known.0 == collection).unwrap();
        let mut objects = self.objects.lock().unwrap();
        objects.version += 1;
        object["apiVersion"] = json!(api_version);
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(name);
        object["metadata"]["resourceVersion"] = json!(objects.version.to_string());
        let uid = objects.by_path.get(&path).map(|old| old["metadata"]["uid"].clone());
        object["metadata"]["uid"] = uid.unwrap_or_else(|| json!(format!("uid-{}", objects.version)));
        objects.by_path.insert(path, object.clone());
        let _ = self.events.send((collection.into(), json!({"type": "MODIFIED", "object": object})));
    }

    pub fn delete(&self, collection: &str, name: &str) {
        let object = self.objects.lock().unwrap().by_path.remove(&format!("{collection}/{name}")).unwrap();
        let _ = self.events.send((collection.into(), json!({"type": "DELETED", "object": object})));
    }

    pub fn get(&self, collection: &str, name: &str) -> Option<Value> {
        self.objects.lock().unwrap().by_path.get(&format!("{collection}/{name}")).cloned()
    }

    /// Method and path of each write that came in.
    pub fn writes(&self) -> Vec<String> {
        self.objects.lock().unwrap().writes.clone()
    }

    fn read(&self, uri: &Uri) -> Response {
        let path = uri.path().to_owned();
        if uri.query().is_some_and(|query| query.contains("watch=true")) {
            let events = self.events.subscribe();
            let lines = futures::stream::unfold((events, path), |(mut events, path)| async move {
                loop {
                    let (collection, event) = events.recv().await.ok()?;
                    if collection == path {
                        return Some((Ok::<_, std::io::Error>(format!("{event}\n")), (events, path)));
                    }
                }
            });
            return Body::from_stream(lines).into_response();
        }
        let objects = self.objects.lock().unwrap();
        if let Some((_, api_version, kind)) = COLLECTIONS.iter().find(|known| known.0 == path) {
            let prefix = format!("{path}/");
            let items: Vec<&Value> =
                objects.by_path.iter().filter(|(at, _)| at.starts_with(&prefix)).map(|(_, object)| object).collect();
            let metadata = json!({"resourceVersion": objects.version.to_string()});
            return axum::Json(json!({
                "apiVersion": api_version, "kind": format!("{kind}List"), "metadata": metadata, "items": items,
            }))
            .into_response();
        }
        match objects.by_path.get(&path) {
            Some(object) => axum::Json(object).into_response(),
            None => refused(StatusCode::NOT_FOUND),
        }
    }

    fn write(&self, method: &Method, path: &str, body: Value) -> Response {
        self.objects.lock().unwrap().writes.push(format!("{method} {path}"));
        let (collection, name) = match method {
            &Method::POST => (path, body["metadata"]["name"].as_str().unwrap().to_owned()),
            _ => path.rsplit_once('/').map(|(collection, name)| (collection, name.to_owned())).unwrap(),
        };
        let old = self.get(collection, &name);
        let fits = match (method, &old) {
            (&Method::POST, old) => old.is_none(),
            (_, None) => return refused(StatusCode::NOT_FOUND),
            (&Method::PUT, Some(old)) => old["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"],
            (_, Some(old)) => {
                ["uid", "resourceVersion"].iter().all(|field| old["metadata"][field] == body["metadata"][field])
            }
        };
        if !fits {
            return refused(StatusCode::CONFLICT);
        }
        self.put(collection, &name, body);
        axum::Json(self.get(collection, &name)).into_response()
    }
}

async fn answer(State(api): State<FakeApi>, method: Method, uri: Uri, body: Bytes) -> Response {
    match method {
        Method::GET => api.read(&uri),
        _ => api.write(&method, uri.path(), serde_json::from_slice(&body).unwrap()),
    }
}

fn refused(code: StatusCode) -> Response {
    let reason = if code == StatusCode::NOT_FOUND { "NotFound" } else { "Conflict" };
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": reason,
        "reason": reason, "code": code.as_u16(),
    });
    (code, axum::Json(status)).into_response()
}
