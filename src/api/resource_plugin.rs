use super::{Phase, Workflow, schema};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The names of steps and outputs, which stand in expressions, labels and the keys of Secrets.
const NAME: &str = "^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$";
const NAME_IS: &str = "letters, digits, - and _, a letter or digit first and last";
/// Files of scripts: never in the root folder, never hidden.
const FILE: &str = "^(/[A-Za-z0-9_-][A-Za-z0-9_.-]*){2,}$";
const FILE_IS: &str = "an absolute path at least two levels deep, as in /out/file, of letters, digits, _, - and .";

/// What a resource is made of: a runner and a workflow for each of the six phases.
///
/// `NAME` may be edited; `NAME.1.2.0` is version 1.2.0 of it and never changes.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "ResourcePlugin",
    shortname = "rp",
    category = "sluice",
    derive = "PartialEq",
    doc = "A plugin makes what a sandbox depends on: a workflow for each of the six phases of its life.",
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.runner.image"),
    printcolumn(name = "Service Account", type_ = "string", json_path = ".spec.runner.serviceAccountName", priority = 1),
    printcolumn(name = "Description", type_ = "string", json_path = ".spec.description"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 200").message("metadata.name: a plugin's name has at most 200 bytes, its version included")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.create) && has(self.preCreate))")
        .message("create is another name of preCreate: keep only one of the two").field_path(".create"),
    validation = Rule::new("!(has(self.delete) && has(self.postDelete))")
        .message("delete is another name of postDelete: keep only one of the two").field_path(".delete"),
    validation = Rule::new("[has(self.preCreate), has(self.postCreate), has(self.preUpdate), has(self.postUpdate), has(self.preDelete), has(self.postDelete), has(self.create), has(self.delete)].exists(x, x)")
        .message("a plugin needs a workflow: preCreate, postCreate, preUpdate, postUpdate, preDelete or postDelete (create and delete are other names of preCreate and postDelete)")
)]
pub struct ResourcePluginSpec {
    /// What the plugin is for, in a sentence or a few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// Where scripts run and who `apply` acts as.
    #[serde(default)]
    pub runner: Runner,
    /// Settings of single phases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<PhasesSettings>,
    /// Runs before a sandbox is created, or the resource joins it. A failure denies the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub pre_create: Option<Vec<Step>>,
    /// Runs once the created sandbox is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub post_create: Option<Vec<Step>>,
    /// Runs before a change of the sandbox's spec is stored. A failure denies the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub pre_update: Option<Vec<Step>>,
    /// Runs once the changed sandbox is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub post_update: Option<Vec<Step>>,
    /// Runs before the sandbox is deleted, or the resource leaves it. A failure denies the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub pre_delete: Option<Vec<Step>>,
    /// Runs once the sandbox and its forks are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub post_delete: Option<Vec<Step>>,
    /// Undoes a pre-phase whose change was not stored, in place of what does by default (`postDelete` after a
    /// pre-create, `preUpdate` towards what is stored after a pre-update, nothing after a pre-delete). `phase` and
    /// `SLUICE_PHASE` tell which one it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub abandoned: Option<Vec<Step>>,
    /// Another name of `preCreate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub create: Option<Vec<Step>>,
    /// Another name of `postDelete`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub delete: Option<Vec<Step>>,
}

impl ResourcePluginSpec {
    /// The field that holds a workflow (`create` for pre-create where that name is used), and its steps.
    pub fn workflow_field(&self, workflow: Workflow) -> (&'static str, &[Step]) {
        let Workflow::Of(phase) = workflow else { return ("abandoned", self.abandoned.as_deref().unwrap_or_default()) };
        let (named, other) = match phase {
            Phase::PreCreate => (&self.pre_create, Some(("create", &self.create))),
            Phase::PostCreate => (&self.post_create, None),
            Phase::PreUpdate => (&self.pre_update, None),
            Phase::PostUpdate => (&self.post_update, None),
            Phase::PreDelete => (&self.pre_delete, None),
            Phase::PostDelete => (&self.post_delete, Some(("delete", &self.delete))),
        };
        match (named, other) {
            (Some(steps), _) => (phase.field(), steps),
            (None, Some((field, Some(steps)))) => (field, steps),
            _ => (phase.field(), &[]),
        }
    }

    /// The steps of a workflow; none where the plugin does not have it.
    pub fn steps(&self, workflow: Workflow) -> &[Step] {
        self.workflow_field(workflow).1
    }

    /// The workflow of `phase`; empty where the plugin has none.
    pub fn workflow(&self, phase: Phase) -> &[Step] {
        self.steps(Workflow::Of(phase))
    }

    /// The settings of `phase`, defaults where the plugin says nothing.
    pub fn settings(&self, phase: Phase) -> PhaseSettings {
        let Some(phases) = &self.phases else { return PhaseSettings::default() };
        match phase {
            Phase::PreCreate => &phases.pre_create,
            Phase::PostCreate => &phases.post_create,
            Phase::PreUpdate => &phases.pre_update,
            Phase::PostUpdate => &phases.post_update,
            Phase::PreDelete => &phases.pre_delete,
            Phase::PostDelete => &phases.post_delete,
        }
        .clone()
        .unwrap_or_default()
    }
}

/// Where the scripts of a plugin run, and who its `apply` steps act as.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Runner {
    /// The image of `script` steps. Needs nothing but the interpreters of the scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// The namespace of pods and of the service account; one of the chart's `runnerNamespaces`. Sluice's own by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// The service account, in that namespace, that `apply` steps act as and pods run with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"))]
    pub service_account_name: Option<String>,
}

