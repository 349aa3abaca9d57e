//! What held changes cost the API server's other users: GETs of one ordinary user, alone and beside 300 creates that
//! another has in flight, each with a pre-create of some 30 s. Prints a table; `make bench-held` runs it.

use anyhow::Context as _;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, Config};
use serde_json::json;
use sluice::api::{PhaseRun, ResourcePlugin, Sandbox};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CREATES: usize = 300;
const GETS: usize = 400;
const ATTEMPTS: usize = 11;
const NAMESPACE: &str = "bench-held";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let admin = Client::try_from(Config::infer().await?)?;
    set_up(&admin).await?;
    let (alice, bob) = (user("alice").await?, user("bob").await?);
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
    let (before, after) = (percentile(&alone, 99), percentile(&beside, 99));
    println!("\np99 beside over alone: {:.1}", after.as_secs_f64() / before.as_secs_f64());
    let mut made = 0;
    for create in join_all(creates).await {
        made += usize::from(create??);
    }
    println!("creates that were made by one command: {made} of {CREATES}");
    Api::<Namespace>::all(admin).delete(NAMESPACE, &kube::api::DeleteParams::default()).await?;
    Ok(())
}

/// A client as an ordinary user, whose requests share no seat with the administrator's.
async fn user(name: &str) -> anyhow::Result<Client> {
    let mut config = Config::infer().await?;
    config.auth_info.impersonate = Some(name.to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:authenticated".to_owned()]);
    config.default_retry = false;
    Ok(Client::try_from(config)?)
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
    in_flight.fetch_add(1, Ordering::Relaxed);
    let mut made = false;
    for _ in 0..ATTEMPTS {
        match sandboxes.create(&PostParams::default(), &sandbox).await {
            Ok(_) => {
                made = true;
                break;
            }
            Err(kube::Error::Api(status)) if status.code == 429 => {
                let after = status.details.as_ref().map_or(1, |details| details.retry_after_seconds.max(1));
                tokio::time::sleep(Duration::from_secs(after.into())).await;
            }
            Err(error) => {
                eprintln!("{name}: {error}");
                break;
            }
        }
    }
    in_flight.fetch_sub(1, Ordering::Relaxed);
    Ok(made)
}

async fn gets(client: &Client) -> anyhow::Result<Vec<Duration>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut times = Vec::with_capacity(GETS);
    for _ in 0..GETS {
        let began = Instant::now();
        namespaces.get(NAMESPACE).await?;
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    times.sort_unstable();
    Ok(times)
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
}

fn shown(sorted: &[Duration]) -> String {
    let ms = |duration: Duration| format!("{:.1} ms", duration.as_secs_f64() * 1000.0);
    let slowest = sorted.last().copied().unwrap_or_default();
    format!("{} | {} | {}", ms(percentile(sorted, 50)), ms(percentile(sorted, 99)), ms(slowest))
}
