//! `chaos run`: Sluice under load while replicas, pods and the API server are killed at random; then its whole history
//! is held against the promise of `docs/design.md`. `chaos upgrade-loop`: small changes while Sluice itself is upgraded
//! again and again.
//!
//! `make chaos` and `make upgrade-loop` run them on a cluster of their own.

// Nothing here is a test function, but all of it is a test: it may be as short as tests are.
#![allow(clippy::large_futures)]

mod check;
mod client;
mod etcd;
mod faults;
mod load;
mod plugins;
mod report;
mod settle;
mod upgrade;

use anyhow::{Context, bail};
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;

/// How long what is under way may take to come to its end. An abandoned change counts as such after 40 s and more.
const SETTLE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let command = std::env::args().skip(1).last().unwrap_or_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let ended = runtime.block_on(async {
        match command.as_str() {
            "run" => chaos().await,
            "upgrade-loop" => upgrade::run().await,
            _ => bail!("say what to do: `make chaos` or `make upgrade-loop` runs this (chaos run, chaos upgrade-loop)"),
        }
    });
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("chaos: {error:#}");
    ExitCode::FAILURE
}

/// A number from the environment.
fn setting(name: &str, default: u64) -> anyhow::Result<u64> {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => text.parse().with_context(|| format!("{name} {text:?} must be a number")),
        _ => Ok(default),
    }
}

/// Whether the promise was kept.
async fn chaos() -> anyhow::Result<bool> {
    let seed = setting("CHAOS_SEED", 1)?;
    let seconds = setting("CHAOS_SECONDS", 300)?;
    println!("CHAOS_SEED={seed} CHAOS_SECONDS={seconds}");
    let recorder = etcd::Recorder::begin().await?;
    plugins::upgrade("replicas=3,history.limit=100000").await?;
    plugins::install().await?;
    let client = client::connect().await?;
    let load = load::Load::new(client.clone());
    let until = Instant::now() + Duration::from_secs(seconds);
    let (faults, ()) = tokio::join!(faults::inject(client.clone(), seed, until), load.run(seed, until));
    let faults = faults?;
    eprintln!("chaos: no more faults; waiting until everything has settled");
    let mut left = settle::rest(&client, &recorder, SETTLE).await?;
    let rested = settle::mark(&recorder, "rested").await?;
    eprintln!("chaos: deleting what is there");
    left.extend(settle::clear(&client, &load, &recorder, SETTLE).await?);
    settle::mark(&recorder, "ended").await?;
    let mut history = recorder.so_far(Clone::clone);
    history.rested = rested;
    history.left = left;
    history.calls = load.calls();
    let violations = check::check(&history);
    report::figures(&history, &faults);
    let asked = std::env::var("CHAOS_HISTORY").ok().filter(|path| !path.is_empty());
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/target/chaos-history.txt").to_owned();
    // What went wrong once in a thousand changes may not be seen again soon.
    if let Some(path) = asked.or_else(|| (!violations.is_empty()).then_some(kept)) {
        std::fs::write(&path, format!("{history:#?}\n")).with_context(|| format!("CHAOS_HISTORY {path:?}"))?;
        println!("history: {path}");
    }
    for violation in &violations {
        println!("violation: {violation}");
    }
    println!("violations: {}", violations.len());
    Ok(violations.is_empty())
}
