use super::{Phase, Step, Workflow};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// How many phases may work with the plugin at once, all its versions and all of Sluice's replicas together; others
    /// wait for their turn. It bounds load and is no lock: for a moment there may be one more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_running: Option<u32>,
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
    /// The namespace of pods and of the service account: the chart's `runners.namespace.name` by default, or one of its
    /// `runnerNamespaces`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// The service account, in that namespace, that `apply` steps act as and pods run with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"))]
    pub service_account_name: Option<String>,
    /// A pod template, as YAML, merged over that of the pods by strategic merge. The container of scripts is `main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub pod_template_overlay: Option<String>,
    /// `Run` (the default): the scripts of a resource share a pod for a run. `Pod`: each try of a script has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// How many pods are kept ready. Each is used once, and another takes its place. None by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 20))]
    pub warm: Option<u32>,
}

/// What scripts share a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Isolation {
    #[default]
    Run,
    Pod,
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
