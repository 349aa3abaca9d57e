//! What the leader's caches keep of the objects that it follows.
//!
//! There may be tens of thousands of each, so what a reconcile needs beside it reads: that is as new as can be, too.

use crate::api::{Sandbox, SandboxRecord, TargetRef, labels, origin};
use crate::plan::cost::Weight;
use crate::plan::key;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::de::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A sandbox: which it is, whether its spec is another, and what it takes.
#[derive(Clone, Debug, serde::Deserialize, Resource)]
#[resource(inherit = "Sandbox")]
#[serde(from = "WholeSandbox")]
pub struct KeptSandbox {
    /// What identifies it, and no more.
    pub metadata: ObjectMeta,
    /// A hash of its spec.
    pub spec_hash: String,
    /// What the whole of it takes in memory, in bytes.
    pub weight: usize,
}

/// A record: which target it is of, which runs it owes, and what it takes.
#[derive(Clone, Debug, serde::Deserialize, Resource)]
#[resource(inherit = "SandboxRecord")]
pub struct KeptRecord {
    /// What identifies it, and whether Sluice wrote it in this cluster.
    #[serde(deserialize_with = "identity_and_origin")]
    pub metadata: ObjectMeta,
    pub spec: KeptRecordSpec,
}

impl KeptRecord {
    /// Whether Sluice wrote it in this cluster, as far as it tells itself while its sandbox is gone.
    pub fn is_own(&self) -> bool {
        self.metadata.annotations.is_none()
    }

    /// What the snapshots in it take in memory, in bytes.
    pub fn weight(&self) -> usize {
        let KeptRecordSpec { created, stored, settled, left, owed, .. } = &self.spec;
        let run = |run: &KeptRun| run.object.0 + run.old_object.0;
        let owed = owed.as_ref().map_or(0, |owed| owed.object.0 + owed.runs.iter().map(run).sum::<usize>());
        created.0 + stored.0 + settled.0 + left.0 + owed
    }
}

#[derive(Clone, Debug, serde::Deserialize)]
pub struct KeptRecordSpec {
    pub target: TargetRef,
    #[serde(default)]
    pub owed: Option<KeptOwed>,
    #[serde(default)]
    created: Weight,
    #[serde(default)]
    stored: Weight,
    #[serde(default)]
    settled: Weight,
    #[serde(default)]
    left: Weight,
}

#[derive(Clone, Debug, serde::Deserialize)]
pub struct KeptOwed {
    pub deletion: bool,
    pub runs: Vec<KeptRun>,
    #[serde(default)]
    object: Weight,
}

#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptRun {
    pub key: String,
    #[serde(default)]
    object: Weight,
    #[serde(default)]
    old_object: Weight,
}

/// A sandbox as it is read.
#[derive(serde::Deserialize)]
struct WholeSandbox {
    metadata: WholeMetadata,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Weight,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct WholeMetadata {
    #[serde(flatten)]
    identity: Identity,
    #[serde(default)]
    labels: Weight,
    #[serde(default)]
    annotations: Weight,
    #[serde(default)]
    owner_references: Weight,
    #[serde(default)]
    managed_fields: Weight,
}

impl From<WholeSandbox> for KeptSandbox {
    fn from(WholeSandbox { metadata, spec, status }: WholeSandbox) -> Self {
        let WholeMetadata { identity, labels, annotations, owner_references, managed_fields } = metadata;
        let Weight(weight) = Weight::deserialize(&spec).unwrap_or_default();
        let beside = [status, labels, annotations, owner_references, managed_fields];
        Self {
            metadata: identity.into(),
            spec_hash: key::hash(&spec),
            weight: beside.iter().fold(weight, |sum, Weight(weight)| sum + weight),
        }
    }
}

/// A fork: which it is, whose, and how far it has come.
#[derive(Clone, Debug, serde::Deserialize, Resource)]
#[resource(inherit = "Deployment")]
pub struct KeptFork {
    /// What identifies it and the sandboxes that own it, and no more.
    #[serde(deserialize_with = "identity_and_owners")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: KeptForkSpec,
    #[serde(default)]
    pub status: Option<DeploymentStatus>,
}

#[derive(Clone, Debug, Default, serde::Deserialize)]
pub struct KeptForkSpec {
    pub replicas: Option<i32>,
}

/// A Service: whether it leads to a baseline, and what a fork's has of it.
#[derive(Clone, Debug, serde::Deserialize, Resource)]
#[resource(inherit = "Service")]
pub struct KeptService {
    /// Its name, and the label of a fork's where it has one.
    #[serde(deserialize_with = "name_and_sandbox")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: KeptServiceSpec,
}

/// Texts of JSON, because they can take a hundred times as much as values.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptServiceSpec {
    pub selector: Option<Box<RawValue>>,
    pub ports: Option<Box<RawValue>>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
}

