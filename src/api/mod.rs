//! The custom resources of the group `sluice.dev`, and what a schema alone can say about them.
//!
//! Everything here is data: no client, no clock. The schemas that the API server enforces are generated from these
//! types by [`crds`]; rules that need more than one object are the webhook's.

mod action;
pub mod crds;
pub mod labels;
pub mod origin;
mod phase;
mod phase_run;
mod resource_plugin;
mod sandbox;
mod sandbox_record;
mod schema;
mod step;

pub use action::{Apply, Delete, Http, HttpHeader, HttpMethod, ObjectTemplate, Wait};
pub use phase::{Phase, Workflow};
pub use phase_run::{
    Admitted, ObjectRef, PhaseRun, PhaseRunSpec, PhaseRunStatus, RunResource, RunState, StepKind, StepState,
    StepStatus, TargetRef,
};
pub use resource_plugin::{
    FailurePolicy, Isolation, PhaseSettings, PhasesSettings, ResourcePlugin, ResourcePluginSpec, Runner,
};
pub use sandbox::{
    Condition, EnvOperation, EnvVar, EnvVarSource, Fork, ForkCustomizations, ForkOf, ForkedKind, ImageOverride,
    KeySelector, Patch, PatchType, PhaseSummary, ResourceOutputRef, Sandbox, SandboxResource, SandboxSpec,
    SandboxStatus, Ttl, TtlOffset,
};
pub use sandbox_record::{OwedPhases, SandboxRecord, SandboxRecordSpec};
pub use step::{Input, InputAs, KeyRef, Output, Step, StepOutputRef};

/// The API group of every kind of ours.
pub const GROUP: &str = "sluice.dev";
/// The one version served.
pub const VERSION: &str = "v1alpha1";
/// `group/version`, as it stands in `apiVersion`.
pub const API_VERSION: &str = "sluice.dev/v1alpha1";
