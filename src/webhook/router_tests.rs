//! Who is let in: the routes behind the guard are stand-ins, for what they answer is tested elsewhere.

use super::*;
use crate::certs::Registration;
use crate::certs::token::Tokens;
use crate::certs::token::rotate::{Action, perform};
use crate::webhook::guests::Guests;
use crate::webhook::serve::WEBHOOK_BOUNDS;
use axum::body::Body;
use k8s_openapi::jiff::Timestamp;
use tower::ServiceExt as _;

fn now() -> Timestamp {
    Timestamp::now()
}

struct Guarded {
    accepted: Arc<Accepted>,
    metrics: Arc<Metrics>,
    router: Router,
}

fn guard(tokens: Tokens) -> Guarded {
    let accepted = Accepted::new(tokens, &Registration::Absent, now());
    let metrics = Arc::new(Metrics::default());
    let routes = Router::new()
        .route(&format!("{VALIDATE_PATH}/{{token}}"), post(|| async { "let in" }))
        .route(&format!("{MUTATE_PATH}/{{token}}"), post(|| async { "let in" }));
    Guarded { router: guarded(routes, accepted.clone(), metrics.clone()), accepted, metrics }
}

impl Guarded {
    async fn ask(&self, method: &str, path: &str) -> (StatusCode, String) {
        let call = Call::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let answer = self.router.clone().oneshot(call).await.unwrap();
        let status = answer.status();
        let body = axum::body::to_bytes(answer.into_body(), 1000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

#[tokio::test]
async fn whoever_lacks_the_token_finds_nothing_whatever_is_asked_and_is_counted() {
    let tokens = Tokens::first(&[], now());
    let it = guard(tokens.clone());
    let right = tokens.current.path("");
    let wrong = crate::certs::token::Token::random().path("/validate");
    let paths = [
        "/".to_owned(),
        "/validate".to_owned(),
        "/validate/".to_owned(),
        "/mutate?timeout=5s".to_owned(),
        wrong,
        format!("/validate{}", &right[..right.len() - 1]),
        format!("/validate{right}0"),
        format!("/validate{right}/"),
        format!("/validate{right}/more"),
        format!("/validate{}", right.to_uppercase()),
        format!("/validate/?token={}", &right[1..]),
        format!("/validated{right}"),
        right.clone(),
    ];
    for path in &paths {
        for method in ["POST", "GET"] {
            assert_eq!(it.ask(method, path).await, (StatusCode::NOT_FOUND, String::new()), "{method} {path}");
        }
    }
    assert_eq!(it.metrics.strangers(), 2 * paths.len() as u64);

    for path in ["/validate", "/mutate"] {
        let path = format!("{path}{right}?timeout=5s");
        assert_eq!(it.ask("POST", &path).await, (StatusCode::OK, "let in".to_owned()));
    }
    assert_eq!(it.metrics.strangers(), 2 * paths.len() as u64);
}

#[tokio::test]
async fn old_and_new_are_let_in_during_a_rotation_and_a_retired_one_not_at_all() {
    let mut tokens = Tokens::first(&[], now());
    let it = guard(tokens.clone());
    let old = tokens.current.path("/validate");
    for action in [Action::Append, Action::Name] {
        tokens = perform(action, &tokens, now());
        it.accepted.offer(tokens.clone(), now());
        for token in &tokens.accepted {
            assert_eq!(it.ask("POST", &token.path("/validate")).await.0, StatusCode::OK, "after {action:?}");
        }
        assert_eq!(it.ask("POST", &old).await.0, StatusCode::OK, "after {action:?}");
    }
    tokens = perform(Action::Retire, &tokens, now());
    it.accepted.offer(tokens.clone(), now());
    assert_eq!(it.ask("POST", &old).await.0, StatusCode::NOT_FOUND);
    assert_eq!(it.ask("POST", &tokens.current.path("/validate")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn t04_a_connection_that_has_brought_the_token_is_no_strangers_until_it_brings_a_wrong_one() {
    let tokens = Tokens::first(&[], now());
    let it = guard(tokens.clone());
    let guests = Guests::new(WEBHOOK_BOUNDS);
    let caller = guests.enter([127, 0, 0, 1].into());
    let wrong = || ("/validate/none".to_owned(), (1, 0));
    for (path, count) in [wrong(), (tokens.current.path("/validate"), (0, 1)), wrong()] {
        let call = Call::builder().method("POST").uri(path).extension(caller.clone()).body(Body::empty()).unwrap();
        it.router.clone().oneshot(call).await.unwrap();
        assert_eq!(guests.count(), count);
    }
}
