//! A Secret that all replicas share: read, created once, replaced only as it was read.
//!
//! Every call is bounded. It decides nothing: what to write is [`super::rotate`]'s and [`super::token::rotate`]'s.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, api::PostParams};

use super::issue::{IssueError, Names};
use super::rotate::{Registration, next, perform};
use super::state::State;
use crate::api::labels::{MANAGER, NO_BACKUP};

/// The longest that one call to the API server may take.
pub(super) const CALL: Duration = Duration::from_secs(10);
/// How often a first write is tried that others are before.
pub(super) const ATTEMPTS: usize = 10;

/// Why the Secret could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The API server refused.
    #[error("cannot {verb} Secret {name}: check that our service account may")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// The Secret.
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("cannot {verb} Secret {name}: no answer within {CALL:?}")]
    NoAnswer {
        /// What was tried.
        verb: &'static str,
        /// The Secret.
        name: String,
    },
    /// The certificate itself could not be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// Others changed it each time.
    #[error("Secret {name} still changes after {ATTEMPTS} attempts: check whether something else writes it")]
    Contended {
        /// The Secret.
        name: String,
    },
}

/// Whether a write took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It did.
    Yes,
    /// Another replica was first: read again.
    Lost,
}

/// The Secret, by name.
#[derive(Clone)]
pub struct SecretStore {
    /// Secrets of our namespace.
    pub(super) api: Api<Secret>,
    /// The Secret's name.
    pub(super) name: String,
    /// The `type` of it, where it is made here.
    secret_type: &'static str,
    /// The Service that the certificate is for.
    pub(super) names: Names,
}

impl SecretStore {
    /// The Secret `name` with the serving certificate, in the Service's namespace.
    pub fn new(client: Client, name: impl Into<String>, names: Names) -> Self {
        Self::of_type(client, name, names, "kubernetes.io/tls")
    }

    /// The Secret `name` of this type, in the Service's namespace.
    pub fn of_type(client: Client, name: impl Into<String>, names: Names, secret_type: &'static str) -> Self {
        Self { api: Api::namespaced(client, &names.namespace), name: name.into(), secret_type, names }
    }

    /// The Secret as it is.
    pub async fn read(&self) -> Result<Option<Secret>, StoreError> {
        self.call("get", self.api.get_opt(&self.name)).await
    }

    /// Writes `data`: over `old` if nobody changed it since, or as a new Secret if there is none.
    pub async fn write(&self, old: Option<Secret>, data: BTreeMap<String, ByteString>) -> Result<Written, StoreError> {
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let result = match old {
            Some(mut secret) => {
                secret.data = Some(data);
                self.call("update", self.api.replace(&self.name, &params, &secret)).await
            }
            None => self.call("create", self.api.create(&params, &self.new_secret(data))).await,
        };
        match result {
            Ok(_) => Ok(Written::Yes),
            // Already there, changed since it was read, or gone since.
            Err(StoreError::Api { source, .. }) if matches!(code(&source), Some(404 | 409)) => Ok(Written::Lost),
            Err(error) => Err(error),
        }
    }

    /// A certificate that can be served: the one of the Secret, or the first one if there is none yet.
    pub async fn ensure(&self, registration: &Registration) -> Result<State, StoreError> {
        for _ in 0..ATTEMPTS {
            let secret = self.read().await?;
            let state = read_state(secret.as_ref());
            let now = Timestamp::now();
            if state.leaf_issuer(&self.names, now).is_some() {
                return Ok(state);
            }
            let action = next(&state, registration, &self.names, now);
            let state = perform(action, &state, registration, &self.names, now)?;
            if self.write(secret, state.data()).await? == Written::Yes {
                tracing::info!(secret = self.name, ?action, "issued a serving certificate");
                return Ok(state);
            }
        }
        Err(StoreError::Contended { name: self.name.clone() })
    }

    fn new_secret(&self, data: BTreeMap<String, ByteString>) -> Secret {
        let labels = [("app.kubernetes.io/managed-by", MANAGER), (NO_BACKUP, "true")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(labels.into()),
                ..ObjectMeta::default()
            },
            type_: Some(self.secret_type.to_owned()),
            data: Some(data),
            ..Secret::default()
        }
    }

    async fn call<T>(&self, verb: &'static str, call: impl Future<Output = kube::Result<T>>) -> Result<T, StoreError> {
        let name = || self.name.clone();
        tokio::time::timeout(CALL, call)
            .await
            .map_err(|_| StoreError::NoAnswer { verb, name: name() })?
            .map_err(|source| StoreError::Api { verb, name: name(), source: Box::new(source) })
    }
}

/// What a Secret says; nothing if there is none.
pub(super) fn read_state(secret: Option<&Secret>) -> State {
    secret.and_then(|secret| secret.data.as_ref()).map(State::read).unwrap_or_default()
}

/// The HTTP status of an API server's refusal.
pub(super) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
