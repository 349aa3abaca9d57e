//! What steps leave for later steps, later phases and forks: kept in Secrets of Sluice's namespace, one for each run.
//!
//! A Secret is owned by its run, so it goes with it.

use super::error::{EngineError, is_status};
use super::index::RunEntry;
use crate::api::labels;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Resource, step, output.
pub type OutputName = (String, String, String);

/// Outputs by name.
#[derive(Clone, Debug, Default)]
pub struct Outputs(BTreeMap<OutputName, Vec<u8>>);

impl Outputs {
    pub fn insert(&mut self, name: OutputName, content: Vec<u8>) {
        self.0.insert(name, content);
    }

    pub fn get(&self, resource: &str, step: &str, output: &str) -> Option<&[u8]> {
        self.0.get(&(resource.to_owned(), step.to_owned(), output.to_owned())).map(Vec::as_slice)
    }

    /// The `steps` of an expression's scope for one resource: `steps.STEP.OUTPUT`, as text.
    pub fn scope(&self, resource: &str) -> Value {
        let mut steps = serde_json::Map::new();
        for ((owner, step, output), content) in &self.0 {
            if owner == resource {
                let step = steps.entry(step.clone()).or_insert_with(|| json!({}));
                step[output] = json!(String::from_utf8_lossy(content));
            }
        }
        Value::Object(steps)
    }

    /// The text with every output's content of four characters or more made unreadable.
    pub fn masked(&self, text: &str) -> String {
        let mut masked = text.to_owned();
        for content in self.0.values() {
            if let Ok(content) = std::str::from_utf8(content) {
                let content = content.trim();
                if content.len() >= 4 {
                    masked = masked.replace(content, "***");
                }
            }
        }
        masked
    }
}

/// The key of an output in its Secret.
pub fn secret_key(resource: &str, step: &str, output: &str) -> String {
    format!("{resource}.{step}.{output}")
}

/// Keeps what a step left, before anybody is told that it ended.
pub async fn keep(
    client: &Client,
    namespace: &str,
    (name, owner): (&str, Option<OwnerReference>),
    (resource, step): (&str, &str),
    outputs: &BTreeMap<String, Vec<u8>>,
) -> Result<(), EngineError> {
    if outputs.is_empty() {
        return Ok(());
    }
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let data: BTreeMap<String, ByteString> =
        outputs.iter().map(|(name, content)| (secret_key(resource, step, name), ByteString(content.clone()))).collect();
    // A manager for each step: server-side apply of another step's outputs then leaves these alone.
    let manager = labels::value(&format!("sluice-{resource}-{step}"));
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(labels::RUN.to_owned(), name.to_owned())].into()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..Secret::default()
    };
    secrets
        .patch(name, &PatchParams::apply(&manager).force(), &Patch::Apply(&secret))
        .await
        .map_err(EngineError::api("keep a step's outputs in a Secret"))?;
    Ok(())
}

/// Deletes what a run left.
pub async fn forget(client: &Client, namespace: &str, run: &str) -> Result<(), EngineError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    match secrets.delete(run, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) if is_status(&error, 404) => Ok(()),
        Err(error) => Err(EngineError::api("delete the outputs that nobody needs any more")(error)),
    }
}

/// Everything that these runs left; what a later run of the list left wins.
pub async fn load(client: &Client, namespace: &str, runs: &[Arc<RunEntry>]) -> Result<Outputs, EngineError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut outputs = Outputs::default();
    for run in runs.iter().filter(|run| !run.outputs.is_empty()) {
        let secret = secrets.get_opt(&run.name).await.map_err(EngineError::api("read the outputs of earlier steps"))?;
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        for name in &run.outputs {
            if let Some(content) = data.get(&secret_key(&name.0, &name.1, &name.2)) {
                outputs.insert(name.clone(), content.0.clone());
            }
        }
    }
    Ok(outputs)
}

/// The runs whose outputs `own` sees, of those that it builds on: what began after it is none of its business, and its
/// own outputs win. Both matter where an execution that was interrupted goes on.
pub fn seen_by(own: &RunEntry, runs: Vec<Arc<RunEntry>>) -> Vec<Arc<RunEntry>> {
    let mut seen: Vec<_> =
        runs.into_iter().filter(|run| run.name == own.name || run.created_at <= own.created_at).collect();
    seen.sort_by_key(|run| run.name == own.name);
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_goes_on_sees_its_own_outputs_and_none_of_a_later_run() {
        let run = |name: &str, second: i64| {
            let created_at = k8s_openapi::jiff::Timestamp::from_second(second).ok();
            Arc::new(RunEntry { name: name.into(), created_at, ..RunEntry::default() })
        };
        let seen = seen_by(&run("own", 2), vec![run("own", 2), run("before", 1), run("beside", 2), run("later", 3)]);
        let names: Vec<_> = seen.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["before", "beside", "own"]);
    }

    #[test]
    fn a_step_sees_its_own_resource_alone_and_logs_show_nothing() {
        let mut outputs = Outputs::default();
        outputs.insert(("db".into(), "branch".into(), "password".into()), b"hunter22\n".to_vec());
        outputs.insert(("queue".into(), "make".into(), "url".into()), b"u".to_vec());
        assert_eq!(outputs.scope("db"), json!({"branch": {"password": "hunter22\n"}}));
        assert_eq!(outputs.masked("login with hunter22 failed"), "login with *** failed");
    }
}
