//! Deletions whose plugins are not all known, against a stand-in for the API server that has none of them.

use super::super::find::tests::api;
use super::super::hold::Limits;
use super::*;
use crate::engine::replicas::{Identity, Replicas};
use crate::engine::{EngineSettings, PodSettings};
use crate::plan::http::Allowed;
use crate::plan::queue;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

async fn admission(known: &[&str]) -> Admission {
    let (client, _) = api(known).await;
    let settings = EngineSettings {
        namespace: "sluice-system".into(),
        runner_namespaces: ["sluice-runners".to_owned()].into(),
        http: Allowed::new(Vec::new()),
        limits: queue::Limits { all: 1, runner_namespace: None, namespace: None },
    };
    let pods = PodSettings {
        runner_namespace: "sluice-runners".into(),
        agent_image: "sluice:1".into(),
        image_pull_policy: None,
    };
    let stop = CancellationToken::new();
    let engine =
        Engine::new(client.clone(), settings, pods, Replicas::new(Identity::new("pod", "process")), stop.clone());
    let plugins = Arc::<RwLock<Plugins>>::default();
    Admission {
        engine,
        plugins: plugins.clone(),
        finder: Finder::new(client.clone(), plugins),
        rights: Rights::new(client.clone()),
        holder: Holder::new(Limits { held: 1, held_in_all: 1 }, stop),
        waits: Waits::default(),
        recorder: Arc::new(Recorder::new(client, "pod".into())),
        sealer: Arc::new(Sealer::new([0; 32])),
        own_user: None,
    }
}

fn deletion(plugins: &[&str], dry_run: bool) -> Request {
    let of = |(at, plugin): (usize, &&str)| json!({"name": format!("r{at}"), "plugin": plugin});
    let resources: Vec<Value> = plugins.iter().enumerate().map(of).collect();
    Request {
        operation: Operation::Delete,
        namespace: "shop".into(),
        name: "x".into(),
        old_object: json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox",
            "metadata": {"name": "x", "namespace": "shop", "uid": "u"}, "spec": {"resources": resources}}),
        dry_run: Some(dry_run),
        ..Request::default()
    }
}

async fn answered(admission: &Admission, request: &Request) -> (Vec<String>, Vec<Audit>) {
    match admission.sandbox(request, Instant::now() + Duration::from_secs(10)).await {
        Answer::Allow { warnings, audit, .. } => (warnings, audit),
        refused => panic!("a deletion was refused: {refused:?}"),
    }
}

#[tokio::test]
async fn t07_a_deletion_tells_of_each_pre_delete_that_nobody_can_plan() {
    let admission = admission(&["plain"]).await;
    let (warnings, audit) = answered(&admission, &deletion(&["plain", "gone"], false)).await;
    assert_eq!(
        warnings,
        [
            "pre-delete was skipped: spec.resources[1].plugin: there is no ResourcePlugin \"gone\": apply the plugin first, or name one that exists"
        ]
    );
    assert_eq!(audit[0].key, "pre-delete-skipped");
    assert_eq!(admission.engine.outcomes.skipped.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn t07_a_dry_run_of_a_deletion_says_what_would_be_skipped_and_notes_nothing() {
    let admission = admission(&[]).await;
    let (warnings, audit) = answered(&admission, &deletion(&["gone"], true)).await;
    assert!(warnings[0].starts_with("pre-delete would be skipped: spec.resources[0].plugin:"), "{warnings:?}");
    assert_eq!((audit, admission.engine.outcomes.skipped.load(Ordering::Relaxed)), (vec![], 0));
}

#[tokio::test]
async fn a_deletion_finds_a_plugin_that_the_watch_has_not_shown_yet() {
    let admission = admission(&["plain"]).await;
    assert_eq!(answered(&admission, &deletion(&["plain"], false)).await, (vec![], vec![]));
    assert!(admission.plugins.read().unwrap().resolve("plain", None).is_ok());
}
