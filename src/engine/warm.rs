//! The pods that wait for a run: what this replica knows of them, fed by a watch, and how one is taken.
//!
//! Who keeps them in number is the leader, in `controller::warm`. Any replica may take one.

use super::Engine;
use super::error::is_status;
use super::pod_template::Assignment;
use crate::api::labels;
use crate::plan::message::with_causes;
use crate::plan::pod::{self, PodState};
use crate::plan::warm::LIFE_SECONDS;
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use rand::seq::IteratorRandom;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What this replica knows of the pods that wait, in the namespaces that plugins may run in. What carries the label of
/// such a pod elsewhere is anybody's.
#[derive(Default)]
pub struct WarmPods {
    pods: Mutex<BTreeMap<(String, String), Pod>>,
    changes: watch::Sender<u64>,
    /// The namespaces whose pods that wait are all known.
    synced: Mutex<BTreeSet<String>>,
}

impl WarmPods {
    /// Notes a pod, unless what is known of it is newer.
    pub fn observe(&self, pod: Pod) {
        let mut pods = self.known();
        let known = pods.get(&key(&pod));
        if known.is_some_and(|known| version(known) >= version(&pod) && known.uid() == pod.uid()) {
            return;
        }
        pods.insert(key(&pod), pod);
        drop(pods);
        self.tell();
    }

    /// A pod is gone, or waits no longer.
    pub fn forget(&self, pod: &Pod) {
        self.known().remove(&key(pod));
        self.tell();
    }

    /// Every pod that waits or is about to.
    pub fn all(&self) -> Vec<Pod> {
        self.known().values().cloned().collect()
    }

    /// A pod that runs, of this plugin and template, chosen at random so that replicas seldom choose the same. It is no longer
    /// known then.
    pub fn take(&self, (plugin, namespace): (&str, &str), template: &str, to: &Assignment<'_>) -> Option<Pod> {
        let mut pods = self.known();
        let now = Timestamp::now();
        let plugin = labels::value(plugin);
        let fits = |pod: &Pod| {
            pod.metadata.namespace.as_deref() == Some(namespace)
                && label(pod, labels::WARM_OF) == Some(&plugin)
                && label(pod, labels::WARM_TEMPLATE) == Some(template)
                && pod::state(pod) == PodState::Running
                // A deadline can be brought forward, not put off.
                && to.deadline(age(pod, now)) <= LIFE_SECONDS
        };
        let chosen = pods.iter().filter(|(_, pod)| fits(pod)).map(|(key, _)| key.clone()).choose(&mut rand::rng())?;
        let taken = pods.remove(&chosen);
        drop(pods);
        self.tell();
        taken
    }

