//! Which phases a change runs, for which resources: the table of `docs/design.md`, "Which phases a change runs".

use super::plugins::{Plugins, ResolveError, Resolved};
use super::{key, order};
use crate::api::{
    Phase, PhaseRunSpec, ResourcePluginSpec, RunResource, Runner, SandboxResource, TargetRef, Workflow, labels,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The time limit of a phase that names none, in seconds.
pub const DEFAULT_TIMEOUT_SECONDS: u32 = 300;

/// A change of one object, as whole objects. Nothing but `metadata` and `spec` counts.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    Create { new: &'a Value },
    Update { old: &'a Value, new: &'a Value },
    Delete { old: &'a Value },
}

/// Which half of a change's phases is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before the change is admitted.
    Pre,
    /// After it has settled.
    Post,
}

/// One run that a change asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRun {
    pub phase: Phase,
    pub key: String,
    pub target: TargetRef,
    pub timeout_seconds: u32,
    pub resources: Vec<RunResource>,
    pub object: Value,
    pub old_object: Option<Value>,
}

/// Why a change cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("spec.resources[{index}].plugin: {source}")]
    Plugin { index: usize, source: ResolveError },
    #[error("spec.resources: {0}")]
    Shape(#[from] serde_json::Error),
}

impl Change<'_> {
    /// The object that the change is of: the new one, or the one that goes.
    pub fn object(&self) -> &Value {
        match self {
            Change::Create { new } | Change::Update { new, .. } => new,
            Change::Delete { old } => old,
        }
    }

    /// Whether phases may run for it at all: not for a change of metadata or status alone, nor before one of what is
    /// being deleted. After a deletion they do, and what was stored last is an object on its way out wherever a
    /// finalizer kept it for a while.
    pub fn counts(&self, side: Side) -> bool {
        match self {
            Change::Update { old, new } => {
                old["spec"] != new["spec"]
                    && old["metadata"]["deletionTimestamp"].is_null()
                    && new["metadata"]["deletionTimestamp"].is_null()
            }
            Change::Delete { old } => side == Side::Post || old["metadata"]["deletionTimestamp"].is_null(),
            Change::Create { .. } => true,
        }
    }
}

/// The runs of `side` of `change`, in the order in which they run; none where nothing is to be done.
///
/// What can be undone comes first and what cannot last: pre-create of resources that join, pre-update of those that
/// stay, pre-delete of those that leave; only for a resource whose plugin changes does the old one leave before the
/// new one joins.
pub fn plan(change: Change<'_>, side: Side, plugins: &Plugins) -> Result<Vec<PlannedRun>, PlanError> {
    if !change.counts(side) {
        return Ok(Vec::new());
    }
    let (old, new) = match change {
        Change::Create { new } => (Vec::new(), resources(new, plugins)?),
        Change::Update { old, new } => (resources(old, plugins)?, resources(new, plugins)?),
        Change::Delete { old } => (resources(old, plugins)?, Vec::new()),
    };
    let in_old = |r: &Planned| old.iter().find(|o| o.declared.name == r.declared.name);
    let in_new = |r: &Planned| new.iter().find(|n| n.declared.name == r.declared.name);
    let same = |a: &Planned, b: &Planned| a.plugin.name == b.plugin.name;

    let joining = new.iter().filter(|r| in_old(r).is_none());
    let staying = new.iter().filter(|r| in_old(r).is_some_and(|o| same(o, r)));
    let leaving = old.iter().filter(|r| !in_new(r).is_some_and(|n| same(n, r)));
    let replacing = new.iter().filter(|r| in_old(r).is_some_and(|o| !same(o, r)));

    let (create, update, delete) = match side {
        Side::Pre => (Phase::PreCreate, Phase::PreUpdate, Phase::PreDelete),
        Side::Post => (Phase::PostCreate, Phase::PostUpdate, Phase::PostDelete),
    };
    let stages = [
        stage(change, create, joining),
        stage(change, update, staying),
        stage(change, delete, leaving),
        stage(change, create, replacing),
    ];
    Ok(stages.into_iter().flatten().collect())
}

