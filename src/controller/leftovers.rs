//! Pods whose run has ended and whose executor died before it could delete them.

use super::{Context, ControllerError};
use crate::api::labels;
use crate::client::lists::Pages;
use crate::engine::index::RunEntry;
use crate::engine::{delete_pod, is_of, life};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use std::sync::Arc;
use std::time::Duration;

/// So long a run's executor has to delete its pods itself.
const LEFT_AFTER: Duration = Duration::from_secs(20);

/// Deletes the pods that runs have left in the namespaces that plugins may run in.
pub async fn sweep(context: &Context) -> Result<(), ControllerError> {
    for namespace in context.engine.runner_namespaces() {
        sweep_in(context, namespace).await?;
    }
    Ok(())
}

async fn sweep_in(context: &Context, namespace: &str) -> Result<(), ControllerError> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let of_runs = ListParams::default().labels(labels::RUN);
    let mut pages = Pages::of(of_runs);
    while let Some(found) = pages.metadata(&pods).await.map_err(ControllerError::api("list the pods of runs"))? {
        for pod in found.iter().filter(|pod| pod.deletion_timestamp.is_none()) {
            let owners = pod.owner_references.iter().flatten();
            let is_its = |run: &Arc<RunEntry>| is_of(pod, &run.name, &run.id);
            let run = owners.filter_map(|owner| context.engine.index.get(&owner.name)).find(is_its);
            let Some(run) = run.filter(|run| is_left(run, Timestamp::now())) else { continue };
            let name = pod.name.as_deref().unwrap_or_default();
            tracing::info!(pod = name, run = run.name, "deleting a pod that an ended run has left");
            let deleted = delete_pod(&pods, name).await;
            deleted.map_err(ControllerError::api("delete a pod that an ended run has left"))?;
        }
    }
    Ok(())
}

fn is_left(run: &RunEntry, now: Timestamp) -> bool {
    !run.state.is_open() && life::since(run.finished_at, now) > LEFT_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RunState;

    #[test]
    fn a_pod_is_left_a_while_after_its_run_has_ended() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let run = |state, finished_at| RunEntry { state, finished_at, ..RunEntry::default() };
        assert!(is_left(&run(RunState::Succeeded, Some(at(0))), at(21)));
        assert!(!is_left(&run(RunState::Succeeded, Some(at(0))), at(19)));
        assert!(!is_left(&run(RunState::Running, None), at(99)));
    }
}
