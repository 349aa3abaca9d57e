//! Webhooks that are called in-process.

use crate::{world, world_at};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, GroupVersionKind, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use sluice::world::World;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Registers a webhook for ConfigMaps at `/NAME`.
async fn register(client: &Client, kind: &str, name: &str, more: &Value) {
    let mut hook = json!({"name": format!("{name}.x.io"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "s", "namespace": "n", "path": format!("/{name}")}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}]});
    hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    let object = json!({"kind": kind.kind, "apiVersion": "admissionregistration.k8s.io/v1",
        "metadata": {"name": name}, "webhooks": [hook]});
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// A handler that answers by `answer`, and what it was asked.
fn serve(world: &World, name: &str, answer: fn(&Value) -> Value) -> Arc<Mutex<Vec<Value>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let asked = seen.clone();
    let handler = move |review: Value| -> BoxFuture<'static, Value> {
        asked.lock().unwrap().push(review["request"].clone());
        let mut response = answer(&review["request"]);
        response["uid"] = review["request"]["uid"].clone();
        async move { json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response}) }
            .boxed()
    };
    world.hooks().serve(&format!("/{name}"), Arc::new(handler));
    seen
}

fn adds(field: &str, value: &str) -> Value {
    use base64::Engine;
    let patch = json!([{"op": "add", "path": format!("/data/{field}"), "value": value}]).to_string();
    let patch = base64::engine::general_purpose::STANDARD.encode(patch);
    json!({"allowed": true, "patchType": "JSONPatch", "patch": patch})
}

fn map() -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).unwrap()
}

fn message(error: kube::Error) -> (u16, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.message),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn mutating_webhooks_change_and_validating_ones_see_what_became() {
    let world = world();
    let client = world.client();
    register(&client, "MutatingWebhookConfiguration", "m", &json!({})).await;
    register(&client, "ValidatingWebhookConfiguration", "v", &json!({})).await;
    let mutating = serve(&world, "m", |_| adds("added", "yes"));
    let validating = serve(&world, "v", |_| json!({"allowed": true}));
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let made = api.create(&PostParams::default(), &map()).await.unwrap();
    assert_eq!(made.data.unwrap()["added"], "yes");
    let (first, second) = (mutating.lock().unwrap()[0].clone(), validating.lock().unwrap()[0].clone());
    assert_eq!(first["operation"], "CREATE");
    assert_eq!(first["object"]["metadata"]["uid"], Value::Null);
    assert_eq!(second["object"]["metadata"]["uid"], made.metadata.uid.unwrap());
    assert_eq!(second["object"]["data"]["added"], "yes");
    assert_eq!(second["userInfo"]["username"], "kubernetes-admin");
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let deletion = validating.lock().unwrap().last().unwrap().clone();
    assert_eq!((deletion["operation"].as_str(), deletion["object"].is_null()), (Some("DELETE"), true));
    assert_eq!(deletion["oldObject"]["metadata"]["name"], "a");
}

