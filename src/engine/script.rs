//! The `script` step: a pod for each resource of a run, an agent in it, and a connection that may break.

use super::error::{EngineError, StepError, is_status};
use super::pod_template::{self, PodContext};
use crate::agent::AGENT_DIR as AGENT_DIRECTORY;
use crate::agent::client::{Session, SessionError};
use crate::agent::protocol::{RunStep, StepResult};
use crate::api::{PhaseRun, RunResource, labels};
use crate::plan::message::with_causes;
use crate::plan::pod::{self, PodState};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess, DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex;

/// How often a pod that ran and was lost is replaced, without counting as a retry of the step.
const LOST_PODS: u32 = 3;
/// The pause before a broken connection is made again.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

/// What pods are made from.
pub struct PodSettings {
    pub own_namespace: String,
    pub agent_image: String,
    pub image_pull_policy: Option<String>,
}

/// The pod of one resource of a run; made when its first script begins.
pub struct StepPod {
    pods: Api<Pod>,
    runs: Api<PhaseRun>,
    own: String,
    namespace: String,
    settings: Arc<PodSettings>,
    run: Arc<PhaseRun>,
    resource: RunResource,
    index: usize,
    connected: Mutex<Connected>,
    /// What the pod waits for, told where time runs out.
    waits_for: std::sync::Mutex<Option<String>>,
}

#[derive(Default)]
struct Connected {
    /// Whether it is known which pods there were before this process went on with the run.
    looked_back: bool,
    /// Counts the pods that were lost.
    lost: u32,
    session: Option<Arc<Connection>>,
}

/// Why a pod's agent does not run.
enum NotRunning {
    /// The pod is gone or going; whoever took it away has nothing against another.
    Deleted,
    Broken(String),
}

/// A session and the exec that carries it.
struct Connection {
    session: Session,
    process: AttachedProcess,
}

impl StepPod {
    /// `own` is the process that executes the run.
    pub fn new(client: Client, settings: Arc<PodSettings>, run: &Arc<PhaseRun>, index: usize, own: String) -> Self {
        let resource = run.spec.resources[index].clone();
        let namespace = resource.runner.namespace.clone().unwrap_or_else(|| settings.own_namespace.clone());
        Self {
            pods: Api::namespaced(client.clone(), &namespace),
            runs: Api::all(client),
            own,
            namespace,
            settings,
            run: run.clone(),
            resource,
            index,
            connected: Mutex::default(),
            waits_for: std::sync::Mutex::default(),
        }
    }

    /// Runs a step, or joins it where the agent knows it already. Ends only with a result or where none can come.
    pub async fn run(&self, step: &RunStep) -> Result<StepResult, StepError> {
        loop {
            let connection = self.connection().await?;
            match connection.session.run(step.clone()).await {
                // The pod is being taken away, as when its node is drained: another takes its place.
                Ok(result) if result.interrupted => {
                    self.disconnect(&connection).await;
                    tokio::time::sleep(RECONNECT_AFTER).await;
                }
                Ok(result) => return Ok(result),
                Err(SessionError::Broken { reason }) => {
                    tracing::debug!(run = %self.run.name_any(), step = %step.id.step, reason, "the connection to the step pod broke");
                    self.disconnect(&connection).await;
                    tokio::time::sleep(RECONNECT_AFTER).await;
                }
                Err(error) => return Err(StepError::Failed(error.to_string())),
            }
        }
    }

