//! Deletions whose plugins are not all known, against a stand-in for the API server that has none of them.

use super::super::find::tests::api;
use super::super::hold::Limits;
use super::*;
use crate::api::{PhaseRun, PhaseRunStatus, RunState};
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

fn refused(name: &str) -> PhaseRun {
    let spec = json!({"phase": "PreCreate", "target": {"apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox",
        "namespace": "shop", "name": name}, "key": name, "attempt": 1, "timeoutSeconds": 1, "resources": [],
        "object": {"spec": {"description": "x".repeat(400_000)}}});
    let mut run = PhaseRun::new(name, serde_json::from_value(spec).unwrap());
    run.status = Some(PhaseRunStatus { state: RunState::Failed, ..PhaseRunStatus::default() });
    run
}

/// How a pre-create of a sandbox in this namespace is answered that finds no room beside those that were refused.
async fn begun(admission: &Admission, namespace: &str) -> Answer {
    let object = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox",
        "metadata": {"name": "new", "namespace": namespace}, "spec": {}});
    let target = runs::target(&object);
    let planned = PlannedRun {
        phase: Phase::PreCreate,
        key: namespace.into(),
        target,
        timeout_seconds: 1,
        resources: Vec::new(),
        object,
        old_object: None,
    };
    let request = Requester::default();
    // Without a seat nothing waits, so that what may begin is begun and answered as such.
    let deadline = Instant::now() + Duration::from_secs(1);
    let wish = Wish { planned, request: &request, keys: &[], admits: None, seat: None, deadline };
    admission.pass(wish, &mut Trail::default()).await.err().unwrap()
}

#[tokio::test]
async fn t10_a_create_is_told_to_come_again_where_what_was_refused_is_still_being_cleaned_up() {
    let admission = admission(&[]).await;
    for n in 0..42 {
        admission.engine.index.observe(&refused(&format!("n{n}")));
    }
    let Answer::Deny { code, message, retry_after, .. } = begun(&admission, "shop").await else { panic!() };
    assert_eq!((code, retry_after), (429, Some(Duration::from_secs(5))), "{message}");
    let why = "runs of changes that were refused are still being cleaned up in namespace \"shop\"";
    assert!(message.starts_with(why), "{message}");
    let Answer::Deny { message, .. } = begun(&admission, "another").await else { panic!() };
    assert!(!message.contains("cleaned up"), "{message}");
    admission.engine.index.forget("n0");
    let Answer::Deny { message, .. } = begun(&admission, "shop").await else { panic!() };
    assert!(!message.contains("cleaned up"), "{message}");
}
