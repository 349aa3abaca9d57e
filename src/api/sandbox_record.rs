use super::{PhaseRunSpec, SandboxResource, TargetRef, schema};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What must outlive a sandbox, named after its UID: what was last settled and what is still owed.
#[expect(clippy::duplicated_attributes, reason = "the columns are like each other")]
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "SandboxRecord",
    shortname = "sbr",
    category = "sluice",
    derive = "PartialEq",
    doc = "What must outlive a sandbox, so that its last phases run though it is gone. Written by Sluice alone.",
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.target.namespace"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.target.name"),
    printcolumn(name = "Owed", type_ = "string", json_path = ".spec.owed.runs[*].phase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRecordSpec {
    pub target: TargetRef,
    /// The routing key, before and after it is in the sandbox's status.
    pub routing_key: String,
    /// The target as it was first seen; post-create is run for it.
    #[schemars(schema_with = "schema::any_object")]
    pub created: Value,
    /// The target as it is stored, as far as was seen.
    #[schemars(schema_with = "schema::any_object")]
    pub stored: Value,
    /// When the stored spec was last seen to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub updated_at: Option<MicroTime>,
    /// The target for which every phase has run; null before post-create has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_object")]
    pub settled: Option<Value>,
    /// Resources that joined or left between two settled states, and whose post-delete is still to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::any_objects")]
    pub left: Vec<SandboxResource>,
    /// The post-phases that are being run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owed: Option<OwedPhases>,
}

/// Post-phases of one settled change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwedPhases {
    /// What becomes `settled` when all have ended; the target as it was last where it is gone.
    #[schemars(schema_with = "schema::any_object")]
    pub object: Value,
    /// Whether they are those of the target's deletion.
    #[serde(default)]
    pub deletion: bool,
    /// The runs, in order, each begun when the one before has ended.
    #[schemars(schema_with = "schema::any_objects")]
    pub runs: Vec<PhaseRunSpec>,
}
