//! What steps leave for later steps, later phases and forks: kept in Secrets of Sluice's namespace, one for each step of
//! a run, since a Secret holds 1 MiB at most.
//!
//! A Secret is owned by its run, so it goes with it.

use super::error::{EngineError, StepError, is_status};
use super::index::RunEntry;
use super::masking;
use crate::api::{PhaseRunSpec, RunResource, Step, labels};
use crate::plan::order;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// So often a Secret of an earlier execution may stand in the place of a new one.
const REPLACED: usize = 3;

/// Resource, step, output.
pub type OutputName = (String, String, String);

/// Outputs by name, and what else must not be shown.
#[derive(Clone, Default)]
pub struct Outputs {
    known: BTreeMap<OutputName, Vec<u8>>,
    hidden: BTreeSet<Vec<u8>>,
    /// What of both is masked. The longest first: one form may be part of another.
    forms: BTreeSet<(Reverse<usize>, String)>,
}

impl Outputs {
    pub fn insert(&mut self, name: OutputName, content: Vec<u8>) {
        self.take_forms(&content);
        self.known.insert(name, content);
    }

    pub fn get(&self, resource: &str, step: &str, output: &str) -> Option<&[u8]> {
        self.known.get(&(resource.to_owned(), step.to_owned(), output.to_owned())).map(Vec::as_slice)
    }

    /// Takes values of Secrets that steps are given, for [`Outputs::masked`].
    pub fn hide(&mut self, secrets: Vec<Vec<u8>>) {
        for secret in secrets {
            if !self.hidden.contains(&secret) {
                self.take_forms(&secret);
                self.hidden.insert(secret);
            }
        }
    }

    /// Once for each, since there are many messages.
    fn take_forms(&mut self, secret: &[u8]) {
        self.forms.extend(masking::forms(secret).into_iter().map(|form| (Reverse(form.len()), form)));
    }

    /// The `steps` of the scope of `reader`, a step of `resource`: `steps.STEP.OUTPUT`, as text, of the steps that it
    /// reads. What is no text is for files alone.
    pub fn scope(&self, resource: &str, reader: &Step) -> Value {
        let mut steps = serde_json::Map::new();
        let of_resource = self.known.iter().filter(|((owner, ..), _)| owner == resource);
        let names: BTreeSet<&str> = of_resource.clone().map(|((_, step, _), _)| step.as_str()).collect();
        let read = order::reads(reader, &names);
        for ((_, step, output), content) in of_resource.filter(|((_, step, _), _)| read.contains(step.as_str())) {
            if let Ok(text) = std::str::from_utf8(content) {
                let step = steps.entry(step.clone()).or_insert_with(|| json!({}));
                step[output] = json!(text);
            }
        }
        Value::Object(steps)
    }

    /// The text with every output's content, and every secret's, of four characters or more made unreadable: as it is
    /// and in the forms of [`masking`].
    pub fn masked(&self, text: &str) -> String {
        let mut masked = text.to_owned();
        for (_, form) in &self.forms {
            if masked.contains(form) {
                masked = masked.replace(form, "***");
            }
        }
        masked
    }
}

/// The key of an output in its Secret.
pub fn secret_key(resource: &str, step: &str, output: &str) -> String {
    format!("{resource}.{step}.{output}")
}

/// The Secret of one step's outputs.
fn secret_name(run: &str, resource: &str, step: &str) -> String {
    format!("{run}-{}", labels::short_hash(&format!("{resource}/{step}")))
}

/// Keeps what a step leaves.
pub struct Keeper {
    pub client: Client,
    pub namespace: String,
    pub run: String,
    pub owner: Option<OwnerReference>,
    pub resource: String,
    pub step: String,
}

impl Keeper {
    /// Keeps the outputs, before anybody is told that the step ended.
    pub async fn keep(&self, outputs: &BTreeMap<String, Vec<u8>>) -> Result<(), StepError> {
        if outputs.is_empty() {
            return Ok(());
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let key = |name: &String| secret_key(&self.resource, &self.step, name);
        let name = secret_name(&self.run, &self.resource, &self.step);
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(
                    [
                        (labels::RUN.to_owned(), labels::value(&self.run)),
                        (labels::NO_BACKUP.to_owned(), "true".to_owned()),
                    ]
                    .into(),
                ),
                owner_references: self.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some(outputs.iter().map(|(name, content)| (key(name), ByteString(content.clone()))).collect()),
            immutable: Some(true),
            ..Secret::default()
        };
        self.write(&secrets, &name, &secret)
            .await
            .map_err(StepError::api("the step's outputs could not be kept in a Secret"))
    }