/// The runs of `side` of the deletion of an object, of those of its resources whose plugins are known; and why the others
/// have none. One that nobody can plan keeps no other from its phase.
pub fn plan_deletion(old: &Value, side: Side, plugins: &Plugins) -> (Vec<PlannedRun>, Vec<PlanError>) {
    let change = Change::Delete { old };
    if !change.counts(side) {
        return (Vec::new(), Vec::new());
    }
    let latest = latest(old);
    let (mut planned, mut failed) = (Vec::new(), Vec::new());
    for (index, declared) in declared_each(old).into_iter().enumerate() {
        match declared.map_err(PlanError::Shape).and_then(|declared| resource(index, declared, &latest, plugins)) {
            Ok(resource) => planned.push(resource),
            Err(error) => failed.push(error),
        }
    }
    let phase = if side == Side::Pre { Phase::PreDelete } else { Phase::PostDelete };
    (stage(change, phase, planned.iter()).into_iter().collect(), failed)
}

/// A resource as the object declares it and the plugin that it means.
struct Planned {
    declared: SandboxResource,
    plugin: Resolved,
}

fn resources(object: &Value, plugins: &Plugins) -> Result<Vec<Planned>, PlanError> {
    let latest = latest(object);
    declared(object)?
        .into_iter()
        .enumerate()
        .map(|(index, declared)| resource(index, declared, &latest, plugins))
        .collect()
}

fn resource(
    index: usize,
    declared: SandboxResource,
    latest: &BTreeMap<String, String>,
    plugins: &Plugins,
) -> Result<Planned, PlanError> {
    let plugin = plugins
        .resolve(&declared.plugin, latest.get(&declared.name).map(String::as_str))
        .map_err(|source| PlanError::Plugin { index, source })?;
    Ok(Planned { declared, plugin })
}

/// The resources that an object declares.
pub fn declared(object: &Value) -> Result<Vec<SandboxResource>, serde_json::Error> {
    match &object["spec"]["resources"] {
        Value::Null => Ok(Vec::new()),
        list => serde::Deserialize::deserialize(list),
    }
}

/// The same one by one, for who makes do with those that can be read.
pub fn declared_each(object: &Value) -> Vec<Result<SandboxResource, serde_json::Error>> {
    let list = object["spec"]["resources"].as_array().map_or(&[][..], Vec::as_slice);
    list.iter().map(serde::Deserialize::deserialize).collect()
}

/// What each `@latest` of the object was found to stand for, by resource. A garbled annotation counts as none.
pub fn latest(object: &Value) -> BTreeMap<String, String> {
    object["metadata"]["annotations"][labels::LATEST]
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// A resource whose `@latest` the mutating webhook has not noted the meaning of.
pub fn unpinned(object: &Value) -> Option<String> {
    let latest = latest(object);
    let declared = declared(object).unwrap_or_default();
    declared.into_iter().find(|r| r.plugin.ends_with("@latest") && !latest.contains_key(&r.name)).map(|r| r.name)
}

fn stage<'a>(change: Change<'_>, phase: Phase, of: impl Iterator<Item = &'a Planned>) -> Option<PlannedRun> {
    let resources: Vec<RunResource> = of.filter_map(|r| run_resource(r, phase)).collect();
    if resources.is_empty() {
        return None;
    }
    let mut object = snapshot(change.object());
    // Every attempt of a create brings another UID and moment; a run that many attempts join knows none.
    if let (Change::Create { .. }, true, Some(metadata)) =
        (change, phase.is_pre(), object.get_mut("metadata").and_then(Value::as_object_mut))
    {
        metadata.remove("uid");
        metadata.remove("creationTimestamp");
    }
    let target = target(&object);
    let timeout_seconds = resources.iter().map(|r| r.timeout_seconds).max().unwrap_or(DEFAULT_TIMEOUT_SECONDS);
    let old_object = match change {
        Change::Update { old, .. } => Some(snapshot(old)),
        Change::Create { .. } | Change::Delete { .. } => None,
    };
    let deletes = matches!(change, Change::Delete { .. });
    let key = key::key(phase, &target, &object, deletes, &resources);
    Some(PlannedRun { phase, key, target, timeout_seconds, resources, object, old_object })
}

