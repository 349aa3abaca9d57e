//! How a run comes to be executed: written down and begun, or taken over from a process that is gone.
//!
//! Knows nothing of steps; [`execute`](super::execute) does.

use super::guard::Guard;
use super::life;
use super::{Engine, EngineError, execute, is_status, name_of, run_labels, script};
use crate::api::{PhaseRun, PhaseRunSpec, RunState, labels, origin};
use crate::engine::index::RunEntry;
use crate::plan::message::with_causes;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams, Preconditions};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a run that nobody has begun to execute is left to whoever wrote it, where it does not say who that is.
const FIRST_CLAIM_WITHIN: Duration = Duration::from_secs(3);
/// After this long a run that its writer has not begun will not be begun by it.
const BEGUN_WITHIN: Duration = Duration::from_secs(30);
/// How long a request waits for a run that another one in this process writes at that moment.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// The pause before an execution that the API server interrupted goes on.
const RESUME_AFTER: Duration = Duration::from_secs(1);

type Written = Result<Arc<RunEntry>, kube::Error>;

impl Engine {
    /// Writes a run down and begins to execute it. One that is there already is taken as it is: another replica, or
    /// another request, was faster. With a guard, it may be taken back before any step of it has begun.
    ///
    /// Whoever asks may stop waiting at any time: the run goes on.
    pub async fn begin(
        self: &Arc<Self>,
        spec: PhaseRunSpec,
        guard: Option<Guard>,
    ) -> Result<Arc<RunEntry>, EngineError> {
        let name = name_of(&spec);
        if self.stop.is_cancelled() {
            return Err(EngineError::Lost { run: name });
        }
        if !self.at_work().insert(name.clone()) {
            let written = self.index.wait_for(&name, |entry| entry.map(|entry| Arc::new(entry.clone())));
            let written = tokio::time::timeout(WRITTEN_WITHIN, written).await;
            return written.map_err(|_| EngineError::Lost { run: name });
        }
        let mut run = PhaseRun::new(&name, spec);
        run.metadata.labels = Some(run_labels(&run.spec));
        let mut annotations = origin::written(self.replicas.server_now());
        annotations.insert(labels::BEGUN_BY.to_owned(), self.replicas.own().to_string());
        run.metadata.annotations = Some(annotations);
        let (tell, told) = oneshot::channel();
        self.launch(run, guard, tell);
        match told.await {
            Ok(Ok(entry)) => Ok(entry),
            Ok(Err(error)) if is_status(&error, 409) => self.known(&name).await,
            Ok(Err(error)) => Err(EngineError::api("write a run down")(error)),
            Err(_) => Err(EngineError::Lost { run: name }),
        }
    }

    fn launch(self: &Arc<Self>, run: PhaseRun, guard: Option<Guard>, tell: oneshot::Sender<Written>) {
        let engine = self.clone();
        self.tasks.spawn(async move {
            let name = run.name_any();
            let run = match engine.write_down(&run).await {
                Ok(run) => run,
                Err(error) => {
                    engine.at_work().remove(&name);
                    let _ = tell.send(Err(error));
                    return;
                }
            };
            let entry = engine.index.observe(&run);
            if entry.is_inert {
                tracing::warn!(run = name, "a run is taken back: the API server took too long to write it");
                engine.withdraw(&entry).await;
                engine.at_work().remove(&name);
                return;
            }
            let _ = tell.send(Ok(entry.clone()));
            match guard {
                Some(guard) if !engine.may_begin(&entry, &guard).await => engine.withdraw(&entry).await,
                _ => engine.execute_to_end(run).await,
            }
            engine.at_work().remove(&name);
        });
    }