    /// Makes the Secret; one of an earlier execution of the step gives way, for nobody was told of it. No Secret is ever
    /// changed, so Sluice needs no right to.
    async fn write(&self, secrets: &Api<Secret>, name: &str, secret: &Secret) -> Result<(), kube::Error> {
        let params = PostParams { field_manager: Some(labels::MANAGER.to_owned()), ..PostParams::default() };
        for _ in 0..REPLACED {
            match secrets.create(&params, secret).await {
                Err(error) if is_status(&error, 409) => delete(secrets, name).await?,
                done => return done.map(drop),
            }
        }
        secrets.create(&params, secret).await.map(drop)
    }
}

async fn delete(secrets: &Api<Secret>, name: &str) -> Result<(), kube::Error> {
    match secrets.delete(name, &DeleteParams::default()).await {
        Err(error) if !is_status(&error, 404) => Err(error),
        _ => Ok(()),
    }
}

/// The resources and steps of a run that may leave outputs.
pub fn leaving(run: &PhaseRunSpec) -> BTreeSet<(String, String)> {
    let leaves = |resource: &RunResource| {
        let steps = resource.steps.iter().filter(|step| !step.outputs.is_empty());
        steps.map(|step| (resource.name.clone(), step.name.clone())).collect::<Vec<_>>()
    };
    run.resources.iter().flat_map(leaves).collect()
}

/// Deletes what these steps of a run left, by name: to find it would take the right to read every Secret here.
pub async fn forget(
    client: &Client,
    namespace: &str,
    run: &str,
    steps: &BTreeSet<(String, String)>,
) -> Result<(), EngineError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    for (resource, step) in steps {
        let deleted = delete(&secrets, &secret_name(run, resource, step)).await;
        deleted.map_err(EngineError::api("delete the outputs that nobody needs any more"))?;
    }
    Ok(())
}

/// Everything that these runs left; what a later run of the list left wins.
pub async fn load(client: &Client, namespace: &str, runs: &[Arc<RunEntry>]) -> Result<Outputs, EngineError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut outputs = Outputs::default();
    for run in runs {
        let steps: BTreeSet<_> = run.outputs.iter().map(|(resource, step, _)| (resource, step)).collect();
        for (resource, step) in steps {
            let secret = secrets.get_opt(&secret_name(&run.name, resource, step)).await;
            let secret = secret.map_err(EngineError::api("read the outputs of earlier steps"))?;
            let data = secret.and_then(|secret| secret.data).unwrap_or_default();
            for name in run.outputs.iter().filter(|name| (&name.0, &name.1) == (resource, step)) {
                if let Some(content) = data.get(&secret_key(&name.0, &name.1, &name.2)) {
                    outputs.insert(name.clone(), content.0.clone());
                }
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
    fn what_a_run_may_have_left_is_found_by_the_steps_that_declare_outputs() {
        let steps = json!([{"name": "make", "outputs": [{"name": "o"}]}, {"name": "tidy"}]);
        let run = json!({
            "key": "k", "attempt": 1, "phase": "PreCreate", "target": {"apiVersion": "v", "kind": "K", "namespace": "n", "name": "x"},
            "timeoutSeconds": 1, "object": {}, "resources": [{"name": "db", "plugin": "p", "steps": steps}],
        });
        let run: PhaseRunSpec = serde_json::from_value(run).unwrap();
        assert_eq!(leaving(&run), [("db".to_owned(), "make".to_owned())].into());
    }

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
        outputs.insert(("db".into(), "dump".into(), "bytes".into()), vec![0xff; 9]);
        let reader = |when: &str| Step { when: Some(when.into()), ..Step::default() };
        let branch = json!({"branch": {"password": "hunter22\n"}});
        assert_eq!(outputs.scope("db", &reader("steps.branch.password == ''")), branch);
        assert_eq!(outputs.scope("db", &reader("steps.size() == 1")), branch);
        assert_eq!(outputs.scope("db", &reader("steps.dump.bytes == ''")), json!({}));
        assert_eq!(outputs.scope("db", &reader("params.size == '1'")), json!({}));
        outputs.hide(vec![b"sesame open".to_vec(), b"first line\nsecond line".to_vec()]);
        assert_eq!(outputs.masked("login with hunter22 failed"), "login with *** failed");
        assert_eq!(outputs.masked("[a] first line\n[a] second line, sesame open"), "[a] ***\n[a] ***, ***");
    }

    #[test]
    fn what_is_masked_may_be_quoted_or_encoded_and_the_longest_goes_first() {
        let mut outputs = Outputs::default();
        outputs.insert(("db".into(), "branch".into(), "password".into()), br#"pa"ss\word<&>zz"#.to_vec());
        outputs.hide(vec![b"word".to_vec(), b"hunter22".to_vec(), b"hunter22".to_vec()]);
        let said =
            r#"Invalid value: "pa\"ss\\word<&>zz": a label; {"a":"pa\"ss\\word\u003c\u0026\u003ezz"}, aHVudGVyMjI=."#;
        assert_eq!(outputs.masked(said), r#"Invalid value: "***": a label; {"a":"***"}, ***."#);
    }
}
