//! A client as people have it: client-go's way with an answer of 429, and one that goes away.

use crate::check::history::Told;
use kube::api::{DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use sluice::api::{GROUP, Sandbox, VERSION};
use std::future::Future;
use std::time::Duration;

/// As often client-go sends a request that is answered with 429, in all.
const ATTEMPTS: u32 = 11;
/// No answer at all after this long is a broken connection.
const SILENCE: Duration = Duration::from_secs(45);

/// One connection to the API server, with no retries of its own.
pub async fn connect() -> anyhow::Result<Client> {
    let mut config = Config::infer().await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// A change of a sandbox.
#[derive(Clone, Debug)]
pub enum Change {
    Create(Value),
    Update(Value),
    Delete,
}

/// Makes a change, and tells what its client is told.
pub async fn make(client: &Client, namespace: &str, name: &str, change: &Change) -> (Told, String) {
    let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    for _ in 0..ATTEMPTS {
        let sent = tokio::time::timeout(SILENCE, send(client, &api, namespace, name, change)).await;
        let status = match sent {
            Ok(Ok(())) => return (Told::Made, String::new()),
            Ok(Err(kube::Error::Api(status))) => status,
            Ok(Err(error)) => return (Told::Unknown, error.to_string()),
            Err(_) => return (Told::Unknown, "no answer".to_owned()),
        };
        let after = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        match status.code {
            429 if after > 0 => tokio::time::sleep(Duration::from_secs(after.into())).await,
            // The API server says that it does not know.
            502..=504 => return (Told::Unknown, status.message.clone()),
            code => return (Told::Refused, format!("{code}: {}", status.message)),
        }
    }
    (Told::Busy, "11 attempts".to_owned())
}

async fn send(
    client: &Client,
    api: &Api<Sandbox>,
    namespace: &str,
    name: &str,
    change: &Change,
) -> Result<(), kube::Error> {
    match change {
        Change::Create(spec) => {
            let kind = kube::api::ApiResource::from_gvk_with_plural(
                &kube::api::GroupVersionKind::gvk(GROUP, VERSION, "Sandbox"),
                "sandboxes",
            );
            let mut object = DynamicObject::new(name, &kind);
            object.metadata =
                ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..object.metadata };
            object.data = json!({"spec": spec});
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
            api.create(&PostParams::default(), &object).await.map(drop)
        }
        Change::Update(spec) => {
            api.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await.map(drop)
        }
        Change::Delete => api.delete(name, &DeleteParams::background()).await.map(drop),
    }
}

/// [`make`], by a client that may go away after a while.
pub async fn make_within(limit: Option<Duration>, making: impl Future<Output = (Told, String)>) -> (Told, String) {
    match limit {
        None => making.await,
        Some(limit) => tokio::time::timeout(limit, making).await.unwrap_or((Told::GaveUp, "gave up".to_owned())),
    }
}
