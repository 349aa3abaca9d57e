use super::{Phase, RunState, schema};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A temporary fork of some services of a shared cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "Sandbox",
    plural = "sandboxes",
    namespaced,
    status = "SandboxStatus",
    shortname = "sbx",
    category = "sluice",
    derive = "PartialEq",
    doc = "A temporary fork of some services of a shared cluster, with the resources that it depends on.",
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Phases", type_ = "string", json_path = r#".status.conditions[?(@.type=="PhasesComplete")].reason"#),
    printcolumn(name = "Routing Key", type_ = "string", json_path = ".status.routingKey"),
    printcolumn(name = "Message", type_ = "string", json_path = r#".status.conditions[?(@.type=="PhasesComplete")].message"#, priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message(Message::Expression("'metadata.name: ' + self.metadata.name + ' becomes part of the names of forks: must be a lower-case letter, then letters, digits and dashes, at most 63 bytes'".to_owned()))
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.forks) || self.forks.all(f, self.forks.exists_one(g, g.forkOf.kind == f.forkOf.kind && g.forkOf.name == f.forkOf.name))")
        .message("a workload is forked at most once in a sandbox: keep one of the forks of each kind and name").field_path(".forks")
)]
pub struct SandboxSpec {
    /// What the sandbox is for, in a sentence or a few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// Free to use; expressions see them as `sandbox.spec.labels`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::params")]
    pub labels: BTreeMap<String, String>,
    /// When the sandbox is deleted by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
    /// The workloads that are forked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub forks: Vec<Fork>,
    /// What the forks depend on, made by plugins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub resources: Vec<SandboxResource>,
}

/// How long a sandbox lives.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ttl {
    /// A whole number of minutes, hours, days or weeks: `90m`, `8h`, `3d`, `2w`.
    #[schemars(length(max = 32))]
    #[x_kube(validation = schema::matches("^[1-9][0-9]{0,5}[mhdw]$", "a whole number and one of m, h, d and w, as in 90m, 8h, 3d or 2w"))]
    pub duration: String,
    /// The moment that the time runs from; `createdAt` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset_from: Option<TtlOffset>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum TtlOffset {
    #[default]
    CreatedAt,
    UpdatedAt,
}

/// A workload of the sandbox's own namespace, copied and changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fork {
    /// The workload to copy.
    pub fork_of: ForkOf,
    /// What is different in the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customizations: Option<ForkCustomizations>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForkOf {
    /// Its kind, in `apps/v1`.
    pub kind: ForkedKind,
    /// Its name, in the sandbox's namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ForkedKind {
    #[default]
    Deployment,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForkCustomizations {
    /// Other images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub images: Vec<ImageOverride>,
    /// Environment variables, set or taken away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub env: Vec<EnvVar>,
    /// A patch of the forked workload, applied last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<Patch>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageOverride {
    /// The container; may be absent where the workload has one alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub container: Option<String>,
    /// The image that the container is given.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
}

#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.operation) && self.operation == 'delete' ? !has(self.value) && !has(self.valueFrom) : has(self.value) != has(self.valueFrom)")
        .message("an environment variable has either value or valueFrom; with operation: delete it has neither")
)]
pub struct EnvVar {
    /// The container; all of them where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub container: Option<String>,
    /// The variable.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = schema::matches("^[A-Za-z_][A-Za-z0-9_.-]*$", "a letter or _ first, then letters, digits, _, . and -"))]
    pub name: String,
    /// `upsert` (the default) or `delete`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<EnvOperation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    /// Its value, as it stands here.
    #[schemars(length(max = 32768))]
    pub value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EnvOperation {
    #[default]
    Upsert,
    Delete,
}

/// Where the value of an environment variable comes from.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.resource), has(self.configMap), has(self.secret)].filter(x, x).size() == 1")
        .message("valueFrom has exactly one source: resource, configMap or secret")
)]
pub struct EnvVarSource {
    /// An output of one of the sandbox's resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceOutputRef>,
    /// A key of a ConfigMap beside the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<KeySelector>,
    /// A key of a Secret beside the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeySelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOutputRef {
    /// A resource of this sandbox.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// `STEP.OUTPUT`, or the output's name alone where one step has it.
    #[schemars(length(min = 1, max = 61))]
    pub output_key: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeySelector {
    /// The object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in its data.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Patch {
    /// `merge` (RFC 7386) or `json` (RFC 6902).
    #[serde(rename = "type")]
    pub type_: PatchType,
    /// The patch, as YAML or JSON.
    #[schemars(length(min = 1, max = 65536))]
    pub value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PatchType {
    Merge,
    Json,
}

/// A resource of a sandbox: a plugin, and what it is told.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxResource {
    /// Unique within the sandbox.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = schema::matches("^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$", "letters, digits, - and _, a letter or digit first and last"))]
    pub name: String,
    /// `NAME`, `NAME@1.2.0`, or `NAME@latest`: the newest version at the time the resource joins, kept from then on.
    #[schemars(length(min = 1, max = 220))]
    #[x_kube(validation = schema::matches(
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(@(latest|v?[0-9]+(\.[0-9]+){0,2}([-+][0-9A-Za-z.+-]+)?))?$",
        "NAME, NAME@VERSION as in db@1.2.0, or NAME@latest"
    ))]
    pub plugin: String,
    /// What the plugin's inputs with `valueFromSandbox` and the expressions' `params` see.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::params")]
    pub params: BTreeMap<String, String>,
}

/// What Sluice has seen and done of a sandbox.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// The generation that the rest of the status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What requests to the sandbox are marked with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    /// `Ready`: every fork runs. `PhasesComplete`: every phase of the newest change has run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
    /// The last run of each phase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["phase".to_owned()]))]
    pub phases: Vec<PhaseSummary>,
}

/// A condition as the Kubernetes API conventions have it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What the condition is about.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, for a person.
    #[serde(default)]
    pub message: String,
    /// When the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_transition_time: Option<Time>,
    /// The generation that the condition speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// The last run of one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseSummary {
    pub phase: Phase,
    pub state: RunState,
    /// The name of the `PhaseRun`.
    pub run: String,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub finished_at: Option<MicroTime>,
    /// What happened, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