    /// Writes a run down. One of its name that is not of this cluster is nobody's, and makes room.
    async fn write_down(&self, run: &PhaseRun) -> Result<PhaseRun, kube::Error> {
        let written = self.runs().create(&PostParams::default(), run).await;
        let Err(error) = &written else { return written };
        if !is_status(error, 409) {
            return written;
        }
        let name = run.name_any();
        let Some(found) = self.runs().get_opt(&name).await? else { return written };
        if !self.index.observe(&found).is_inert {
            return written;
        }
        let this = Preconditions { uid: found.uid(), resource_version: None };
        let deleted = self.runs().delete(&name, &DeleteParams::default().preconditions(this)).await;
        if let Err(error) = deleted
            && !is_status(&error, 404)
        {
            return Err(error);
        }
        self.index.forget_inert(&name, found.uid().as_deref());
        self.runs().create(&PostParams::default(), run).await
    }

    /// A run that somebody else wrote.
    async fn known(&self, name: &str) -> Result<Arc<RunEntry>, EngineError> {
        match self.read(name).await? {
            Some(found) => Ok(self.index.observe(&found)),
            None => Err(EngineError::Lost { run: name.to_owned() }),
        }
    }

    /// Takes back a run that was never begun.
    async fn withdraw(&self, run: &RunEntry) {
        let unchanged = Preconditions { resource_version: Some(run.version.to_string()), uid: None };
        let params = DeleteParams { preconditions: Some(unchanged), ..DeleteParams::default() };
        match self.runs().delete(&run.name, &params).await {
            Ok(_) => self.index.forget(&run.name),
            Err(error) if is_status(&error, 404) => self.index.forget(&run.name),
            // Somebody has begun it, so it is theirs.
            Err(error) if is_status(&error, 409) => {}
            Err(error) => {
                tracing::warn!(run = run.name, error = with_causes(&error), "a run that was never begun stays for now");
            }
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
        if !self.is_orphan(&entry) {
            return Ok(());
        }
        if entry.executor.is_none() {
            // Its writer is gone, or never wrote it: a run that was restored from a backup looks like this one. None of
            // its steps has begun, and who promised it writes it anew.
            self.withdraw(&entry).await;
            return Ok(());
        }
        tracing::info!(run = entry.name, "going on with a run that its executor left");
        self.spawn(run);
        Ok(())
    }

    /// Whether nobody executes an open run.
    pub fn is_orphan(&self, entry: &RunEntry) -> bool {
        if !entry.state.is_open() || self.at_work().contains(&entry.name) {
            return false;
        }
        match entry.executor.as_ref().or(entry.begun_by.as_ref()) {
            // Whoever wrote it may not know: the answer to that was lost.
            Some(_) if entry.executor.is_none() && life::since(entry.created_at, Timestamp::now()) > BEGUN_WITHIN => {
                true
            }
            Some(process) => !self.replicas.is_alive(process) || **process == self.replicas.own().to_string(),
            None => life::since(entry.created_at, Timestamp::now()) > FIRST_CLAIM_WITHIN,
        }
    }

    fn spawn(self: &Arc<Self>, run: PhaseRun) {
        let name = run.name_any();
        if self.stop.is_cancelled() || !self.at_work().insert(name.clone()) {
            return;
        }
        let engine = self.clone();
        self.tasks.spawn(async move {
            engine.execute_to_end(run).await;
            engine.at_work().remove(&name);
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
                Err(EngineError::Lost { .. } | EngineError::Refused { .. }) => return,
                Err(error) => {
                    tracing::warn!(run = name, error = with_causes(&error), "a run is interrupted and will go on");
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
                    Err(error) => {
                        tracing::warn!(run = name, error = with_causes(&error), "the API server does not answer");
                    }
                }
            }
        }
    }

    /// What follows the end of a run: its pods go, and what undoes it begins.
    async fn after(self: &Arc<Self>, run: &PhaseRun) {
        if let Err(error) = self.undo(run).await {
            tracing::warn!(run = %run.name_any(), error = with_causes(&error), "undoing a run begins later");
        }
        if let Err(error) = script::delete_pods(&self.client, run, &self.pods).await {
            tracing::warn!(run = %run.name_any(), error = with_causes(&error), "the pods of an ended run stay for now");
        }
    }
}
