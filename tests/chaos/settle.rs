//! The end of a run of chaos: everything settles, every sandbox is deleted, and what is left over is looked for.

use crate::check::history::{Told, Verb};
use crate::client::Change;
use crate::etcd::Recorder;
use crate::load::{Load, Target, mended, targets};
use crate::plugins::{NAMESPACE, QUOTA, RUNNERS, run};
use anyhow::Context;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use sluice::api::{RunState, Sandbox, SandboxRecord};
use std::time::Duration;
use tokio::time::Instant;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Waits until every phase of every change has run; what has not by then.
pub async fn rest(client: &Client, recorder: &Recorder, within: Duration) -> anyhow::Result<Vec<String>> {
    wait(within, async || {
        let mut open = unsettled(recorder);
        for sandbox in Api::<Sandbox>::all(client.clone()).list(&ListParams::default()).await? {
            let status = serde_json::to_value(&sandbox.status)?;
            let conditions = status["conditions"].as_array().into_iter().flatten();
            let complete =
                conditions.into_iter().find(|c| c["type"] == "PhasesComplete").cloned().unwrap_or(Value::Null);
            let newest = complete["observedGeneration"].as_i64() == sandbox.metadata.generation;
            // A post-phase that was meant to fail has failed for good.
            let failed = complete["reason"].as_str().is_some_and(|reason| reason.ends_with("Failed"));
            if !newest || (complete["status"] != "True" && !failed) {
                let name = format!("{}/{}", sandbox.namespace().unwrap_or_default(), sandbox.name_any());
                open.push(format!("sandbox {name} is not complete: {complete}"));
            }
        }
        Ok(open)
    })
    .await
}

/// Deletes every sandbox and waits until nothing is left of any; what is left.
pub async fn clear(client: &Client, load: &Load, recorder: &Recorder, within: Duration) -> anyhow::Result<Vec<String>> {
    let living = Api::<Sandbox>::all(client.clone()).list(&ListParams::default()).await?;
    let is_there = |target: &Target| {
        living.iter().any(|s| s.name_any() == target.name && s.namespace().as_deref() == Some(target.namespace))
    };
    let there = targets().into_iter().filter(is_there).enumerate();
    let deletions = there.map(|(index, target)| async move {
        let word = format!("mended{index}");
        load.make(&target, Verb::Update, &word, &mended(&target, &word), None).await;
        let told = load.make(&target, Verb::Delete, &format!("cleared{index}"), &Change::Delete, None).await;
        (told != Told::Made).then(|| format!("sandbox {}/{} cannot be deleted", target.namespace, target.name))
    });
    let stuck: Vec<String> = join_all(deletions).await.into_iter().flatten().collect();
    let left = wait(within, async || {
        let mut left = unsettled(recorder);
        for record in Api::<SandboxRecord>::all(client.clone()).list(&ListParams::default()).await? {
            left.push(format!("the record of {}", record.spec.target));
        }
        for pod in Api::<Pod>::namespaced(client.clone(), RUNNERS).list(&of_runs()).await? {
            left.push(format!("pod {}", pod.name_any()));
        }
        for namespace in [NAMESPACE, QUOTA] {
            let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
            for map in maps.list(&ListParams::default().labels("sluice.dev/applied-by")).await? {
                left.push(format!("configmap {namespace}/{}", map.name_any()));
            }
        }
        Ok(left)
    })
    .await?;
    Ok([stuck, left].concat())
}

/// Writes an object down that marks this moment in the history; its revision.
pub async fn mark(recorder: &Recorder, name: &str) -> anyhow::Result<u64> {
    run("kubectl", &["-n", NAMESPACE, "create", "configmap", name], "").await.context("a mark in history")?;
    recorder.revision_of(name).await
}

fn of_runs() -> ListParams {
    ListParams::default().labels("sluice.dev/run")
}

/// Runs of which it is not known yet what becomes of them.
fn unsettled(recorder: &Recorder) -> Vec<String> {
    recorder.so_far(|history| {
        let open = history.runs.values().filter(|run| {
            let undo = |name: &String| history.runs.get(name).is_none_or(|undo| undo.state().is_open());
            let owes = matches!(run.state(), RunState::Failed | RunState::Abandoned)
                && (run.compensated_by.as_ref().is_some_and(undo)
                    || run.compensated_by.is_some() && run.state() == RunState::Abandoned);
            // A post-phase is tried three times, while its sandbox is there.
            let again = !run.is_pre()
                && run.compensates.is_none()
                && run.state() == RunState::Failed
                && run.attempt < 3
                && history.at(&run.target, u64::MAX).is_some_and(|v| Some(&v.uid) == run.uid.as_ref())
                && !history.runs.values().any(|other| other.key == run.key && other.attempt > run.attempt);
            let undecided = run.is_pre() && run.state() == RunState::Succeeded;
            !run.lost && (run.state().is_open() || undecided || owes || again)
        });
        open.map(|run| format!("run {} of {} is {}", run.name, run.target, run.state())).collect()
    })
}

/// Looks until nothing is found any more; what is found when time is up.
async fn wait(within: Duration, look: impl AsyncFn() -> anyhow::Result<Vec<String>>) -> anyhow::Result<Vec<String>> {
    let deadline = Instant::now() + within;
    loop {
        let found = match look().await {
            Ok(found) if found.is_empty() => return Ok(found),
            found => found,
        };
        if Instant::now() > deadline {
            return found;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
