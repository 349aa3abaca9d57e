//! Reviews that run no hook, as the API server sends them and of a given size.

use crate::objects::NAMESPACE;
use crate::quiet;
use anyhow::{Context as _, ensure};
use kube::Client;
use serde_json::{Value, json};
use sluice::api::{API_VERSION, GROUP, VERSION};

/// Custom resources have no more forks than this.
const MOST_FORKS: usize = 64;

/// What the update in a review changes.
#[derive(Clone, Copy)]
pub enum Changed {
    Label,
    /// So that what runs has to be planned.
    Spec,
}

/// A review of an update of a sandbox that is stored, of so many bytes.
pub async fn update(client: &Client, changed: Changed, bytes: usize) -> anyhow::Result<Vec<u8>> {
    let path = format!("/apis/{API_VERSION}/namespaces/{NAMESPACE}/sandboxes/{}", quiet::SANDBOX);
    let mut stored: Value = client.request(http::Request::get(path).body(Vec::new())?).await?;
    // It would be half of a small review, and nobody reads it.
    stored["metadata"].as_object_mut().context("metadata")?.remove("managedFields");
    let mut forks = Vec::new();
    loop {
        let next = serde_json::to_vec(&review(&with_forks(&stored, &forks), changed, ""))?;
        if next.len() + 600 > bytes || forks.len() == MOST_FORKS {
            break;
        }
        forks.push(fork(forks.len()));
    }
    stored = with_forks(&stored, &forks);
    let bare = serde_json::to_vec(&review(&stored, changed, ""))?.len();
    ensure!(bare <= bytes, "the smallest review has {bare} bytes, more than {bytes}");
    let review = serde_json::to_vec(&review(&stored, changed, &"x".repeat(bytes - bare)))?;
    ensure!(review.len() == bytes, "a review of {} bytes, not of {bytes}", review.len());
    Ok(review)
}

fn with_forks(stored: &Value, forks: &[Value]) -> Value {
    let mut sandbox = stored.clone();
    sandbox["spec"]["forks"] = json!(forks);
    sandbox
}

fn fork(index: usize) -> Value {
    json!({
        "forkOf": {"kind": "Deployment", "name": format!("service-{index}")},
        "customizations": {
            "images": [{"image": format!("registry.example/shop/service-{index}:pr-7")}],
            "env": [{"name": "LOG_LEVEL", "value": "debug"}, {"name": "CACHE", "value": "off"}],
        },
    })
}

fn review(stored: &Value, changed: Changed, padding: &str) -> Value {
    let mut new = stored.clone();
    new["metadata"]["annotations"]["example.com/padding"] = json!(padding);
    match changed {
        Changed::Label => new["metadata"]["labels"]["changed"] = json!("yes"),
        Changed::Spec => {
            new["spec"]["description"] = json!("changed");
            new["metadata"]["generation"] = json!(stored["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
        }
    }
    let kind = json!({"group": GROUP, "version": VERSION, "kind": "Sandbox"});
    let resource = json!({"group": GROUP, "version": VERSION, "resource": "sandboxes"});
    json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "b9d1f0f2-5c0e-4f0b-8a3c-5d1f6a1c2e3f",
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": stored["metadata"]["name"],
            "namespace": stored["metadata"]["namespace"],
            "operation": "UPDATE",
            "userInfo": {"username": "alice", "groups": ["shop", "system:authenticated"]},
            "object": new,
            "oldObject": stored,
            "dryRun": false,
            "options": {"kind": "PatchOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "kubectl-patch"},
        },
    })
}
