//! The stand-ins for Kubernetes' controllers.

use crate::world;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

async fn all_at_rest(world: &sluice::world::World) {
    for _ in 0..30 {
        if !world.tick().await & !world.settle().await {
            return;
        }
    }
    panic!("it never came to rest");
}

#[tokio::test]
async fn a_deployment_becomes_ready_rolls_and_goes() {
    let world = world();
    let deployments: Api<Deployment> = Api::default_namespaced(world.client());
    let pods: Api<Pod> = Api::default_namespaced(world.client());
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}});
    deployments.create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await.unwrap();
    all_at_rest(&world).await;
    let status = deployments.get("web").await.unwrap().status.unwrap();
    assert_eq!(
        (status.ready_replicas, status.available_replicas, status.observed_generation),
        (Some(2), Some(2), Some(1))
    );
    let found = pods.list(&ListParams::default().labels("a=b").fields("status.phase=Running")).await.unwrap();
    assert_eq!(found.items.len(), 2);

    let patch: Value = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:2"}]}}}});
    deployments.patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    all_at_rest(&world).await;
    let found = pods.list(&ListParams::default()).await.unwrap();
    let images: Vec<_> = found.items.iter().map(|p| p.spec.as_ref().unwrap().containers[0].image.clone()).collect();
    assert_eq!(images, [Some("i:2".to_owned()), Some("i:2".to_owned())]);

    deployments.delete("web", &DeleteParams::default()).await.unwrap();
    all_at_rest(&world).await;
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
}