fn identity_and_owners<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut metadata = ObjectMeta::deserialize(deserializer)?;
    let mut owner_references = metadata.owner_references.take();
    owner_references.iter_mut().for_each(|owners| owners.retain(|owner| owner.kind == Sandbox::kind(&())));
    Ok(ObjectMeta { owner_references, ..identity(metadata) })
}

/// What identifies an object and its state, and nothing else of its metadata.
fn identity(metadata: ObjectMeta) -> ObjectMeta {
    let ObjectMeta { name, namespace, uid, resource_version, generation, deletion_timestamp, .. } = metadata;
    ObjectMeta { name, namespace, uid, resource_version, generation, deletion_timestamp, ..ObjectMeta::default() }
}

fn name_and_sandbox<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(serde::Deserialize)]
    struct Named {
        name: Option<String>,
        #[serde(default)]
        labels: Labels,
    }
    #[derive(Default, serde::Deserialize)]
    struct Labels {
        #[serde(rename = "sluice.dev/sandbox-uid")]
        sandbox_uid: Option<String>,
    }
    let Named { name, labels } = Named::deserialize(deserializer)?;
    let labels = labels.sandbox_uid.map(|uid| BTreeMap::from([(labels::SANDBOX_UID.to_owned(), uid)]));
    Ok(ObjectMeta { name, labels, ..ObjectMeta::default() })
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    deletion_timestamp: Option<Time>,
}

impl From<Identity> for ObjectMeta {
    fn from(identity: Identity) -> Self {
        let Identity { name, namespace, uid, resource_version, generation, deletion_timestamp } = identity;
        Self { name, namespace, uid, resource_version, generation, deletion_timestamp, ..Self::default() }
    }
}

/// What identifies a record, and an annotation where the record is not one of this cluster.
fn identity_and_origin<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let metadata = ObjectMeta::deserialize(deserializer)?;
    let annotations = (!origin::is_own_record(&metadata, false)).then(BTreeMap::new);
    Ok(ObjectMeta { annotations, ..identity(metadata) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt;
    use serde_json::json;

    #[test]
    fn a_kept_sandbox_tells_which_it_is_and_what_its_spec_is() {
        let sandbox = json!({
            "apiVersion": "sluice.dev/v1alpha1",
            "kind": "Sandbox",
            "metadata": {
                "name": "x", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 2,
                "labels": {"a": "b"}, "managedFields": [{"manager": "kubectl"}],
            },
            "spec": {"description": "mine"},
            "status": {"routingKey": "r"},
        });
        let kept: KeptSandbox = serde_json::from_value(sandbox.clone()).unwrap();
        assert_eq!(kept.spec_hash, key::hash(&sandbox["spec"]));
        assert_eq!(
            (kept.name_any(), kept.namespace(), kept.uid()),
            ("x".into(), Some("shop".into()), Some("u".into()))
        );
        assert_eq!((kept.metadata.generation, kept.metadata.labels), (Some(2), None));
        let spec = serde_json::json!({"description": "mine"}).to_string();
        assert!(kept.weight > crate::plan::cost::of(spec.as_bytes()).objects, "{}", kept.weight);
    }

    #[test]
    fn a_kept_record_tells_what_is_owed() {
        let target = json!({"apiVersion": "v", "kind": "Sandbox", "namespace": "shop", "name": "x", "uid": "u"});
        let owed =
            json!({"object": {}, "deletion": true, "runs": [{"key": "0123456789abcdef", "phase": "PostDelete"}]});
        let created = json!({"spec": {"description": "x".repeat(10_000)}});
        let record = json!({"metadata": {"name": "u"}, "spec": {"target": target, "created": created, "owed": owed}});
        let kept: KeptRecord = serde_json::from_value(record).unwrap();
        assert_eq!(kept.spec.target.to_string(), "shop/x");
        assert!((10_000..20_000).contains(&kept.weight()), "{}", kept.weight());
        let owed = kept.spec.owed.unwrap();
        assert!(owed.deletion && owed.runs[0].key == "0123456789abcdef");
    }
}
