//! Runs a plan: writes each run down, executes it, and goes on with it where another replica left it.
//!
//! Knows no kind of target: a run says what its target is, and its steps say the rest.

mod apply;
mod error;
mod execute;
mod impersonate;
pub mod index;
mod inputs;
mod jobs;
pub mod life;
pub mod outputs;
mod pod_template;
pub mod replicas;
mod script;
mod watch;

pub use error::{EngineError, is_status};
pub use script::PodSettings;
pub use watch::{follow_replicas, follow_runs};

use crate::api::{Admitted, ObjectRef, Phase, PhaseRun, PhaseRunSpec, RunState, StepStatus, TargetRef, labels};
use crate::plan::runs::PlannedRun;
use crate::plan::{key, undo};
use index::{RunEntry, RunIndex};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use replicas::Replicas;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a run that nobody has begun to execute is left to whoever wrote it.
const FIRST_CLAIM_WITHIN: Duration = Duration::from_secs(3);
/// The pause before an execution that the API server interrupted goes on.
const RESUME_AFTER: Duration = Duration::from_secs(1);

/// What the engine is told at start.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Sluice's own namespace: outputs are kept there, and pods run there unless a plugin names another.
    pub namespace: String,
}

/// Executes runs; shared by everything that begins, joins or watches them.
pub struct Engine {
    client: Client,
    settings: EngineSettings,
    pods: Arc<PodSettings>,
    kinds: apply::Kinds,
    executing: Mutex<HashSet<String>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// What is known of every run.
    pub index: RunIndex,
    /// Which processes are alive.
    pub replicas: Replicas,
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
            settings,
            pods: Arc::new(pods),
            kinds: apply::Kinds::default(),
            executing: Mutex::default(),
            tasks: TaskTracker::new(),
            stop,
            index: RunIndex::default(),
            replicas,
        })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn namespace(&self) -> &str {
        &self.settings.namespace
    }

    fn runs(&self) -> Api<PhaseRun> {
        Api::all(self.client.clone())
    }

    /// Writes a run down and begins to execute it. One that is there already is taken as it is: another replica, or
    /// another request, was faster.
    pub async fn begin(self: &Arc<Self>, spec: PhaseRunSpec) -> Result<Arc<RunEntry>, EngineError> {
        let mut run = PhaseRun::new(&name_of(&spec), spec);
        run.metadata.labels = Some(run_labels(&run.spec));
        match self.runs().create(&PostParams::default(), &run).await {
            Ok(run) => {
                let entry = self.index.observe(&run);
                self.spawn(run);
                Ok(entry)
            }
            Err(error) if is_status(&error, 409) => {
                let found = self.runs().get(&run.name_any()).await.map_err(EngineError::api("read a run"))?;
                Ok(self.index.observe(&found))
            }
            Err(error) => Err(EngineError::api("write a run down")(error)),
        }
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

    /// Goes on with a run whose executor is gone. Does nothing where somebody is at it.
    pub async fn adopt(self: &Arc<Self>, entry: &RunEntry) -> Result<(), EngineError> {
        if !self.is_orphan(entry) {
            return Ok(());
        }
        let Some(run) = self.runs().get_opt(&entry.name).await.map_err(EngineError::api("read a run"))? else {
            self.index.forget(&entry.name);
            return Ok(());
        };
        let entry = self.index.observe(&run);
        if self.is_orphan(&entry) {
            tracing::info!(run = entry.name, "going on with a run that its executor left");
            self.spawn(run);
        }
        Ok(())
    }

    /// Whether nobody executes an open run.
    pub fn is_orphan(&self, entry: &RunEntry) -> bool {
        if !entry.state.is_open() || self.executing.lock().unwrap_or_else(PoisonError::into_inner).contains(&entry.name)
        {
            return false;
        }
        match &entry.executor {
            Some(executor) => !self.replicas.is_alive(executor) || *executor == self.replicas.own().to_string(),
            None => life::since(entry.created_at, Timestamp::now()) > FIRST_CLAIM_WITHIN,
        }
    }

    fn spawn(self: &Arc<Self>, run: PhaseRun) {
        let name = run.name_any();
        if self.stop.is_cancelled()
            || !self.executing.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone())
        {
            return;
        }
        let engine = self.clone();
        self.tasks.spawn(async move {
            engine.execute_to_end(run).await;
            engine.executing.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        });
    }

    async fn execute_to_end(self: &Arc<Self>, mut run: PhaseRun) {
        let name = run.name_any();
        loop {
            match Box::pin(execute::execute(self.clone(), run.clone())).await {
                Ok(ended) => {
                    tracing::info!(run = name, state = %ended.status.as_ref().map_or(RunState::Pending, |s| s.state), "run ended");
                    self.after(&ended).await;
                    return;
                }
                Err(EngineError::Lost { .. }) => return,
                Err(error) => {
                    tracing::warn!(
                        run = name,
                        error = &error as &dyn std::error::Error,
                        "a run is interrupted and will go on"
                    );
                }
            }
            loop {
                tokio::select! {
                    () = tokio::time::sleep(RESUME_AFTER) => {}
                    () = self.stop.cancelled() => return,
                }
                match self.runs().get_opt(&name).await {
                    Ok(Some(found)) if self.index.observe(&found).state.is_open() => {
                        run = found;
                        break;
                    }
                    Ok(_) => return,
                    Err(error) => tracing::warn!(
                        run = name,
                        error = &error as &dyn std::error::Error,
                        "the API server does not answer"
                    ),
                }
            }
        }
    }

    /// What follows the end of a run: its pods go, and what undoes it begins.
    async fn after(self: &Arc<Self>, run: &PhaseRun) {
        if let Err(error) = self.undo(run).await {
            tracing::warn!(run = %run.name_any(), error = &error as &dyn std::error::Error, "undoing a run begins later");
        }
        if let Err(error) = script::delete_pods(&self.client, run, &self.settings.namespace).await {
            tracing::warn!(run = %run.name_any(), error = &error as &dyn std::error::Error, "the pods of an ended run stay for now");
        }
    }

    /// Begins the run that undoes this one, where its status promises one.
    pub async fn undo(self: &Arc<Self>, run: &PhaseRun) -> Result<(), EngineError> {
        let status = run.status.clone().unwrap_or_default();
        if status.compensated_by.is_none() {
            return Ok(());
        }
        match self.undoing(run, &status.steps).await? {
            Some(spec) => self.begin(spec).await.map(|_| ()),
            // What was to be undone belongs to a living object by now.
            None => self.mark(&RunEntry::from(run), json!({"compensatedBy": null})).await.map(|_| ()),
        }
    }

    /// The run that would undo this one as things are now.
    async fn undoing(&self, run: &PhaseRun, steps: &[StepStatus]) -> Result<Option<PhaseRunSpec>, EngineError> {
        let live = self.live(&run.spec.target).await?;
        // What a create made may be another object's of that name by now: its UID was that of an attempt. A pre-update
        // can be run again for its own object alone.
        let own = |live: &Value| live["metadata"]["uid"].as_str() == run.spec.target.uid.as_deref();
        let live = live.filter(|live| run.spec.phase == Phase::PreCreate || own(live));
        Ok(undo::undo(&run.name_any(), &run.spec, steps, live.as_ref()))
    }

    /// What is stored under a target's name now, whatever its kind.
    async fn live(&self, target: &TargetRef) -> Result<Option<Value>, EngineError> {
        let what = "read the target of a run";
        let (kind, _) =
            self.kinds.find(&self.client, &target.api_version, &target.kind).await.map_err(EngineError::api(what))?;
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &target.namespace, &kind);
        let found = objects.get_opt(&target.name).await.map_err(EngineError::api(what))?;
        Ok(found.and_then(|found| serde_json::to_value(found).ok()))
    }

    /// Gives a finished pre-phase up whose change was not stored, and begins to undo it.
    pub async fn abandon(self: &Arc<Self>, entry: &RunEntry) -> Result<(), EngineError> {
        let Some(run) = self.read(&entry.name).await? else {
            self.index.forget(&entry.name);
            return Ok(());
        };
        let steps = run.status.clone().unwrap_or_default().steps;
        let undo = self.undoing(&run, &steps).await?.map(|spec| name_of(&spec));
        if undo.is_none() && run.spec.phase != Phase::PreDelete {
            outputs::forget(&self.client, &self.settings.namespace, &entry.name).await?;
        }
        self.mark(entry, json!({"state": RunState::Abandoned, "compensatedBy": undo})).await?;
        match self.read(&entry.name).await? {
            Some(run) => self.undo(&run).await,
            None => Ok(()),
        }
    }

    /// Writes part of an ended run's status, against the version that was seen.
    pub async fn mark(&self, entry: &RunEntry, status: Value) -> Result<Arc<RunEntry>, EngineError> {
        let patch = json!({"metadata": {"resourceVersion": entry.resource_version}, "status": status});
        let run = self
            .runs()
            .patch_status(&entry.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(EngineError::api("write down what became of a run"))?;
        Ok(self.index.observe(&run))
    }

    /// Notes the request that is let through on the strength of a run.
    pub async fn admit(&self, entry: &RunEntry, uid: &str, generation: i64) -> Result<Arc<RunEntry>, EngineError> {
        let admitted = Admitted { uid: uid.to_owned(), generation, at: Some(execute::now()) };
        self.mark(entry, json!({"admitted": admitted, "alsoAdmitted": entry.admissions_beside(uid)})).await
    }

    /// Notes that a client was told of a failure.
    pub async fn reported(&self, entry: &RunEntry) -> Result<Arc<RunEntry>, EngineError> {
        self.mark(entry, json!({"reportedAt": execute::now()})).await
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
        self.executing.lock().unwrap_or_else(PoisonError::into_inner).len()
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
    all
}
