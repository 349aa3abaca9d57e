//! What Sluice's steps add to the create of a sandbox, by the API request.

use crate::objects::{NAMESPACE, STEPS, applies, complete, create, plugin, scripts, until};
use crate::results::Results;
use crate::sample::{Sample, ms};
use crate::server;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodCondition};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use sluice::api::labels;
use std::time::{Duration, Instant};

const SCRIPT_ROUNDS: usize = 5;
const APPLY_ROUNDS: usize = 20;
/// What a change leaves to do is done by then.
const QUIET: Duration = Duration::from_millis(300);

/// Compares with the time that Helm's hooks add.
pub async fn measure(client: &Client, helm: Duration, results: &mut Results) -> anyhow::Result<()> {
    plugin(client, "bench-script", scripts("preCreate")).await?;
    plugin(client, "bench-apply", applies("preCreate", STEPS)).await?;
    // The first of each is not like the others: connections are made, images unpacked.
    rounds(client, "first-script", &["bench-script"], 1).await?;
    rounds(client, "first-apply", &["bench-apply"], 2).await?;

    let without = rounds(client, "without", &[], APPLY_ROUNDS).await?.median();
    results.time("create of a sandbox without resources", without);
    let script = rounds(client, "script", &["bench-script"], SCRIPT_ROUNDS).await?.median();
    results.time(format!("create with {STEPS} `script` steps, cold pod"), script);
    results.key("script_cold_times_faster", ratio(helm, script.saturating_sub(without)));
    if let Some(warm) = warm(client).await? {
        results.time(format!("create with {STEPS} `script` steps, warm pod"), warm);
        results.key("script_warm_times_faster", ratio(helm, warm.saturating_sub(without)));
    }

    let apply = rounds(client, "apply", &["bench-apply"], APPLY_ROUNDS).await?.median();
    let added = apply.saturating_sub(without);
    let own = own_writes(client).await?.median();
    results.time(format!("create with {STEPS} `apply` steps"), apply);
    results.time(format!("{STEPS} server-side applies of the same objects by a client"), own);
    results.key("apply_times_faster", ratio(helm, added));
    results.key("apply_step_over_write_ms", (ms(added) - ms(own)) / STEPS as f64);
    Ok(())
}

fn ratio(slow: Duration, fast: Duration) -> f64 {
    slow.as_secs_f64() / fast.as_secs_f64()
}

async fn rounds(client: &Client, name: &str, plugins: &[&str], rounds: usize) -> anyhow::Result<Sample> {
    let mut times = Vec::new();
    for round in 0..rounds {
        let name = format!("{name}-{round}");
        times.push(create(client, &name, plugins).await?);
        complete(client, &name).await?;
        tokio::time::sleep(QUIET).await;
    }
    Ok(Sample::new(times))
}

/// The scripts in a pod that waited for them; none where Sluice knows no such pods.
async fn warm(client: &Client) -> anyhow::Result<Option<Duration>> {
    const WARM: usize = 2;
    let mut spec = scripts("preCreate");
    spec["runner"]["warm"] = json!(WARM);
    let made = plugin(client, "bench-warm", spec).await?;
    if serde_json::to_value(&made.spec.runner)?["warm"].is_null() {
        eprintln!("bench: runner.warm is not known, so warm pods are not measured");
        return Ok(None);
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), server::RUNNERS);
    let all_wait = || async {
        let is_ready = |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            let ready = |condition: &PodCondition| condition.type_ == "Ready" && condition.status == "True";
            pod.metadata.deletion_timestamp.is_none() && conditions.is_some_and(|all| all.iter().any(ready))
        };
        let waiting = pods.list(&ListParams::default().labels(labels::WARM_OF)).await?;
        anyhow::Ok(waiting.items.iter().filter(|pod| is_ready(pod)).count() >= WARM)
    };
    let mut times = Vec::new();
    for round in 0..=SCRIPT_ROUNDS {
        until("warm pods", all_wait).await?;
        let name = format!("warm-{round}");
        times.push(create(client, &name, &["bench-warm"]).await?);
        complete(client, &name).await?;
    }
    times.remove(0);
    Ok(Some(Sample::new(times).median()))
}

/// What the same writes take where nobody but the API server is asked.
async fn own_writes(client: &Client) -> anyhow::Result<Sample> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let mut times = Vec::new();
    for round in 0..APPLY_ROUNDS {
        let began = Instant::now();
        for step in 0..STEPS {
            let name = format!("own-{round}-{step}");
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"size": "small"},
            });
            config_maps.patch(&name, &PatchParams::apply("bench"), &Patch::Apply(&object)).await?;
        }
        times.push(began.elapsed());
        tokio::time::sleep(QUIET).await;
    }
    Ok(Sample::new(times))
}
