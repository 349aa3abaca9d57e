//! What each step of a run does, as a future of its own: made when the step begins, started once that is written down.

use super::apply::{Applier, Whose};
use super::error::StepError;
use super::execute::Execution;
use super::impersonate::ServiceAccount;
use super::objects::Objects;
use super::outputs::{Keeper, Outputs};
use super::{Engine, delete, http, inputs, pod_template, values, wait};
use crate::api::{Http, ObjectRef, RunResource, Step, TargetRef, Wait};
use crate::plan::expression::Expression;
use crate::plan::kinds;
use crate::plan::scope::{Scope, ScopeBuilder};
use crate::plan::{changes, room, runs};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, PoisonError};
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
        let scope = self.scope(&resource, &step).map_err(|e| StepError::Failed(e.to_string()))?;
        if fresh && let Some(source) = &step.when {
            let failed = |e: &dyn std::error::Error| StepError::Failed(format!("when: {e}"));
            let when = Expression::parse(source).map_err(|e| failed(&e))?;
            if !when.evaluate_bool_bounded(&scope).await.map_err(|e| failed(&e))? {
                return Ok(None);
            }
        }
        let seconds = step.timeout_seconds.unwrap_or(self.run.spec.timeout_seconds);
        let actor = self.actor(&resource);
        if let Some(apply) = &step.apply {
            let manifests = actor.applier().render(apply, &scope).await?;
            let references: Vec<ObjectRef> = manifests.iter().map(|m| m.reference.clone()).collect();
            let others = self.status.steps.iter().enumerate().filter(|(other, _)| *other != index);
            if let Some(fault) = room::too_many(others.map(|(_, step)| step), &references) {
                return Err(StepError::Failed(fault).into());
            }
            self.status.steps[index].applied = references;
            let before = self.engine.applied_before(&self.run, &resource.name, Some(&step.name));
            let new = manifests.iter().map(|m| m.reference.clone()).filter(|m| !before.contains(m)).collect();
            let looking = actor.clone();
            // Looked for while what will be applied is written down, and while the steps before are at work.
            let absent = tokio::spawn(async move { looking.applier().absent(new).await });
            let apply = async move {
                let absent = absent.await.unwrap_or_default();
                actor.applier().apply(&manifests, &before, &absent).await
            };
            return Ok(Some(Box::pin(within(seconds, apply))));
        }
        if let Some(deletes) = &step.delete {
            let namespace = &self.run.spec.target.namespace;
            let references = delete::render(&actor.objects(), deletes, namespace, &scope).await?;
            let delete = async move { delete::delete(&actor.objects(), &references).await };
            return Ok(Some(Box::pin(within(seconds, delete))));
        }
        if let Some(wait) = &step.wait {
            return self.wait_job(actor, &step, wait, scope, seconds).await.map(Some);
        }
        if let Some(http) = &step.http {
            return self.http_job(actor, &step, http, scope, seconds).await.map(Some);
        }
        self.script_job(index, &resource, &step, seconds, &scope).await.map(Some)
    }

    async fn wait_job(
        &mut self,
        actor: Actor,
        step: &Step,
        wait: &Wait,
        scope: Scope,
        seconds: u32,
    ) -> Result<Job, Failure> {
        let objects = actor.objects();
        let named = delete::rendered(&wait.object, "wait.object", &scope).await?;
        let reference = objects.reference(&named, &self.run.spec.target.namespace, "wait.object").await?;
        let until = Expression::parse(&wait.until).map_err(|e| StepError::Failed(format!("wait.until: {e}")))?;
        let (keeper, step) = (self.keeper(&actor.resource, step), step.clone());
        Ok(Box::pin(async move {
            let object = wait::wait(&actor.objects(), &reference, &until, &scope, seconds).await?;
            let outputs = values::outputs(&step, "object", &object, &scope).await?;
            keeper.keep(&outputs).await?;
            let message = format!("{reference} is as it was waited for");
            Ok(Done { message: Some(message), outputs, ..Done::default() })
        }))
    }

    async fn http_job(
        &mut self,
        actor: Actor,
        step: &Step,
        http: &Http,
        scope: Scope,
        seconds: u32,
    ) -> Result<Job, Failure> {
        let key = inputs::idempotency_key(&self.run.name_any(), &actor.resource, &step.name);
        let mut secrets = Vec::new();
        let allowed = &self.engine.settings.http;
        let call = http::Call::new(http, (&actor.objects(), &scope), allowed, &key, &mut secrets).await?;
        self.known_outputs().hide(secrets);
        let (keeper, step) = (self.keeper(&actor.resource, step), step.clone());
        Ok(Box::pin(async move {
            let answer = call.make(seconds).await?;
            let outputs = values::outputs(&step, "response", &answer.response, &scope).await?;
            keeper.keep(&outputs).await?;
            Ok(Done { message: Some(answer.said), outputs, ..Done::default() })
        }))
    }

    fn keeper(&self, resource: &str, step: &Step) -> Keeper {
        Keeper {
            client: self.engine.client.clone(),
            namespace: self.engine.settings.namespace.clone(),
            run: self.run.name_any(),
            owner: self.run.controller_owner_ref(&()),
            resource: resource.to_owned(),
            step: step.name.clone(),
        }
    }

    pub(super) fn known_outputs(&self) -> MutexGuard<'_, Outputs> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
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
        let known = self.known_outputs().clone();
        let mut secrets = Vec::new();
        let actor = self.actor(resource);
        let given = inputs::Given {
            name: &self.run.name_any(),
            run: &self.run.spec,
            resource,
            outputs: &known,
            scope,
            objects: &actor.objects(),
        };
        let command = given.run_step(step, attempt, seconds, &mut secrets).await?;
        self.known_outputs().hide(secrets);
        let keeper = self.keeper(&resource.name, step);
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
            keeper.keep(&outputs).await?;
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
        let actor = self.actor(resource);
        Box::pin(async move {
            let deleted = actor.applier().delete(&objects, whose).await?;
            Ok(Done { message: Some(format!("{deleted} deleted")), ..Done::default() })
        })
    }

    fn actor(&self, resource: &RunResource) -> Actor {
        let runner = &resource.runner;
        Actor {
            engine: self.engine.clone(),
            account: ServiceAccount {
                namespace: pod_template::namespace(runner, &self.engine.pods).to_owned(),
                name: runner.service_account_name.clone().unwrap_or_else(|| "default".to_owned()),
            },
            target: self.run.spec.target.clone(),
            resource: resource.name.clone(),
            plugin: resource.plugin.clone(),
        }
    }

    fn scope(&self, resource: &RunResource, step: &Step) -> Result<Scope, crate::plan::scope::ScopeError> {
        let spec = &self.run.spec;
        let kind = &kinds::SANDBOX;
        let mut object = spec.object.clone();
        object["status"] = json!({"routingKey": spec.routing_key});
        let (old, new) = spec.old_and_new();
        let steps = self.known_outputs().scope(&resource.name, step);
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

/// Who acts for a resource, for as long as a step takes.
#[derive(Clone)]
struct Actor {
    engine: Arc<Engine>,
    account: ServiceAccount,
    target: TargetRef,
    resource: String,
    plugin: String,
}

impl Actor {
    fn objects(&self) -> Objects<'_> {
        Objects { client: &self.engine.client, kinds: &self.engine.kinds, account: self.account.clone() }
    }

    fn applier(&self) -> Applier<'_> {
        Applier { objects: self.objects(), target: &self.target, resource: &self.resource, plugin: &self.plugin }
    }
}

/// What says in a message what it did, within the step's time limit.
async fn within(seconds: u32, act: impl Future<Output = Result<String, StepError>>) -> Result<Done, Failure> {
    let done = tokio::time::timeout(Duration::from_secs(seconds.into()), act).await;
    let message = done.map_err(|_| StepError::TimedOut { seconds })??;
    Ok(Done { message: Some(message), ..Done::default() })
}
