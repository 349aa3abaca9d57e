//! What the fuzz targets look at beside their input: a sandbox and its change, the plugins that there are, and a
//! limit on time. Knows no target.

use serde_json::{Value, json};
use sluice::api::{Phase, ResourcePluginSpec};
use sluice::plan::changes::change;
use sluice::plan::kinds::SANDBOX;
use sluice::plan::plugins::Plugins;
use sluice::plan::scope::{Scope, ScopeBuilder};
use std::panic::PanicHookInfo;
use std::sync::LazyLock;

/// The sandbox before and after a change that adds two forks, takes one away and keeps one.
pub fn objects() -> (Value, Value) {
    let fork = |name: &str| json!({"forkOf": {"kind": "Deployment", "name": name}});
    let metadata = json!({
        "name": "feature-x", "namespace": "shop", "uid": "6f1c", "generation": 2, "annotations": {"team": "cart"},
    });
    let head = |forks: Vec<Value>, resources: Value| {
        json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox", "metadata": metadata,
            "spec": {"forks": forks, "resources": resources},
        })
    };
    let old = head(vec![fork("graphql-cart"), fork("mail")], json!([]));
    let resources = json!([{"name": "db", "plugin": "branch-db", "params": {"size": "small"}}]);
    let new = head(vec![fork("graphql-cart"), fork("graphql-user"), fork("web")], resources);
    (old, new)
}

/// What an expression of a step sees in the pre-update of that change.
pub static SCOPE: LazyLock<Scope> = LazyLock::new(|| {
    let (old, new) = objects();
    ScopeBuilder::new(&SANDBOX)
        .change(change(&SANDBOX, Some(&old), Some(&new)))
        .target(new)
        .old(Some(old))
        .params(json!({"domain": "dev.example.com", "replicas": "3", "a.b/c": "odd", "größe": "ü"}))
        .steps(json!({"branch": {"host": "db-7.example.com", "password": "hunter2-secret"}}))
        .phase(Phase::PreUpdate)
        .build()
        .expect("the scope is small")
});

/// The plugins that there are.
pub static PLUGINS: LazyLock<Plugins> = LazyLock::new(|| {
    let plugin = |text: &str| serde_json::from_str::<Value>(text).expect("a seed that is valid");
    let spec = |text: &str| -> ResourcePluginSpec {
        serde_json::from_value(plugin(text)["spec"].clone()).expect("a seed that is valid")
    };
    let ingress = spec(include_str!("../seeds/plugin/graphql-ingress.json"));
    let db = spec(include_str!("../seeds/plugin/branch-db.json"));
    Plugins::new([
        ("graphql-ingress".to_owned(), ingress.clone()),
        ("branch-db".to_owned(), db.clone()),
        ("branch-db.1.2.0".to_owned(), db),
        ("graphql-ingress.2.0.0".to_owned(), ingress),
    ])
});

/// Runs asynchronous work and then waits for every thread that it left behind: one that does not end in time is found
/// by libFuzzer's own limit.
pub fn to_the_end<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(work)
}

/// Ends the process at a panic of ours. The library of expressions may panic: that is caught, and told to the user.
pub fn forgive_the_library() {
    let strict = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
        let file = panic.location().map_or("", |location| location.file());
        let library = ["/cel-", "/kube-cel-", "/antlr"].iter().any(|part| file.contains(part));
        if !library {
            strict(panic);
        }
    }));
}
