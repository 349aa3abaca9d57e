//! Calls that go well and calls that do not, behind stand-ins for the routes.

use super::*;
use crate::certs::Registration;
use crate::certs::token::Tokens;
use axum::Router;
use axum::routing::post;
use k8s_openapi::jiff::Timestamp;
use tower::ServiceExt as _;

struct Called {
    accepted: Arc<Accepted>,
    router: Router,
    given: String,
}

fn called() -> Called {
    let tokens = Tokens::first(&[], Timestamp::now());
    let accepted = Accepted::new(tokens.clone(), &Registration::Absent, Timestamp::now());
    let given = tokens.current.path("")[1..].to_owned();
    let routes = Router::new()
        .route("/well", post(|_: Bytes| async { "answer" }))
        .route("/broken", post(|| async { StatusCode::BAD_REQUEST }))
        .route("/slow", post(|| async { tokio::time::sleep(Duration::from_millis(300)).await }));
    let (seen, token) = (accepted.clone(), given.clone());
    let watch = move |call: Request, next: Next| watched(seen.clone(), token.clone(), call, next);
    Called { router: routes.layer(axum::middleware::from_fn(watch)), accepted, given }
}

impl Called {
    fn exposed(&self) -> bool {
        !self.accepted.exposed.noted().is_empty()
    }

    async fn answer(&self, path: &str, body: Body) -> Response {
        let call = Request::builder().method("POST").uri(path).body(body).unwrap();
        self.router.clone().oneshot(call).await.unwrap()
    }
}

#[tokio::test]
async fn t02_an_answer_that_left_whole_and_in_time_shows_nothing() {
    for path in ["/well", "/well?timeout=5s", "/slow?timeout=30s"] {
        let it = called();
        let answer = it.answer(path, Body::from("x")).await;
        axum::body::to_bytes(answer.into_body(), 1000).await.unwrap();
        assert!(!it.exposed(), "{path}");
    }
}

#[tokio::test]
async fn t02_every_other_end_of_a_call_counts_its_token_as_seen() {
    let cut = || Body::from_stream(futures::stream::iter([Ok("{"), Err(std::io::Error::other("cut"))]));
    let cases = [
        ("/broken", Body::empty()),
        ("/none", Body::empty()),
        ("/well", cut()),
        ("/slow?timeout=0.6s", Body::empty()),
        ("/well?timeout=0s", Body::empty()),
    ];
    for (path, body) in cases {
        let it = called();
        let answer = it.answer(path, body).await;
        let _ = axum::body::to_bytes(answer.into_body(), 1000).await;
        assert!(it.exposed(), "{path}");
        assert!(it.accepted.exposed.noted()[0].is(&it.given));
    }

    let it = called();
    drop(it.answer("/well", Body::empty()).await);
    assert!(it.exposed(), "the answer was never taken");

    let it = called();
    let gone = tokio::time::timeout(Duration::from_millis(50), it.answer("/slow", Body::empty())).await;
    assert!(gone.is_err() && it.exposed(), "the caller went away");
}

#[test]
fn the_time_that_the_api_server_gives_is_found_in_any_query() {
    for (query, seconds) in
        [(Some("timeout=5s"), Some(5)), (Some("a=b&timeout=9s&timeout=x"), Some(9)), (Some("%zz"), None), (None, None)]
    {
        assert_eq!(timeout(query), seconds.map(Duration::from_secs), "{query:?}");
    }
}
