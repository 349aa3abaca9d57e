//! Tests of what forks are made of, against a server that makes it while it is read.

use super::*;
use crate::client::connect;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use futures::StreamExt as _;
use kube::Config;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is served: the text of a Deployment's spec, and a namespace's Services; how many lists were begun.
struct Served {
    spec: String,
    services: Vec<Value>,
    /// What each Service has beside it, in bytes.
    beside: usize,
    lists: AtomicUsize,
}

async fn served(spec: String, services: Vec<Value>, beside: usize) -> (Client, Arc<Served>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let served = Arc::new(Served { spec, services, beside, lists: AtomicUsize::default() });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let router = Router::new().fallback(answer).with_state(served.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (connect(Config::new(url)).unwrap(), served)
}

async fn answer(State(served): State<Arc<Served>>, uri: http::Uri) -> (http::StatusCode, Body) {
    if uri.path() == "/apis/apps/v1/namespaces/shop/deployments/cart" {
        let metadata = json!({"name": "cart", "managedFields": [{"fieldsV1": {"f:a": {}}}]});
        return (http::StatusCode::OK, format!("{{\"metadata\":{metadata},\"spec\":{}}}", served.spec).into());
    }
    if uri.path() != "/api/v1/namespaces/shop/services" {
        let status = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": ""});
        return (http::StatusCode::NOT_FOUND, status.to_string().into());
    }
    let asked = |name: &str| {
        let mut query = uri.query().unwrap_or_default().split('&');
        query.find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse::<usize>().ok())
    };
    let from = asked("continue").unwrap_or(0);
    if from == 0 {
        served.lists.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let to = served.services.len().min(from + asked("limit").unwrap());
    let after = if to < served.services.len() { to.to_string() } else { String::new() };
    let begin = format!("{{\"metadata\":{},\"items\":[", json!({"resourceVersion": "7", "continue": after}));
    let items = (from..to).map(move |at| {
        let service = served.services[at].to_string();
        let (comma, beside) = (if at == from { "" } else { "," }, "x".repeat(served.beside));
        format!("{comma}{},\"beside\":\"{beside}\"}}", service.strip_suffix('}').unwrap())
    });
    let pieces = std::iter::once(begin).chain(items).chain(std::iter::once("]}".to_owned()));
    let body = futures::stream::iter(pieces).map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece)));
    (http::StatusCode::OK, Body::from_stream(body))
}

fn service(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name, "annotations": {"a": "b"}}, "spec": spec})
}

#[tokio::test]
async fn t03_a_baseline_that_would_take_too_much_memory_is_refused_before_it_is_values() {
    let tolerations: Vec<String> = (0..100_000).map(|n| format!("{{\"key\":\"k{n}\"}}")).collect();
    let spec = format!("{{\"template\":{{\"spec\":{{\"tolerations\":[{}]}}}}}}", tolerations.join(","));
    let (client, _) = served(spec, Vec::new(), 0).await;
    let room = Room::default();
    let Err(error) = baseline((&room, &client), "shop", "cart").await.unwrap() else { panic!("it is read") };
    let told = error.to_string();
    assert!(told.starts_with("forkOf.name: the spec of Deployment \"cart\" would take 8"), "{told}");
    assert!(told.contains("and a fork is made of at most 10 MiB") && told.len() < 1024, "{told}");
    assert_eq!(room.forks.available_permits(), ALL_FORKS / 1024);
}

#[tokio::test]
async fn t03_only_so_many_forks_are_put_together_at_a_time() {
    let variables: Vec<Value> = (0..8_000).map(|n| json!({"name": format!("V{n}"), "value": "1"})).collect();
    let spec = json!({"template": {"spec": {"containers": [{"name": "main", "env": variables}]}}});
    let (client, _) = served(spec.to_string(), Vec::new(), 0).await;
    let room = Room::default();
    let first = baseline((&room, &client), "shop", "cart").await.unwrap().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(first.spec, spec);
    let second =
        tokio::time::timeout(std::time::Duration::from_millis(300), baseline((&room, &client), "shop", "cart"));
    assert!(second.await.is_err(), "two of them are in memory");
    drop(first);
    assert!(baseline((&room, &client), "shop", "cart").await.unwrap().is_ok());
    let missing = baseline((&room, &client), "shop", "none").await.unwrap();
    assert!(matches!(missing, Err(ForkError::NoBaseline { .. })));
}

#[tokio::test]
async fn t03_of_the_services_of_a_namespace_only_what_forks_need_is_kept() {
    let mut all: Vec<Value> =
        (0..300).map(|n| service(&format!("s{n}"), &json!({"selector": {"app": "cart"}}))).collect();
    all.push(service("none", &json!({"ports": [{"port": 80}]})));
    all.push(json!({"metadata": {"name": "fork", "labels": {"sluice.dev/sandbox-uid": "u", "b": "c"}}, "spec": {"selector": {"app": "cart"}}}));
    let (client, served) = served(String::new(), all, 1_000).await;
    let room = Room::default();
    let one = || services((&room, &client), "shop");
    let found = futures::future::join_all((0..16).map(|_| one())).await;
    for services in found {
        let services = services.unwrap().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(services.all.len(), 300);
        assert!(services.all.iter().all(|service| service.metadata.annotations.is_none()));
    }
    assert!(served.lists.load(Ordering::SeqCst) <= 2, "each of them has made a list");
    assert_eq!(room.services.available_permits(), ALL_SERVICES / 1024);
    assert!(one().await.unwrap().is_ok());
    assert_eq!(served.lists.load(Ordering::SeqCst), 3, "an old list was used again");
}

#[tokio::test]
async fn t03_services_that_are_too_many_or_too_large_are_refused() {
    let small = |n: usize| service(&format!("s{n}"), &json!({"selector": {"app": "cart"}}));
    let (client, _) = served(String::new(), (0..100).map(small).collect(), 1_000_000).await;
    let room = Room::default();
    let Err(error) = services((&room, &client), "shop").await.unwrap() else { panic!("they are read") };
    let told = error.to_string();
    assert!(told.contains("the Services of namespace \"shop\"") && told.contains("64 MiB"), "{told}");

    let selector: serde_json::Map<String, Value> = (0..20_000).map(|n| (format!("k{n}"), json!(""))).collect();
    let large = |n: usize| service(&format!("s{n}"), &json!({"selector": selector}));
    let (client, _) = served(String::new(), (0..30).map(large).collect(), 0).await;
    let Err(error) = services((&room, &client), "shop").await.unwrap() else { panic!("they are kept") };
    assert!(error.to_string().contains("4 MiB"), "{error}");
}
