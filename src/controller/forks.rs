//! Makes the forks of a sandbox real: writes what should be there, deletes what should not, tells whether it runs.

mod left;
mod room;
mod write;

pub use left::are_gone;
pub use room::Room;

use super::fork::{self, ForkError, Owner};
use super::kept::{KeptFork, KeptService};
use super::{Context, ControllerError, fork_outputs};
use crate::api::{Fork, ForkedKind, SandboxSpec};
use crate::plan::{message, runs};
use kube::Api;
use room::Services;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use write::write;

/// What became of a sandbox's forks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forks {
    Ready,
    /// They are coming up; what is waited for.
    Progressing(String),
    /// They cannot be made as they are declared.
    Invalid(String),
    /// No admission has seen them.
    NotAdmitted,
}

/// What is said of forks that no admission has seen.
pub const NOT_ADMITTED: &str = "spec.forks: the forks were made or changed while Sluice's webhooks were not in force, so nobody was asked whether their author may; what is there of them stays as it is: apply the sandbox again to have them admitted";
/// Longer messages of others are cut.
const MESSAGE: usize = 1024;

/// Brings the forks of `object` about.
pub async fn reconcile(context: &Context, object: &Value, routing_key: &str) -> Result<Forks, ControllerError> {
    let target = runs::target(object);
    let spec: SandboxSpec =
        serde::Deserialize::deserialize(&object["spec"]).map_err(ControllerError::shape("the sandbox's spec"))?;
    let uid = target.uid.clone().unwrap_or_default();
    if !context.sealer.holds(&target.namespace, object) {
        return Ok(Forks::NotAdmitted);
    }
    let secret = fork_outputs::keep(context, &target, &spec, object).await?;
    let owner = Owner { name: &target.name, uid: &uid, namespace: &target.namespace, routing_key, outputs: &secret };
    let deployments: Api<KeptFork> = Api::namespaced(context.client.clone(), &target.namespace);
    let services: Api<KeptService> = Api::namespaced(context.client.clone(), &target.namespace);

    let mut seen = Seen::default();
    let known_services = if spec.forks.is_empty() {
        Ok(Arc::default())
    } else {
        room::services((&context.room, &context.client), &target.namespace).await?
    };
    for (index, fork) in spec.forks.iter().enumerate() {
        let made = match objects(context, object, owner, fork, known_services.clone()).await {
            Ok(made) => made,
            // The others are made all the same.
            Err(error) => {
                seen.failed = seen.failed.take().or(Some(error));
                continue;
            }
        };
        match made {
            Ok((objects, _room)) => {
                for object in objects {
                    seen.write(index, &uid, object, &deployments, &services).await;
                }
            }
            Err(error) => {
                // What is there of a fork whose baseline is away stays as it is.
                let name = fork::name(&fork.fork_of.name, owner);
                seen.wanted.insert(("Deployment".to_owned(), name.clone()));
                seen.wanted.insert(("Service".to_owned(), name));
                seen.is_invalid(index, &error.to_string());
            }
        }
    }
    if let Some(error) = seen.failed {
        return Err(error);
    }
    drop(known_services);
    left::prune(context, &target.namespace, &uid, &seen.wanted).await?;
    Ok(match (seen.invalid, seen.waits) {
        (Some(why), _) => Forks::Invalid(why),
        (None, Some(what)) => Forks::Progressing(what),
        (None, None) => Forks::Ready,
    })
}

/// The objects of a fork, and room for them for as long as they are there.
type Made = (Vec<Value>, Option<OwnedSemaphorePermit>);

/// What has come of a sandbox's forks so far.
#[derive(Default)]
struct Seen {
    /// Kinds and names of what should be there.
    wanted: BTreeSet<(String, String)>,
    waits: Option<String>,
    invalid: Option<String>,
    failed: Option<ControllerError>,
}

impl Seen {
    async fn write(
        &mut self,
        index: usize,
        uid: &str,
        mut object: Value,
        deployments: &Api<KeptFork>,
        services: &Api<KeptService>,
    ) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let written = if kind == "Deployment" {
            let written = write(deployments, uid, &mut object).await;
            if let Ok(Ok(fork)) = &written {
                self.waits = self.waits.take().or(fork::readiness(fork).err());
            }
            written.map(|written| written.map(|_| ()))
        } else {
            write(services, uid, &mut object).await.map(|written| written.map(|_| ()))
        };
        self.wanted.insert((kind, name));
        match written {
            Ok(Ok(())) => {}
            Ok(Err(why)) => self.is_invalid(index, &why),
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
    }

    fn is_invalid(&mut self, index: usize, why: &str) {
        let told = || message::cut(&format!("spec.forks[{index}]: {why}"), MESSAGE);
        self.invalid = self.invalid.take().or_else(|| Some(told()));
    }
}

/// The objects of a fork, and the room that they take. They are put together apart from all other work: it takes a while
/// for a large baseline.
async fn objects(
    context: &Context,
    sandbox: &Value,
    owner: Owner<'_>,
    fork: &Fork,
    services: Result<Arc<Services>, ForkError>,
) -> Result<Result<Made, ForkError>, ControllerError> {
    let ForkedKind::Deployment = fork.fork_of.kind;
    let found = room::baseline((&context.room, &context.client), owner.namespace, &fork.fork_of.name).await?;
    let (baseline, services) = match (found, services) {
        (Ok(baseline), Ok(services)) => (baseline, services),
        (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
    };
    let keys = output_keys(context, sandbox, fork);
    let [name, uid, namespace, routing_key, outputs] =
        [owner.name, owner.uid, owner.namespace, owner.routing_key, owner.outputs].map(str::to_owned);
    let fork = fork.clone();
    let work = move || {
        let (routing_key, outputs) = (&routing_key, &outputs);
        let owner = Owner { name: &name, uid: &uid, namespace: &namespace, routing_key, outputs };
        let key = |resource: &str, key: &str| keys.get(&(resource.to_owned(), key.to_owned())).cloned();
        let made = fork::objects(owner, &fork, baseline.spec, &services.all, &key)?;
        Ok((made, baseline.room))
    };
    Ok(tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        tracing::error!(namespace = owner.namespace, name = owner.name, %error, "a fork could not be put together");
        Err(ForkError::Broken)
    }))
}

/// Where the outputs that a fork asks for are in the Secret beside the sandbox.
fn output_keys(context: &Context, sandbox: &Value, fork: &Fork) -> BTreeMap<(String, String), String> {
    let asked = fork.customizations.iter().flat_map(|custom| &custom.env);
    asked
        .filter_map(|env| env.value_from.as_ref()?.resource.as_ref())
        .filter_map(|output| {
            let key = fork_outputs::key(context, sandbox, &output.name, &output.output_key)?;
            Some(((output.name.clone(), output.output_key.clone()), key))
        })
        .collect()
}
