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

use super::accept::Accepted;
use super::rotate::{Action, Replacement, Sighting, due, replace};
use super::{Token, Tokens};
use crate::certs::issue::Names;
use crate::certs::keep::until_due;
use crate::certs::rotate::Registration;
use crate::certs::store::{ATTEMPTS, SecretStore, StoreError, Written};

/// The name of the Secret.
pub const SECRET: &str = "sluice-token";
/// The `type` of the Secret.
pub const SECRET_TYPE: &str = "sluice.dev/webhook-token";
/// Looked at this often even without an event: a watch may fall silent, and time itself makes steps due. Less than
/// [`super::rotate::ACCEPTED_WITHIN`].
pub const LOOK: Duration = Duration::from_secs(10);
/// The same for the leader while a token is being replaced.
const STEP: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);
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
        let began = Timestamp::now();
        let found = read_tokens(store.read().await?.as_ref());
        let accepted = Accepted::new(ensure(&store, registration).await?, registration, began);
        // While no replica answered, API servers showed what they named to whoever made a change.
        let named = found.iter().map(|tokens| &tokens.current).chain(registration.named());
        named.for_each(|token| accepted.exposed.note(token));
        tokio::spawn(follow(store.clone(), accepted.clone()));
        tokio::spawn(replace_exposed(store.clone(), accepted.clone()));
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
            () = tokio::time::sleep(LOOK) => {
                read(&store, &accepted).await;
                continue;
            }
            () = accepted.wanted() => {
                read(&store, &accepted).await;
                continue;
            }
        };
        match read_tokens(secret.as_ref()) {
            Some(tokens) => accepted.offer(tokens, Timestamp::now()),
            None => accepted.wake(),
        }
    }
}

/// Reads the Secret once.
async fn read(store: &SecretStore, accepted: &Accepted) {
    let began = Timestamp::now();
    let secret = match store.read().await {
        Ok(secret) => secret,
        Err(error) => {
            let error = with_causes(&error);
            tracing::warn!(secret = store.name, error, "cannot read the webhooks' token; trying again");
            return accepted.was_not_read(began);
        }
    };
    match read_tokens(secret.as_ref()) {
        Some(tokens) => {
            accepted.offer(tokens, Timestamp::now());
            accepted.was_read(began);
        }
        None => {
            accepted.wake();
            accepted.was_not_read(began);
        }
    }
}

/// Replaces tokens that somebody may have seen, for ever. Every replica does so: the leader may be the one that is away.
pub(in crate::certs) async fn replace_exposed(store: SecretStore, accepted: Arc<Accepted>) -> Infallible {
    loop {
        accepted.exposed.news().await;
        let (noted, mut retry) = (Timestamp::now(), FIRST_RETRY);
        loop {
            let seen = accepted.exposed.noted();
            match begin_replacement(&store, &seen, noted).await {
                Ok(None) => {
                    accepted.exposed.forget(&seen);
                    break;
                }
                Ok(Some(wait)) => tokio::time::sleep(wait).await,
                Err(error) => {
                    let error = with_causes(&error);
                    tracing::warn!(secret = store.name, error, "cannot replace a token that may have been seen");
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(LAST_RETRY);
                }
            }
        }
    }
}

/// Writes a successor of the current token if that is among `seen`; says how long to wait where it is too early.
async fn begin_replacement(
    store: &SecretStore,
    seen: &[Token],
    noted: Timestamp,
) -> Result<Option<Duration>, StoreError> {
    let secret = store.read().await?;
    // One that is gone is made anew by the leader, with a successor.
    let Some(tokens) = read_tokens(secret.as_ref()) else { return Ok(None) };
    match replace(&tokens, seen, noted, Timestamp::now()) {
        Replacement::OnItsWay => Ok(None),
        Replacement::After(wait) => Ok(Some(wait)),
        Replacement::Due(tokens) => match store.write(secret, tokens.data()).await? {
            Written::Yes => {
                tracing::info!(secret = store.name, "the webhooks' token may have been seen and is being replaced");
                Ok(None)
            }
            Written::Lost => Ok(Some(Duration::ZERO)),
        },
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
    let mut sighting = Sighting::default();
    loop {
        let remembered: Arc<Tokens> = known.borrow_and_update().clone();
        let seen = registration.borrow_and_update().clone();
        let pause = match step(&store, &remembered, &mut sighting, &seen).await {
            Ok(None) => {
                retry = FIRST_RETRY;
                if remembered.accepted.len() > 1 { STEP } else { LOOK }
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
    sighting: &mut Sighting,
    seen: &Registration,
) -> Result<Option<(Action, Written)>, StoreError> {
    let secret = store.read().await?;
    let read = read_tokens(secret.as_ref());
    let (action, tokens) = due(read.as_ref(), remembered, sighting, seen, Timestamp::now());
    if action == Action::Keep {
        return Ok(None);
    }
    Ok(Some((action, store.write(secret, tokens.data()).await?)))
}

pub(in crate::certs) fn read_tokens(secret: Option<&Secret>) -> Option<Tokens> {
    Tokens::read(secret?.data.as_ref()?)
}