/// Settings by phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhasesSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_create: Option<PhaseSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_create: Option<PhaseSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_update: Option<PhaseSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_update: Option<PhaseSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_delete: Option<PhaseSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_delete: Option<PhaseSettings>,
}

/// How long a phase may take and what its failure means.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseSettings {
    /// The time limit of the phase, in seconds. 300 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1800))]
    pub timeout_seconds: Option<u32>,
    /// `Fail` (the default) denies the change when the phase fails, `Ignore` admits it with a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    #[default]
    Fail,
    Ignore,
}

/// One step of a workflow: what it needs, what it gives, and exactly one action.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.script), has(self.apply)].filter(x, x).size() == 1")
        .message("a step has exactly one action: script or apply"),
    validation = Rule::new("!has(self.apply) || !has(self.outputs)")
        .message("only a script has outputs").field_path(".outputs"),
    validation = Rule::new("!has(self.apply) || !has(self.inputs)")
        .message("an apply step reads its values in expressions, as ${params.NAME} or ${steps.STEP.OUTPUT}; inputs are for scripts").field_path(".inputs")
)]
pub struct Step {
    /// Unique within its phase. An `apply` step of the same name in another phase keeps the same set of objects.
    #[schemars(length(min = 1, max = 30))]
    #[x_kube(validation = schema::matches(NAME, NAME_IS))]
    pub name: String,
    /// An expression; the step is skipped where it is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub when: Option<String>,
    /// Steps of the same phase that must have ended before, though this one reads nothing of theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 30)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub needs: Vec<String>,
    /// What the script is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub inputs: Vec<Input>,
    /// Files that the script leaves, kept for later steps, later phases and forks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub outputs: Vec<Output>,
    /// The time limit of one attempt, in seconds. The phase's by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1800))]
    pub timeout_seconds: Option<u32>,
    /// How often a failed step is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10))]
    pub retries: Option<u32>,
    /// A script, run in a pod of the runner's image; it begins with `#!`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 131072))]
    #[x_kube(validation = Rule::new("self.startsWith('#!')").message("must begin with #! and the interpreter, as in #!/bin/sh"))]
    pub script: Option<String>,
    /// Objects, written with server-side apply as the runner's service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<Apply>,
}

/// A value that a script is given, from exactly one source.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.valueFromSandbox) && self.valueFromSandbox, has(self.valueFromStep), has(self.value)].filter(x, x).size() == 1")
        .message("an input has exactly one source: valueFromSandbox: true, valueFromStep or value")
)]
pub struct Input {
    /// The name of the parameter, and of the environment variable (in capitals, `-` as `_`) where `as` names none.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = schema::matches("^[A-Za-z_][A-Za-z0-9_.-]*$", "a letter or _ first, then letters, digits, _, . and -"))]
    pub name: String,
    /// Unused; kept for files that have it.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub type_: Option<String>,
    /// The sandbox's parameter of this name; empty where the sandbox gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from_sandbox: Option<bool>,
    /// An output of another step, of this phase or an earlier one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from_step: Option<StepOutputRef>,
    /// An expression. What is not a string is given as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub value: Option<String>,
    /// Where the script finds the value.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    pub as_: Option<InputAs>,
}

/// An output of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepOutputRef {
    /// The step.
    #[schemars(length(min = 1, max = 30))]
    pub name: String,
    /// Its output.
    #[schemars(length(min = 1, max = 30))]
    pub output: String,
}

/// Where a script finds an input: an environment variable, a file, or both.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.env) || has(self.path)").message("as needs env, path or both"))]
pub struct InputAs {
    /// The name of an environment variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = schema::matches("^[A-Za-z_][A-Za-z0-9_]*$", "the name of a variable: a letter or _ first, then letters, digits and _"))]
    pub env: Option<String>,
    /// The absolute path of a file, two levels deep at least: `/in/size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    #[x_kube(validation = schema::matches(FILE, FILE_IS))]
    pub path: Option<String>,
}

/// A file that a script leaves.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Unique within its step; read as `steps.STEP.NAME`, and as `STEP.NAME` in a fork's `outputKey`.
    #[schemars(length(min = 1, max = 30))]
    #[x_kube(validation = schema::matches(NAME, NAME_IS))]
    pub name: String,
    /// Unused; kept for files that have it.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub type_: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    /// What the value is, in a sentence or a few.
    #[schemars(length(max = 1024))]
    pub description: Option<String>,
    /// The absolute path of the file, two levels deep at least: `/out/host`.
    #[schemars(length(max = 255))]
    #[x_kube(validation = schema::matches(FILE, FILE_IS))]
    pub value_from_path: String,
}

/// Objects that a resource keeps in the cluster. Those that it made before and no longer makes are pruned, and all
/// are deleted with the resource.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.as) || has(self.forEach)")
        .message("as names the item of forEach: give forEach too").field_path(".as")
)]
pub struct Apply {
    /// An expression that gives a list; the manifests are written once for each of its items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub for_each: Option<String>,
    /// The name of the item in the manifests' expressions, `item` by default.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 30))]
    #[x_kube(validation = schema::matches("^[a-z_][A-Za-z0-9_]*$", "a variable of expressions: a small letter or _ first, then letters, digits and _"))]
    pub as_: Option<String>,
    /// Whole objects; `${…}` in their strings is an expression.
    #[schemars(schema_with = "schema::manifests")]
    pub manifests: Vec<Value>,
}
