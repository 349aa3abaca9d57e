//! The world through the clients that Sluice uses.

use crate::{world, world_at};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Discovery, ResourceExt};
use serde_json::json;
use std::time::Duration;

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

#[tokio::test]
async fn a_watcher_sees_a_life() {
    let world = world();
    let api: Api<ConfigMap> = Api::default_namespaced(world.client());
    api.create(&PostParams::default(), &map("a")).await.unwrap();
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut events = Box::pin(watcher::watcher(api.clone(), config));
        assert!(matches!(events.try_next().await.unwrap(), Some(Event::Init)));
        assert!(matches!(events.try_next().await.unwrap(), Some(Event::InitApply(map)) if map.name_any() == "a"));
        assert!(matches!(events.try_next().await.unwrap(), Some(Event::InitDone)));
        api.create(&PostParams::default(), &map("b")).await.unwrap();
        assert!(matches!(events.try_next().await.unwrap(), Some(Event::Apply(map)) if map.name_any() == "b"));
        api.delete("b", &DeleteParams::default()).await.unwrap();
        assert!(matches!(events.try_next().await.unwrap(), Some(Event::Delete(map)) if map.name_any() == "b"));
    }
}

#[tokio::test]
async fn a_watch_from_before_a_compaction_is_told_that_it_is_too_old() {
    let world = world();
    let api: Api<ConfigMap> = Api::default_namespaced(world.client());
    let first = api.create(&PostParams::default(), &map("a")).await.unwrap();
    api.create(&PostParams::default(), &map("b")).await.unwrap();
    world.compact(world.version());
    let version = first.resource_version().unwrap();
    let mut events = Box::pin(api.watch(&WatchParams::default(), &version).await.unwrap());
    match events.try_next().await {
        Ok(Some(WatchEvent::Error(status))) => assert_eq!((status.code, status.reason.as_str()), (410, "Expired")),
        other => panic!("{other:?}"),
    }
    assert!(events.try_next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_quiet_watch_is_told_the_version_and_ends_at_its_time() {
    let (world, clock) = world_at(1);
    let api: Api<ConfigMap> = Api::default_namespaced(world.client());
    let made = api.create(&PostParams::default(), &map("a")).await.unwrap();
    let params = WatchParams::default().timeout(90);
    let mut events = Box::pin(api.watch(&params, &made.resource_version().unwrap()).await.unwrap());
    let namespaces: Api<Namespace> = Api::all(world.client());
    let elsewhere = serde_json::from_value(json!({"metadata": {"name": "x"}})).unwrap();
    namespaces.create(&PostParams::default(), &elsewhere).await.unwrap();
    assert!(futures::poll!(events.next()).is_pending());
    clock.advance(Duration::from_secs(61));
    match events.try_next().await.unwrap() {
        Some(WatchEvent::Bookmark(mark)) => assert_eq!(mark.metadata.resource_version, world.version().to_string()),
        other => panic!("{other:?}"),
    }
    clock.advance(Duration::from_secs(30));
    assert!(events.try_next().await.unwrap().is_none());
}

#[tokio::test]
async fn open_watches_break_when_the_server_restarts() {
    let world = world();
    let api: Api<ConfigMap> = Api::default_namespaced(world.client());
    let version = world.version().to_string();
    let mut events = Box::pin(api.watch(&WatchParams::default(), &version).await.unwrap());
    assert!(futures::poll!(events.next()).is_pending());
    world.break_watches();
    assert!(events.try_next().await.unwrap().is_none());
}

#[tokio::test]
async fn typed_clients_apply_list_and_page() {
    let world = world();
    let pods: Api<Pod> = Api::default_namespaced(world.client());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for name in ["a", "b", "c"] {
        pods.patch(name, &PatchParams::apply("test"), &Patch::Apply(&pod)).await.unwrap();
    }
    let page = pods.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(page.items.len(), 2);
    let next = ListParams::default().continue_token(&page.metadata.continue_.unwrap());
    assert_eq!(pods.list(&next).await.unwrap().items[0].name_any(), "c");
    assert_eq!(pods.list_metadata(&ListParams::default()).await.unwrap().items.len(), 3);
    assert_eq!(pods.get_metadata("a").await.unwrap().name_any(), "a");
    assert!(pods.get_opt("none").await.unwrap().is_none());
}

#[tokio::test]
async fn discovery_finds_every_group() {
    let discovery = Discovery::new(world().client()).run().await.unwrap();
    assert!(discovery.has_group("apps"));
    let (found, _) = discovery.resolve_gvk(&kube::core::GroupVersionKind::gvk("batch", "v1", "Job")).unwrap();
    assert_eq!(found.plural, "jobs");
}

#[tokio::test]
async fn a_review_of_access_is_answered_by_whoever_was_set() {
    let world = world();
    world.set_access(std::sync::Arc::new(|spec: &serde_json::Value| spec["user"] == "ann"));
    let api: Api<SubjectAccessReview> = Api::all(world.client());
    for (user, allowed) in [("ann", true), ("bob", false)] {
        let review = serde_json::from_value(json!({"metadata": {}, "spec": {"user": user}})).unwrap();
        assert_eq!(api.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed, allowed);
    }
}
