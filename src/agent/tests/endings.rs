//! How scripts begin and end, and what is kept of what they say.

use super::*;
use crate::agent::protocol::LOG_LIMIT;
use std::fs;

#[tokio::test]
async fn a_failure_has_its_code_and_its_words() {
    let agent = Agent::start();
    let result = agent.run(step("fail", "echo out; echo err >&2; exit 3")).await;
    assert_eq!((result.exit_code, result.error.as_deref(), result.log.as_str()), (Some(3), None, "out\nerr\n"));
    eventually("the pod's log has the lines", || {
        let log = agent.pod_log();
        log.contains("[fail] out\n[fail] err\n") && log.contains("attempt 1 ended with 3")
    })
    .await;
}

#[tokio::test]
async fn a_missing_interpreter_is_named() {
    let agent = Agent::start();
    let mut script = step("none", "");
    script.script = "#! /opt/none/bash -e\ntrue\n".to_owned();
    let result = agent.run(script.clone()).await;
    assert_eq!(result.exit_code, None);
    assert_error(&result, &["the interpreter /opt/none/bash is not in the image"]);
    script.id = id("windows");
    script.script = "#!/bin/sh\r\ntrue\r\n".to_owned();
    assert_error(&agent.run(script.clone()).await, &["Unix line ends"]);
    script.id = id("folder");
    script.script = "#!/proc/version\n".to_owned();
    assert_error(&agent.run(script.clone()).await, &["/proc/version may not be executed"]);
    script.id = id("shebang");
    script.script = "true\n".to_owned();
    assert_error(&agent.run(script).await, &["must begin with #!"]);
}

#[tokio::test]
async fn an_environment_that_no_process_can_have_is_named() {
    let agent = Agent::start();
    let mut large = step("large", "true");
    large.env.insert("LARGE".to_owned(), "x".repeat(200_000));
    assert_error(&agent.run(large).await, &["too large", "as.path"]);
    let mut zero = step("zero", "true");
    zero.env.insert("ZERO".to_owned(), "a\0b".to_owned());
    assert_error(&agent.run(zero).await, &["variable ZERO contains a zero byte"]);
}

#[tokio::test]
async fn the_time_limit_ends_the_whole_group() {
    let agent = Agent::start();
    let pid = agent.path("pid");
    // Neither the script nor its child heeds SIGTERM.
    let mut long = step(
        "long",
        &format!(
            "trap '' TERM; echo begun; (sh -c 'sleep 60; true' & echo $! >{}; wait) & wait; sleep 60",
            pid.display()
        ),
    );
    long.timeout_seconds = 1;
    let began = Instant::now();
    let result = agent.run(long).await;
    assert!((2.9..6.0).contains(&began.elapsed().as_secs_f64()), "{:?}", began.elapsed());
    assert_error(&result, &["the time limit of 1 s was reached"]);
    assert_eq!((result.exit_code, result.log.as_str()), (None, "begun\n"));
    eventually("the grandchild is gone", || !runs(&pid)).await;
}

#[tokio::test]
async fn a_script_may_tidy_up_at_its_time_limit() {
    let agent = Agent::start();
    let mut tidy = step("tidy", "trap 'echo tidied; exit 0' TERM; sleep 60 & wait");
    tidy.timeout_seconds = 1;
    tidy.outputs = vec![output("x", Path::new("x"))];
    let result = agent.run(tidy).await;
    assert_eq!((result.exit_code, result.log.as_str()), (Some(0), "tidied\n"));
    assert_error(&result, &["the time limit of 1 s was reached"]);
}

#[tokio::test]
async fn what_a_script_leaves_running_is_ended_with_it() {
    let agent = Agent::start();
    let pid = agent.path("pid");
    let began = Instant::now();
    let result = agent.run(step("left", &format!("sleep 60 & echo $! >{}", pid.display()))).await;
    assert!(result.succeeded(), "{result:?}");
    assert!(began.elapsed() < Duration::from_secs(5));
    eventually("the background process is gone", || !runs(&pid)).await;
}

#[tokio::test]
async fn what_escaped_with_the_pipe_holds_nobody_up() {
    let agent = Agent::start();
    let pid = agent.path("pid");
    let began = Instant::now();
    let escape = format!("setsid sh -c 'echo $$ >{0}; yes; true' & while ! test -s {0}; do :; done", pid.display());
    let result = agent.run(step("escape", &escape)).await;
    assert!(result.succeeded(), "{:?}", result.error);
    assert!(began.elapsed() < Duration::from_secs(5));
    // With its pipe closed it ends by itself.
    eventually("the escaped process is gone", || !runs(&pid)).await;
}

#[tokio::test]
async fn a_signal_is_named() {
    let agent = Agent::start();
    let result = agent.run(step("killed", "kill -9 $$")).await;
    assert_eq!(result.exit_code, None);
    assert_error(&result, &["SIGKILL", "out of memory"]);
}

#[tokio::test]
async fn cancelling_ends_a_step() {
    let agent = Agent::start();
    let (session, begun) = (agent.session().await, agent.path("begun"));
    let wait = step("wait", &format!("touch {}; sleep 60", begun.display()));
    let cancel = async {
        appears(&begun).await;
        session.cancel(id("wait")).await.unwrap();
    };
    let (result, ()) = tokio::join!(session.run(wait), cancel);
    assert_error(&result.unwrap(), &["the step was cancelled"]);
}

#[tokio::test]
async fn only_the_end_of_much_output_is_kept() {
    let agent = Agent::start();
    let result = agent.run(step("much", "yes 'ä line of much output' | head -c 10000000; echo; echo the end")).await;
    assert!(result.succeeded(), "{:?}", result.error);
    assert!(result.log.ends_with("the end\n"));
    assert!((LOG_LIMIT - 4..=LOG_LIMIT).contains(&result.log.len()), "{}", result.log.len());
    assert!(!result.log.contains('\u{fffd}'));
}

#[tokio::test]
async fn steps_run_beside_one_another() {
    let agent = Agent::start();
    let session = agent.session().await;
    let steps = (0..20).map(|at| session.run(step(&format!("s{at}"), "sleep 0.5; echo $0")));
    let began = Instant::now();
    let results = futures::future::join_all(steps).await;
    assert!(results.iter().all(|result| result.as_ref().is_ok_and(StepResult::succeeded)), "{results:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_attempt_of_before_a_restart_is_not_repeated() {
    let agent = Agent::start();
    fs::create_dir_all(agent.path("work/again-1")).unwrap();
    assert_error(&agent.run(step("again", "true")).await, &["not begun again"]);
}
