//! Writes what a fork consists of, and over nothing else.

use super::super::ControllerError;
use super::left;
use crate::api::labels;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Writes one object of a fork; tells why it cannot be where another's stands in its place, or the API server refuses
/// it. Where another came between the look and the write it fails, and the next look finds that one.
pub async fn write<K>(api: &Api<K>, uid: &str, object: &mut Value) -> Result<Result<K, String>, ControllerError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let name = name.as_str();
    let kind = K::kind(&());
    let found = api.get_metadata_opt(name).await.map_err(ControllerError::api("read what stands in a fork's place"))?;
    let metadata = found.map(|found| found.metadata);
    if metadata.as_ref().is_some_and(|found| !left::is_of(found, uid)) {
        return Ok(Err(format!(
            "{kind} {name} exists already and is not this sandbox's: delete it, or give the sandbox another name"
        )));
    }
    let apply = PatchParams::apply(labels::MANAGER);
    let params = if let Some(uid) = metadata.and_then(|found| found.uid) {
        // Only over the very object that was looked at.
        object["metadata"]["uid"] = Value::String(uid);
        apply.force()
    } else {
        // Where another has come since, its author has fields of this object, and without force they stay.
        apply
    };
    match api.patch(name, &params, &Patch::Apply(&*object)).await {
        Ok(written) => Ok(Ok(written)),
        Err(kube::Error::Api(status)) if is_about_the_object(status.code, &status.message) => {
            Ok(Err(format!("{kind} {name} was refused: {}", status.message)))
        }
        Err(error) => Err(ControllerError::api("write what a fork consists of")(error)),
    }
}

/// Whether an answer says something of the object that was sent, rather than of the moment. What does not fit its kind is
/// answered with 500 where it is applied.
fn is_about_the_object(code: u16, message: &str) -> bool {
    matches!(code, 400 | 403 | 413 | 422) || (code == 500 && message.contains("typed patch object"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::connect;
    use crate::controller::kept::KeptService;
    use axum::Router;
    use axum::body::Bytes;
    use axum::extract::State;
    use axum::response::{IntoResponse as _, Json, Response};
    use http::{Method, StatusCode, Uri};
    use kube::Config;
    use serde_json::json;
    use std::sync::{Arc, Mutex};

    /// What stands in the fork's place, and the writes that came in.
    #[derive(Clone)]
    struct Served(Option<Value>, Arc<Mutex<Vec<(String, Value)>>>);

    async fn answer(State(served): State<Served>, method: Method, uri: Uri, body: Bytes) -> Response {
        if method != Method::GET {
            let object: Value = serde_json::from_slice(&body).unwrap();
            served.1.lock().unwrap().push((uri.query().unwrap_or_default().to_owned(), object.clone()));
            return Json(object).into_response();
        }
        let missing = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": ""});
        served
            .0
            .map_or_else(|| (StatusCode::NOT_FOUND, Json(missing)).into_response(), |found| Json(found).into_response())
    }

    /// What comes of writing a fork's Service where `found` stands: the answer, the query of the write and its UID.
    async fn written(found: Option<Value>) -> (Result<(), String>, Option<(String, Value)>) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let served = Served(found, Arc::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let router = Router::new().fallback(answer).with_state(served.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let api: Api<KeptService> = Api::namespaced(connect(Config::new(url)).unwrap(), "shop");
        let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "cart-x"}});
        let result = write(&api, "u", &mut object).await.unwrap().map(drop);
        let mut writes = served.1.lock().unwrap();
        assert!(writes.len() <= 1);
        (result, writes.pop().map(|(query, object)| (query, object["metadata"]["uid"].clone())))
    }

    fn found(owner: &str) -> Value {
        let owner = json!({"apiVersion": crate::api::API_VERSION, "kind": "Sandbox", "name": "x", "uid": owner});
        let metadata =
            json!({"name": "cart-x", "uid": "s", "labels": {labels::SANDBOX_UID: "u"}, "ownerReferences": [owner]});
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata})
    }

    #[tokio::test]
    async fn t03_what_has_come_into_a_forks_place_since_the_look_is_not_written_over() {
        let (result, write) = written(None).await;
        let (query, uid) = write.unwrap();
        assert_eq!((result, uid), (Ok(()), Value::Null));
        assert!(query.contains("fieldManager=sluice") && !query.contains("force"), "{query}");

        let (result, write) = written(Some(found("u"))).await;
        let (query, uid) = write.unwrap();
        assert_eq!((result, uid), (Ok(()), json!("s")));
        assert!(query.contains("force=true"), "{query}");
    }

    #[tokio::test]
    async fn t03_what_is_only_labelled_as_a_fork_is_not_written_over() {
        let (result, write) = written(Some(found("another"))).await;
        assert!(write.is_none());
        assert_eq!(
            result,
            Err("Service cart-x exists already and is not this sandbox's: delete it, or give the sandbox another name"
                .into())
        );
    }
}
