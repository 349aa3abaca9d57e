//! The planner alone, from a change to the runs that it asks for; no expression is evaluated.

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};
use sluice::api::ResourcePluginSpec;
use sluice::plan::plugins::Plugins;
use sluice::plan::runs::{Change, Side, plan};
use std::hint::black_box;
use std::time::Duration;

const FORKS: usize = 20;
const RESOURCES: usize = 10;

fn plugins() -> Plugins {
    let script = |name: &str| json!([{"name": name, "script": "#!/bin/sh\ntrue", "timeoutSeconds": 60}]);
    let spec = json!({
        "runner": {"image": "registry.example/psql:16"},
        "preCreate": script("branch"), "preUpdate": script("change"), "preDelete": script("drain"),
        "postCreate": script("tell"), "postUpdate": script("tell"), "postDelete": script("drop"),
    });
    let spec: ResourcePluginSpec = serde_json::from_value(spec).unwrap_or_default();
    let quiet = ResourcePluginSpec { pre_update: None, post_update: None, ..spec.clone() };
    Plugins::new([("db".to_owned(), spec), ("quiet".to_owned(), quiet)])
}

fn sandbox(plugin: &str, description: &str) -> Value {
    let fork = |index: usize| {
        json!({
            "forkOf": {"kind": "Deployment", "name": format!("service-{index}")},
            "customizations": {"images": [{"image": format!("registry.example/shop/service-{index}:pr-7")}]},
        })
    };
    let resource = |index: usize| json!({"name": format!("r{index}"), "plugin": plugin, "params": {"size": "small"}});
    json!({
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": "feature-x", "namespace": "shop", "uid": "b9d1f0f2-5c0e-4f0b-8a3c-5d1f6a1c2e3f"},
        "spec": {
            "description": description,
            "forks": (0..FORKS).map(fork).collect::<Vec<_>>(),
            "resources": (0..RESOURCES).map(resource).collect::<Vec<_>>(),
        },
    })
}

fn planner(criterion: &mut Criterion) {
    let plugins = plugins();
    let (old, new) = (sandbox("db", "before"), sandbox("db", "after"));
    let (quiet_old, quiet_new) = (sandbox("quiet", "before"), sandbox("quiet", "after"));
    let mut group = criterion.benchmark_group("planner");
    group.warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(4));
    let changes = [
        ("create", Change::Create { new: &new }),
        ("update", Change::Update { old: &old, new: &new }),
        ("update without hooks", Change::Update { old: &quiet_old, new: &quiet_new }),
        ("delete", Change::Delete { old: &old }),
    ];
    for (name, change) in changes {
        let what = format!("{name}, {FORKS} forks and {RESOURCES} resources");
        group.bench_function(what, |bencher| bencher.iter(|| plan(black_box(change), Side::Pre, &plugins)));
    }
    group.finish();
}

criterion_group!(benches, planner);
criterion_main!(benches);
