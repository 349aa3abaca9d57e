use super::{FailurePolicy, Phase, Runner, Step, schema};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// One execution of one phase of one change.
///
/// The spec is everything that the run needs, written before the first step runs and never again; the status is the
/// truth about progress, so that any replica can go on from it.
#[expect(clippy::duplicated_attributes, reason = "the columns are like each other")]
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "PhaseRun",
    status = "PhaseRunStatus",
    shortname = "pr",
    category = "sluice",
    derive = "PartialEq",
    doc = "One execution of one phase of one change of a sandbox. Written by Sluice alone.",
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.target.namespace"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.target.name"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".spec.phase"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Started", type_ = "date", json_path = ".status.startedAt"),
    printcolumn(name = "Finished", type_ = "date", json_path = ".status.finishedAt"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "By", type_ = "string", json_path = ".spec.requestedBy", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("the spec of a run never changes"))]
pub struct PhaseRunSpec {
    pub phase: Phase,
    pub target: TargetRef,
    /// Identifies the change, over every attempt to make it: a hash of target, operation, new spec and workflows.
    #[schemars(length(min = 16, max = 64))]
    pub key: String,
    /// Counts the runs of one key, from 1.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// The user whose request began the run; absent for a phase that Sluice began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// The routing key of the sandbox: chosen here for one that does not exist yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    /// The run whose effects this one undoes, because its change was never stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensates: Option<String>,
    /// The time limit of the run, in seconds.
    #[schemars(range(min = 1))]
    pub timeout_seconds: u32,
    /// The resources whose workflows are run, each with all that is needed for it.
    #[schemars(length(max = 64))]
    pub resources: Vec<RunResource>,
    /// The target as it is to be, or as it is now where the change deletes it.
    #[schemars(schema_with = "schema::any_object")]
    pub object: Value,
    /// The target as it was before the change; null for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::optional_object")]
    pub old_object: Option<Value>,
}

impl PhaseRunSpec {
    /// The target before and after the change; none before a create and after a delete.
    pub fn old_and_new(&self) -> (Option<&Value>, Option<&Value>) {
        match self.phase {
            Phase::PreDelete | Phase::PostDelete => (Some(&self.object), None),
            _ => (self.old_object.as_ref(), Some(&self.object)),
        }
    }
}

/// What a run is about. The engine knows no more of a kind than this.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    /// Group and version of the target.
    pub api_version: String,
    /// The kind of the target.
    pub kind: String,
    /// The namespace of the target.
    pub namespace: String,
    /// The name of the target.
    pub name: String,
    /// Not final in a pre-create run: each attempt of a create brings another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl fmt::Display for TargetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A resource of the target with its plugin as it was when the run was written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunResource {
    /// Its name in the target.
    pub name: String,
    /// The `ResourcePlugin`, its version included.
    pub plugin: String,
    #[serde(default)]
    pub runner: Runner,
    /// What the target told it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::params")]
    pub params: BTreeMap<String, String>,
    /// Whether its failure denies the change.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// How many runs may work with the plugin at once, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// The time limit of this resource's workflow, in seconds.
    #[serde(default)]
    pub timeout_seconds: u32,
    /// Where the plugin keeps pods ready: the folders of the files of all its scripts, for which every pod has volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folders: Option<Vec<String>>,
    /// Its workflow for this phase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::any_objects")]
    pub steps: Vec<Step>,
    /// Whether every object that the resource applied is deleted after its steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delete_applied: bool,
    /// What undoes this resource's part of a pre-create whose sandbox is never stored: the post-delete workflow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::any_objects")]
    pub undo: Vec<Step>,
    /// What undoes this resource's part of a pre-phase in place of all else: the plugin's own `abandoned` workflow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::any_objects")]
    pub abandoned: Vec<Step>,
    /// Whether the target has a resource of this name by another plugin: only what this one applied is deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares_name: bool,
    /// The phase that the steps undo, where they are those of `abandoned`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<Phase>,
}

/// Where a run stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseRunStatus {
    #[serde(default)]
    pub state: RunState,
    /// The replica's process that runs the steps. Another takes over where it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// How often another process took the run over since a step of it ended. It is given up after ten times.
    #[serde(default)]
    pub takeovers: u32,
    /// When its first step began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub started_at: Option<MicroTime>,
    /// When its last step ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub finished_at: Option<MicroTime>,
    /// What happened, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The request that was let through on the strength of this run, the last one where there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted: Option<Admitted>,
    /// Other requests that were let through, until it is known which one was stored: two creates of one sandbox at the
    /// same time have a UID each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub also_admitted: Vec<Admitted>,
    /// When a client was told of the failure: it is told once, the next request is a new attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub reported_at: Option<MicroTime>,
    /// The run that undoes this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensated_by: Option<String>,
    /// Where each step stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepStatus>,
}

/// The life of a run.
///
/// `Pending` and `Running` are open. A pre-phase that `Succeeded` waits for its change to be stored: it ends
/// `Committed`, or `Abandoned` where the change never was, and `Compensated` once that has been undone. For a
/// post-phase `Succeeded` is the end. `Inert` is a run that Sluice did not write in this cluster, as one that was
/// restored from a backup: nothing is done for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RunState {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    Committed,
    Abandoned,
    Compensated,
    Inert,
}

impl RunState {
    /// Whether steps may still run.
    pub const fn is_open(self) -> bool {
        matches!(self, RunState::Pending | RunState::Running)
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A request that was let through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Admitted {
    /// The UID that the object has if it is stored.
    pub uid: String,
    /// The generation that it has then.
    pub generation: i64,
    /// When.
    #[schemars(schema_with = "schema::time")]
    pub at: Option<MicroTime>,
}

/// Where a step stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepStatus {
    /// The resource whose step it is.
    pub resource: String,
    /// The step.
    pub step: String,
    /// What kind of action it has.
    pub kind: StepKind,
    /// Where it stands.
    pub state: StepState,
    /// Counts the tries of this step, from 1.
    #[serde(default)]
    pub attempt: u32,
    /// When this try began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub started_at: Option<MicroTime>,
    /// When the step ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub finished_at: Option<MicroTime>,
    /// Whether its failure changes nothing: the step says `continueOnError`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tolerated: bool,
    /// What a script ended with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it failed or was skipped, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The end of what a script printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// The names of the outputs that are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// The objects that the step keeps, written down before they are applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied: Vec<ObjectRef>,
}

impl StepStatus {
    /// Whether the run fails by it.
    pub fn has_failed(&self) -> bool {
        self.state == StepState::Failed && !self.tolerated
    }
}

/// An object that an `apply` step keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Its group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; absent where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum StepKind {
    #[default]
    Script,
    Apply,
    Delete,
    Wait,
    Http,
    /// Deletes what the resource's `apply` steps made; the last step of a resource that leaves.
    DeleteApplied,
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Script => "script",
            Self::Apply => "apply",
            Self::Delete => "delete",
            Self::Wait => "wait",
            Self::Http => "http",
            Self::DeleteApplied => "deleteApplied",
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StepState {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Not run: its `when` was false, or the run had failed before its turn.
    Skipped,
}

impl StepState {
    pub const fn is_ended(self) -> bool {
        !matches!(self, StepState::Pending | StepState::Running)
    }
}
