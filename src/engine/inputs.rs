//! What a script is given: its inputs as environment and files, never as script text.

use super::outputs::Outputs;
use crate::agent::protocol::{InputFile, OutputFile, RunStep, StepId};
use crate::api::{Input, Phase, PhaseRunSpec, RunResource, Step};
use crate::plan::expression::{Expression, ExpressionError};
use crate::plan::scope::Scope;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::collections::BTreeMap;

/// Why an input has no value.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("input {name}: {step}.{output} is not there: that step was skipped, or never ran for this sandbox")]
    NoOutput { name: String, step: String, output: String },
    #[error("input {name}: {source}")]
    Expression { name: String, source: ExpressionError },
}

/// The command that runs `step`.
pub async fn run_step(
    run: (&str, &PhaseRunSpec),
    resource: &RunResource,
    step: &Step,
    attempt: u32,
    timeout_seconds: u32,
    outputs: &Outputs,
    scope: &Scope,
) -> Result<RunStep, InputError> {
    let mut env = environment(run, resource, step);
    let mut files = Vec::new();
    for input in &step.inputs {
        let content = match content(input, resource, outputs, scope).await {
            Err(InputError::NoOutput { .. }) if cleans_up(run.1) => Vec::new(),
            content => content?,
        };
        let to = input.as_.clone().unwrap_or_default();
        if let Some(path) = to.path {
            files.push(InputFile { path, content: STANDARD.encode(&content) });
        }
        if input.as_.is_none() || to.env.is_some() {
            let name = to.env.unwrap_or_else(|| variable(&input.name));
            env.insert(name, String::from_utf8_lossy(&content).into_owned());
        }
    }
    let output = |o: &crate::api::Output| OutputFile { name: o.name.clone(), path: o.value_from_path.clone() };
    Ok(RunStep {
        id: StepId { step: step.name.clone(), attempt },
        script: step.script.clone().unwrap_or_default(),
        env,
        files,
        outputs: step.outputs.iter().map(output).collect(),
        timeout_seconds,
    })
}

/// Whether a run takes away what was made. Not all of it may have been, and what is there must go all the same.
fn cleans_up(run: &PhaseRunSpec) -> bool {
    run.compensates.is_some() || matches!(run.phase, Phase::PreDelete | Phase::PostDelete)
}

async fn content(
    input: &Input,
    resource: &RunResource,
    outputs: &Outputs,
    scope: &Scope,
) -> Result<Vec<u8>, InputError> {
    if let Some(from) = &input.value_from_step {
        let found = outputs.get(&resource.name, &from.name, &from.output);
        return found.map(<[u8]>::to_vec).ok_or_else(|| InputError::NoOutput {
            name: input.name.clone(),
            step: from.name.clone(),
            output: from.output.clone(),
        });
    }
    if let Some(source) = &input.value {
        let failed = |source| InputError::Expression { name: input.name.clone(), source };
        let value = Expression::parse(source).map_err(failed)?.evaluate_bounded(scope).await.map_err(failed)?;
        return Ok(match value {
            Value::String(text) => text.into_bytes(),
            Value::Null => Vec::new(),
            other => other.to_string().into_bytes(),
        });
    }
    Ok(resource.params.get(&input.name).cloned().unwrap_or_default().into_bytes())
}

/// The variable of an input that names none: capitals, with `_` for what a variable's name cannot have.
fn variable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// What every script finds, in Sluice's names and in those of Signadot's files.
fn environment((name, run): (&str, &PhaseRunSpec), resource: &RunResource, step: &Step) -> BTreeMap<String, String> {
    let routing_key = run.routing_key.clone().unwrap_or_default();
    let mut env: BTreeMap<String, String> = [
        ("SLUICE_PHASE", resource.undoes.unwrap_or(run.phase).slug().to_owned()),
        ("SLUICE_SANDBOX_NAME", run.target.name.clone()),
        ("SLUICE_SANDBOX_NAMESPACE", run.target.namespace.clone()),
        ("SLUICE_SANDBOX_ROUTING_KEY", routing_key.clone()),
        ("SLUICE_RESOURCE_NAME", resource.name.clone()),
        ("SLUICE_IDEMPOTENCY_KEY", format!("{name}/{}/{}", resource.name, step.name)),
        ("SIGNADOT_SANDBOX_NAME", run.target.name.clone()),
        ("SIGNADOT_SANDBOX_ID", routing_key.clone()),
        ("SIGNADOT_SANDBOX_ROUTING_KEY", routing_key),
        ("SIGNADOT_RESOURCE_NAME", resource.name.clone()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    if let Some(uid) = &run.target.uid {
        env.insert("SLUICE_SANDBOX_UID".to_owned(), uid.clone());
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_without_a_place_is_a_variable_in_capitals() {
        assert_eq!(variable("db-size.max"), "DB_SIZE_MAX");
    }
}
