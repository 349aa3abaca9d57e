//! One seed, one history.

use crate::world_at;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

async fn history(seed: u64) -> String {
    let (world, _clock) = world_at(seed);
    let pods: Api<Pod> = Api::default_namespaced(world.client());
    for _ in 0..5 {
        let pod = json!({"metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }
    world.tick().await;
    world.tick().await;
    serde_json::to_string(&pods.list(&ListParams::default()).await.unwrap()).unwrap()
}

#[tokio::test]
async fn equal_seeds_make_equal_worlds_to_the_byte() {
    assert_eq!(history(7).await, history(7).await);
    assert_ne!(history(7).await, history(8).await);
}
