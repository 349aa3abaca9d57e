//! What connections may do to steps: nothing that was not asked for.

use super::*;
use crate::agent::{
    client::SessionError,
    protocol::{Command, Event, LINE_LIMIT},
};
use std::fs;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

fn counted(agent: &Agent, rest: &str) -> RunStep {
    step("once", &format!("echo x >>{}; {rest}", agent.path("count").display()))
}

fn count(agent: &Agent) -> usize {
    fs::read_to_string(agent.path("count")).unwrap().lines().count()
}

#[tokio::test]
async fn a_step_that_many_ask_for_runs_once() {
    let agent = Agent::start();
    let (one, two) = (agent.session().await, agent.session().await);
    let asked = || counted(&agent, "sleep 0.3; echo done");
    let (a, b, c) = tokio::join!(one.run(asked()), two.run(asked()), one.run(asked()));
    let late = agent.run(asked()).await;
    for result in [a, b, c] {
        assert_eq!(result.unwrap(), late);
    }
    assert_eq!((late.log.as_str(), count(&agent)), ("done\n", 1));
}

#[tokio::test]
async fn another_attempt_is_another_step() {
    let agent = Agent::start();
    let mut asked = counted(&agent, "true");
    agent.run(asked.clone()).await;
    asked.id.attempt = 2;
    agent.run(asked).await;
    assert_eq!(count(&agent), 2);
}

#[tokio::test]
async fn a_connection_that_breaks_loses_nothing() {
    let agent = Agent::start();
    let (asked, begun) = (counted(&agent, "sleep 0.5; echo done"), agent.path("count"));
    {
        let session = agent.session().await;
        let running = session.run(asked.clone());
        tokio::select! {
            _ = running => panic!("ended too soon"),
            () = appears(&begun) => {}
        }
    }
    let result = agent.run(asked).await;
    assert_eq!((result.log.as_str(), count(&agent)), ("done\n", 1));
}

#[tokio::test]
async fn a_waiting_client_is_told_that_the_connection_broke() {
    let (near, far) = tokio::io::duplex(1024);
    let (reader, writer) = tokio::io::split(near);
    let mut far = BufReader::new(far);
    far.write_all(b"{\"type\":\"hello\",\"version\":\"0.1.0\"}\n").await.unwrap();
    let session = Session::start(reader, writer).await.unwrap();
    assert_eq!(session.version(), "0.1.0");
    let broken = async move {
        far.read_line(&mut String::new()).await.unwrap();
    };
    let (result, ()) = tokio::join!(session.run(step("s", "true")), broken);
    assert!(matches!(result, Err(SessionError::Broken { .. })), "{result:?}");
    assert!(matches!(session.run(step("s", "true")).await, Err(SessionError::Broken { .. })));
    assert!(matches!(session.cancel(id("s")).await, Err(SessionError::Broken { .. })));
    assert!(matches!(session.over().await, SessionError::Broken { .. }));
}

#[tokio::test]
async fn a_forgotten_step_is_gone_and_not_repeated() {
    let agent = Agent::start();
    let session = agent.session().await;
    session.run(counted(&agent, "true")).await.unwrap();
    assert!(agent.path("work/once-1").exists());
    session.forget(id("once")).await.unwrap();
    eventually("the working directory is gone", || !agent.path("work/once-1").exists()).await;
    let result = session.run(counted(&agent, "true")).await.unwrap();
    assert_error(&result, &["was collected"]);
    assert_eq!(count(&agent), 1);
}

#[tokio::test]
async fn a_step_that_runs_is_not_forgotten() {
    let agent = Agent::start();
    let session = agent.session().await;
    let forget = async {
        appears(&agent.path("count")).await;
        session.forget(id("once")).await.unwrap();
    };
    let (result, ()) = tokio::join!(session.run(counted(&agent, "sleep 0.3")), forget);
    assert!(result.unwrap().succeeded());
    assert!(agent.run(counted(&agent, "true")).await.succeeded());
}

#[tokio::test]
async fn a_malformed_line_is_answered_and_passed_over() {
    let agent = Agent::start();
    let mut stream = BufReader::new(agent.stream().await);
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    assert!(matches!(serde_json::from_str(&line), Ok(Event::Hello { .. })), "{line}");
    for bad in ["{\"type\":\"dance\"}\n", "\n", "\u{0}\n"] {
        stream.write_all(bad.as_bytes()).await.unwrap();
        line.clear();
        stream.read_line(&mut line).await.unwrap();
        assert!(matches!(serde_json::from_str(&line), Ok(Event::Error { .. })), "{line}");
    }
    let run = serde_json::to_string(&Command::Run(Box::new(step("after", "true")))).unwrap();
    stream.write_all(format!("{run}\n").as_bytes()).await.unwrap();
    line.clear();
    stream.read_line(&mut line).await.unwrap();
    assert!(matches!(serde_json::from_str(&line), Ok(Event::Ended(result)) if result.succeeded()), "{line}");
}

#[tokio::test]
async fn a_line_without_end_closes_its_connection_alone() {
    let agent = Agent::start();
    let mut stream = BufReader::new(agent.stream().await);
    // The agent stops reading at the limit, so the rest may not go through.
    let _ = stream.write_all(&vec![b'x'; LINE_LIMIT + 1024 * 1024]).await;
    let mut lines = stream.lines();
    lines.next_line().await.unwrap();
    let error = lines.next_line().await.unwrap().unwrap();
    assert!(error.contains("longer than"), "{error}");
    assert!(!matches!(lines.next_line().await, Ok(Some(_))));
    assert!(agent.run(step("other", "true")).await.succeeded());
}

#[tokio::test]
async fn a_step_that_fits_no_line_is_refused_before_it_is_sent() {
    let agent = Agent::start();
    let mut large = step("large", "true");
    large.files = vec![input(Path::new("x"), &vec![0; LINE_LIMIT])];
    let session = agent.session().await;
    assert!(matches!(session.run(large).await, Err(SessionError::TooLarge { .. })));
    assert!(session.run(step("small", "true")).await.unwrap().succeeded());
}

#[tokio::test]
async fn exit_ends_steps_first_and_then_the_agent() {
    let agent = Agent::start();
    let (one, two) = (agent.session().await, agent.session().await);
    let exit = async {
        appears(&agent.path("count")).await;
        two.exit().await.unwrap();
    };
    let (result, ()) = tokio::join!(one.run(counted(&agent, "sleep 60")), exit);
    let result = result.unwrap();
    assert_error(&result, &["the step was cancelled"]);
    assert!(result.interrupted, "it was not the step's fault");
    agent.served.await.unwrap();
}
