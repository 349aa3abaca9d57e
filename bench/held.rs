//! What held changes cost the API server's other users: GETs of one ordinary user, alone and beside 300 creates that
//! another has in flight, each with a pre-create of some 30 s. Prints a table; `make bench-held` runs it.

mod client;
mod sample;

use anyhow::Context as _;
use client::{client, until_answered};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use sample::{Sample, ms};
use serde_json::json;
use sluice::api::{PhaseRun, ResourcePlugin, Sandbox};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CREATES: usize = 300;
const GETS: usize = 400;
const NAMESPACE: &str = "bench-held";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let admin = client(None).await?;
    set_up(&admin).await?;
    // An ordinary user's requests share no seat with the administrator's.
    let (alice, bob) = (client(Some("alice")).await?, client(Some("bob")).await?);
    let alone = gets(&bob).await?;

    let in_flight = Arc::new(AtomicUsize::new(0));
    let creates: Vec<_> = (0..CREATES)
        .map(|index| tokio::spawn(create(alice.clone(), format!("held-{index}"), in_flight.clone())))
        .collect();
    while in_flight.load(Ordering::Relaxed) < CREATES {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let runs = Api::<PhaseRun>::all(admin.clone()).list_metadata(&ListParams::default()).await?.items.len();
    let beside = gets(&bob).await?;
    let left = in_flight.load(Ordering::Relaxed);

    println!("| GETs of another user | p50 | p99 | slowest |");
    println!("| --- | --- | --- | --- |");
    println!("| alone | {} |", shown(&alone));
    println!("| beside {CREATES} creates in flight ({left} at the end, {runs} runs) | {} |", shown(&beside));
    let (before, after) = (alone.percentile(99), beside.percentile(99));
    println!("\np99 beside over alone: {:.1}", after.as_secs_f64() / before.as_secs_f64());
    let mut made = 0;
    for create in join_all(creates).await {
        made += usize::from(create??);
    }
    println!("creates that were made by one command: {made} of {CREATES}");
    Api::<Namespace>::all(admin).delete(NAMESPACE, &kube::api::DeleteParams::default()).await?;
    Ok(())
}

async fn set_up(admin: &Client) -> anyhow::Result<()> {
    let namespace = Namespace {
        metadata: ObjectMeta { name: Some(NAMESPACE.into()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    Api::<Namespace>::all(admin.clone()).create(&PostParams::default(), &namespace).await.context("a namespace")?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"},
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"},
        ],
    }))?;
    let bindings: Api<ClusterRoleBinding> = Api::all(admin.clone());
    if bindings.get_opt(NAMESPACE).await?.is_none() {
        bindings.create(&PostParams::default(), &binding).await?;
    }
    // An object of a namespace that is not there cannot be applied: with its tries the phase takes 31 s, no pod needed.
    let plugin: ResourcePlugin = serde_json::from_value(json!({
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "ResourcePlugin",
        "metadata": {"name": NAMESPACE},
        "spec": {
            "runner": {"serviceAccountName": "default"},
            "phases": {"preCreate": {"failurePolicy": "Ignore"}},
            "preCreate": [{"name": "slow", "retries": 5, "apply": {"manifests": [
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "bench-nowhere"}},
            ]}}],
        },
    }))?;
    let plugins: Api<ResourcePlugin> = Api::all(admin.clone());
    if plugins.get_opt(NAMESPACE).await?.is_none() {
        plugins.create(&PostParams::default(), &plugin).await?;
    }
    Ok(())
}

/// Creates a sandbox the way that client-go does; whether it was made.
async fn create(client: Client, name: String, in_flight: Arc<AtomicUsize>) -> anyhow::Result<bool> {
    let sandbox: Sandbox = serde_json::from_value(json!({
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"resources": [{"name": "r", "plugin": NAMESPACE}]},
    }))?;
    let sandboxes: Api<Sandbox> = Api::namespaced(client, NAMESPACE);
    let post = PostParams::default();
    in_flight.fetch_add(1, Ordering::Relaxed);
    let made = match until_answered(|| sandboxes.create(&post, &sandbox)).await {
        Ok(_) => true,
        Err(error) => {
            eprintln!("{name}: {error}");
            false
        }
    };
    in_flight.fetch_sub(1, Ordering::Relaxed);
    Ok(made)
}

async fn gets(client: &Client) -> anyhow::Result<Sample> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut times = Vec::with_capacity(GETS);
    for _ in 0..GETS {
        let began = Instant::now();
        namespaces.get(NAMESPACE).await?;
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(Sample::new(times))
}

fn shown(sample: &Sample) -> String {
    let shown = [sample.median(), sample.percentile(99), sample.slowest()].map(|time| format!("{:.1} ms", ms(time)));
    shown.join(" | ")
}
