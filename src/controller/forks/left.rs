//! What is there of a sandbox's forks, and what must go.

use super::super::{Context, ControllerError};
use crate::api::{Sandbox, TargetRef, labels};
use crate::client::lists::Pages;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Preconditions, PropagationPolicy};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;

/// What the Deployment controller adds to the names of ReplicaSets, as a label of their pods.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// What a name that was cut certainly still begins with, in bytes.
const UNCUT: usize = 40;

fn ours(uid: &str) -> ListParams {
    ListParams::default().labels(&format!("{}={uid}", labels::SANDBOX_UID))
}

/// Whether an object is what Sluice made for the sandbox with this UID. A label alone is anybody's, and who may label a
/// Deployment of others must not have it deleted or written over so. An owner is no more than what the cluster's garbage
/// collector goes by itself; where it was taken away, as `--cascade=orphan` does, Sluice is known by its own apply.
pub fn is_of(metadata: &ObjectMeta, uid: &str) -> bool {
    let labelled = metadata.labels.as_ref().and_then(|all| all.get(labels::SANDBOX_UID)).is_some_and(|of| of == uid);
    let owned = || {
        let kind = Sandbox::kind(&());
        metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid && owner.kind == kind)
    };
    let applied = || {
        let mut entries = metadata.managed_fields.iter().flatten();
        let by_us = |manager: Option<&str>| manager == Some(labels::MANAGER);
        entries.any(|entry| by_us(entry.manager.as_deref()) && entry.operation.as_deref() == Some("Apply"))
    };
    labelled && !uid.is_empty() && (owned() || applied())
}

/// Whether a pod is of a fork of the sandbox: its labels are as Sluice writes them, and it belongs to a ReplicaSet of the
/// fork, which has its name. The Deployment and the ReplicaSet may be gone already.
fn is_pod_of(metadata: &ObjectMeta, sandbox: &str, uid: &str) -> bool {
    let label = |name: &str| metadata.labels.as_ref().and_then(|all| all.get(name)).map(String::as_str);
    let (Some(baseline), true) = (label(labels::FORK_OF), label(labels::SANDBOX_UID) == Some(uid)) else {
        return false;
    };
    let Some(hash) = label(TEMPLATE_HASH) else { return false };
    let fork = labels::name(&format!("{baseline}-{sandbox}"), 63);
    let is_named = |set: &str| {
        let of = set.strip_suffix(hash).and_then(|set| set.strip_suffix('-'));
        of.is_some_and(|of| match baseline.get(..UNCUT) {
            // A label of 63 bytes may stand for a longer name.
            Some(uncut) if baseline.len() == 63 => of.starts_with(uncut),
            _ => of == fork,
        })
    };
    let mut owners = metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.kind == "ReplicaSet" && is_named(&owner.name))
}

/// Deletes what is there of forks and is not wanted, by kind and name.
pub async fn prune(
    context: &Context,
    namespace: &str,
    uid: &str,
    wanted: &BTreeSet<(String, String)>,
) -> Result<(), ControllerError> {
    let is_wanted = |kind: &str, name: &str| wanted.contains(&(kind.to_owned(), name.to_owned()));
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), namespace);
    let services: Api<Service> = Api::namespaced(context.client.clone(), namespace);
    prune_kind(&deployments, uid, |name| is_wanted("Deployment", name)).await?;
    prune_kind(&services, uid, |name| is_wanted("Service", name)).await
}

async fn prune_kind<K>(api: &Api<K>, uid: &str, is_wanted: impl Fn(&str) -> bool) -> Result<(), ControllerError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut pages = Pages::of(ours(uid));
    while let Some(found) = pages.metadata(api).await.map_err(ControllerError::api("list forks"))? {
        prune_page(api, uid, found, &is_wanted).await?;
    }
    Ok(())
}

async fn prune_page<K>(
    api: &Api<K>,
    uid: &str,
    page: Vec<ObjectMeta>,
    is_wanted: &impl Fn(&str) -> bool,
) -> Result<(), ControllerError>
where
    K: Clone + DeserializeOwned + Debug,
{
    for metadata in page {
        let name = metadata.name.clone().unwrap_or_default();
        // What is being deleted goes by itself, once nobody holds it any more.
        if metadata.deletion_timestamp.is_some() || !is_of(&metadata, uid) || is_wanted(&name) {
            continue;
        }
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: Some(Preconditions { uid: metadata.uid, resource_version: None }),
            ..DeleteParams::default()
        };
        match api.delete(&name, &params).await {
            Ok(_) => {}
            // It is gone, or another has its name by now.
            Err(error) if [404, 409].iter().any(|code| crate::engine::is_status(&error, *code)) => {}
            Err(error) => return Err(ControllerError::api("delete what is left of a fork")(error)),
        }
    }
    Ok(())
}

/// Deletes what is left of a gone sandbox's forks; tells whether nothing is, its pods included.
pub async fn are_gone(context: &Context, target: &TargetRef) -> Result<bool, ControllerError> {
    let uid = target.uid.as_deref().unwrap_or_default();
    prune(context, &target.namespace, uid, &BTreeSet::new()).await?;
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), &target.namespace);
    let is_fork = |metadata: &ObjectMeta| is_of(metadata, uid);
    if is_one_left(&deployments, ours(uid), is_fork).await.map_err(ControllerError::api("list forks"))? {
        return Ok(false);
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &target.namespace);
    let is_pod = |metadata: &ObjectMeta| is_pod_of(metadata, &target.name, uid);
    let left = is_one_left(&pods, ours(uid), is_pod).await;
    Ok(!left.map_err(ControllerError::api("list the pods of forks"))?)
}

async fn is_one_left<K>(
    api: &Api<K>,
    params: ListParams,
    counts: impl Fn(&ObjectMeta) -> bool,
) -> Result<bool, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut pages = Pages::of(params);
    while let Some(found) = pages.metadata(api).await? {
        if found.iter().any(&counts) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
#[path = "left_tests.rs"]
mod tests;
