use super::*;
use axum::body::to_bytes;
use futures::stream;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn review(object: &str) -> String {
    format!(r#"{{"kind":"AdmissionReview","request":{{"uid":"u-1","operation":"CREATE","object":{object}}}}}"#)
}

/// A body in pieces, which tells how much of it was read and not how long it is.
fn pieces(text: Vec<u8>) -> (Body, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let counted = read.clone();
    let text = Bytes::from(text);
    let all: Vec<Bytes> =
        (0..text.len()).step_by(BEGINNING).map(|at| text.slice(at..text.len().min(at + BEGINNING))).collect();
    let stream = stream::iter(all).map(move |piece| {
        counted.fetch_add(piece.len(), Ordering::Relaxed);
        Ok::<_, std::io::Error>(piece)
    });
    (Body::from_stream(stream), read)
}

async fn refusal(answer: Response) -> Value {
    assert_eq!(answer.status(), StatusCode::OK);
    let review: Value = serde_json::from_slice(&to_bytes(answer.into_body(), 100_000).await.unwrap()).unwrap();
    assert_eq!((&review["response"]["uid"], &review["response"]["allowed"]), (&json!("u-1"), &json!(false)));
    review["response"]["status"].clone()
}

#[tokio::test]
async fn t02_the_largest_change_that_the_api_server_can_send_is_taken_in() {
    let object = format!(r#"{{"spec":{{"a":"{}"}}}}"#, r"\u003c".repeat(3_000_000));
    let text = review(&object).replace("\"operation\"", &format!("\"oldObject\":{object},\"operation\""));
    let (request, _held) = Room::default().receive(Body::from(text), soon()).await.unwrap();
    assert_eq!(request.object["spec"]["a"].as_str().unwrap().len(), 3_000_000);
    assert_eq!(request.object, request.old_object);
}

#[tokio::test]
async fn t02_what_is_larger_still_is_read_to_its_end_and_then_refused() {
    let text = review(&format!(r#""{}""#, "<".repeat(LARGEST))).into_bytes();
    let length = text.len();
    let (body, read) = pieces(text);
    let status = refusal(Room::default().receive(body, soon()).await.unwrap_err()).await;
    assert_eq!((&status["code"], read.load(Ordering::Relaxed)), (&json!(413), length));
    assert!(status["message"].as_str().unwrap().contains("48 MiB"), "{status}");
}

#[tokio::test]
async fn t02_a_body_without_an_end_is_given_up_and_so_is_one_that_does_not_come() {
    let piece = Bytes::from(vec![b' '; MIB]);
    let endless = Body::from_stream(stream::repeat_with(move || Ok::<_, std::io::Error>(piece.clone())));
    let answer = Room::default().receive(endless, soon()).await.unwrap_err();
    assert_eq!(
        (answer.status(), &answer.headers()["connection"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &"close".parse().unwrap())
    );

    let silent = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    let room = Room::default();
    let answer = room.receive(silent, Instant::now() + Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(room.large.texts.permits.available_permits(), LARGEST / KIB, "its room is free again");
}

#[tokio::test]
async fn t05_an_object_of_very_many_tiny_ones_is_refused_before_it_is_parsed() {
    for tiny in [r#"{"a":1}"#, "{}", "[1]", "[[1]]", r#"{"a":[]}"#] {
        let items = vec![tiny; 1_500_000 / tiny.len()].join(",");
        let status =
            refusal(Room::default().receive(Body::from(review(&format!("[{items}]"))), soon()).await.unwrap_err());
        let status = status.await;
        assert_eq!(status["code"], 413, "{tiny}: {status}");
        assert!(status["message"].as_str().unwrap().contains("keep fewer of them"), "{status}");
    }
}

#[tokio::test]
async fn t05_what_is_no_review_or_too_deep_is_answered_and_takes_no_room() {
    let room = Room::default();
    let deep = review(&format!("{}{}", "[".repeat(5000), "]".repeat(5000)));
    let status = refusal(room.receive(Body::from(deep), soon()).await.unwrap_err()).await;
    assert_eq!(status["code"], 422, "{status}");
    for text in ["", "{", "[]", r#"{"request":null}"#, r#"{"request":{"uid":7}}"#, "\"request\""] {
        let answer = room.receive(Body::from(text), soon()).await.unwrap_err();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{text}");
    }
    for share in [&room.small, &room.large] {
        for part in [&share.texts, &share.objects] {
            assert_eq!(part.permits.available_permits(), part.all);
        }
    }
}

#[tokio::test]
async fn t05_large_changes_wait_for_room_and_are_told_to_come_again_and_small_ones_pass_them() {
    let room = Arc::new(Room::default());
    let large = review(&format!(r#"{{"a":"{}"}}"#, "x".repeat(6 * MIB)));
    let mut held = Vec::new();
    // Four copies of 6 MiB each: two fit into 64 MiB.
    for _ in 0..2 {
        held.push(room.receive(Body::from(large.clone()), soon()).await.unwrap());
    }
    let third = {
        let (room, large) = (room.clone(), large.clone());
        tokio::spawn(async move { room.receive(Body::from(large), Instant::now() + Duration::from_secs(1)).await })
    };
    let small = review(r#"{"a":"b"}"#);
    for _ in 0..100 {
        room.receive(Body::from(small.clone()), soon()).await.unwrap();
    }
    let status = refusal(third.await.unwrap().unwrap_err()).await;
    assert_eq!((&status["code"], &status["details"]["retryAfterSeconds"]), (&json!(429), &json!(2)));

    let fourth = {
        let (room, large) = (room.clone(), large.clone());
        tokio::spawn(async move { room.receive(Body::from(large), soon()).await.is_ok() })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!fourth.is_finished());
    held.pop();
    assert!(fourth.await.unwrap(), "it had waited for its turn");
}

#[tokio::test]
async fn t05_whoever_waits_for_room_has_read_nothing_and_reads_all_before_it_is_told_to_come_again() {
    let room = Room::default();
    let all = room.large.texts.take(LARGEST, soon()).await.unwrap();
    let text = review(&format!(r#""{}""#, "x".repeat(MIB))).into_bytes();
    let length = text.len();
    let (body, read) = pieces(text);
    let waits = room.receive(body, Instant::now() + Duration::from_secs(1));
    tokio::pin!(waits);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut waits).await.is_err());
    assert_eq!(read.load(Ordering::Relaxed), 0);
    let status = refusal(waits.await.unwrap_err()).await;
    assert_eq!((&status["code"], read.load(Ordering::Relaxed)), (&json!(429), length));
    drop(all);
}

#[test]
fn t05_the_uid_is_found_in_the_beginning_of_a_review_alone() {
    let text = review(r#"{"metadata":{"uid":"other"}}"#);
    assert_eq!(uid(&text.as_bytes()[..70]), Some("u-1".to_owned()));
    assert_eq!(uid(text.as_bytes()), Some("u-1".to_owned()));
    assert_eq!(uid(&text.as_bytes()[..40]), None);
    assert_eq!(uid(br#"{"uid":"a","response":{"uid":"b"}}"#), None);
}

#[tokio::test]
async fn t05_more_large_changes_than_may_wait_are_read_and_told_to_come_again_at_once() {
    let room = Arc::new(Room::default());
    let all = room.large.texts.take(LARGEST, soon()).await.unwrap();
    let text = review(&format!(r#""{}""#, "x".repeat(MIB)));
    let waiting: Vec<_> = (0..LARGE_AT_ONCE)
        .map(|_| {
            let (room, text) = (room.clone(), text.clone());
            tokio::spawn(async move { room.receive(Body::from(text), soon()).await.is_ok() })
        })
        .collect();
    while room.large.places.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let began = Instant::now();
    let status = refusal(room.receive(Body::from(text), soon()).await.unwrap_err()).await;
    assert!(status["code"] == 429 && began.elapsed() < Duration::from_secs(5), "{status} after {:?}", began.elapsed());
    drop(all);
    for one in waiting {
        assert!(one.await.unwrap(), "it had waited for its turn");
    }
}
