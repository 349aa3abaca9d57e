//! Looks at everything again now and then, in case an event was lost.
//!
//! One object after another, so that thousands are no burst of requests; and not by a timer for each, which would take
//! as much memory as what is kept of the object.

use super::ControllerError;
use crate::plan::message::with_causes;
use kube::Resource;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{Lookup, Store};
use std::sync::Arc;
use std::time::Duration;

/// Within this time everything was looked at once more.
const EVERY: Duration = Duration::from_secs(60 * 60);

/// Reconciles what the store has, over and over; `reconcile` is given what the store had when the round began. What a
/// reconcile changes, or finds to do later, is told by its own events; one that fails comes again in the next round.
pub async fn sweep<K, R>(store: Store<K>, reconcile: impl Fn(Arc<K>) -> R)
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
    R: Future<Output = Result<Action, ControllerError>>,
{
    sweep_within(EVERY, store, reconcile).await;
}

async fn sweep_within<K, R>(every: Duration, store: Store<K>, reconcile: impl Fn(Arc<K>) -> R)
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
    R: Future<Output = Result<Action, ControllerError>>,
{
    if store.wait_until_ready().await.is_err() {
        return;
    }
    loop {
        let objects = store.state();
        let pause = pause(every, objects.len());
        if objects.is_empty() {
            tokio::time::sleep(pause).await;
        }
        for object in objects {
            tokio::time::sleep(pause).await;
            if let Err(error) = reconcile(object).await {
                tracing::debug!(error = with_causes(&error), "what was looked at again could not be reconciled");
            }
        }
    }
}

/// An object as it is now; none where it is gone, or another has its name. Ask within the object's turn, so that what the
/// last reconcile looked at is not newer.
pub fn still_there<K>(store: &Store<K>, object: &K) -> Option<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.get(&object.to_object_ref(())).filter(|now| now.meta().uid == object.meta().uid)
}

/// The pause between two of so many objects.
fn pause(every: Duration, objects: usize) -> Duration {
    every / u32::try_from(objects.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineError;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::reflector::store;
    use kube::runtime::watcher::Event;
    use std::future::ready;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn everything_is_looked_at_once_in_each_round_and_a_failure_ends_none() {
        let (reader, mut writer) = store::<ConfigMap>();
        writer.apply_watcher_event(&Event::Init);
        for name in ["a", "b", "c"] {
            let mut object = ConfigMap::default();
            object.metadata.name = Some(name.into());
            writer.apply_watcher_event(&Event::InitApply(object));
        }
        writer.apply_watcher_event(&Event::InitDone);
        let (tell, mut told) = mpsc::unbounded_channel();
        let look = |object: Arc<ConfigMap>| {
            tell.send(object.metadata.name.clone().unwrap()).unwrap();
            ready(Err(ControllerError::Engine(EngineError::Lost { run: "r".into() })))
        };
        let rounds = async {
            for _ in 0..2 {
                let mut round = [told.recv().await, told.recv().await, told.recv().await].map(Option::unwrap);
                round.sort();
                assert_eq!(round, ["a", "b", "c"]);
            }
        };
        tokio::select! {
            () = sweep_within(Duration::from_millis(30), reader, look) => panic!("it ended"),
            () = rounds => {}
        }
    }

    #[test]
    fn what_is_looked_at_is_never_older_than_the_store() {
        let (reader, mut writer) = store::<ConfigMap>();
        let version = |uid: &str, version: &str| {
            let mut object = ConfigMap::default();
            object.metadata.name = Some("a".into());
            (object.metadata.uid, object.metadata.resource_version) = (Some(uid.into()), Some(version.into()));
            object
        };
        let old = version("u", "1");
        writer.apply_watcher_event(&Event::Apply(old.clone()));
        writer.apply_watcher_event(&Event::Apply(version("u", "2")));
        assert_eq!(still_there(&reader, &old).unwrap().metadata.resource_version.as_deref(), Some("2"));
        writer.apply_watcher_event(&Event::Apply(version("another", "3")));
        assert_eq!(still_there(&reader, &old), None);
        writer.apply_watcher_event(&Event::Delete(version("another", "3")));
        assert_eq!(still_there(&reader, &old), None);
    }

    #[test]
    fn thousands_are_no_burst() {
        assert_eq!(pause(EVERY, 10_000), Duration::from_millis(360));
        assert_eq!(pause(EVERY, 0), EVERY);
    }
}
