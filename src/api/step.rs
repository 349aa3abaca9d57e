//! A step of a workflow: what it is given, what it does and what it leaves.

use super::action::{Apply, Delete, Http, Wait};
use super::{StepKind, schema};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The names of steps and outputs, which stand in expressions, labels and the keys of Secrets.
const NAME: &str = "^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$";
const NAME_IS: &str = "letters, digits, - and _, a letter or digit first and last";
/// Files of scripts: never in the root folder, never hidden.
const FILE: &str = "^(/[A-Za-z0-9_-][A-Za-z0-9_.-]*){2,}$";
const FILE_IS: &str = "an absolute path at least two levels deep, as in /out/file, of letters, digits, _, - and .";

/// One step of a workflow: what it needs, what it gives, and exactly one action.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.script), has(self.apply), has(self.delete), has(self.wait), has(self.http)].filter(x, x).size() == 1")
        .message("a step has exactly one action: script, apply, delete, wait or http"),
    validation = Rule::new("!has(self.outputs) || !(has(self.apply) || has(self.delete))")
        .message("only script, wait and http have outputs").field_path(".outputs"),
    validation = Rule::new("!has(self.inputs) || has(self.script)")
        .message("inputs are for scripts; other actions read their values in expressions, as ${params.NAME} or ${steps.STEP.OUTPUT}").field_path(".inputs"),
    validation = Rule::new("!has(self.readOnly) || !self.readOnly || !(has(self.apply) || has(self.delete))")
        .message("apply and delete change objects, so such a step is not read-only: leave it out, or give the check a step of its own").field_path(".readOnly")
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
    /// What the step leaves for later steps, later phases and forks: files of a script, or values that expressions make of
    /// what `wait` saw (`object`) or `http` got (`response`). 512 KiB together at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub outputs: Vec<Output>,
    /// The time limit of one attempt, in seconds. The phase's by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1800))]
    pub timeout_seconds: Option<u32>,
    /// How often a failed step is tried again, after pauses of 1, 2, 4 … seconds, 30 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10))]
    pub retries: Option<u32>,
    /// Whether the phase goes on, and can succeed, though this step failed for good. What waits for it runs all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continue_on_error: bool,
    /// The step only looks and makes nothing, such as one that checks parameters. Where nothing but such steps of a resource has begun,
    /// nothing of it is undone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// A script, run in a pod of the runner's image; it begins with `#!`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 131072))]
    #[x_kube(validation = Rule::new("self.startsWith('#!')").message("must begin with #! and the interpreter, as in #!/bin/sh"))]
    pub script: Option<String>,
    /// Objects, written with server-side apply as the runner's service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<Apply>,
    /// Objects that are deleted, as the runner's service account. One that is not there is no failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete: Option<Delete>,
    /// Waits until an expression over a live object holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// A call of one of the targets that the chart's values allow (`http.allowedTargets`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
}

impl Step {
    /// What kind of action it has.
    pub fn kind(&self) -> StepKind {
        match self {
            Self { apply: Some(_), .. } => StepKind::Apply,
            Self { delete: Some(_), .. } => StepKind::Delete,
            Self { wait: Some(_), .. } => StepKind::Wait,
            Self { http: Some(_), .. } => StepKind::Http,
            _ => StepKind::Script,
        }
    }
}

/// A value that a script is given, from exactly one source.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.valueFromSandbox) && self.valueFromSandbox, has(self.valueFromStep), has(self.value), has(self.valueFromSecret), has(self.valueFromConfigMap)].filter(x, x).size() == 1")
        .message("an input has exactly one source: valueFromSandbox: true, valueFromStep, value, valueFromSecret or valueFromConfigMap")
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
    /// A key of a Secret in the runner's namespace, which the runner's service account must be allowed to get. Masked in
    /// logs and messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from_secret: Option<KeyRef>,
    /// A key of a ConfigMap in the runner's namespace, which the runner's service account must be allowed to get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from_config_map: Option<KeyRef>,
    /// Where the script finds the value.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    pub as_: Option<InputAs>,
}

impl Input {
    /// The environment variable that holds the value: the one that `as` names; without `as` the name in capitals, with `_`
    /// for what a variable's name cannot have.
    pub fn variable(&self) -> Option<String> {
        let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        match &self.as_ {
            Some(to) => to.env.clone(),
            None => Some(self.name.chars().map(letter).collect()),
        }
    }
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

/// A key of a Secret or a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// The object, in the runner's namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Its key.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// A value that a step leaves: the file of a script, or an expression over what `wait` saw or `http` got.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.valueFromPath) != has(self.value)")
        .message("an output has exactly one source: valueFromPath (of a script) or value (of wait and http)")
)]
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
    /// The absolute path of the file that a script leaves, two levels deep at least: `/out/host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    #[x_kube(validation = schema::matches(FILE, FILE_IS))]
    pub value_from_path: Option<String>,
    /// An expression over `object` of a `wait`, or `response` of an `http` step. What is not a string is kept as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub value: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_without_a_place_is_a_variable_in_capitals() {
        let input = |to: Option<InputAs>| Input { name: "db-size.max".into(), as_: to, ..Input::default() };
        let to = |env: Option<&str>| Some(InputAs { env: env.map(str::to_owned), path: Some("/in/size".into()) });
        assert_eq!(input(None).variable().as_deref(), Some("DB_SIZE_MAX"));
        assert_eq!(input(to(Some("SIZE"))).variable().as_deref(), Some("SIZE"));
        assert_eq!(input(to(None)).variable(), None);
    }
}
