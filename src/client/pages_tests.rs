//! Tests of lists of bounded size, against a server that counts what it sends.

use super::super::{connect, lists};
use super::{MIB, MOST_ALONE, MOST_BYTES, MOST_OBJECTS};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The sizes of the objects that there are, and how many objects each request asked for.
#[derive(Clone, Default)]
struct Served(Arc<Vec<usize>>, Arc<Mutex<Vec<u32>>>);

async fn served(objects: Vec<usize>) -> (Client, Served) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let served = Served(Arc::new(objects), Arc::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let router = Router::new().fallback(list).with_state(served.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (connect(Config::new(url)).unwrap(), served)
}

async fn list(State(Served(objects, asked)): State<Served>, Query(query): Query<HashMap<String, String>>) -> Body {
    assert_eq!(query.get("labelSelector").map(String::as_str), Some("a=b c&d"));
    if query.contains_key("watch") {
        return Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    }
    let limit: u32 = query["limit"].parse().unwrap();
    asked.lock().unwrap().push(limit);
    let from: usize = query.get("continue").map_or(0, |from| from.parse().unwrap());
    let to = objects.len().min(from + limit as usize);
    let after = if to < objects.len() { to.to_string() } else { String::new() };
    let head = json!({"resourceVersion": "7", "continue": after});
    let begin = format!("{{\"kind\":\"ConfigMapList\",\"apiVersion\":\"v1\",\"metadata\":{head},\"items\":[");
    let items = (from..to).map(move |at| {
        let comma = if at == from { "" } else { "," };
        let data = "x".repeat(objects[at]);
        format!("{comma}{{\"metadata\":{{\"name\":\"{at}\"}},\"data\":{{\"a\":\"{data}\"}}}}")
    });
    let pieces = [begin].into_iter().chain(items).chain(["]}".to_owned()]);
    Body::from_stream(futures::stream::iter(pieces.collect::<Vec<_>>()).map(Ok::<_, std::io::Error>))
}

fn params() -> ListParams {
    ListParams::default().labels("a=b c&d")
}

async fn names(client: &Client) -> Result<Vec<usize>, kube::Error> {
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let (mut pages, mut names) = (lists::Pages::of(params()), Vec::new());
    while let Some(page) = pages.objects(&api).await? {
        let bytes: usize = page.iter().map(|object| object.data.as_ref().unwrap()["a"].len()).sum();
        assert!(bytes <= MOST_BYTES || page.len() == 1, "{bytes} bytes in {} objects", page.len());
        names.extend(page.iter().map(|object| object.name_any().parse::<usize>().unwrap()));
    }
    Ok(names)
}

#[tokio::test]
async fn t05_a_list_of_small_objects_takes_few_requests() {
    let (client, Served(_, asked)) = served(vec![100; 2_000]).await;
    assert_eq!(names(&client).await.unwrap(), (0..2_000).collect::<Vec<_>>());
    let asked = asked.lock().unwrap();
    assert_eq!((asked[0], asked.iter().max()), (10, Some(&MOST_OBJECTS)));
    assert!(asked.len() < 30, "{asked:?}");
}

#[tokio::test]
async fn t05_no_page_of_a_list_is_larger_than_its_bound_whatever_its_objects() {
    // Small ones come first, so that a large page is asked for.
    let mut objects = vec![100; 300];
    objects.extend(vec![1_400_000; 30]);
    objects.extend([MOST_BYTES * 2, 100, 100]);
    let (client, Served(sizes, asked)) = served(objects).await;
    assert_eq!(names(&client).await.unwrap(), (0..sizes.len()).collect::<Vec<_>>());
    let asked = asked.lock().unwrap();
    assert!(asked.len() < 60, "{asked:?}");
}

#[tokio::test]
async fn t05_the_pages_of_a_watch_are_bounded_too() {
    let (client, Served(sizes, asked)) = served(vec![1_400_000; 25]).await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let config = watcher::Config::default().labels("a=b c&d");
    let mut events = watcher(api, config).boxed();
    let mut seen = 0;
    loop {
        match events.next().await.unwrap().unwrap() {
            Event::InitApply(_) => seen += 1,
            Event::InitDone => break,
            _ => {}
        }
    }
    assert_eq!(seen, sizes.len());
    assert!(asked.lock().unwrap().iter().all(|objects| *objects <= 10));
}

#[tokio::test]
async fn t05_an_object_that_is_larger_than_any_bound_is_told_by_its_place() {
    let (client, _) = served(vec![100, MOST_ALONE + MIB]).await;
    let error = crate::plan::message::with_causes(&names(&client).await.unwrap_err());
    assert!(error.contains("an object of /api/v1/namespaces/default/configmaps is larger than 32 MiB"), "{error}");
}
