//! One pod that scripts run in: taken from those that wait or made, and a connection to its agent that may break.

use super::Engine;
use super::error::{StepError, is_status};
use super::exec::{Connection, Patience};
use super::pod_template::{self, Assignment, TemplateError};
use super::script::delete_pod;
use super::warm::{self, Claim};
use super::whose::{belongs_to, number};
use crate::agent::client::SessionError;
use crate::agent::protocol::{RunStep, StepResult};
use crate::api::{PhaseRun, RunResource, Step, labels};
use crate::client::lists::Pages;
use crate::plan::message::with_causes;
use crate::plan::pod::{self, PodState};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::api::{ListParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

/// How often a pod that ran and was lost is replaced, without counting as a retry of the step.
const LOST_PODS: u32 = 3;
/// The pause before a broken connection is made again.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

/// A pod of a run; made when its first script begins.
pub struct StepPod {
    engine: Arc<Engine>,
    pods: Api<Pod>,
    own: String,
    namespace: String,
    template: Result<(PodTemplateSpec, String), TemplateError>,
    run: Arc<PhaseRun>,
    resource: String,
    plugin: String,
    /// Tells the run's pods apart, without the number of those that were lost.
    part: String,
    connected: Mutex<Connected>,
    /// What the pod waits for, told where time runs out.
    waits_for: std::sync::Mutex<Option<String>>,
}

#[derive(Default)]
struct Connected {
    /// Whether it is known which pods there were before this process went on with the run.
    looked_back: bool,
    /// A pod that there was.
    found: Option<String>,
    /// Counts the pods that were lost.
    lost: u32,
    /// The name of the pod.
    name: Option<String>,
    session: Option<Arc<Connection>>,
}

/// A pod to go on with.
struct Placed {
    name: String,
    /// Whether it was there already.
    existed: bool,
    connection: Option<Connection>,
}

/// Why a pod's agent does not run.
enum NotRunning {
    /// The pod is gone or going; whoever took it away has nothing against another.
    Deleted,
    Broken(String),
}

impl StepPod {
    /// `own` is the process that executes the run; `step` the one that the pod is for, where it is for one alone.
    pub fn new(
        engine: Arc<Engine>,
        run: Arc<PhaseRun>,
        (resource, step): (&RunResource, Option<&Step>),
        part: String,
        own: String,
    ) -> Self {
        let namespace = pod_template::namespace(&resource.runner, &engine.pods).to_owned();
        let template = pod_template::of_resource(&engine.pods, resource, step);
        Self {
            pods: Api::namespaced(engine.client.clone(), &namespace),
            template: template.map(|template| (template.clone(), pod_template::hash(&template))),
            resource: resource.name.clone(),
            plugin: resource.plugin.clone(),
            engine,
            own,
            namespace,
            run,
            part,
            connected: Mutex::default(),
            waits_for: std::sync::Mutex::default(),
        }
    }

    /// Runs a step, or joins it where the agent knows it already. Ends only with a result or where none can come.
    pub async fn run(&self, step: &RunStep) -> Result<StepResult, StepError> {
        let mut patience = Patience::with(step);
        loop {
            let connection = self.connection(&mut patience).await?;
            let pod = connection.pod.as_str();
            if patience.is_over(pod, Instant::now()) {
                return Err(self.never_told(pod));
            }
            let Ok(told) = timeout_at(patience.until(pod, Instant::now()), connection.session.run(step.clone())).await
            else {
                self.disconnect(&connection).await;
                return Err(self.never_told(pod));
            };
            match told {
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

    /// Deletes the pod: what it was for is done and written down.
    pub async fn end(&self) {
        let name = self.connected.lock().await.name.take();
        let Some(name) = name else { return };
        if let Err(error) = delete_pod(&self.pods, &name).await {
            tracing::debug!(pod = name, error = with_causes(&error), "a pod stays until the run has ended");
        }
    }

    fn set_waits_for(&self, what: Option<String>) {
        *self.waits_for.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    async fn disconnect(&self, broken: &Arc<Connection>) {
        let mut connected = self.connected.lock().await;
        if connected.session.as_ref().is_some_and(|current| Arc::ptr_eq(current, broken)) {
            connected.session = None;
            // It may be there still.
            connected.found = connected.name.clone();
        }
        broken.process.abort();
    }

    fn never_told(&self, pod: &str) -> StepError {
        StepError::Failed(format!(
            "the step's time is up, and its pod {}/{pod} has not told how it ended: a script there may be in the way of the agent",
            self.namespace
        ))
    }

    async fn connection(&self, patience: &mut Patience) -> Result<Arc<Connection>, StepError> {
        let mut connected = self.connected.lock().await;
        if let Some(connection) = &connected.session {
            return Ok(connection.clone());
        }
        if !connected.looked_back {
            if let Some((lost, name)) = self.newest().await? {
                (connected.lost, connected.found) = (lost, Some(name));
            }
            connected.looked_back = true;
        }
        loop {
            let Placed { name, existed, connection } = self.place(&mut connected).await?;
            connected.name = Some(name.clone());
            if let Some(connection) = connection {
                return Ok(connected.keep(connection));
            }
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
            match Connection::open(&self.pods, &name).await {
                Ok(connection) => return Ok(connected.keep(connection)),
                Err(_) if patience.is_over(&name, Instant::now()) => return Err(self.never_told(&name)),
                Err(reason) => {
                    tracing::debug!(pod = name, reason, "the step pod's agent cannot be reached");
                    tokio::time::sleep(RECONNECT_AFTER).await;
                    if !self.is_broken(&name).await? {
                        connected.found = Some(name);
                    } else if connected.lost >= LOST_PODS {
                        return Err(StepError::Failed(format!(
                            "the step's pod {}/{name} was lost: {reason}",
                            self.namespace
                        )));
                    } else {
                        connected.lost += 1;
                    }
                }
            }
        }
    }

    /// A pod: the one that there was, one of those that wait, or a new one.
    async fn place(&self, connected: &mut Connected) -> Result<Placed, StepError> {
        if let Some(name) = connected.found.take() {
            return Ok(Placed { name, existed: true, connection: None });
        }
        let (template, hash) = self.template.as_ref().map_err(|error| StepError::Failed(error.to_string()))?;
        let part = format!("{}-{}", self.part, connected.lost);
        if let Some(placed) = self.claim(hash, &part).await? {
            return Ok(placed);
        }
        // Whoever went on with the run took its pods away when it ended: one more would run the step once more, and stay.
        self.ask_whose().await?;
        let name = format!("{}-{part}", self.run.name_any());
        let existed = self.create(&name, template.clone(), &part).await?;
        Ok(Placed { name, existed, connection: None })
    }

    /// Takes a pod that waits, where there is one. It is connected to in the same moment: that does nothing to it
    /// where another was quicker.
    async fn claim(&self, hash: &str, part: &str) -> Result<Option<Placed>, StepError> {
        let run = self.run.name_any();
        let to = self.assignment(&run, part);
        while let Some(pod) = self.engine.warm.take((&self.plugin, &self.namespace), hash, &to) {
            let name = pod.name_any();
            let mut connecting = pin!(Connection::open(&self.pods, &name));
            let mut claiming = pin!(async {
                let claimed = warm::claim(&self.pods, &pod, &to).await;
                // One that stood still meanwhile may have been taken for gone, and the step be at work elsewhere. Who
                // goes on with the run looks back first, and finds what is claimed.
                if matches!(claimed, Claim::Done) { self.ask_whose().await.map(|()| claimed) } else { Ok(claimed) }
            });
            let (claimed, connected) = tokio::select! {
                claimed = &mut claiming => (claimed?, None),
                connected = &mut connecting => (claiming.await?, Some(connected)),
            };
            match claimed {
                Claim::Done => {
                    let connected = match connected {
                        Some(connected) => connected,
                        None => connecting.await,
                    };
                    let connection = connected.inspect_err(|reason| {
                        tracing::debug!(pod = name, reason, "the agent of a pod that waited cannot be reached yet");
                    });
                    return Ok(Some(Placed { name: pod.name_any(), existed: true, connection: connection.ok() }));
                }
                Claim::Taken => {}
                Claim::Failed(error) => {
                    tracing::warn!(pod = name, error = with_causes(&error), "a pod that waits cannot be taken");
                    self.engine.warm.observe(pod.clone());
                    break;
                }
            }
        }
        Ok(None)
    }

    fn assignment<'a>(&'a self, run: &'a str, part: &'a str) -> Assignment<'a> {
        Assignment {
            run,
            target: &self.run.spec.target,
            resource: &self.resource,
            part,
            owner: self.run.owner_ref(&()),
            timeout_seconds: self.run.spec.timeout_seconds,
        }
    }

    /// Fails where this process is no longer the one that executes the run. One that stood still, or is told to stop,
    /// may not know yet that it is not.
    async fn ask_whose(&self) -> Result<(), StepError> {
        let run = self.engine.runs().get_opt(&self.run.name_any()).await;
        let run = run.map_err(StepError::api("the step's run could not be read"))?;
        let is_ours = run.is_some_and(|run| {
            let status = run.status.unwrap_or_default();
            status.state.is_open() && status.executor.is_none_or(|executor| executor == self.own)
        });
        if is_ours { Ok(()) } else { Err(StepError::Failed("the run is gone on with by another replica".to_owned())) }
    }

    /// The newest pod that the run's earlier executor had, and how many were lost before it: the step may be at work
    /// in it.
    async fn newest(&self) -> Result<Option<(u32, String)>, StepError> {
        if self.run.status.as_ref().is_none_or(|status| status.executor.is_none()) {
            return Ok(None);
        }
        let of_run = ListParams::default().labels(&format!("{}={}", labels::RUN, labels::value(&self.run.name_any())));
        let mut newest = None;
        let mut pages = Pages::of(of_run);
        while let Some(found) =
            pages.metadata(&self.pods).await.map_err(StepError::api("the step's pods could not be listed"))?
        {
            let own = found.into_iter().filter(|pod| belongs_to(pod, &self.run));
            newest = newest.max(own.filter_map(|pod| Some((number(&pod, &self.part)?, pod.name?))).max());
        }
        Ok(newest)
    }

    /// Makes the pod; tells whether it was there already.
    async fn create(&self, name: &str, template: PodTemplateSpec, part: &str) -> Result<bool, StepError> {
        let run = self.run.name_any();
        let pod = pod_template::assigned(name, &self.namespace, template, &self.assignment(&run, part));
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
        let unknown = || format!("it has not started: kubectl -n {} describe pod {name}", self.namespace);
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
                        PodState::Starting(reason) => self.set_waits_for(Some(reason.unwrap_or_else(unknown))),
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
}

impl Connected {
    fn keep(&mut self, connection: Connection) -> Arc<Connection> {
        let connection = Arc::new(connection);
        self.session = Some(connection.clone());
        connection
    }
}
