//! Requests to the API server as client-go makes them: one that is told to come again does.

use anyhow::Context as _;
use kube::{Client, Config};
use std::future::Future;
use std::time::Duration;

/// How often client-go sends a request before it gives up.
const ATTEMPTS: usize = 11;

/// A client that makes each request once; as `user` where one is named, else as the kubeconfig's own.
pub async fn client(user: Option<&str>) -> anyhow::Result<Client> {
    let mut config = Config::infer().await.context("no kubeconfig: run this by tests/cluster/with")?;
    config.default_retry = false;
    if let Some(name) = user {
        config.auth_info.impersonate = Some(name.to_owned());
        config.auth_info.impersonate_groups = Some(vec!["system:authenticated".to_owned()]);
    }
    Ok(Client::try_from(config)?)
}

/// Makes a request until it is answered by something else than the word to come again.
pub async fn until_answered<T, F>(request: impl Fn() -> F) -> kube::Result<T>
where
    F: Future<Output = kube::Result<T>>,
{
    let mut attempt = 1;
    loop {
        match request().await {
            Err(kube::Error::Api(status)) if status.code == 429 && attempt < ATTEMPTS => {
                attempt += 1;
                let after = status.details.as_ref().map_or(1, |details| details.retry_after_seconds.max(1));
                tokio::time::sleep(Duration::from_secs(after.into())).await;
            }
            answered => return answered,
        }
    }
}
