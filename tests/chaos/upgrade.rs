//! Small changes, ten a second, while Sluice itself is upgraded again and again: none of them may fail.

use crate::check::history::{Told, Verb};
use crate::client::{self, Change};
use crate::plugins::{self, APPLY, NAMESPACE};
use crate::setting;
use kube::Client;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Clients, each with a sandbox of its own.
const CLIENTS: u64 = 40;
/// Each makes a change this often, so that all of them make ten a second.
const PAUSE: Duration = Duration::from_millis(100 * CLIENTS);

type Made = Arc<Mutex<Vec<(Verb, Told, String)>>>;

/// Whether no change failed.
pub async fn run() -> anyhow::Result<bool> {
    let minutes = setting("MINUTES", 10)?;
    plugins::install().await?;
    plugins::upgrade("replicas=2").await?;
    let client = client::connect().await?;
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let made = Made::default();
    let mut clients = JoinSet::new();
    for index in 0..CLIENTS {
        clients.spawn(changes(client.clone(), index, until, made.clone()));
    }
    let mut upgrades = 0;
    while Instant::now() < until {
        // Another annotation each time, so that each upgrade makes new pods.
        plugins::upgrade(&format!("podAnnotations.upgrade=number-{upgrades}")).await?;
        upgrades += 1;
        eprintln!("upgrade-loop: {upgrades} upgrades, {} changes", count(&made));
    }
    while clients.join_next().await.is_some() {}
    let made = made.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    made.iter().for_each(|(verb, told, _)| *kinds.entry(format!("{verb:?} {told:?}")).or_default() += 1);
    kinds.iter().for_each(|(kind, count)| println!("  {kind}: {count}"));
    let failed: Vec<_> = made.iter().filter(|(_, told, _)| *told != Told::Made).collect();
    failed.iter().take(20).for_each(|(verb, told, why)| println!("failed: {verb:?} {told:?}: {why}"));
    println!("changes: {}", made.len());
    println!("upgrades: {upgrades}");
    println!("failed changes: {}", failed.len());
    Ok(failed.is_empty() && upgrades > 0)
}

fn count(made: &Made) -> usize {
    made.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// Creates a sandbox, changes it a few times and deletes it, over and over. Every second client's has phases.
async fn changes(client: Client, index: u64, until: Instant, made: Made) {
    let mut ticks = interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    tokio::time::sleep(Duration::from_millis(100 * index)).await;
    let name = format!("small-{index}");
    let mut number = 0_u64;
    // What was created is also deleted.
    while Instant::now() < until || !number.is_multiple_of(6) {
        ticks.tick().await;
        let plugin = if number % 12 < 6 { "r" } else { "s" };
        let resources = if index.is_multiple_of(2) { json!([{"name": plugin, "plugin": APPLY}]) } else { json!([]) };
        let spec = json!({"description": format!("{index}-{number}"), "resources": resources});
        let (verb, change) = match number % 6 {
            0 => (Verb::Create, Change::Create(spec)),
            5 => (Verb::Delete, Change::Delete),
            _ => (Verb::Update, Change::Update(spec)),
        };
        let (told, why) = client::make(&client, NAMESPACE, &name, &change).await;
        made.lock().unwrap_or_else(PoisonError::into_inner).push((verb, told, why));
        number += 1;
    }
}