    /// What the pod waits for, where it has not begun.
    pub fn waits_for(&self) -> Option<String> {
        self.waits_for.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_waits_for(&self, what: Option<String>) {
        *self.waits_for.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    async fn disconnect(&self, broken: &Arc<Connection>) {
        let mut connected = self.connected.lock().await;
        if connected.session.as_ref().is_some_and(|current| Arc::ptr_eq(current, broken)) {
            connected.session = None;
        }
        broken.process.abort();
    }

    async fn connection(&self) -> Result<Arc<Connection>, StepError> {
        let mut connected = self.connected.lock().await;
        if let Some(connection) = &connected.session {
            return Ok(connection.clone());
        }
        if !connected.looked_back {
            connected.lost = self.newest().await?;
            connected.looked_back = true;
        }
        loop {
            let name = format!("{}{}", self.prefix(), connected.lost);
            if !self.is_ours().await? {
                // Whoever went on with the run took its pods away when it ended: one more would run the step once more,
                // and stay.
                return Err(StepError::Failed("the run is gone on with by another replica".to_owned()));
            }
            let existed = self.create(&name).await?;
            let reason = match self.await_running(&name).await {
                Ok(()) => None,
                Err(NotRunning::Deleted) if connected.lost < LOST_PODS => Some("it was deleted".to_owned()),
                // A pod found broken had been running once, as far as this process can tell.
                Err(NotRunning::Broken(reason)) if existed && connected.lost < LOST_PODS => Some(reason),
                Err(not_running) => {
                    let reason = match not_running {
                        NotRunning::Deleted => "it was deleted".to_owned(),
                        NotRunning::Broken(reason) => reason,
                    };
                    return Err(StepError::Failed(format!(
                        "the step's pod {}/{name} cannot run: {reason}",
                        self.namespace
                    )));
                }
            };
            if let Some(reason) = reason {
                tracing::warn!(pod = name, reason, "the step pod was lost; another takes its place");
                connected.lost += 1;
                continue;
            }
            self.set_waits_for(None);
            match self.connect(&name).await {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    connected.session = Some(connection.clone());
                    return Ok(connection);
                }
                Err(reason) => {
                    tracing::debug!(pod = name, reason, "the step pod's agent cannot be reached");
                    tokio::time::sleep(RECONNECT_AFTER).await;
                    if self.is_broken(&name).await? {
                        if connected.lost >= LOST_PODS {
                            return Err(StepError::Failed(format!(
                                "the step's pod {}/{name} was lost: {reason}",
                                self.namespace
                            )));
                        }
                        connected.lost += 1;
                    }
                }
            }
        }
    }

    /// Whether this process still is the one that executes the run. One that stood still, or is told to stop, may not
    /// know yet that it is not.
    async fn is_ours(&self) -> Result<bool, StepError> {
        let run = self.runs.get_opt(&self.run.name_any()).await;
        let run = run.map_err(StepError::api("the step's run could not be read"))?;
        Ok(run.is_some_and(|run| {
            let status = run.status.unwrap_or_default();
            status.state.is_open() && status.executor.is_none_or(|executor| executor == self.own)
        }))
    }

    fn prefix(&self) -> String {
        format!("{}-{}-", self.run.name_any(), self.index)
    }

    /// The number of the newest pod that the run's earlier executor made: the step may be at work in it.
    async fn newest(&self) -> Result<u32, StepError> {
        if self.run.status.as_ref().is_none_or(|status| status.executor.is_none()) {
            return Ok(0);
        }
        let of_run = ListParams::default().labels(&format!("{}={}", labels::RUN, labels::value(&self.run.name_any())));
        let found = self.pods.list_metadata(&of_run).await;
        let found = found.map_err(StepError::api("the step's pods could not be listed"))?;
        let number = |name: String| name.strip_prefix(&self.prefix()).and_then(|number| number.parse().ok());
        let own = found.iter().filter(|pod| belongs_to(&pod.metadata, &self.run));
        Ok(own.filter_map(|pod| number(pod.name_any())).max().unwrap_or(0))
    }

    /// Makes the pod; tells whether it was there already.
    async fn create(&self, name: &str) -> Result<bool, StepError> {
        let target = &self.run.spec.target;
        let pod = pod_template::pod(
            &PodContext {
                name: name.to_owned(),
                namespace: &self.namespace,
                run: &self.run.name_any(),
                target_namespace: &target.namespace,
                target_name: &target.name,
                agent_image: &self.settings.agent_image,
                image_pull_policy: self.settings.image_pull_policy.as_deref(),
                timeout_seconds: self.run.spec.timeout_seconds,
                owner: self.run.owner_ref(&()),
            },
            &self.resource,
        );
        match self.pods.create(&PostParams::default(), &pod).await {
            Ok(_) => Ok(false),
            Err(error) if is_status(&error, 409) => {
                let found =
                    self.pods.get_opt(name).await.map_err(StepError::api("the step's pod could not be read"))?;
                // It may have gone this moment; whoever waits for it then sees that.
                let Some(found) = found else { return Ok(true) };
                if belongs_to(found.meta(), &self.run) {
                    return Ok(true);
                }
                Err(StepError::Failed(format!(
                    "a pod {}/{name} is there that is not this run's: delete it, then make the change again",
                    self.namespace
                )))
            }
            Err(error) => {
                Err(StepError::api(format!("the step's pod could not be made in namespace {}", self.namespace))(error))
            }
        }
    }

    /// Waits until the agent runs; what stands in its way where it never will.
    async fn await_running(&self, name: &str) -> Result<(), NotRunning> {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut pods = watcher(self.pods.clone(), config).default_backoff().boxed();
        let mut seen = false;
        loop {
            match pods.try_next().await {
                Ok(Some(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod))) => {
                    seen = true;
                    if pod.metadata.deletion_timestamp.is_some() {
                        return Err(NotRunning::Deleted);
                    }
                    match pod::state(&pod) {
                        PodState::Running => return Ok(()),
                        PodState::Broken(reason) => return Err(NotRunning::Broken(reason)),
                        PodState::Starting(reason) => self.set_waits_for(reason),
                    }
                }
                Ok(Some(watcher::Event::Delete(_))) => return Err(NotRunning::Deleted),
                Ok(Some(watcher::Event::InitDone)) if !seen => return Err(NotRunning::Deleted),
                Ok(Some(watcher::Event::Init | watcher::Event::InitDone)) => {}
                Ok(None) => return Err(NotRunning::Broken("the watch of it ended".to_owned())),
                Err(error) => tracing::debug!(pod = name, error = with_causes(&error), "the watch of a step pod broke"),
            }
        }
    }

