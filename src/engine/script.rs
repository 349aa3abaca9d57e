//! The pods of a resource's scripts: one for all of them, or one for each try of each.

use super::Engine;
use super::error::{EngineError, StepError, is_status};
use super::pod_template::{self, PodSettings};
use super::step_pod::StepPod;
use super::whose::belongs_to;
use crate::agent::protocol::{RunStep, StepId, StepResult};
use crate::api::{Isolation, PhaseRun, RunResource, labels};
use crate::client::lists::Pages;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pods of one resource of a run.
pub struct ScriptPods {
    engine: Arc<Engine>,
    run: Arc<PhaseRun>,
    index: usize,
    own: String,
    /// By the try that a pod is for; by none where one is for all.
    pods: Mutex<HashMap<Option<StepId>, Arc<StepPod>>>,
}

impl ScriptPods {
    /// `own` is the process that executes the run.
    pub fn new(engine: Arc<Engine>, run: Arc<PhaseRun>, index: usize, own: String) -> Self {
        Self { engine, run, index, own, pods: Mutex::default() }
    }

    /// Runs a step, or joins it where it runs already. Ends only with a result or where none can come.
    pub async fn run(&self, step: &RunStep) -> Result<StepResult, StepError> {
        self.pod(&step.id).run(step).await
    }

    /// What the pod of a step's try waits for, where it has not begun.
    pub fn waits_for(&self, step: &str, attempt: u32) -> Option<String> {
        let id = self.of(&StepId { step: step.to_owned(), attempt });
        self.known().get(&id).and_then(|pod| pod.waits_for())
    }

    /// Lets the pods go that were for other tries of a step than `attempt`, or for any where there is none: how they
    /// ended is written down.
    pub fn release(&self, step: &str, attempt: Option<u32>) {
        let is_over =
            |id: &Option<StepId>| id.as_ref().is_some_and(|id| id.step == step && Some(id.attempt) != attempt);
        let over: Vec<_> = self.known().extract_if(|id, _| is_over(id)).map(|(_, pod)| pod).collect();
        for pod in over {
            tokio::spawn(async move { pod.end().await });
        }
    }

    fn resource(&self) -> &RunResource {
        &self.run.spec.resources[self.index]
    }

    fn of(&self, id: &StepId) -> Option<StepId> {
        match self.resource().runner.isolation.unwrap_or_default() {
            Isolation::Run => None,
            Isolation::Pod => Some(id.clone()),
        }
    }

    fn pod(&self, id: &StepId) -> Arc<StepPod> {
        let id = self.of(id);
        let made = |id: &Option<StepId>| {
            let resource = self.resource();
            let steps = resource.steps.iter().enumerate();
            let place = id.as_ref().and_then(|id| steps.clone().find(|(_, step)| step.name == id.step));
            let part = match (id, place) {
                (Some(id), Some((place, _))) => format!("{}-{place}-{}", self.index, id.attempt),
                _ => self.index.to_string(),
            };
            let of = (resource, place.map(|(_, step)| step));
            Arc::new(StepPod::new(self.engine.clone(), self.run.clone(), of, part, self.own.clone()))
        };
        self.known().entry(id).or_insert_with_key(made).clone()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Option<StepId>, Arc<StepPod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deletes a pod whose scripts are done with; one that is gone is no failure.
pub async fn delete_pod(pods: &Api<Pod>, name: &str) -> Result<(), kube::Error> {
    match pods.delete(name, &DeleteParams::default().grace_period(1)).await {
        Err(error) if !is_status(&error, 404) => Err(error),
        _ => Ok(()),
    }
}

/// Deletes every pod of an ended run.
pub async fn delete_pods(client: &Client, run: &PhaseRun, settings: &PodSettings) -> Result<(), EngineError> {
    let mut namespaces: Vec<&str> = run
        .spec
        .resources
        .iter()
        .filter(|resource| resource.steps.iter().any(|step| step.script.is_some()))
        .map(|resource| pod_template::namespace(&resource.runner, settings))
        .collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    let of_run = ListParams::default().labels(&format!("{}={}", labels::RUN, labels::value(&run.name_any())));
    for namespace in namespaces {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let mut pages = Pages::of(of_run.clone());
        while let Some(listed) =
            pages.metadata(&pods).await.map_err(EngineError::api("list the pods of an ended run"))?
        {
            for pod in listed.iter().filter(|pod| belongs_to(pod, run)) {
                let name = pod.name.as_deref().unwrap_or_default();
                delete_pod(&pods, name).await.map_err(EngineError::api("delete a pod of an ended run"))?;
            }
        }
    }
    Ok(())
}
