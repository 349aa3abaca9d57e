//! The change that the tests of expressions and templates look at.

use super::changes::change;
use super::kinds::SANDBOX;
use super::scope::{Scope, ScopeBuilder};
use crate::api::Phase;
use serde_json::{Value as Json, json};

fn fork(name: &str) -> Json {
    json!({"forkOf": {"kind": "Deployment", "name": name}})
}

/// A sandbox with one fork, which the change adds two others to and takes `old` from.
pub fn objects() -> (Json, Json) {
    let metadata = json!({"name": "feature-x", "namespace": "shop", "generation": 2, "annotations": {"team": "cart"}});
    let old = json!({"metadata": metadata, "spec": {"forks": [fork("graphql-cart"), fork("mail")]}});
    let new = json!({
        "metadata": metadata,
        "spec": {
            "forks": [fork("graphql-cart"), fork("graphql-user"), fork("web")],
            "resources": [{"name": "db", "plugin": "branch-db"}],
        },
    });
    (old, new)
}

pub fn update() -> Scope {
    let (old, new) = objects();
    builder(Some(old), new).phase(Phase::PreUpdate).build().unwrap()
}

pub fn create() -> Scope {
    let (_, new) = objects();
    builder(None, new).phase(Phase::PreCreate).build().unwrap()
}

fn builder(old: Option<Json>, new: Json) -> ScopeBuilder {
    ScopeBuilder::new(&SANDBOX)
        .change(change(&SANDBOX, old.as_ref(), Some(&new)))
        .target(new)
        .old(old)
        .params(json!({"domain": "dev.example.com", "replicas": "3", "a.b/c": "odd", "größe": "ü"}))
        .steps(json!({"branch": {"host": "db-7.example.com", "password": "hunter2-secret"}}))
}
