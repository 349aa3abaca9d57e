//! What goes wrong: replicas die or stand still, step pods vanish, the API server is killed, Sluice is rolled out.

use crate::plugins::{RUNNERS, SLUICE, run};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

const CLUSTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/cluster");

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    ReplicaKilled,
    ReplicaPaused,
    StepPodDeleted,
    ApiServerKilled,
    RolledOut,
}

const ODDS: [(Fault, u32); 5] = [
    (Fault::ReplicaKilled, 4),
    (Fault::ReplicaPaused, 4),
    (Fault::StepPodDeleted, 4),
    (Fault::ApiServerKilled, 1),
    (Fault::RolledOut, 1),
];

/// Injects faults at random until a moment, undoes what lasts, and tells how many there were of each.
pub async fn inject(client: Client, seed: u64, until: Instant) -> anyhow::Result<BTreeMap<Fault, usize>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut count = BTreeMap::new();
    let mut paused = JoinSet::new();
    loop {
        let next = Instant::now() + Duration::from_millis(rng.random_range(3000..12000));
        if next >= until {
            break;
        }
        tokio::time::sleep_until(next).await;
        let Ok((fault, _)) = ODDS.choose_weighted(&mut rng, |(_, odds)| *odds) else { continue };
        match inject_one(&client, *fault, &mut rng, &mut paused).await {
            Ok(true) => *count.entry(*fault).or_default() += 1,
            Ok(false) => {}
            // The API server may be away by another fault.
            Err(error) => eprintln!("chaos: {fault:?} was not injected: {error}"),
        }
    }
    while paused.join_next().await.is_some() {}
    run(CLUSTER, &["start", "kube-apiserver"], "").await?;
    Ok(count)
}

/// Injects a fault, if there is something to inject it into.
async fn inject_one(client: &Client, fault: Fault, rng: &mut StdRng, paused: &mut JoinSet<()>) -> anyhow::Result<bool> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), SLUICE);
    match fault {
        Fault::ReplicaKilled => {
            let Some(process) = replica(&pods, rng).await? else { return Ok(false) };
            eprintln!("chaos: kill -9 {process}, a replica");
            signal(process, "KILL").await?;
        }
        Fault::ReplicaPaused => {
            let Some(process) = replica(&pods, rng).await? else { return Ok(false) };
            let seconds = rng.random_range(5..=15);
            eprintln!("chaos: {process}, a replica, stands still for {seconds} s");
            signal(process, "STOP").await?;
            paused.spawn(async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                // It may have been killed meanwhile.
                let _ = signal(process, "CONT").await;
            });
        }
        Fault::StepPodDeleted => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), RUNNERS);
            let found = pods.list(&ListParams::default().labels("sluice.dev/run")).await?.items;
            let Some(pod) = found.choose(rng) else { return Ok(false) };
            eprintln!("chaos: delete pod {}", pod.name_any());
            pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
        }
        Fault::ApiServerKilled => {
            eprintln!("chaos: kill -9 of the API server");
            run(CLUSTER, &["stop", "kube-apiserver"], "").await?;
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..4000))).await;
            run(CLUSTER, &["start", "kube-apiserver"], "").await?;
        }
        Fault::RolledOut => {
            eprintln!("chaos: rollout restart");
            Api::<Deployment>::namespaced(client.clone(), SLUICE).restart("sluice").await?;
        }
    }
    Ok(true)
}

/// The process of one of Sluice's pods.
async fn replica(pods: &Api<Pod>, rng: &mut StdRng) -> anyhow::Result<Option<u32>> {
    let found = pods.list(&ListParams::default().labels("sluice.dev/component=server")).await?.items;
    Ok(found.choose(rng).and_then(|pod| process_of(&pod.name_any())))
}

/// The node is this machine, so its processes are to be seen here.
fn process_of(pod: &str) -> Option<u32> {
    let name = format!("POD_NAME={pod}");
    let has = |pid: u32, file: &str, what: &dyn Fn(&[u8]) -> bool| {
        std::fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|content| what(&content))
    };
    let processes = std::fs::read_dir("/proc").ok()?;
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).find(|pid| {
        has(*pid, "cmdline", &|text| text.starts_with(b"/sluice\0server\0"))
            && has(*pid, "environ", &|text| text.split(|byte| *byte == 0).any(|v| v == name.as_bytes()))
    })
}

async fn signal(process: u32, signal: &str) -> anyhow::Result<()> {
    run("kill", &["-s", signal, &process.to_string()], "").await.map(drop)
}