#[tokio::test]
async fn a_refusal_reaches_the_user_in_the_words_of_the_api_server() {
    let world = world();
    let client = world.client();
    register(&client, "ValidatingWebhookConfiguration", "v", &json!({})).await;
    serve(
        &world,
        "v",
        |_| json!({"allowed": false, "status": {"code": 429, "message": "wait", "details": {"retryAfterSeconds": 3}}}),
    );
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let error = message(api.create(&PostParams::default(), &map()).await.unwrap_err());
    assert_eq!(error, (429, "admission webhook \"v.x.io\" denied the request: wait".to_owned()));
    assert!(api.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_webhook_that_fails_counts_as_its_policy_says() {
    let world = world();
    let client = world.client();
    register(&client, "ValidatingWebhookConfiguration", "gone", &json!({"failurePolicy": "Ignore"})).await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    api.create(&PostParams::default(), &map()).await.unwrap();
    register(&client, "ValidatingWebhookConfiguration", "lost", &json!({"failurePolicy": "Fail"})).await;
    let error = message(api.delete("a", &DeleteParams::default()).await.unwrap_err());
    assert_eq!(error.0, 500);
    assert!(error.1.starts_with("Internal error occurred: failed calling webhook \"lost.x.io\""), "{}", error.1);
}

#[tokio::test]
async fn a_webhook_has_as_long_as_the_clock_of_the_world_gives_it() {
    let (world, clock) = world_at(1);
    let client = world.client();
    register(&client, "MutatingWebhookConfiguration", "slow", &json!({"timeoutSeconds": 30})).await;
    let handler = |_: Value| -> BoxFuture<'static, Value> { futures::future::pending().boxed() };
    world.hooks().serve("/slow", Arc::new(handler));
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let asked = tokio::spawn(async move { api.create(&PostParams::default(), &map()).await });
    for _ in 0..29 {
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(1));
    }
    tokio::task::yield_now().await;
    assert!(!asked.is_finished());
    clock.advance(Duration::from_secs(10));
    let error = message(asked.await.unwrap().unwrap_err());
    assert!(error.1.ends_with("context deadline exceeded"), "{}", error.1);
}

#[tokio::test]
async fn selectors_conditions_and_rules_choose_who_is_asked() {
    let world = world();
    let client = world.client();
    let more = json!({"objectSelector": {"matchLabels": {"watched": "yes"}},
        "matchConditions": [{"name": "c", "expression": "request.operation == 'UPDATE'"}]});
    register(&client, "ValidatingWebhookConfiguration", "v", &more).await;
    let seen = serve(&world, "v", |_| json!({"allowed": true}));
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    api.create(&PostParams::default(), &map()).await.unwrap();
    let patch = |body: Value| kube::api::Patch::Merge(body);
    let with = PatchParams::default();
    api.patch("a", &with, &patch(json!({"data": {"k": "w"}}))).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 0);
    api.patch("a", &with, &patch(json!({"metadata": {"labels": {"watched": "yes"}}}))).await.unwrap();
    api.patch("a", &with, &patch(json!({"metadata": {"labels": null}}))).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_webhook_is_asked_again_when_another_changed_the_object_after_it() {
    let world = world();
    let client = world.client();
    register(&client, "MutatingWebhookConfiguration", "a", &json!({"reinvocationPolicy": "IfNeeded"})).await;
    register(&client, "MutatingWebhookConfiguration", "b", &json!({})).await;
    let first = serve(&world, "a", |_| json!({"allowed": true}));
    let second = serve(&world, "b", |_| adds("b", "1"));
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    api.create(&PostParams::default(), &map()).await.unwrap();
    assert_eq!((first.lock().unwrap().len(), second.lock().unwrap().len()), (2, 1));
}

#[tokio::test]
async fn a_change_that_lost_to_another_is_admitted_anew() {
    let world = world();
    let client = world.client();
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    api.create(&PostParams::default(), &map()).await.unwrap();
    register(&client, "MutatingWebhookConfiguration", "m", &json!({})).await;
    let asked = Arc::new(Mutex::new(0));
    let (counted, other) = (asked.clone(), api.clone());
    let handler = move |review: Value| -> BoxFuture<'static, Value> {
        let first = {
            let mut asked = counted.lock().unwrap();
            *asked += 1;
            *asked == 1
        };
        let other = other.clone();
        async move {
            if first {
                let patch = kube::api::Patch::Merge(json!({"data": {"other": "1"}}));
                other.patch("a", &PatchParams::default(), &patch).await.unwrap();
            }
            json!({"response": {"uid": review["request"]["uid"], "allowed": true}})
        }
        .boxed()
    };
    world.hooks().serve("/m", Arc::new(handler));
    let patch = kube::api::Patch::Merge(json!({"data": {"own": "2"}}));
    let data = api.patch("a", &PatchParams::default(), &patch).await.unwrap().data.unwrap();
    assert_eq!((data["own"].as_str(), data["other"].as_str(), *asked.lock().unwrap()), ("2", "1", 3));
}

#[tokio::test]
async fn a_dry_run_is_not_shown_to_a_webhook_that_would_act_on_it() {
    let world = world();
    let client = world.client();
    register(&client, "MutatingWebhookConfiguration", "m", &json!({"sideEffects": "Some"})).await;
    let seen = serve(&world, "m", |_| json!({"allowed": true}));
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let error = message(api.create(&PostParams { dry_run: true, ..PostParams::default() }, &map()).await.unwrap_err());
    assert_eq!(error, (400, "admission webhook \"m.x.io\" does not support dry run".to_owned()));
    assert!(seen.lock().unwrap().is_empty());
}
