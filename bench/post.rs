//! How soon after `Ready` the post-phase's first step begins.

use crate::objects::{NAMESPACE, applies, complete, create, plugin, runs, sandboxes};
use crate::results::Results;
use crate::sample::{Sample, ms};
use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{WatchEvent, WatchParams};
use sluice::api::Phase;
use std::time::Duration;

const SAMPLES: usize = 100;
const READY_WITHIN: Duration = Duration::from_secs(60);

pub async fn measure(client: &Client, results: &mut Results) -> anyhow::Result<()> {
    plugin(client, "bench-post", applies("postCreate", 1)).await?;
    let mut times = Vec::new();
    for index in 0..SAMPLES {
        let name = format!("post-{index}");
        // Without forks a sandbox is ready as soon as its controller has looked at it.
        let watch = tokio::spawn(ready_at(client.clone(), name.clone()));
        create(client, &name, &["bench-post"]).await?;
        let ready = tokio::time::timeout(READY_WITHIN, watch).await.context("the sandbox is not ready")???;
        complete(client, &name).await?;
        let runs = runs(client, &name).await?;
        let run = runs.iter().find(|run| run.spec.phase == Phase::PostCreate).context("there is no post-create")?;
        let step = run.status.as_ref().and_then(|status| status.steps.first()?.started_at.as_ref());
        let began = step.with_context(|| format!("no step of sandbox {NAMESPACE}/{name} has begun"))?.0;
        times.push(Duration::try_from(began.duration_since(ready)).unwrap_or_default());
    }
    let sample = Sample::new(times);
    results.key("post_latency_p50_ms", ms(sample.median()));
    results.key("post_latency_p99_ms", ms(sample.percentile(99)));
    Ok(())
}

/// When a watch tells that a sandbox is ready; its own time has only whole seconds.
async fn ready_at(client: Client, name: String) -> anyhow::Result<Timestamp> {
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = sandboxes(&client).watch(&only, "0").await?.boxed();
    while let Some(event) = events.try_next().await? {
        let now = Timestamp::now();
        let (WatchEvent::Added(sandbox) | WatchEvent::Modified(sandbox)) = event else { continue };
        let status = sandbox.status.unwrap_or_default();
        if status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True") {
            return Ok(now);
        }
    }
    bail!("the watch of sandbox {name} ended")
}