    /// Tells of every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether every pod that waits in a namespace is known.
    pub fn is_synced(&self, namespace: &str) -> bool {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner).contains(namespace)
    }

    /// These are all that wait in a namespace.
    fn replace(&self, namespace: &str, listed: BTreeMap<(String, String), Pod>) {
        let mut pods = self.known();
        pods.retain(|(of, _), _| of != namespace);
        pods.extend(listed);
        drop(pods);
        self.synced.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace.to_owned());
        self.tell();
    }

    fn tell(&self) {
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<(String, String), Pod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The value of a label of a pod.
pub fn label<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// For how many seconds a pod has been on its node, whose kubelet counts its deadline from there.
pub fn age(pod: &Pod, now: Timestamp) -> i64 {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    started.map_or(0, |started| now.as_second() - started.0.as_second())
}

fn key(pod: &Pod) -> (String, String) {
    (pod.namespace().unwrap_or_default(), pod.name_any())
}

/// Greater is newer (KEP-5504).
fn version(pod: &Pod) -> u64 {
    pod.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// What became of taking a pod.
pub enum Claim {
    /// It is the run's alone.
    Done,
    /// It is another's, gone or going.
    Taken,
    Failed(kube::Error),
}

/// Makes a pod that waits the run's own. The patch is refused where the label is no longer there that says that it
/// waits, so of many who ask one has it, and what the kubelet writes meanwhile stands in nobody's way.
pub async fn claim(pods: &Api<Pod>, pod: &Pod, to: &Assignment<'_>) -> Claim {
    let patch = match serde_json::from_value(assigning(pod, to, Timestamp::now())) {
        Ok(patch) => Patch::Json::<()>(patch),
        Err(error) => return Claim::Failed(kube::Error::SerdeError(error)),
    };
    match pods.patch(&pod.name_any(), &PatchParams::default(), &patch).await {
        Ok(claimed) if pod::state(&claimed) == PodState::Running => Claim::Done,
        Ok(_) => Claim::Taken,
        Err(error) if [404, 409, 422].iter().any(|code| is_status(&error, *code)) => Claim::Taken,
        Err(error) => Claim::Failed(error),
    }
}

/// The JSON patch that makes a pod a run's.
fn assigning(pod: &Pod, to: &Assignment<'_>, now: Timestamp) -> Value {
    let path = |label: &str| format!("/metadata/labels/{}", label.replace('~', "~0").replace('/', "~1"));
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": pod.uid()}),
        json!({"op": "test", "path": path(labels::WARM_OF), "value": label(pod, labels::WARM_OF)}),
        json!({"op": "remove", "path": path(labels::WARM_OF)}),
        json!({"op": "add", "path": "/metadata/ownerReferences", "value": to.owner.iter().collect::<Vec<_>>()}),
        json!({"op": "add", "path": "/spec/activeDeadlineSeconds", "value": to.deadline(age(pod, now))}),
    ];
    let labels = to.labels();
    operations.extend(labels.iter().map(|(name, value)| json!({"op": "add", "path": path(name), "value": value})));
    Value::Array(operations)
}

/// Follows the pods that wait in the namespaces that plugins may run in, for as long as the future is polled.
pub async fn follow_warm(engine: Arc<Engine>) {
    join_all(engine.runner_namespaces().iter().map(|namespace| follow_warm_in(&engine, namespace))).await;
}

async fn follow_warm_in(engine: &Engine, namespace: &str) {
    let pods: Api<Pod> = Api::namespaced(engine.client.clone(), namespace);
    let config = watcher::Config::default().labels(labels::WARM_OF);
    let mut events = watcher(pods, config).default_backoff().boxed();
    let mut listed = BTreeMap::new();
    loop {
        match events.try_next().await {
            Ok(Some(Event::Init)) => listed.clear(),
            Ok(Some(Event::InitApply(pod))) => drop(listed.insert(key(&pod), pod)),
            Ok(Some(Event::InitDone)) => engine.warm.replace(namespace, std::mem::take(&mut listed)),
            Ok(Some(Event::Apply(pod))) => engine.warm.observe(pod),
            Ok(Some(Event::Delete(pod))) => engine.warm.forget(&pod),
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(
                    namespace,
                    error = with_causes(&error),
                    "the watch of pods that wait broke and is made again"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::TargetRef;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    fn target() -> TargetRef {
        TargetRef { namespace: "shop".into(), name: "x".into(), ..TargetRef::default() }
    }

    fn to(target: &TargetRef) -> Assignment<'_> {
        let owner = OwnerReference { name: "r".into(), uid: "run".into(), ..OwnerReference::default() };
        Assignment { run: "r", target, resource: "db", part: "0-0", owner: Some(owner), timeout_seconds: 60 }
    }

    fn pod(name: &str, version: u64, running: bool) -> Pod {
        let state = if running { json!({"running": {}}) } else { json!({"waiting": {"reason": "ContainerCreating"}}) };
        let status =
            json!({"name": "main", "image": "i", "imageID": "", "ready": running, "restartCount": 0, "state": state});
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": version.to_string(),
                "labels": {labels::WARM_OF: "p", labels::WARM_TEMPLATE: "t"}},
            "status": {"phase": "Running", "startTime": Timestamp::now().to_string(), "containerStatuses": [status]},
        }))
        .unwrap()
    }

    #[test]
    fn only_a_pod_that_runs_of_the_same_plugin_and_template_is_taken_and_once() {
        let warm = WarmPods::default();
        let target = target();
        warm.observe(pod("a", 1, false));
        assert!(warm.take(("p", "n"), "t", &to(&target)).is_none());
        warm.observe(pod("a", 2, true));
        assert!(warm.take(("p", "n"), "other", &to(&target)).is_none());
        assert!(warm.take(("p", "other"), "t", &to(&target)).is_none());
        assert!(warm.take(("q", "n"), "t", &to(&target)).is_none());
        assert_eq!(warm.take(("p", "n"), "t", &to(&target)).unwrap().name_any(), "a");
        assert!(warm.take(("p", "n"), "t", &to(&target)).is_none());
    }

    #[test]
    fn a_pod_that_would_be_ended_before_the_run_is_not_taken() {
        let warm = WarmPods::default();
        let target = target();
        let mut old = pod("a", 1, true);
        let started = Timestamp::from_second(Timestamp::now().as_second() - LIFE_SECONDS + 100).unwrap();
        old.status.as_mut().unwrap().start_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(started));
        warm.observe(old);
        assert!(warm.take(("p", "n"), "t", &to(&target)).is_none());
    }

    #[test]
    fn t13_what_waits_in_one_namespace_says_nothing_of_another() {
        let warm = WarmPods::default();
        warm.observe(pod("a", 1, true));
        warm.replace("other", BTreeMap::new());
        assert_eq!((warm.is_synced("other"), warm.is_synced("n"), warm.all().len()), (true, false, 1));
        warm.replace("n", BTreeMap::new());
        assert!(warm.is_synced("n") && warm.all().is_empty());
    }

    #[test]
    fn late_news_of_a_pod_change_nothing() {
        let warm = WarmPods::default();
        warm.observe(pod("a", 5, true));
        warm.observe(pod("a", 4, false));
        assert_eq!(pod::state(&warm.all()[0]), PodState::Running);
        warm.forget(&pod("a", 6, true));
        assert!(warm.all().is_empty());
    }

    #[test]
    fn a_pod_is_made_the_run_s_only_while_it_waits() {
        let target = target();
        let now = Timestamp::from_second(Timestamp::now().as_second() + 100).unwrap();
        let mut waiting = serde_json::to_value(pod("a", 1, true)).unwrap();
        let patch: json_patch::Patch =
            serde_json::from_value(assigning(&pod("a", 1, true), &to(&target), now)).unwrap();
        waiting["spec"] = json!({});
        json_patch::patch(&mut waiting, &patch).unwrap();
        assert_eq!(waiting["metadata"]["ownerReferences"][0]["uid"], "run");
        assert_eq!(waiting["metadata"]["labels"][labels::RUN], "r");
        assert_eq!(waiting["metadata"]["labels"][labels::PART], "0-0");
        assert_eq!(waiting["metadata"]["labels"][labels::WARM_OF], Value::Null);
        let deadline = waiting["spec"]["activeDeadlineSeconds"].as_i64().unwrap();
        assert!((279..=281).contains(&deadline), "{deadline}");
        assert!(json_patch::patch(&mut waiting, &patch).is_err(), "a second one is refused");
    }
}
