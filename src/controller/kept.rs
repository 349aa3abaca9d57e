//! What the leader's caches keep of the objects that it follows.
//!
//! There may be tens of thousands of each. As trees, with all that the API server notes in them, they would take ten
//! times the memory.

use crate::api::{Sandbox, SandboxRecord, TargetRef};
use crate::plan::key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;

/// A sandbox: what is looked up of it, and all else as text.
#[derive(Clone, Debug, Resource)]
#[resource(inherit = "Sandbox")]
pub struct KeptSandbox {
    /// What identifies it, and no more.
    pub metadata: ObjectMeta,
    /// A hash of its spec.
    pub spec_hash: String,
    text: Box<str>,
}

impl KeptSandbox {
    /// The sandbox as it is stored, but for who manages which of its fields.
    pub fn read(&self) -> serde_json::Result<Value> {
        serde_json::from_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for KeptSandbox {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let metadata = identity(&object["metadata"]).map_err(D::Error::custom)?;
        Ok(Self { metadata, spec_hash: key::hash(&object["spec"]), text: object.to_string().into() })
    }
}

/// A record: which target it is of, and which runs it owes.
#[derive(Clone, Debug, serde::Deserialize, Resource)]
#[resource(inherit = "SandboxRecord")]
pub struct KeptRecord {
    /// What identifies it, and no more.
    #[serde(deserialize_with = "identity")]
    pub metadata: ObjectMeta,
    pub spec: KeptRecordSpec,
}

#[derive(Clone, Debug, serde::Deserialize)]
pub struct KeptRecordSpec {
    pub target: TargetRef,
    #[serde(default)]
    pub owed: Option<KeptOwed>,
}

#[derive(Clone, Debug, serde::Deserialize)]
pub struct KeptOwed {
    pub deletion: bool,
    pub runs: Vec<KeptRun>,
}

#[derive(Clone, Debug, serde::Deserialize)]
pub struct KeptRun {
    pub key: String,
}

fn identity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
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
    let Identity { name, namespace, uid, resource_version, generation, deletion_timestamp } =
        Identity::deserialize(deserializer)?;
    Ok(ObjectMeta { name, namespace, uid, resource_version, generation, deletion_timestamp, ..ObjectMeta::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt;
    use serde_json::json;

    fn sandbox() -> Value {
        json!({
            "apiVersion": "sluice.dev/v1alpha1",
            "kind": "Sandbox",
            "metadata": {
                "name": "x", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 2,
                "labels": {"a": "b"}, "managedFields": [{"manager": "kubectl"}],
            },
            "spec": {"description": "mine"},
            "status": {"routingKey": "r"},
        })
    }

    #[test]
    fn a_kept_sandbox_is_the_stored_one_without_its_managers() {
        let kept: KeptSandbox = serde_json::from_value(sandbox()).unwrap();
        let mut whole = sandbox();
        whole["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(kept.read().unwrap(), whole);
        assert_eq!(kept.spec_hash, key::hash(&whole["spec"]));
        assert_eq!(
            (kept.name_any(), kept.namespace(), kept.uid()),
            ("x".into(), Some("shop".into()), Some("u".into()))
        );
        assert_eq!(kept.metadata.generation, Some(2));
        assert_eq!(kept.metadata.labels, None);
    }

    #[test]
    fn a_kept_record_tells_what_is_owed() {
        let target = json!({"apiVersion": "v", "kind": "Sandbox", "namespace": "shop", "name": "x", "uid": "u"});
        let owed =
            json!({"object": {}, "deletion": true, "runs": [{"key": "0123456789abcdef", "phase": "PostDelete"}]});
        let record = json!({"metadata": {"name": "u"}, "spec": {"target": target, "created": {}, "owed": owed}});
        let kept: KeptRecord = serde_json::from_value(record).unwrap();
        assert_eq!(kept.spec.target.to_string(), "shop/x");
        let owed = kept.spec.owed.unwrap();
        assert!(owed.deletion && owed.runs[0].key == "0123456789abcdef");
    }
}
