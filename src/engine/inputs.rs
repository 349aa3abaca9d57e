//! What a script is given: its inputs as environment and files, never as script text.

use super::error::StepError;
use super::objects::Objects;
use super::outputs::Outputs;
use super::values;
use crate::agent::protocol::{InputFile, OutputFile, RunStep, StepId};
use crate::agent::{AGENT_DIR, workspace};
use crate::api::{Input, Output, Phase, PhaseRunSpec, RunResource, Step, StepOutputRef};
use crate::plan::expression::Expression;
use crate::plan::message::with_causes;
use crate::plan::scope::Scope;
use crate::plan::{changes, kinds};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The file with the whole change, in a step's own folder.
const CHANGE: &str = "change.json";

/// What a step's inputs are taken from.
pub struct Given<'a> {
    pub name: &'a str,
    pub run: &'a PhaseRunSpec,
    pub resource: &'a RunResource,
    pub outputs: &'a Outputs,
    pub scope: &'a Scope,
    pub objects: &'a Objects<'a>,
}

impl Given<'_> {
    /// The command that runs `step`. `secrets` takes what must be masked.
    pub async fn run_step(
        &self,
        step: &Step,
        attempt: u32,
        timeout_seconds: u32,
        secrets: &mut Vec<Vec<u8>>,
    ) -> Result<RunStep, StepError> {
        let id = StepId { step: step.name.clone(), attempt };
        let mut env = environment((self.name, self.run), self.resource, step);
        let change = workspace::directory(Path::new(AGENT_DIR), &id).join(CHANGE).to_string_lossy().into_owned();
        env.insert("SLUICE_CHANGE_FILE".to_owned(), change.clone());
        let mut files = vec![InputFile { path: change, content: STANDARD.encode(self.change().to_string()) }];
        for input in &step.inputs {
            let content = self.content(input, secrets).await?;
            if let Some(path) = input.as_.as_ref().and_then(|to| to.path.clone()) {
                files.push(InputFile { path, content: STANDARD.encode(&content) });
            }
            if let Some(name) = input.variable() {
                let text = String::from_utf8_lossy(&content).into_owned();
                if text.contains('\0') {
                    let name = &input.name;
                    let why = "a variable cannot hold a zero byte: give it as.path alone";
                    return Err(StepError::Failed(format!("input {name}: {why}")));
                }
                env.insert(name, text);
            }
        }
        let file =
            |output: &Output| output.value_from_path.clone().map(|path| OutputFile { name: output.name.clone(), path });
        Ok(RunStep {
            id,
            script: step.script.clone().unwrap_or_default(),
            env,
            files,
            outputs: step.outputs.iter().filter_map(file).collect(),
            timeout_seconds,
        })
    }

    async fn content(&self, input: &Input, secrets: &mut Vec<Vec<u8>>) -> Result<Vec<u8>, StepError> {
        let failed = |why: &dyn std::fmt::Display| StepError::Failed(format!("input {}: {why}", input.name));
        if let Some(StepOutputRef { name, output }) = &input.value_from_step {
            return match self.outputs.get(&self.resource.name, name, output) {
                Some(found) => Ok(found.to_vec()),
                None if cleans_up(self.run) => Ok(Vec::new()),
                None => Err(failed(&format!(
                    "{name}.{output} is not there: that step was skipped, failed, or never ran for this sandbox"
                ))),
            };
        }
        if let Some(source) = &input.value {
            let expression = Expression::parse(source).map_err(|e| failed(&e))?;
            return Ok(values::bytes(expression.evaluate_bounded(self.scope).await.map_err(|e| failed(&e))?));
        }
        if let Some(from) = &input.value_from_secret {
            let content = values::secret(self.objects, from).await.map_err(|e| failed(&with_causes(&e)))?;
            secrets.push(content.clone());
            return Ok(content);
        }
        if let Some(from) = &input.value_from_config_map {
            return values::config_map(self.objects, from).await.map_err(|e| failed(&with_causes(&e)));
        }
        Ok(self.resource.params.get(&input.name).cloned().unwrap_or_default().into_bytes())
    }

    /// What is changed, for scripts that want to know all of it.
    fn change(&self) -> Value {
        let (old, new) = self.run.old_and_new();
        json!({
            "sandbox": self.run.object,
            "old": self.run.old_object,
            "change": changes::change(&kinds::SANDBOX, old, new),
        })
    }
}

/// Whether a run takes away what was made. Not all of it may have been, and what is there must go all the same.
fn cleans_up(run: &PhaseRunSpec) -> bool {
    run.compensates.is_some() || matches!(run.phase, Phase::PreDelete | Phase::PostDelete)
}

/// What is the same for every try of a step.
pub fn idempotency_key(run: &str, resource: &str, step: &str) -> String {
    format!("{run}/{resource}/{step}")
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
        ("SLUICE_IDEMPOTENCY_KEY", idempotency_key(name, &resource.name, &step.name)),
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
