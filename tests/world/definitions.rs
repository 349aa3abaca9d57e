//! Sluice's own definitions and its example, as a user applies them.

use crate::world;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::{Client, Discovery};
use serde_json::{Value, json};

/// Applies one object, wherever discovery says that it belongs.
async fn apply(client: &Client, object: &Value) -> Result<DynamicObject, kube::Error> {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let types = object.types.clone().unwrap();
    let discovery = Discovery::new(client.clone()).run().await.unwrap();
    let (resource, capabilities) = discovery.resolve_gvk(&(&types).try_into().unwrap()).unwrap();
    let api: Api<DynamicObject> = match capabilities.scope {
        kube::discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
        kube::discovery::Scope::Namespaced => {
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    };
    api.patch(object.metadata.name.as_deref().unwrap(), &PatchParams::apply("user"), &Patch::Apply(&object)).await
}

fn documents(yaml: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(yaml).unwrap()
}

#[tokio::test]
async fn sluices_definitions_serve_its_kinds_with_their_rules() {
    let world = world();
    let client = world.client();
    for definition in documents(&sluice::api::crds::yaml().unwrap()) {
        apply(&client, &definition).await.unwrap();
    }
    assert!(world.rest(5).await);
    for plugin in documents(include_str!("../../examples/graphql-ingress/plugin.yaml")) {
        let made = apply(&client, &plugin).await.unwrap_or_else(|error| panic!("{error}: {plugin}"));
        assert_eq!(made.metadata.generation, Some(1));
    }
    let plugin = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "ResourcePlugin", "metadata": {"name": "bad"},
        "spec": {"preCreate": "none"}});
    let error = apply(&client, &plugin).await.unwrap_err();
    let kube::Error::Api(status) = error else { panic!("{error}") };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert!(status.message.contains("spec.preCreate in body must be of type array: \"string\""), "{}", status.message);
}
