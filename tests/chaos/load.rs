//! The load: sandboxes that are created, changed and deleted, by clients of all sorts.

use crate::check::history::{Call, Told, Verb};
use crate::client::{self, Change};
use crate::plugins::{APPLY, NAMESPACE, QUOTA, SCRIPT};
use kube::Client;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A client goes away after this long, where it does.
const PATIENCE: Duration = Duration::from_secs(2);

/// A name that sandboxes are made under, one after another.
#[derive(Clone, Debug)]
pub struct Target {
    pub namespace: &'static str,
    pub name: String,
    plugin: &'static str,
}

/// All targets. Those of one namespace compete for its quota.
pub fn targets() -> Vec<Target> {
    let of = |namespace, prefix: &str, count: usize, plugin| {
        (0..count).map(move |i| Target { namespace, name: format!("{prefix}{i}"), plugin }).collect::<Vec<_>>()
    };
    [of(NAMESPACE, "applied-", 8, APPLY), of(NAMESPACE, "scripted-", 3, SCRIPT), of(QUOTA, "limited-", 4, APPLY)]
        .concat()
}

/// What all clients share.
#[derive(Clone)]
pub struct Load {
    pub client: Client,
    count: Arc<AtomicU64>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Load {
    pub fn new(client: Client) -> Self {
        Self { client, count: Arc::default(), calls: Arc::default() }
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes sandboxes until a moment, one client for each target.
    pub async fn run(&self, seed: u64, until: Instant) {
        let mut clients = JoinSet::new();
        for (index, target) in targets().into_iter().enumerate() {
            let rng = StdRng::seed_from_u64(seed.wrapping_add(index as u64));
            clients.spawn(self.clone().one(rng, target, until));
        }
        while clients.join_next().await.is_some() {}
    }

    async fn one(self, mut rng: StdRng, own: Target, until: Instant) {
        let everybody = targets();
        let mut exists = false;
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(rng.random_range(500..6000))).await;
            // Now and then somebody meddles with another's sandbox.
            let meddles = rng.random_bool(0.1);
            let target = if meddles { everybody.choose(&mut rng).unwrap_or(&own).clone() } else { own.clone() };
            let dice = rng.random_range(0..100);
            let verb = match (exists, dice) {
                (false, 0..90) | (true, 0..8) => Verb::Create,
                (true, 8..70) | (false, 90..95) => Verb::Update,
                _ => Verb::Delete,
            };
            let word = format!("c{}", self.count.fetch_add(1, Ordering::Relaxed));
            let change = change(&mut rng, verb, target.plugin, &word);
            let patience = rng.random_bool(0.12).then_some(PATIENCE);
            let mut told = self.make(&target, verb, &word, &change, patience).await;
            // Who was told of a failure often does the same once more.
            if told != Told::Made && rng.random_bool(0.4) {
                told = self.make(&target, verb, &word, &change, None).await;
            }
            if !meddles && told == Told::Made {
                exists = verb != Verb::Delete;
            } else if told != Told::Made {
                // It may be there or not: that is found out by trying.
                exists = rng.random_bool(0.5);
            }
        }
    }

    /// Makes a change and notes what its client is told.
    pub async fn make(
        &self,
        target: &Target,
        verb: Verb,
        word: &str,
        change: &Change,
        patience: Option<Duration>,
    ) -> Told {
        let making = client::make(&self.client, target.namespace, &target.name, change);
        let (told, message) = client::make_within(patience, making).await;
        let place = format!("{}/{}", target.namespace, target.name);
        let call = Call { target: place, change: word.to_owned(), verb, told, message };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        told
    }
}

fn change(rng: &mut StdRng, verb: Verb, plugin: &str, word: &str) -> Change {
    // What fails after a deletion is never taken away, so post-delete is not made to.
    let fail = match (verb, rng.random_range(0..100)) {
        (Verb::Create, 0..10) => "PreCreate",
        (Verb::Create, 10..14) => "PostCreate",
        (Verb::Update, 0..10) => "PreUpdate",
        (Verb::Update, 10..14) => "PostUpdate",
        (Verb::Update, 14..20) => "PreDelete",
        _ => "",
    };
    // Some take longer than an impatient client waits.
    let sleep = if rng.random_bool(0.3) { rng.random_range(1..5) } else { 0 };
    let params = json!({"fail": fail, "sleep": sleep.to_string()});
    let spec = json!({"description": word, "resources": [{"name": "r", "plugin": plugin, "params": params}]});
    match verb {
        Verb::Create => Change::Create(spec),
        Verb::Update => Change::Update(spec),
        Verb::Delete => Change::Delete,
    }
}

/// The change that lets a sandbox be deleted whatever was to fail.
pub fn mended(target: &Target, word: &str) -> Change {
    Change::Update(json!({
        "description": word,
        "resources": [{"name": "r", "plugin": target.plugin, "params": {"fail": "", "sleep": "0"}}],
    }))
}
