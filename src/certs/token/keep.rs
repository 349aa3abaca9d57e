//! The Secret with the tokens: made once, followed by every replica, and renewed by the leader.
//!
//! It decides nothing: what to write is [`super::rotate`]'s.

use crate::plan::message::with_causes;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;

use super::Tokens;
use super::accept::Accepted;
use super::rotate::{Action, due};
use crate::certs::issue::Names;
use crate::certs::keep::until_due;
use crate::certs::rotate::Registration;
use crate::certs::store::{ATTEMPTS, SecretStore, StoreError, Written};

/// The name of the Secret.
pub const SECRET: &str = "sluice-token";
/// The `type` of the Secret.
pub const SECRET_TYPE: &str = "sluice.dev/webhook-token";
/// Looked at this often even without an event: a watch may fall silent, and time itself makes steps due.
const LOOK: Duration = Duration::from_secs(60);
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The Secret, and what this replica accepts by it.
pub struct Keeper {
    store: SecretStore,
    /// What this replica accepts.
    pub accepted: Arc<Accepted>,
}

impl Keeper {
    /// Reads or makes the Secret in our namespace, and follows it from then on.
    pub async fn start(client: Client, names: Names, registration: &Registration) -> Result<Self, StoreError> {
        let store = SecretStore::of_type(client, SECRET, names, SECRET_TYPE);
        let accepted = Accepted::new(ensure(&store, registration).await?, registration, Timestamp::now());
        tokio::spawn(follow(store.clone(), accepted.clone()));
        Ok(Self { store, accepted })
    }

    /// Takes every step as it comes due. Run it on the leader only.
    pub async fn renew(&self, registration: watch::Receiver<Registration>) -> Infallible {
        keep_renewed(self.store.clone(), self.accepted.clone(), registration).await
    }
}

/// The tokens of the Secret, or the first ones if there are none yet.
pub(in crate::certs) async fn ensure(store: &SecretStore, registration: &Registration) -> Result<Tokens, StoreError> {
    for _ in 0..ATTEMPTS {
        let secret = store.read().await?;
        if let Some(tokens) = read_tokens(secret.as_ref()) {
            return Ok(tokens);
        }
        let tokens = Tokens::first(registration.named(), Timestamp::now());
        if store.write(secret, tokens.data()).await? == Written::Yes {
            tracing::info!(secret = store.name, "made the token of the webhooks' path");
            return Ok(tokens);
        }
    }
    Err(StoreError::Contended { name: store.name.clone() })
}

/// Follows the Secret for ever.
pub(in crate::certs) async fn follow(store: SecretStore, accepted: Arc<Accepted>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={}", store.name));
    let mut changes = pin!(watcher(store.api.clone(), config).default_backoff());
    loop {
        let secret = tokio::select! {
            change = changes.next() => match change {
                Some(Ok(Event::Apply(secret) | Event::InitApply(secret))) => Some(secret),
                Some(Ok(Event::Delete(_))) => {
                    tracing::warn!(secret = store.name, "the Secret of the webhooks' token was deleted; its tokens are still accepted");
                    accepted.wake();
                    continue;
                }
                Some(Ok(Event::Init | Event::InitDone)) => continue,
                Some(Err(error)) => {
                    tracing::warn!(secret = store.name, %error, "cannot watch the webhooks' token; trying again");
                    continue;
                }
                None => return,
            },
            () = tokio::time::sleep(LOOK) => match store.read().await {
                Ok(secret) => secret,
                Err(error) => {
                    let error = with_causes(&error);
                    tracing::warn!(secret = store.name, error, "cannot read the webhooks' token; trying again");
                    continue;
                }
            },
        };
        match read_tokens(secret.as_ref()) {
            Some(tokens) => accepted.offer(tokens, Timestamp::now()),
            None => accepted.wake(),
        }
    }
}

/// Takes every step as it comes due.
pub(in crate::certs) async fn keep_renewed(
    store: SecretStore,
    accepted: Arc<Accepted>,
    mut registration: watch::Receiver<Registration>,
) -> Infallible {
    let mut known = accepted.known();
    let mut retry = FIRST_RETRY;
    loop {
        let remembered: Arc<Tokens> = known.borrow_and_update().clone();
        let seen = registration.borrow_and_update().clone();
        let pause = match step(&store, &remembered, &seen).await {
            Ok(None) => {
                retry = FIRST_RETRY;
                LOOK
            }
            Ok(Some((_, Written::Lost))) => FIRST_RETRY,
            Ok(Some((action, Written::Yes))) => {
                tracing::info!(secret = store.name, ?action, "webhooks' token: next step taken");
                FIRST_RETRY
            }
            Err(error) => {
                let error = with_causes(&error);
                tracing::warn!(secret = store.name, error, "cannot renew the webhooks' token");
                retry = (retry * 2).min(LOOK);
                retry
            }
        };
        until_due(pause, &mut registration, &mut known).await;
    }
}

/// Looks at the Secret once and writes what is due.
async fn step(
    store: &SecretStore,
    remembered: &Tokens,
    seen: &Registration,
) -> Result<Option<(Action, Written)>, StoreError> {
    let secret = store.read().await?;
    let read = read_tokens(secret.as_ref());
    let (action, tokens) = due(read.as_ref(), remembered, seen, Timestamp::now());
    if action == Action::Keep {
        return Ok(None);
    }
    Ok(Some((action, store.write(secret, tokens.data()).await?)))
}

pub(in crate::certs) fn read_tokens(secret: Option<&Secret>) -> Option<Tokens> {
    Tokens::read(secret?.data.as_ref()?)
}