    async fn is_broken(&self, name: &str) -> Result<bool, StepError> {
        let pod = self.pods.get_opt(name).await.map_err(StepError::api("the step's pod could not be read"))?;
        Ok(pod.is_none_or(|pod| matches!(pod::state(&pod), PodState::Broken(_))))
    }

    async fn connect(&self, name: &str) -> Result<Connection, String> {
        let binary = format!("{AGENT_DIRECTORY}/sluice");
        let command = [binary.as_str(), "agent", "connect", "--dir", AGENT_DIRECTORY];
        let params = AttachParams::default().container("main").stdin(true).stdout(true).stderr(false);
        let mut process = self.pods.exec(name, command, &params).await.map_err(|e| e.to_string())?;
        let (Some(reader), Some(writer)) = (process.stdout(), process.stdin()) else {
            return Err("the exec has no streams".to_owned());
        };
        let session = Session::start(reader, writer).await.map_err(|e| e.to_string())?;
        Ok(Connection { session, process })
    }
}

/// Whether a pod is this run's own. Its name and its labels can be anybody's; its owner is written by who made it for
/// this very run.
fn belongs_to(pod: &ObjectMeta, run: &PhaseRun) -> bool {
    let labelled = pod.labels.as_ref().and_then(|all| all.get(labels::RUN)) == Some(&labels::value(&run.name_any()));
    let owners = pod.owner_references.iter().flatten();
    labelled && run.uid().is_some_and(|uid| owners.into_iter().any(|owner| owner.uid == uid))
}

/// Deletes every pod of an ended run.
pub async fn delete_pods(client: &Client, run: &PhaseRun, own_namespace: &str) -> Result<(), EngineError> {
    let mut namespaces: Vec<&str> = run
        .spec
        .resources
        .iter()
        .filter(|resource| resource.steps.iter().any(|step| step.script.is_some()))
        .map(|resource| resource.runner.namespace.as_deref().unwrap_or(own_namespace))
        .collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    let of_run = ListParams::default().labels(&format!("{}={}", labels::RUN, labels::value(&run.name_any())));
    for namespace in namespaces {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let listed = pods.list_metadata(&of_run).await.map_err(EngineError::api("list the pods of an ended run"))?;
        for pod in listed.iter().filter(|pod| belongs_to(&pod.metadata, run)) {
            match pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(1)).await {
                Ok(_) => {}
                Err(error) if is_status(&error, 404) => {}
                Err(error) => return Err(EngineError::api("delete a pod of an ended run")(error)),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_with_the_name_and_the_label_of_a_run_is_not_its_own_without_being_owned_by_it() {
        let mut run = PhaseRun::new("r-1", serde_json::from_value(run_spec()).unwrap());
        run.metadata.uid = Some("u".into());
        let pod = |owner: &str| {
            let owner = json!([{"apiVersion": "sluice.dev/v1alpha1", "kind": "PhaseRun", "name": "r-1", "uid": owner}]);
            serde_json::from_value(json!({"labels": {labels::RUN: "r-1"}, "ownerReferences": owner})).unwrap()
        };
        assert!(belongs_to(&pod("u"), &run));
        assert!(!belongs_to(&pod("of an earlier run of this name"), &run));
        assert!(!belongs_to(&serde_json::from_value(json!({"labels": {labels::RUN: "r-1"}})).unwrap(), &run));
        assert!(!belongs_to(&ObjectMeta { labels: None, ..pod("u") }, &run));
    }

    fn run_spec() -> serde_json::Value {
        let target = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox", "namespace": "shop", "name": "x"});
        json!({"phase": "PreCreate", "target": target, "key": "k", "attempt": 1, "timeoutSeconds": 1, "resources": [], "object": {}})
    }
}
