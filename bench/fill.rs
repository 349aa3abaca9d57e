//! A cluster full of sandboxes and their runs: one sandbox is made and changed as usual, then copied as it is stored,
//! straight into etcd.

use crate::objects::{applies, complete, create, plugin, runs, sandboxes, until};
use crate::plain;
use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{GetParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use sluice::api::{PhaseRun, RunState};
use std::time::{Duration, Instant};

pub const SANDBOXES: usize = 10_000;
/// The runs of each: before and after its creation, and before three updates.
const RUNS_EACH: usize = 5;
const UPDATES: usize = 3;
const PLUGIN: &str = "bench-history";
const NAME: &str = "template-00000";
/// Where the test cluster's etcd listens, inside of its network.
const ETCD: ([u8; 4], u16) = ([127, 0, 0, 1], 2379);
const RUNS: &str = "/registry/sluice.dev/phaseruns/";
const FROM: &str = "/registry/sluice.dev/";
const TO: &str = "/registry/sluice.dev0";
/// etcd takes at most 128 writes at once.
const AT_ONCE: usize = 16;
const WRITERS: usize = 4;
/// A run that ended longer ago is no news, of which an event would be written for each copy.
const NEWS: Duration = Duration::from_secs(150);

/// A sandbox, its record and its runs as they are stored.
pub struct Template {
    made: Instant,
    objects: Vec<(String, String)>,
    uids: Vec<String>,
    keys: Vec<String>,
}

impl Template {
    /// Makes them by way of the Sluice that is installed.
    pub async fn make(client: &Client) -> anyhow::Result<Self> {
        let mut spec = applies("preCreate", 1);
        for workflow in ["postCreate", "preUpdate"] {
            spec[workflow] = spec["preCreate"].clone();
        }
        plugin(client, PLUGIN, spec).await?;
        create(client, NAME, &[PLUGIN]).await?;
        complete(client, NAME).await?;
        for index in 0..UPDATES {
            let patch = Patch::Merge(json!({"spec": {"description": format!("changed {index} times")}}));
            sandboxes(client).patch(NAME, &PatchParams::default(), &patch).await?;
            complete(client, NAME).await?;
        }
        let all_over = || async {
            let runs = runs(client, NAME).await?;
            let state = |run: &PhaseRun| run.status.as_ref().map(|status| status.state);
            let is_over = |state| matches!(state, Some(RunState::Committed));
            let post = |run: &PhaseRun| !run.spec.phase.is_pre() && state(run) == Some(RunState::Succeeded);
            anyhow::Ok(runs.len() == RUNS_EACH && runs.iter().all(|run| is_over(state(run)) || post(run)))
        };
        until("the end of every run of the template", all_over).await?;
        let question = json!({"key": STANDARD.encode(FROM), "range_end": STANDARD.encode(TO)}).to_string();
        let found: Value = serde_json::from_str(&etcd("/v3/kv/range", &question).await?)?;
        let mut template = Self { made: Instant::now(), objects: Vec::new(), uids: Vec::new(), keys: Vec::new() };
        for pair in found["kvs"].as_array().context("etcd has nothing of ours")? {
            let text = |field: &str| -> anyhow::Result<String> {
                Ok(String::from_utf8(STANDARD.decode(pair[field].as_str().unwrap_or_default())?)?)
            };
            let (key, value) = (text("key")?, text("value")?);
            if value.contains(NAME) {
                let object: Value = serde_json::from_str(&value)?;
                template.uids.push(object["metadata"]["uid"].as_str().context("a UID")?.to_owned());
                template.keys.extend(object["spec"]["key"].as_str().map(str::to_owned));
                template.objects.push((key, value));
            }
        }
        ensure!(template.objects.len() == 2 + RUNS_EACH, "a template of {} objects", template.objects.len());
        Ok(template)
    }

    /// The size of them all as they are stored.
    pub fn bytes(&self) -> usize {
        self.objects.iter().map(|(_, value)| value.len()).sum()
    }

    /// Writes the copies, and waits until the API server knows of them.
    pub async fn fill(&self, client: &Client) -> anyhow::Result<()> {
        tokio::time::sleep(NEWS.saturating_sub(self.made.elapsed())).await;
        let numbers: Vec<usize> = (1..=SANDBOXES).collect();
        let batches = numbers.chunks(AT_ONCE).map(|batch| self.write(batch));
        stream::iter(batches).buffer_unordered(WRITERS).try_collect::<Vec<()>>().await?;
        let cached = GetParams::any();
        for run in self.objects.iter().filter_map(|(key, _)| key.strip_prefix(RUNS)) {
            let (name, all) = (self.copy(run, SANDBOXES), Api::<PhaseRun>::all(client.clone()));
            let is_known = || async {
                match all.get_with(&name, &cached).await {
                    Ok(_) => Ok(true),
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
                    Err(error) => Err(error.into()),
                }
            };
            until("the API server's knowledge of what was written into etcd", is_known).await?;
        }
        Ok(())
    }

    async fn write(&self, numbers: &[usize]) -> anyhow::Result<()> {
        let mut puts = Vec::new();
        for number in numbers {
            for (key, value) in &self.objects {
                let [key, value] = [key, value].map(|text| STANDARD.encode(self.copy(text, *number)));
                puts.push(json!({"request_put": {"key": key, "value": value}}));
            }
        }
        etcd("/v3/kv/txn", &json!({"success": puts}).to_string()).await?;
        Ok(())
    }

    /// A text of the template as it is for one of the copies: what must be unique is another in each.
    fn copy(&self, text: &str, number: usize) -> String {
        let mut copy = text.replace(NAME, &format!("sandbox-{number:05}"));
        for (index, uid) in self.uids.iter().enumerate() {
            copy = copy.replace(uid, &format!("{number:08x}-0000-4000-8000-{index:012x}"));
        }
        for (index, key) in self.keys.iter().enumerate() {
            copy = copy.replace(key, &format!("{number:08x}{index:08x}"));
        }
        copy
    }
}

async fn etcd(path: &str, question: &str) -> anyhow::Result<String> {
    let address = ETCD.into();
    plain::ask(address, "POST", path, question).await.context("etcd: this needs a cluster that tests/cluster made")
}
