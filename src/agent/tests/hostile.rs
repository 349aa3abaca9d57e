//! What something in the agent's place can send: it gains nothing by it, and cannot hold the engine up.

use super::*;
use crate::agent::{
    client::SessionError,
    protocol::{EVENT_LIMIT, LOG_LIMIT},
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, WriteHalf};

/// The engine's session with something that says `said` once it was asked for the step `s`.
async fn asked(said: impl FnOnce(WriteHalf<DuplexStream>) -> JoinHandle<()>) -> Result<StepResult, SessionError> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (reader, writer) = tokio::io::split(near);
    let (commands, mut events) = tokio::io::split(far);
    events.write_all(b"{\"type\":\"hello\",\"version\":\"1\"}\n").await.unwrap();
    let session = Session::start(reader, writer).await.unwrap();
    let mut asked = step("s", "true");
    asked.outputs = vec![output("host", Path::new("/out/host"))];
    let mut commands = BufReader::new(commands);
    let mut command = String::new();
    let mut saying = None;
    let answering = async {
        commands.read_line(&mut command).await.unwrap();
        saying = Some(said(events));
    };
    let within = tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(session.run(asked), answering) });
    let (result, ()) = within.await.expect("the engine is held up");
    saying.unwrap().abort();
    result
}

async fn answered(said: Vec<u8>) -> Result<StepResult, SessionError> {
    asked(|mut events| {
        tokio::spawn(async move {
            let _ = events.write_all(&said).await;
            std::future::pending::<()>().await;
        })
    })
    .await
}

fn ended(change: &[(&str, Value)]) -> Vec<u8> {
    let mut result = json!({
        "type": "ended", "id": {"step": "s", "attempt": 1}, "exitCode": 0, "outputs": {"host": "aGk="}, "log": "",
    });
    change.iter().for_each(|(key, value)| result[*key] = value.clone());
    format!("{result}\n").into_bytes()
}

#[track_caller]
fn assert_unbelieved(result: Result<StepResult, SessionError>, why: &str) {
    match result {
        Err(SessionError::Unbelievable { reason }) => assert!(reason.contains(why), "{reason}"),
        other => panic!("believed: {other:?}"),
    }
}

#[tokio::test]
async fn an_honest_answer_is_believed() {
    assert!(answered(ended(&[])).await.unwrap().succeeded());
}

#[tokio::test]
async fn t11_a_line_without_an_end_is_not_kept() {
    let endless = |mut events: WriteHalf<DuplexStream>| {
        tokio::spawn(async move { while events.write_all(&[b'x'; 64 * 1024]).await.is_ok() {} })
    };
    assert_unbelieved(asked(endless).await, "longer than");
}

#[tokio::test]
async fn t11_a_line_of_16_mb_is_refused_though_it_is_a_result() {
    let log = json!("x".repeat(16_000_000));
    assert_unbelieved(answered(ended(&[("log", log)])).await, &format!("longer than {EVENT_LIMIT} bytes"));
}

#[tokio::test]
async fn t11_a_long_log_is_cut_to_what_an_agent_would_send() {
    let result = answered(ended(&[("log", json!("x".repeat(EVENT_LIMIT / 2)))])).await.unwrap();
    assert_eq!(result.log.len(), LOG_LIMIT);
}

#[tokio::test]
async fn t11_one_that_babbles_is_not_listened_to_for_ever() {
    let babble = |mut events: WriteHalf<DuplexStream>| {
        tokio::spawn(async move { while events.write_all(b"{\"type\":\"alive\"}\n").await.is_ok() {} })
    };
    assert_unbelieved(asked(babble).await, "talks without end");
}

#[tokio::test]
async fn t11_results_of_other_steps_and_attempts_are_refused() {
    for id in [json!({"step": "other", "attempt": 1}), json!({"step": "s", "attempt": 2})] {
        assert_unbelieved(answered(ended(&[("id", id)])).await, "was not asked for");
    }
}

#[tokio::test]
async fn t11_an_output_that_the_step_does_not_declare_fails_it() {
    let outputs = json!({"host": "aGk=", "admin-password": "aGk="});
    assert_unbelieved(answered(ended(&[("outputs", outputs)])).await, "does not declare");
}

#[tokio::test]
async fn t11_what_is_no_event_ends_the_session() {
    for line in [&b"\xff\xfe\n"[..], b"{}\n", b"null\n", b"\n", b"{\"type\":\"ended\",\"id\":{\"step\":\"s\"}}\n"] {
        assert_unbelieved(answered(line.to_vec()).await, "no event");
    }
    let deep = format!("{{\"type\":\"alive\",\"x\":{}\n", "[".repeat(500_000));
    assert_unbelieved(answered(deep.into_bytes()).await, "no event");
}

#[tokio::test]
async fn t11_a_hello_without_an_end_is_no_hello() {
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let (reader, writer) = tokio::io::split(near);
    let saying = tokio::spawn(async move { while far.write_all(&[b'['; 64 * 1024]).await.is_ok() {} });
    assert!(matches!(Session::start(reader, writer).await, Err(SessionError::Unbelievable { .. })));
    saying.await.unwrap();
}
