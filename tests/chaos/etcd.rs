//! The history of everything, as etcd tells it: each state that was ever stored, in one order, though the API server is
//! killed in between. A watch of the API server itself loses what happens while it starts again.

use crate::check::history::{Effect, History};
use anyhow::{Context, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sluice::api::Phase;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Where the test cluster's etcd listens, inside of its network.
const ETCD: &str = "127.0.0.1:2379";
const SANDBOXES: &str = "/registry/sluice.dev/sandboxes/";
const RUNS: &str = "/registry/sluice.dev/phaseruns/";
const CONFIG_MAPS: &str = "/registry/configmaps/";
/// Around the change in what steps write: a ConfigMap is not stored as JSON.
pub const MARK: (&str, &str) = ("<<", ">>");

/// Writes history down for as long as it lives.
pub struct Recorder {
    history: Arc<Mutex<History>>,
    seen: Arc<Mutex<Seen>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    markers: Vec<(String, u64)>,
    /// Why the recording ended, which it must not.
    broken: Option<String>,
}

impl Recorder {
    /// Begins now; what was stored before is no matter.
    pub async fn begin() -> anyhow::Result<Self> {
        let what = || format!("etcd at {ETCD}: this needs a cluster that tests/cluster made");
        let mut stream = TcpStream::connect(ETCD).await.with_context(what)?;
        let all = json!({"create_request": {"key": STANDARD.encode("/registry/"), "range_end": STANDARD.encode("/registry0")}});
        let body = all.to_string();
        // HTTP/1.0, so that the answer is a plain stream of lines.
        let head = format!("POST /v3/watch HTTP/1.0\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).await.with_context(what)?;
        let mut lines = BufReader::with_capacity(1 << 20, stream);
        let mut line = String::new();
        while line.trim_end() != "" || line.is_empty() {
            line.clear();
            if lines.read_line(&mut line).await.with_context(what)? == 0 {
                bail!("{}: it closed the connection", what());
            }
        }
        let (history, seen) = (Arc::<Mutex<History>>::default(), Arc::<Mutex<Seen>>::default());
        let task = tokio::spawn({
            let (history, seen) = (history.clone(), seen.clone());
            async move {
                let mut line = String::new();
                let why = loop {
                    line.clear();
                    match lines.read_line(&mut line).await {
                        Ok(0) => break "etcd closed the connection".to_owned(),
                        Ok(_) => {}
                        Err(error) => break error.to_string(),
                    }
                    if line.trim().is_empty() {
                        continue;
                    }
                    match serde_json::from_str::<Value>(&line) {
                        Ok(message) if message["result"].is_object() => record(&message["result"], &history, &seen),
                        Ok(message) => break message.to_string(),
                        Err(error) => break format!("{error} in {line:?}"),
                    }
                };
                lock(&seen).broken = Some(why);
            }
        });
        Ok(Self { history, seen, task })
    }

    /// The revision at which an object with this name was stored; all before it is known then.
    pub async fn revision_of(&self, marker: &str) -> anyhow::Result<u64> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(why) = &lock(&self.seen).broken {
                bail!("the recording of history broke off: {why}");
            }
            if let Some((_, revision)) = lock(&self.seen).markers.iter().find(|(seen, _)| seen == marker) {
                return Ok(*revision);
            }
            if Instant::now() > deadline {
                bail!("the object {marker:?} does not show up in etcd");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What is known so far.
    pub fn so_far<T>(&self, of: impl FnOnce(&History) -> T) -> T {
        of(&lock(&self.history))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn record(result: &Value, history: &Mutex<History>, seen: &Mutex<Seen>) {
    if result["canceled"] == true {
        lock(seen).broken = Some(format!("etcd ended the watch: {result}"));
    }
    for event in result["events"].as_array().into_iter().flatten() {
        let bytes = |field: &Value| field.as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
        let key = String::from_utf8_lossy(&bytes(&event["kv"]["key"])).into_owned();
        let revision = event["kv"]["mod_revision"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default();
        let value = (event["type"] != "DELETE").then(|| bytes(&event["kv"]["value"]));
        let object = || value.as_deref().and_then(|value| serde_json::from_slice::<Value>(value).ok());
        if let Some(target) = key.strip_prefix(SANDBOXES) {
            lock(history).sandbox(revision, target, object().as_ref());
        } else if let Some(run) = key.strip_prefix(RUNS) {
            lock(history).run(revision, run, object().as_ref());
        } else if let Some(path) = key.strip_prefix(CONFIG_MAPS) {
            if value.is_some() {
                let name = path.rsplit('/').next().unwrap_or_default();
                lock(seen).markers.push((name.to_owned(), revision));
            }
            lock(history).effects.extend(effect(revision, path, value.as_deref()));
        }
    }
}

/// `NAMESPACE/PHASE-SANDBOX`, with the change between marks in it.
fn effect(revision: u64, path: &str, value: Option<&[u8]>) -> Option<Effect> {
    let (namespace, name) = path.split_once('/')?;
    let (phase, sandbox) =
        Phase::ALL.into_iter().find_map(|phase| Some((phase, name.strip_prefix(phase.slug())?.strip_prefix('-')?)))?;
    let change = value.map(|value| {
        let text = String::from_utf8_lossy(value);
        let marked = text.split_once(MARK.0).and_then(|(_, rest)| rest.split_once(MARK.1));
        marked.map_or("unmarked", |(change, _)| change).to_owned()
    });
    Some(Effect { revision, target: format!("{namespace}/{sandbox}"), phase, change })
}
