//! What another user notices, and what Sluice's pods take in memory, while somebody means them ill: each attack alone,
//! then all of them together.

use crate::attacks::{self, ATTACKER, Answers, SHOUTS, WAITS};
use crate::client::{client, until_answered};
use crate::pods::{self, Replica};
use crate::results::Results;
use crate::sample::{Sample, ms};
use anyhow::Context as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use sluice::api::{ResourcePlugin, Sandbox};
use std::future::Future;
use std::time::{Duration, Instant};

const VICTIM: &str = "bench-victim";
const IMAGE: &str = "cluster.local/busybox:1";
const LASTING: Duration = Duration::from_secs(20);
const TOGETHER: Duration = Duration::from_secs(45);
/// Between two creates of the other user.
const PAUSE: Duration = Duration::from_millis(100);

/// What one attack did.
struct Seen {
    answers: Answers,
    creates: Vec<Duration>,
    peak: f64,
}

struct Range {
    victim: Client,
    replicas: Vec<Replica>,
}

pub async fn measure(admin: &Client, results: &mut Results) -> anyhow::Result<()> {
    set_up(admin).await?;
    let range = Range { victim: client(Some("bob")).await?, replicas: pods::replicas(admin).await? };
    let alice = client(Some("alice")).await?;
    let tls = attacks::tls(admin).await?;
    let before = pods::restarts(admin).await?;
    let replicas = &range.replicas;
    let peace = range.during(LASTING, async |until| {
        tokio::time::sleep_until(until.into()).await;
        Answers::new()
    });
    let mut all = vec![("nothing", peace.await?)];
    let webhooks = range.during(LASTING, |until| attacks::unfinished_headers(replicas, Some(tls.clone()), until));
    all.push(("1,000 unfinished headers on the webhooks' port", webhooks.await?));
    let probes = range.during(LASTING, |until| attacks::unfinished_headers(replicas, None, until));
    all.push(("1,000 unfinished headers on the probes' port", probes.await?));
    let others = range.during(LASTING, |until| attacks::dry_runs_of_others(&alice, until));
    let others = Sample::new(others.await?.creates);
    let what = "such dry runs of a kind that no webhook is asked about: another user's create";
    results.time(format!("{what}, p50"), others.median());
    results.time(format!("{what}, p99"), others.percentile(99));
    let dry_runs = range.during(LASTING, |until| attacks::dry_runs(&alice, until));
    all.push(("dry runs of 3 MB by 32 clients", dry_runs.await?));
    let forks = range.during(LASTING, |until| attacks::doubling_forks(&alice, until));
    all.push(("forks with doubling patches", forks.await?));
    let lines = range.during(LASTING, |until| attacks::shouting(&alice, until));
    all.push(("steps that write lines of 16 MiB", lines.await?));
    let share = range.during(LASTING, |until| attacks::share(&alice, until));
    all.push(("64 runs that wait, of one namespace", share.await?));
    let together = range.during(TOGETHER, async |until| {
        let attacks = tokio::join!(
            attacks::unfinished_headers(replicas, Some(tls.clone()), until),
            attacks::unfinished_headers(replicas, None, until),
            attacks::dry_runs(&alice, until),
            attacks::doubling_forks(&alice, until),
            attacks::shouting(&alice, until),
            attacks::share(&alice, until),
        );
        drop(attacks);
        Answers::new()
    });
    all.push(("all of it together", together.await?));
    take_in(all, results);
    results.key("hostile_restarts", (pods::restarts(admin).await? - before).into());
    let definitions = Api::<CustomResourceDefinition>::all(admin.clone());
    definitions.delete(&attacks::others().name_any(), &DeleteParams::default()).await?;
    for namespace in [ATTACKER, VICTIM] {
        Api::<Namespace>::all(admin.clone()).delete(namespace, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// The worst of all attacks counts.
fn take_in(all: Vec<(&str, Seen)>, results: &mut Results) {
    let (mut peak, mut slowest) = (0_f64, Duration::ZERO);
    for (what, seen) in all {
        let sample = Sample::new(seen.creates);
        peak = peak.max(seen.peak);
        slowest = slowest.max(sample.percentile(99));
        results.detail(format!("{what}: peak memory of a replica"), seen.peak, "MiB");
        results.time(format!("{what}: another user's create, p50"), sample.median());
        results.time(format!("{what}: another user's create, p99"), sample.percentile(99));
        for (answer, count) in seen.answers {
            results.detail(format!("{what}: {answer}"), count as f64, "times");
        }
    }
    results.key("hostile_rss_peak_mib", peak);
    results.key("hostile_create_p99_ms", ms(slowest));
}

impl Range {
    async fn during<F: Future<Output = Answers>>(
        &self,
        lasting: Duration,
        attack: impl FnOnce(Instant) -> F,
    ) -> anyhow::Result<Seen> {
        for replica in &self.replicas {
            replica.forget_peak()?;
        }
        let until = Instant::now() + lasting;
        let (answers, creates) = tokio::join!(attack(until), self.creates(until));
        let mut peak = 0_f64;
        for replica in &self.replicas {
            peak = peak.max(replica.peak()?);
        }
        Ok(Seen { answers, creates: creates?, peak })
    }

    /// What the other user does all the while.
    async fn creates(&self, until: Instant) -> anyhow::Result<Vec<Duration>> {
        let sandboxes: Api<Sandbox> = Api::namespaced(self.victim.clone(), VICTIM);
        let sandbox: Sandbox = serde_json::from_value(json!({
            "apiVersion": "sluice.dev/v1alpha1",
            "kind": "Sandbox",
            "metadata": {"generateName": "small-"},
            "spec": {"description": "of somebody who knows nothing of all this"},
        }))?;
        let (post, mut times) = (PostParams::default(), Vec::new());
        while Instant::now() < until {
            let began = Instant::now();
            until_answered(|| sandboxes.create(&post, &sandbox)).await.context("another's create")?;
            times.push(began.elapsed());
            tokio::time::sleep(PAUSE).await;
        }
        Ok(times)
    }
}

async fn set_up(admin: &Client) -> anyhow::Result<()> {
    let post = PostParams::default();
    let others = attacks::others();
    Api::<CustomResourceDefinition>::all(admin.clone()).create(&post, &others).await?;
    for name in [ATTACKER, VICTIM] {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<Namespace>::all(admin.clone()).create(&post, &namespace).await?;
    }
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": ATTACKER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"},
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"},
        ],
    }))?;
    Api::<ClusterRoleBinding>::all(admin.clone()).create(&post, &binding).await?;
    let baseline: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": IMAGE, "command": ["sleep", "1000"]}]},
            },
        },
    }))?;
    Api::<Deployment>::namespaced(admin.clone(), ATTACKER).create(&post, &baseline).await?;
    // An object of a namespace that is not there cannot be applied: with its tries the phase takes 31 s, no pod needed.
    let nowhere =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "bench-nowhere"}});
    plugin(
        admin,
        WAITS,
        json!({
            "runner": {"serviceAccountName": "default"},
            "postCreate": [{"name": "slow", "retries": 5, "apply": {"manifests": [nowhere]}}],
        }),
    )
    .await?;
    let shout = "#!/bin/sh\nhead -c 16777216 /dev/zero | tr '\\0' x\necho\nhead -c 16777216 /dev/zero | tr '\\0' y >&2";
    plugin(
        admin,
        SHOUTS,
        json!({
            "runner": {"image": IMAGE},
            "phases": {"preCreate": {"failurePolicy": "Ignore"}},
            "preCreate": [{"name": "shout", "script": shout}],
        }),
    )
    .await
}

async fn plugin(admin: &Client, name: &str, spec: Value) -> anyhow::Result<()> {
    let plugin = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "ResourcePlugin", "metadata": {"name": name}, "spec": spec,
    });
    let plugin: ResourcePlugin = serde_json::from_value(plugin)?;
    Api::<ResourcePlugin>::all(admin.clone()).create(&PostParams::default(), &plugin).await.context(name.to_owned())?;
    Ok(())
}
