//! Runs a plan: writes each run down, executes it, and goes on with it where another replica left it.
//!
//! Knows no kind of target: a run says what its target is, and its steps say the rest.

mod apply;
mod begin;
mod delete;
mod entry;
mod error;
mod exec;
mod execute;
mod guard;
mod http;
mod impersonate;
pub mod index;
mod inputs;
mod jobs;
pub mod life;
mod masking;
mod objects;
mod outcome;
pub mod outputs;
pub mod pod_template;
mod progress;
mod queue;
mod repeat;
pub mod replicas;
mod script;
mod step_pod;
mod values;
mod wait;
pub mod waiting;
pub mod warm;
mod watch;
mod watched;
mod whose;

pub use error::{EngineError, is_status};
pub use guard::Guard;
pub use outcome::Outcomes;
pub use pod_template::PodSettings;
pub use script::delete_pod;
pub use warm::follow_warm;
pub use watch::{all, follow_replicas, follow_runs};
pub use watched::WatchedRun;
pub use whose::is_of;

use crate::api::{ObjectRef, PhaseRun, PhaseRunSpec, labels, origin};
use crate::plan::http::Allowed;
use crate::plan::key;
use crate::plan::queue::Limits;
use crate::plan::runs::PlannedRun;
use index::{RunEntry, RunIndex};
use kube::{Api, Client, ResourceExt};
use queue::{Grant, Queue};
use replicas::Replicas;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What the engine is told at start.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Sluice's own namespace, where outputs are kept.
    pub namespace: String,
    /// The namespaces that plugins may run in: pods of Sluice's are looked for in no other.
    pub runner_namespaces: BTreeSet<String>,
    /// What `http` steps may call.
    pub http: Allowed,
    /// How many runs may be at work at once.
    pub limits: Limits,
}

/// Executes runs; shared by everything that begins, joins or watches them.
pub struct Engine {
    client: Client,
    settings: EngineSettings,
    pods: Arc<PodSettings>,
    kinds: objects::Kinds,
    executing: Mutex<HashSet<String>>,
    queue: Queue,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// What is known of every run.
    pub index: RunIndex,
    /// Which processes are alive.
    pub replicas: Replicas,
    /// What has become of changes.
    pub outcomes: Outcomes,
    /// The requests that wait for a run.
    pub waiting: waiting::Waiting,
    /// The pods that wait for a run.
    pub warm: warm::WarmPods,
}

impl Engine {
    pub fn new(
        client: Client,
        settings: EngineSettings,
        pods: PodSettings,
        replicas: Replicas,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            queue: Queue::new(settings.limits),
            settings,
            pods: Arc::new(pods),
            kinds: objects::Kinds::default(),
            executing: Mutex::default(),
            tasks: TaskTracker::new(),
            stop,
            index: RunIndex::default(),
            replicas,
            outcomes: Outcomes::default(),
            waiting: waiting::Waiting::default(),
            warm: warm::WarmPods::default(),
        })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn namespace(&self) -> &str {
        &self.settings.namespace
    }

    /// The namespaces that plugins may run in.
    pub fn runner_namespaces(&self) -> &BTreeSet<String> {
        &self.settings.runner_namespaces
    }

    /// Whether sandboxes have no place in a namespace: a fork there would be a copy of what Sluice or a plugin works with.
    pub fn is_closed(&self, namespace: &str) -> bool {
        namespace == self.settings.namespace || self.settings.runner_namespaces.contains(namespace)
    }

    /// What `http` steps may call.
    pub fn callable(&self) -> &Allowed {
        &self.settings.http
    }

    /// What pods are made of.
    pub fn pod_settings(&self) -> &PodSettings {
        &self.pods
    }

    fn runs(&self) -> Api<PhaseRun> {
        Api::all(self.client.clone())
    }

    /// The run of a planned phase as its attempt `attempt`.
    pub fn spec(planned: PlannedRun, attempt: u32, requested_by: Option<String>, routing_key: String) -> PhaseRunSpec {
        PhaseRunSpec {
            phase: planned.phase,
            target: planned.target,
            key: planned.key,
            attempt,
            requested_by,
            routing_key: Some(routing_key),
            compensates: None,
            timeout_seconds: planned.timeout_seconds,
            resources: planned.resources,
            object: planned.object,
            old_object: planned.old_object,
        }
    }

    /// A run as it is stored.
    pub async fn read(&self, name: &str) -> Result<Option<PhaseRun>, EngineError> {
        self.runs().get_opt(name).await.map_err(EngineError::api("read a run"))
    }

    /// The runs whose outputs and objects a run builds on: those of the same object, the one that it undoes, and
    /// itself where it is gone on with.
    fn earlier_runs(&self, run: &PhaseRun) -> Vec<Arc<RunEntry>> {
        let mut runs = self.index.of_target(&run.spec.target);
        let named = run.spec.compensates.iter().cloned().chain([run.name_any()]);
        for name in named {
            if !runs.iter().any(|known| known.name == name) {
                runs.extend(self.index.get(&name));
            }
        }
        runs
    }

    /// The objects that a resource, or one step of it, is known to have applied so far.
    fn applied_before(&self, run: &PhaseRun, resource: &str, step: Option<&str>) -> BTreeSet<ObjectRef> {
        let runs = self.earlier_runs(run);
        execute::applied(runs.iter().map(Arc::as_ref), resource, step)
    }

    /// How many runs this process executes.
    pub fn executing(&self) -> usize {
        self.at_work().len()
    }

    /// Whether a run of a change may be written down now; see [`Queue::grant`].
    pub fn room_for(&self, planned: &PlannedRun) -> Option<Grant<'_>> {
        let uses = planned.resources.iter().map(index::uses).collect();
        self.queue.grant(&self.index, &planned.key, &planned.target.namespace, uses)
    }

    /// Whether a planned run must not begin before others are cleaned up; see [`Queue::is_behind`].
    pub fn is_behind(&self, planned: &PlannedRun) -> bool {
        Queue::is_behind(&self.index, &planned.target)
    }

    fn at_work(&self) -> MutexGuard<'_, HashSet<String>> {
        self.executing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no run is executed any more.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// The name of the run with this spec.
pub fn name_of(spec: &PhaseRunSpec) -> String {
    key::run_name(spec.phase, &spec.key, spec.attempt)
}

fn run_labels(spec: &PhaseRunSpec) -> BTreeMap<String, String> {
    let mut all = labels::of_target(&spec.target);
    all.insert(labels::PHASE.to_owned(), spec.phase.slug().to_owned());
    all.extend(origin::no_backup());
    all
}
