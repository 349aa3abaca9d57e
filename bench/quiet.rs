//! A change that runs no hook, by the API request: with Sluice, and without.

use crate::objects::{applies, create, sandboxes};
use crate::results::Results;
use crate::sample::Sample;
use anyhow::Context as _;
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A plugin that has nothing to do on an update.
pub const PLUGIN: &str = "bench-quiet";
/// A sandbox with a resource of it.
pub const SANDBOX: &str = "quiet-0";
const CHANGES: usize = 200;
const BETWEEN: Duration = Duration::from_millis(20);

pub fn spec() -> Value {
    applies("preCreate", 1)
}

/// Makes so many such sandboxes.
pub async fn set_up(client: &Client, sandboxes: usize) -> anyhow::Result<()> {
    crate::objects::plugin(client, PLUGIN, spec()).await?;
    for index in 0..sandboxes {
        create(client, &format!("quiet-{index}"), &[PLUGIN]).await?;
        crate::objects::complete(client, &format!("quiet-{index}")).await?;
    }
    Ok(())
}

/// Changes one, over and over.
pub async fn measure(client: &Client, how: &str, results: &mut Results) -> anyhow::Result<()> {
    let label = |index: usize| json!({"metadata": {"labels": {"changed": index.to_string()}}});
    let described = |index: usize| json!({"spec": {"description": format!("changed {index} times")}});
    let labels = changes(client, label).await?;
    let specs = changes(client, described).await?;
    for (what, sample) in [("a label", labels), ("the spec", specs)] {
        results.time(format!("update of {what} that runs no hook, {how}: p50"), sample.median());
        results.time(format!("update of {what} that runs no hook, {how}: p99"), sample.percentile(99));
    }
    Ok(())
}

async fn changes(client: &Client, change: impl Fn(usize) -> Value) -> anyhow::Result<Sample> {
    let api = sandboxes(client);
    let mut times = Vec::new();
    for index in 0..CHANGES {
        let patch = Patch::Merge(change(index));
        let began = Instant::now();
        api.patch(SANDBOX, &PatchParams::default(), &patch).await.context("a change that runs no hook")?;
        times.push(began.elapsed());
        tokio::time::sleep(BETWEEN).await;
    }
    Ok(Sample::new(times))
}
