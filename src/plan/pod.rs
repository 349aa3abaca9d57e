//! What the state of a step's pod means for the run: still starting, running, or never going to run.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};

/// Where a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    /// Not yet; why, where that is known.
    Starting(Option<String>),
    /// The agent runs.
    Running,
    /// It will not run, or no longer does.
    Broken(String),
}

/// Waiting reasons that do not mend by themselves within a run's time.
const HOPELESS: [&str; 7] = [
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
];

/// The state of `pod`, whose container `main` runs the agent.
pub fn state(pod: &Pod) -> PodState {
    let Some(status) = &pod.status else { return PodState::Starting(None) };
    if pod.metadata.deletion_timestamp.is_some() {
        return PodState::Broken("the pod is being deleted".to_owned());
    }
    let containers =
        || status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    match status.phase.as_deref() {
        Some("Failed") => return PodState::Broken(failure(pod, containers())),
        Some("Succeeded") => return PodState::Broken("the pod ended before its work was done".to_owned()),
        _ => {}
    }
    let mut waits: Vec<_> = containers().filter_map(waiting).collect();
    if let Some(at) = waits.iter().position(|(reason, _)| HOPELESS.contains(reason)) {
        return PodState::Broken(waits.swap_remove(at).1);
    }
    if let Some((_, reason)) = waits.into_iter().next() {
        return PodState::Starting(Some(reason));
    }
    let main = status.container_statuses.iter().flatten().find(|c| c.name == "main");
    if main.and_then(|c| c.state.as_ref()).is_some_and(|s| s.running.is_some()) {
        return PodState::Running;
    }
    let unscheduled = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False");
    PodState::Starting(unscheduled.map(|c| {
        format!("{}: {}", c.reason.as_deref().unwrap_or("not scheduled"), c.message.as_deref().unwrap_or("no node yet"))
    }))
}

/// The reason that a container waits for, where it is more than its turn.
fn waiting(container: &ContainerStatus) -> Option<(&str, String)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    if matches!(reason, "PodInitializing" | "ContainerCreating") {
        return None;
    }
    let message = waiting.message.as_deref().unwrap_or_default();
    Some((reason, format!("{reason}: image {}: {message}", container.image)))
}

fn failure<'a>(pod: &Pod, mut containers: impl Iterator<Item = &'a ContainerStatus>) -> String {
    let status = pod.status.as_ref();
    let reason = status.and_then(|s| s.reason.clone());
    let ended = containers.find_map(|c| match &c.state {
        Some(ContainerState { terminated: Some(t), .. }) if t.exit_code != 0 => Some(format!(
            "container {} ended with {} ({}) {}",
            c.name,
            t.exit_code,
            t.reason.as_deref().unwrap_or("no reason given"),
            t.message.as_deref().unwrap_or_default()
        )),
        _ => None,
    });
    let message = status.and_then(|s| s.message.clone());
    [reason, message, ended].into_iter().flatten().collect::<Vec<_>>().join(": ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    fn main(state: &serde_json::Value) -> Pod {
        pod(
            &json!({"phase": "Pending", "containerStatuses": [{"name": "main", "image": "i:1", "imageID": "", "ready": false,
            "restartCount": 0, "state": state}]}),
        )
    }

    #[test]
    fn a_missing_image_is_named_at_once() {
        let state = state(&main(&json!({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}})));
        assert_eq!(state, PodState::Broken("ImagePullBackOff: image i:1: not found".into()));
    }

    #[test]
    fn a_container_without_hope_is_named_whatever_another_waits_for() {
        let waits = |name: &str, reason: &str| {
            json!({"name": name, "image": name, "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason}}})
        };
        let pod = pod(&json!({"phase": "Pending", "containerStatuses": [
            waits("main", "ErrImagePull"), waits("side", "InvalidImageName")]}));
        assert_eq!(state(&pod), PodState::Broken("InvalidImageName: image side: ".into()));
    }

    #[test]
    fn a_first_failed_pull_may_be_chance() {
        let state = state(&main(&json!({"waiting": {"reason": "ErrImagePull", "message": "timeout"}})));
        assert_eq!(state, PodState::Starting(Some("ErrImagePull: image i:1: timeout".into())));
    }

    #[test]
    fn an_unschedulable_pod_says_why() {
        let pod = pod(&json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/1 nodes are available"}]}));
        assert_eq!(state(&pod), PodState::Starting(Some("Unschedulable: 0/1 nodes are available".into())));
    }

    #[test]
    fn a_running_main_container_is_running() {
        assert_eq!(state(&main(&json!({"running": {}}))), PodState::Running);
    }

    #[test]
    fn a_killed_container_tells_its_exit_code() {
        let pod = pod(&json!({"phase": "Failed", "containerStatuses": [{"name": "main", "image": "i", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}));
        assert_eq!(state(&pod), PodState::Broken("container main ended with 137 (OOMKilled)".into()));
    }
}
