//! What each step of a run does, as a future of its own: made when the step begins, started once that is written down.

use super::apply::{Applier, Whose};
use super::error::StepError;
use super::execute::Execution;
use super::impersonate::ServiceAccount;
use super::{Engine, inputs, outputs};
use crate::api::{RunResource, Step, TargetRef};
use crate::plan::expression::Expression;
use crate::plan::kinds;
use crate::plan::scope::{Scope, ScopeBuilder};
use crate::plan::{changes, runs};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// What a step that did its work left.
#[derive(Default)]
pub(super) struct Done {
    pub message: Option<String>,
    pub log: Option<String>,
    pub exit_code: Option<i32>,
    pub outputs: BTreeMap<String, Vec<u8>>,
}

/// A step that did not, with what is known of it.
pub(super) struct Failure {
    pub error: StepError,
    pub log: Option<String>,
    pub exit_code: Option<i32>,
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        Self { error, log: None, exit_code: None }
    }
}

pub(super) type Job = Pin<Box<dyn Future<Output = Result<Done, Failure>> + Send>>;

impl Execution {
    /// The work of a step; none where its `when` is false.
    pub(super) async fn job(&mut self, index: usize, fresh: bool) -> Result<Option<Job>, Failure> {
        let (resource_index, step_index) = self.layout[index];
        let resource = self.run.spec.resources[resource_index].clone();
        let Some(step) = step_index.map(|s| resource.steps[s].clone()) else {
            return Ok(Some(self.delete_job(&resource)));
        };
        let scope = self.scope(&resource).map_err(|e| StepError::Failed(e.to_string()))?;
        if fresh && let Some(source) = &step.when {
            let failed = |e: &dyn std::error::Error| StepError::Failed(format!("when: {e}"));
            let when = Expression::parse(source).map_err(|e| failed(&e))?;
            if !when.evaluate_bool_bounded(&scope).await.map_err(|e| failed(&e))? {
                return Ok(None);
            }
        }
        let seconds = step.timeout_seconds.unwrap_or(self.run.spec.timeout_seconds);
        if let Some(apply) = &step.apply {
            let applier = self.applier(&resource);
            let manifests = applier.get().render(apply, &scope).await?;
            self.status.steps[index].applied = manifests.iter().map(|m| m.reference.clone()).collect();
            let before = self.engine.applied_before(&self.run, &resource.name, Some(&step.name));
            return Ok(Some(Box::pin(async move {
                let apply = async { applier.get().apply(&manifests, &before).await };
                let done = tokio::time::timeout(Duration::from_secs(seconds.into()), apply).await;
                let message = done.map_err(|_| StepError::TimedOut { seconds })??;
                Ok(Done { message: Some(message), ..Done::default() })
            })));
        }
        self.script_job(index, &resource, &step, seconds, &scope).await.map(Some)
    }

    async fn script_job(
        &mut self,
        index: usize,
        resource: &RunResource,
        step: &Step,
        seconds: u32,
        scope: &Scope,
    ) -> Result<Job, Failure> {
        let (resource_index, _) = self.layout[index];
        let Some(pod) = self.pods.get(&resource_index).cloned() else {
            return Err(StepError::Failed("the step has no action that this version of Sluice knows".to_owned()).into());
        };
        let attempt = self.status.steps[index].attempt;
        let known = self.outputs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let name = self.run.name_any();
        let command = inputs::run_step((&name, &self.run.spec), resource, step, attempt, seconds, &known, scope)
            .await
            .map_err(|e| StepError::Failed(e.to_string()))?;
        let (client, namespace) = (self.engine.client.clone(), self.engine.settings.namespace.clone());
        let (owner, resource, step) = (self.run.controller_owner_ref(&()), resource.name.clone(), step.name.clone());
        Ok(Box::pin(async move {
            let result = pod.run(&command).await?;
            let log = Some(result.log.clone()).filter(|log| !log.is_empty());
            let mut outputs = BTreeMap::new();
            for (output, content) in &result.outputs {
                let content =
                    STANDARD.decode(content).map_err(|e| StepError::Failed(format!("output {output}: {e}")))?;
                outputs.insert(output.clone(), content);
            }
            if !result.succeeded() {
                let error = result.error.unwrap_or_else(|| match result.exit_code {
                    Some(code) => format!("exit code {code}"),
                    None => "ended by a signal".to_owned(),
                });
                return Err(Failure { error: StepError::Failed(error), log, exit_code: result.exit_code });
            }
            outputs::keep(&client, &namespace, (&name, owner), (&resource, &step), &outputs)
                .await
                .map_err(|e| StepError::Failed(e.to_string()))?;
            Ok(Done { message: None, log, exit_code: result.exit_code, outputs })
        }))
    }

    fn delete_job(&self, resource: &RunResource) -> Job {
        let objects = self.engine.applied_before(&self.run, &resource.name, None);
        let whose = if resource.shares_name || runs::lives_on(&self.run.spec, &resource.name) {
            Whose::Plugin
        } else {
            Whose::Resource
        };
        let applier = self.applier(resource);
        Box::pin(async move {
            let deleted = applier.get().delete(&objects, whose).await?;
            Ok(Done { message: Some(format!("{deleted} deleted")), ..Done::default() })
        })
    }

    fn applier(&self, resource: &RunResource) -> OwnedApplier {
        let runner = &resource.runner;
        OwnedApplier {
            engine: self.engine.clone(),
            account: ServiceAccount {
                namespace: runner.namespace.clone().unwrap_or_else(|| self.engine.settings.namespace.clone()),
                name: runner.service_account_name.clone().unwrap_or_else(|| "default".to_owned()),
            },
            target: self.run.spec.target.clone(),
            resource: resource.name.clone(),
            plugin: resource.plugin.clone(),
        }
    }

    fn scope(&self, resource: &RunResource) -> Result<Scope, crate::plan::scope::ScopeError> {
        let spec = &self.run.spec;
        let kind = &kinds::SANDBOX;
        let mut object = spec.object.clone();
        object["status"] = json!({"routingKey": spec.routing_key});
        let (old, new) = match spec.phase {
            crate::api::Phase::PreDelete | crate::api::Phase::PostDelete => (Some(&spec.object), None),
            _ => (spec.old_object.as_ref(), Some(&spec.object)),
        };
        let steps = self.outputs.lock().unwrap_or_else(PoisonError::into_inner).scope(&resource.name);
        ScopeBuilder::new(kind)
            .target(object.clone())
            .old(spec.old_object.clone())
            .change(changes::change(kind, old, new))
            .params(json!(resource.params))
            .steps(steps)
            .phase(resource.undoes.unwrap_or(spec.phase))
            .build()
    }
}

/// An applier that outlives the borrow of its execution.
struct OwnedApplier {
    engine: Arc<Engine>,
    account: ServiceAccount,
    target: TargetRef,
    resource: String,
    plugin: String,
}

impl OwnedApplier {
    fn get(&self) -> Applier<'_> {
        Applier {
            client: &self.engine.client,
            kinds: &self.engine.kinds,
            account: self.account.clone(),
            target: &self.target,
            resource: &self.resource,
            plugin: &self.plugin,
        }
    }
}
