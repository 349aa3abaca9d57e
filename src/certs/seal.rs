//! The Secret with the key of the forks' seals: made once, read by every replica before it serves, and written again
//! from memory where somebody deleted it.
//!
//! It is read and created, never changed and never listed. What is sealed with the key, and why, is
//! [`crate::plan::seal`]'s.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;

use super::issue::Names;
use super::store::{ATTEMPTS, SecretStore, StoreError, Written};
use crate::plan::message::with_causes;
use crate::plan::seal::{KEY_BYTES, Sealer};

/// The name of the Secret.
pub const SECRET: &str = "sluice-seal";
/// The `type` of the Secret.
const SECRET_TYPE: &str = "sluice.dev/seal";
/// The key of its data that has the key.
const FIELD: &str = "key";
/// How often it is looked whether it is still there.
const LOOK: Duration = Duration::from_secs(60);

/// Why there is no key to seal with.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "Secret {SECRET} has no {FIELD:?} of {KEY_BYTES} bytes: delete it, and another is made; sandboxes with forks must then be applied again"
    )]
    Damaged,
}

/// What seals with the key of the Secret in our namespace, which is made where there is none.
pub async fn start(client: Client, names: Names) -> Result<Arc<Sealer>, SealError> {
    let store = SecretStore::of_type(client, SECRET, names, SECRET_TYPE);
    let sealer = Arc::new(Sealer::new(ensure(&store, rand::random()).await?));
    tokio::spawn(keep(store, sealer.clone(), LOOK));
    Ok(sealer)
}

/// The key of the Secret; where there is none, `key` is written.
async fn ensure(store: &SecretStore, key: [u8; KEY_BYTES]) -> Result<[u8; KEY_BYTES], SealError> {
    for _ in 0..ATTEMPTS {
        if let Some(secret) = store.read().await? {
            return read(&secret).ok_or(SealError::Damaged);
        }
        let data = [(FIELD.to_owned(), ByteString(key.to_vec()))].into();
        if store.write(None, data).await? == Written::Yes {
            tracing::info!(secret = SECRET, "wrote the key that forks are sealed with");
            return Ok(key);
        }
    }
    Err(StoreError::Contended { name: SECRET.to_owned() }.into())
}

fn read(secret: &Secret) -> Option<[u8; KEY_BYTES]> {
    secret.data.as_ref()?.get(FIELD)?.0.as_slice().try_into().ok()
}

/// Keeps the Secret there, and goes by it.
async fn keep(store: SecretStore, sealer: Arc<Sealer>, every: Duration) -> Infallible {
    loop {
        tokio::time::sleep(every).await;
        let known = sealer.key();
        match ensure(&store, known).await {
            Ok(key) if key == known => {}
            Ok(key) => {
                tracing::warn!(secret = SECRET, "the key that forks are sealed with is another now");
                sealer.renew(key);
            }
            Err(error) => {
                tracing::warn!(
                    secret = SECRET,
                    error = with_causes(&error),
                    "the key that forks are sealed with could not be looked at; the known one is used on"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_api::{FakeApi, SECRETS};
    use super::*;
    use serde_json::json;

    fn store(api: &FakeApi) -> SecretStore {
        let names = Names { service: "sluice".into(), namespace: "sluice-system".into() };
        SecretStore::of_type(api.client.clone(), SECRET, names, SECRET_TYPE)
    }

    fn kept(api: &FakeApi) -> Option<[u8; KEY_BYTES]> {
        read(&serde_json::from_value(api.get(SECRETS, SECRET)?).unwrap())
    }

    #[tokio::test]
    async fn t08_all_replicas_seal_with_the_key_of_the_one_that_came_first() {
        let api = FakeApi::start().await;
        assert_eq!(ensure(&store(&api), [1; KEY_BYTES]).await.unwrap(), [1; KEY_BYTES]);
        assert_eq!(ensure(&store(&api), [2; KEY_BYTES]).await.unwrap(), [1; KEY_BYTES]);
        assert_eq!(kept(&api), Some([1; KEY_BYTES]));
    }

    #[tokio::test]
    async fn t08_a_secret_that_is_deleted_comes_back_with_the_same_key_and_another_key_is_taken_over() {
        let api = FakeApi::start().await;
        let sealer = Arc::new(Sealer::new(ensure(&store(&api), [1; KEY_BYTES]).await.unwrap()));
        tokio::spawn(keep(store(&api), sealer.clone(), Duration::from_millis(10)));
        let until = async |what: &str, is: &dyn Fn() -> bool| {
            for _ in 0..500 {
                if is() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("never: {what}");
        };
        api.delete(SECRETS, SECRET);
        until("it is back", &|| kept(&api) == Some([1; KEY_BYTES])).await;
        let other = ByteString(vec![3; KEY_BYTES]);
        api.put(SECRETS, SECRET, json!({"metadata": {}, "data": {FIELD: other}}));
        until("it is used", &|| sealer.key() == [3; KEY_BYTES]).await;
    }

    #[tokio::test]
    async fn t08_a_secret_without_a_key_is_told_of_and_never_written_over() {
        let api = FakeApi::start().await;
        api.put(SECRETS, SECRET, json!({"metadata": {}, "data": {FIELD: ByteString(b"short".to_vec())}}));
        let error = ensure(&store(&api), [1; KEY_BYTES]).await.unwrap_err();
        assert!(matches!(error, SealError::Damaged) && error.to_string().contains("delete it"), "{error}");
        assert_eq!(kept(&api), None);
    }
}
