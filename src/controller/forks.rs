//! Makes the forks of a sandbox real: writes what should be there, deletes what should not, tells whether it runs.

use super::fork::{self, ForkError, Owner};
use super::{Context, ControllerError, fork_outputs};
use crate::api::{Fork, ForkedKind, SandboxSpec, TargetRef, labels};
use crate::plan::runs;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;

/// What became of a sandbox's forks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forks {
    Ready,
    /// They are coming up; what is waited for.
    Progressing(String),
    /// They cannot be made as they are declared.
    Invalid(String),
}

/// Brings the forks of `object` about.
pub async fn reconcile(context: &Context, object: &Value, routing_key: &str) -> Result<Forks, ControllerError> {
    let target = runs::target(object);
    let spec: SandboxSpec =
        serde::Deserialize::deserialize(&object["spec"]).map_err(ControllerError::shape("the sandbox's spec"))?;
    let uid = target.uid.clone().unwrap_or_default();
    let secret = fork_outputs::keep(context, &target, &spec, object).await?;
    let owner = Owner { name: &target.name, uid: &uid, namespace: &target.namespace, routing_key, outputs: &secret };
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), &target.namespace);
    let services: Api<Service> = Api::namespaced(context.client.clone(), &target.namespace);
    let ours = ListParams::default().labels(&format!("{}={uid}", labels::SANDBOX_UID));

    let mut wanted = BTreeSet::new();
    let mut waits = None;
    let mut invalid = None;
    let known_services = if spec.forks.is_empty() { Vec::new() } else { list_services(&services).await? };
    for (index, fork) in spec.forks.iter().enumerate() {
        match objects(context, object, owner, fork, &deployments, &known_services).await? {
            Ok(objects) => {
                for object in objects {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
                    let refusal = if kind == "Deployment" {
                        let written = write(&deployments, &uid, &object).await?;
                        waits = waits.or(written.as_ref().ok().and_then(|fork| fork::readiness(fork).err()));
                        written.err()
                    } else {
                        write(&services, &uid, &object).await?.err()
                    };
                    invalid = invalid.or(refusal.map(|why| format!("spec.forks[{index}]: {why}")));
                    wanted.insert((kind, name));
                }
            }
            Err(error) => {
                // What is there of a fork whose baseline is away stays as it is.
                let name = fork::name(&fork.fork_of.name, owner);
                wanted.insert(("Deployment".to_owned(), name.clone()));
                wanted.insert(("Service".to_owned(), name));
                invalid = invalid.or(Some(format!("spec.forks[{index}]: {error}")));
            }
        }
    }
    prune(&deployments, &services, &ours, &wanted).await?;
    Ok(match (invalid, waits) {
        (Some(why), _) => Forks::Invalid(why),
        (None, Some(what)) => Forks::Progressing(what),
        (None, None) => Forks::Ready,
    })
}

/// Writes one object of a fork; tells why it cannot be where another's stands in its place, or the API server refuses
/// it.
async fn write<K>(api: &Api<K>, uid: &str, object: &Value) -> Result<Result<K, String>, ControllerError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let kind = K::kind(&());
    let found = api.get_metadata_opt(name).await.map_err(ControllerError::api("read what stands in a fork's place"))?;
    if found.is_some_and(|found| found.labels().get(labels::SANDBOX_UID).is_none_or(|owner| owner != uid)) {
        return Ok(Err(format!(
            "{kind} {name} exists already and is not this sandbox's: delete it, or give the sandbox another name"
        )));
    }
    match api.patch(name, &PatchParams::apply(labels::MANAGER).force(), &Patch::Apply(object)).await {
        Ok(written) => Ok(Ok(written)),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
            Ok(Err(format!("{kind} {name} was refused: {}", status.message)))
        }
        Err(error) => Err(ControllerError::api("write what a fork consists of")(error)),
    }
}

async fn list_services(services: &Api<Service>) -> Result<Vec<Value>, ControllerError> {
    let list = services.list(&ListParams::default()).await.map_err(ControllerError::api("list Services"))?;
    list.items.into_iter().map(|s| serde_json::to_value(s).map_err(ControllerError::shape("a Service"))).collect()
}

async fn objects(
    context: &Context,
    sandbox: &Value,
    owner: Owner<'_>,
    fork: &Fork,
    deployments: &Api<Deployment>,
    services: &[Value],
) -> Result<Result<Vec<Value>, ForkError>, ControllerError> {
    let ForkedKind::Deployment = fork.fork_of.kind;
    let found =
        deployments.get_opt(&fork.fork_of.name).await.map_err(ControllerError::api("read a fork's baseline"))?;
    let Some(baseline) = found else {
        return Ok(Err(ForkError::NoBaseline {
            kind: "Deployment".to_owned(),
            name: fork.fork_of.name.clone(),
            namespace: owner.namespace.to_owned(),
        }));
    };
    let baseline = serde_json::to_value(baseline).map_err(ControllerError::shape("a Deployment"))?;
    let key = |resource: &str, key: &str| fork_outputs::key(context, sandbox, resource, key);
    Ok(fork::objects(owner, fork, &baseline, services, &key))
}

async fn prune(
    deployments: &Api<Deployment>,
    services: &Api<Service>,
    ours: &ListParams,
    wanted: &BTreeSet<(String, String)>,
) -> Result<(), ControllerError> {
    let background =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
    let is_wanted = |kind: &str, name: String| wanted.contains(&(kind.to_owned(), name));
    for found in deployments.list_metadata(ours).await.map_err(ControllerError::api("list forks"))? {
        if !is_wanted("Deployment", found.name_any()) {
            let deleted = deployments.delete(&found.name_any(), &background).await;
            gone_is_fine(deleted.map(|_| ())).map_err(ControllerError::api("delete a fork"))?;
        }
    }
    for found in services.list_metadata(ours).await.map_err(ControllerError::api("list forks' Services"))? {
        if !is_wanted("Service", found.name_any()) {
            let deleted = services.delete(&found.name_any(), &background).await;
            gone_is_fine(deleted.map(|_| ())).map_err(ControllerError::api("delete a fork's Service"))?;
        }
    }
    Ok(())
}

fn gone_is_fine(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(error) if crate::engine::is_status(&error, 404) => Ok(()),
        other => other,
    }
}

/// Deletes what is left of a gone sandbox's forks; tells whether nothing is, its pods included.
pub async fn are_gone(context: &Context, target: &TargetRef) -> Result<bool, ControllerError> {
    let uid = target.uid.as_deref().unwrap_or_default();
    let ours = ListParams::default().labels(&format!("{}={uid}", labels::SANDBOX_UID));
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), &target.namespace);
    let services: Api<Service> = Api::namespaced(context.client.clone(), &target.namespace);
    prune(&deployments, &services, &ours, &BTreeSet::new()).await?;
    let left = deployments.list_metadata(&ours).await.map_err(ControllerError::api("list forks"))?;
    if !left.items.is_empty() {
        return Ok(false);
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &target.namespace);
    let left = pods.list_metadata(&ours).await.map_err(ControllerError::api("list the pods of forks"))?;
    Ok(left.items.is_empty())
}
