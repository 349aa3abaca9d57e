//! What five pre-install hooks of Helm add to an install, each a Job of `true`.

use crate::objects::{NAMESPACE, STEPS};
use crate::results::Results;
use crate::sample::Sample;
use anyhow::{Context as _, ensure};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::process::Command;

const ROUNDS: usize = 3;

/// The time that the hooks add.
pub async fn added(root: &Path, results: &mut Results) -> anyhow::Result<Duration> {
    let chart = root.join("bench/chart");
    let chart = chart.to_str().context("the chart's path")?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        with.push(install(chart, &format!("with-{round}"), true).await?);
        without.push(install(chart, &format!("without-{round}"), false).await?);
    }
    let (with, without) = (Sample::new(with).median(), Sample::new(without).median());
    results.time(format!("`helm install` with {STEPS} hook Jobs"), with);
    results.time("`helm install` of the same chart without them", without);
    Ok(with.saturating_sub(without))
}

async fn install(chart: &str, release: &str, hooks: bool) -> anyhow::Result<Duration> {
    let hooks = format!("hooks={hooks}");
    let began = Instant::now();
    helm(&["install", release, chart, "--namespace", NAMESPACE, "--set", &hooks]).await?;
    let took = began.elapsed();
    helm(&["uninstall", release, "--namespace", NAMESPACE, "--wait"]).await?;
    Ok(took)
}

/// Runs a command of Helm's, which must succeed.
pub async fn helm(arguments: &[&str]) -> anyhow::Result<()> {
    let ran = Command::new("helm").args(arguments).output().await.context("helm")?;
    ensure!(ran.status.success(), "helm {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(())
}
