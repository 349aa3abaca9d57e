//! Against a stand-in for the API server that knows some plugins and notes what it is asked.

use super::*;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde_json::{Value, json};

type Asked = Arc<Mutex<Vec<String>>>;

async fn answer(State((asked, known)): State<(Asked, Vec<String>)>, Path(name): Path<String>) -> Response {
    asked.lock().unwrap().push(name.clone());
    sleep(Duration::from_millis(30)).await;
    if known.contains(&name) {
        let plugin = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "ResourcePlugin", "metadata": {"name": name}, "spec": {}});
        return axum::Json(plugin).into_response();
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no", "reason": "NotFound", "code": 404});
    (StatusCode::NOT_FOUND, axum::Json(status)).into_response()
}

/// A client of an API server that has these plugins and answers nothing but who asks for one by name.
pub async fn api(known: &[&str]) -> (Client, Asked) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let asked = Asked::default();
    let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
    let router = Router::new()
        .route("/apis/sluice.dev/v1alpha1/resourceplugins/{name}", get(answer))
        .with_state((asked.clone(), known));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (Client::try_from(kube::Config::new(url)).unwrap(), asked)
}

async fn finder(known: &[&str]) -> (Finder, Asked) {
    let (client, asked) = api(known).await;
    (Finder::new(client, Arc::default()), asked)
}

fn sandbox(plugins: &[&str]) -> Value {
    let of = |(at, plugin): (usize, &&str)| json!({"name": format!("r{at}"), "plugin": plugin});
    let resources: Vec<Value> = plugins.iter().enumerate().map(of).collect();
    json!({"metadata": {"name": "x", "namespace": "shop"}, "spec": {"resources": resources}})
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn taken(asked: &Asked) -> Vec<String> {
    std::mem::take(&mut *asked.lock().unwrap())
}

#[tokio::test]
async fn t05_only_what_is_not_known_is_read_by_its_name_and_nothing_after_one_that_is_not_there() {
    let (finder, asked) = finder(&["a", "b.1.0.0", "d"]).await;
    let new = sandbox(&["a", "b@1", "a", "c", "d"]);
    finder.find(Change::Create { new: &new }, soon()).await.unwrap();
    assert_eq!(taken(&asked), ["a", "b.1.0.0", "c"]);
    let plugins = finder.plugins.read().unwrap();
    assert!(plugins.resolve("a", None).is_ok() && plugins.resolve("b@1.0.0", None).is_ok());
    assert!(plugins.resolve("c", None).is_err());
}

#[tokio::test]
async fn t05_a_flood_of_sandboxes_with_an_unknown_plugin_asks_for_it_once_a_second() {
    let (finder, asked) = finder(&[]).await;
    let new = sandbox(&["gone"]);
    let change = Change::Create { new: &new };
    let began = Instant::now();
    for _ in 0..2 {
        let flood = (0..50).map(|_| finder.find(change, soon()));
        futures::future::join_all(flood).await.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    }
    // The second flood came after the first had been answered, so it was asked for anew.
    assert_eq!(taken(&asked), ["gone", "gone"]);
    assert!(began.elapsed() >= AGAIN, "{:?}", began.elapsed());
}

#[tokio::test]
async fn t05_a_flood_of_unknown_names_is_asked_for_no_quicker_than_the_pace() {
    let (finder, asked) = finder(&[]).await;
    let sandboxes: Vec<Value> = (0..200).map(|n| sandbox(&[&format!("p-{n}")])).collect();
    let deadline = Instant::now() + Duration::from_secs(1);
    let flood = sandboxes.iter().map(|new| finder.find(Change::Create { new }, deadline));
    let found = futures::future::join_all(flood).await;
    let late = found.iter().filter(|found| matches!(found, Err(FindError::Late { .. }))).count();
    assert!(late >= 130, "{late} are told to come again");
    assert!(taken(&asked).len() <= 65, "40 at once, and 20 in a second");
}

#[tokio::test]
async fn t05_so_many_names_are_looked_for_at_once_and_the_rest_when_it_comes_again() {
    let names: Vec<String> = (0..10).map(|n| format!("p-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (finder, asked) = finder(&names).await;
    let new = sandbox(&names);
    let found = finder.find(Change::Create { new: &new }, soon()).await;
    assert!(matches!(found, Err(FindError::Many)), "{found:?}");
    assert_eq!(taken(&asked).len(), MOST_NAMES);
    finder.find(Change::Create { new: &new }, soon()).await.unwrap();
    assert_eq!(taken(&asked), ["p-8", "p-9"]);
}

#[tokio::test]
async fn a_deletion_looks_for_every_plugin_though_some_are_not_there() {
    let (finder, asked) = finder(&["b", "c"]).await;
    let old = sandbox(&["a", "b", "gone@latest", "c"]);
    finder.find(Change::Delete { old: &old }, soon()).await.unwrap();
    assert_eq!(taken(&asked), ["a", "b", "gone", "c"]);
}

#[tokio::test]
async fn where_all_are_known_they_are_read_anew_for_one_may_have_changed() {
    let (finder, asked) = finder(&["a", "b"]).await;
    let new = sandbox(&["a", "b"]);
    for _ in 0..2 {
        finder.find(Change::Create { new: &new }, soon()).await.unwrap();
    }
    assert_eq!(taken(&asked), ["a", "b", "a", "b"]);
}

#[tokio::test]
async fn a_version_that_comes_by_the_watch_is_waited_for_a_moment() {
    let (finder, _) = finder(&[]).await;
    let new = sandbox(&["db@latest"]);
    let come = async {
        sleep(Duration::from_millis(300)).await;
        finder.plugins.write().unwrap().insert(ResourcePlugin::new("db.1.0.0", Default::default()));
    };
    let (found, ()) = tokio::join!(finder.find(Change::Create { new: &new }, soon()), come);
    found.unwrap();
    assert!(finder.plugins.read().unwrap().resolve("db@latest", None).is_ok());
}

#[tokio::test]
async fn t05_names_are_remembered_within_a_bound() {
    let (finder, _) = finder(&[]).await;
    for n in 0..REMEMBERED * 2 {
        assert!(finder.turn(&n.to_string()).is_some());
    }
    assert!(finder.turns.lock().unwrap().len() <= REMEMBERED);
    // All of these were asked for just now, or wait.
    let turns: Vec<Turn> = (0..REMEMBERED).filter_map(|n| finder.turn(&format!("p-{n}"))).collect();
    for turn in turns {
        *turn.lock().await = Some(Instant::now());
    }
    assert!(finder.turns.lock().unwrap().len() <= REMEMBERED && finder.turn("more").is_none());
}