/// The folders of the files of all scripts of a plugin that keeps pods ready: one of them must do for any of its phases.
pub fn warm_folders(spec: &ResourcePluginSpec) -> Option<BTreeSet<String>> {
    spec.runner.warm.filter(|warm| *warm > 0)?;
    let steps = Workflow::ALL.into_iter().flat_map(|workflow| spec.steps(workflow));
    Some(order::folders(steps))
}

fn run_resource(planned: &Planned, phase: Phase) -> Option<RunResource> {
    let spec = &planned.plugin.spec;
    let applies = Workflow::ALL.iter().any(|w| spec.steps(*w).iter().any(|step| step.apply.is_some()));
    let delete_applied = phase == Phase::PostDelete && applies;
    let steps = spec.workflow(phase).to_vec();
    if steps.is_empty() && !delete_applied {
        return None;
    }
    let settings = spec.settings(phase);
    Some(RunResource {
        name: planned.declared.name.clone(),
        plugin: planned.plugin.name.clone(),
        // How many pods wait makes no change another one.
        runner: Runner { warm: None, ..spec.runner.clone() },
        folders: warm_folders(spec).map(|folders| folders.into_iter().collect()),
        params: planned.declared.params.clone(),
        max_running: spec.max_running,
        failure_policy: settings.failure_policy.unwrap_or_default(),
        timeout_seconds: settings.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS),
        steps,
        delete_applied,
        undo: if phase == Phase::PreCreate { spec.workflow(Phase::PostDelete).to_vec() } else { Vec::new() },
        abandoned: if phase.is_pre() { spec.steps(Workflow::Abandoned).to_vec() } else { Vec::new() },
        undoes: None,
        shares_name: false,
    })
}

/// Whether a resource that a run takes leave of stays part of the target, with another plugin.
pub fn lives_on(run: &PhaseRunSpec, resource: &str) -> bool {
    // Only an update has an old object; what is undone or deleted leaves with all that it has.
    let stays = run.old_object.is_some() && run.compensates.is_none();
    stays && declared(&run.object).unwrap_or_default().iter().any(|r| r.name == resource)
}

/// An object without what only the API server needs, so that a run stays small. What is left out, which may be most of
/// it, is not copied first.
pub fn snapshot(object: &Value) -> Value {
    let Some(fields) = object.as_object() else { return object.clone() };
    let kept = fields.iter().filter(|(name, _)| *name != "status");
    let copied = kept.map(|(name, value)| {
        let copy = if name == "metadata" { snapshot_of_metadata(value) } else { value.clone() };
        (name.clone(), copy)
    });
    Value::Object(copied.collect())
}

fn snapshot_of_metadata(metadata: &Value) -> Value {
    let Some(fields) = metadata.as_object() else { return metadata.clone() };
    let kept = fields.iter().filter(|(name, _)| *name != "managedFields");
    let copied = kept.map(|(name, value)| match value {
        Value::Object(annotations) if name == "annotations" => {
            let kept =
                annotations.iter().filter(|(name, _)| *name != "kubectl.kubernetes.io/last-applied-configuration");
            (name.clone(), Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect()))
        }
        value => (name.clone(), value.clone()),
    });
    Value::Object(copied.collect())
}

/// What identifies an object.
pub fn target(object: &Value) -> TargetRef {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    TargetRef {
        api_version: text(&object["apiVersion"]),
        kind: text(&object["kind"]),
        namespace: text(&metadata["namespace"]),
        name: text(&metadata["name"]),
        uid: metadata["uid"].as_str().map(str::to_owned),
    }
}

#[cfg(test)]
#[path = "runs_tests.rs"]
mod tests;
