//! Puts our webhooks, with the bundle that they are trusted through and the token that they are called by, into the two
//! webhook configurations.
//!
//! The leader's task. The chart creates both objects, empty, and takes them away; a missing one is never created
//! here, for that is how an uninstall goes. What must stand in them is [`super::webhook_spec`]'s.

use crate::plan::message::with_causes;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, select_all};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::issue::Names;
use super::rotate::Registration;
use super::store::{CALL, code, read_state};
use super::token::{Token, Tokens, keep};
use super::webhook_spec::{Kind, Pace, SERVICE_PORT, apply_over, differs, has_ready_endpoint, observe, ours};
use crate::api::labels::MANAGER;

/// Looked at this often even without an event.
const LOOK: Duration = Duration::from_secs(300);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// Events that come together are answered together.
const GATHER: Duration = Duration::from_millis(100);
/// How long our own Service is tried before the webhooks are registered.
const PROXY: Duration = Duration::from_secs(5);
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The objects that register us.
#[derive(Debug, Clone)]
pub struct Webhooks {
    /// The name of the ValidatingWebhookConfiguration.
    pub validating: String,
    /// The name of the MutatingWebhookConfiguration.
    pub mutating: String,
    /// The Service that leads to us.
    pub names: Names,
    /// The Secret with the serving certificate.
    pub secret: String,
}

impl Webhooks {
    fn name(&self, kind: Kind) -> &str {
        match kind {
            Kind::Validating => &self.validating,
            Kind::Mutating => &self.mutating,
        }
    }
}

/// Why registration cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The API server refused.
    #[error("cannot {verb} {what}: check that our service account may")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// With what.
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("cannot {verb} {what}: no answer within {CALL:?}")]
    NoAnswer {
        /// What was tried.
        verb: &'static str,
        /// With what.
        what: String,
    },
    /// A live object does not become JSON.
    #[error("cannot read {what}")]
    Malformed {
        /// Which one.
        what: String,
        #[source]
        source: serde_json::Error,
    },
    /// Somebody else wrote it in between.
    #[error("{what} was changed or taken away while it was looked at; looking again")]
    Overtaken {
        /// Which one.
        what: String,
    },
    /// The Secret does not say what this replica remembers.
    #[error(
        "the webhooks are left as they are until Secret {secret} says what this replica remembers of it; if it does \
         not soon, delete the Secret to have it made anew"
    )]
    Behind {
        /// Which one.
        secret: String,
    },
    /// Whoever serves the certificate is gone.
    #[error("the certificate's bundle is no longer published, so webhooks cannot be kept registered")]
    NoBundle,
    /// Whoever accepts the tokens is gone.
    #[error("the token of the webhooks' path is no longer published, so webhooks cannot be kept registered")]
    NoToken,
}

/// Keeps both webhook configurations as they must be, and tells `told` what they are seen to trust.
///
/// `bundle` is [`super::Serving::current_bundle`], `tokens` is [`super::token::accept::Accepted::known`].
pub async fn keep_registered(
    client: Client,
    webhooks: Webhooks,
    mut bundle: watch::Receiver<String>,
    mut tokens: watch::Receiver<Arc<Tokens>>,
    told: watch::Sender<Registration>,
) -> Result<Infallible, RegisterError> {
    let mut edge = Edge { client, webhooks, has_been_reached: false };
    let mut events = edge.events();
    let mut pace = Pace::default();
    let mut retry = FIRST_RETRY;
    loop {
        let pem = bundle.borrow_and_update().clone();
        let token = tokens.borrow_and_update().current.clone();
        let pause = match edge.pass(&pem, &token, &mut pace, &told).await {
            Ok(pause) => {
                retry = FIRST_RETRY;
                pause
            }
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "cannot keep webhooks registered");
                retry = (retry * 2).min(LAST_RETRY);
                retry
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = bundle.changed() => {
                changed.map_err(|_| RegisterError::NoBundle)?;
                // What we want is new, so this is no quarrel with anybody.
                pace = Pace::default();
            }
            changed = tokens.changed() => {
                changed.map_err(|_| RegisterError::NoToken)?;
                pace = Pace::default();
            }
            Some(()) = events.next() => {
                tokio::time::sleep(GATHER).await;
                while let Some(Some(())) = events.next().now_or_never() {}
            }
        }
    }
}

/// What the webhook configurations trust and name now. For a first certificate and a first token that must not
/// contradict them.
pub async fn look(client: Client, webhooks: Webhooks) -> Result<Registration, RegisterError> {
    let live = Edge { client, webhooks, has_been_reached: false }.live().await?;
    Ok(observe(&live, &Registration::Unknown, Timestamp::now()))
}

struct Edge {
    client: Client,
    webhooks: Webhooks,
    /// Whether a connection through our own Service was waited for.
    has_been_reached: bool,
}

impl Edge {
    /// One look at everything, and the writes that are due. Returns how long to wait without an event.
    async fn pass(
        &mut self,
        bundle: &str,
        token: &Token,
        pace: &mut Pace,
        told: &watch::Sender<Registration>,
    ) -> Result<Duration, RegisterError> {
        let mut live = self.live().await?;
        tell(&live, told);
        let mut pause = LOOK;
        let mut wrote = false;
        for (kind, object) in &mut live {
            let Some(current) = object.as_ref() else { continue };
            let desired = kind.desired(&self.webhooks.names, bundle, token);
            if bundle.is_empty() || !differs(current, *kind, &desired) {
                continue;
            }
            if ours(current, *kind).is_none() && !self.reachable().await? {
                tracing::debug!(kind = kind.name(), "not registered yet: the Service has no ready endpoint");
                continue;
            }
            let wait = pace.wait(Timestamp::now());
            if !wait.is_zero() {
                pause = pause.min(wait);
                continue;
            }
            let says = |field| ours(current, *kind).and_then(|ours| ours.pointer(field)) == desired.pointer(field);
            if !says("/clientConfig/caBundle") {
                self.check_bundle(bundle).await?;
            }
            if !says("/clientConfig/service/path") {
                self.check_token(token).await?;
            }
            let body = apply_over(current, *kind, &desired, Timestamp::now());
            if !self.has_been_reached && ours(current, *kind).is_none() {
                self.await_proxy().await;
                self.has_been_reached = true;
            }
            *object = Some(self.apply(*kind, &body).await?);
            wrote = true;
        }
        // Both written in one pass are one write: they change together.
        if wrote {
            pace.wrote(Timestamp::now());
        }
        tell(&live, told);
        Ok(pause)
    }

    /// Both objects as they are; none for one that is missing or on its way out.
    async fn live(&self) -> Result<Vec<(Kind, Option<Value>)>, RegisterError> {
        let mut live = Vec::new();
        for kind in Kind::ALL {
            let what = self.what(kind);
            let object = call("get", &what, self.api(kind).get_opt(self.webhooks.name(kind))).await?;
            let object = object
                .filter(|object| object.metadata.deletion_timestamp.is_none())
                .map(|object| serde_json::to_value(object).map_err(|source| RegisterError::Malformed { what, source }))
                .transpose()?;
            live.push((kind, object));
        }
        Ok(live)
    }

    async fn apply(&self, kind: Kind, body: &Value) -> Result<Value, RegisterError> {
        let what = self.what(kind);
        let params = PatchParams::apply(MANAGER).force();
        let api = self.api(kind);
        match call("apply", &what, api.patch(self.webhooks.name(kind), &params, &Patch::Apply(body))).await {
            Ok(object) => {
                tracing::info!(object = what, "webhook registered, or its registration mended");
                serde_json::to_value(object).map_err(|source| RegisterError::Malformed { what, source })
            }
            // It went, another took its place, or somebody wrote it: a look tells which.
            Err(RegisterError::Api { source, .. }) if matches!(code(&source), Some(404 | 409)) => {
                Err(RegisterError::Overtaken { what })
            }
            Err(error) => Err(error),
        }
    }

    /// Fails unless the Secret says so now. What a new leader remembers may be older than what the webhooks trust: others
    /// may serve by another authority already.
    async fn check_bundle(&self, bundle: &str) -> Result<(), RegisterError> {
        let name = &self.webhooks.secret;
        let state = read_state(self.secret(name).await?.as_ref());
        if state.bundle_pem() == bundle { Ok(()) } else { Err(RegisterError::Behind { secret: name.clone() }) }
    }

    /// Fails unless the Secret says so now: others may accept a token that a new leader remembers no more.
    async fn check_token(&self, token: &Token) -> Result<(), RegisterError> {
        let tokens = keep::read_tokens(self.secret(keep::SECRET).await?.as_ref());
        let is_current = tokens.is_some_and(|tokens| tokens.current == *token);
        if is_current { Ok(()) } else { Err(RegisterError::Behind { secret: keep::SECRET.to_owned() }) }
    }

    async fn secret(&self, name: &str) -> Result<Option<Secret>, RegisterError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.webhooks.names.namespace);
        call("get", &format!("Secret {name}"), secrets.get_opt(name)).await
    }

    async fn reachable(&self) -> Result<bool, RegisterError> {
        let service = &self.webhooks.names.service;
        let list = ListParams::default().labels(&format!("{SERVICE_LABEL}={service}"));
        let slices = call("list", &format!("EndpointSlices of Service {service}"), self.slices().list(&list)).await?;
        Ok(has_ready_endpoint(&slices.items))
    }

    /// Waits until our Service leads to one of us, for the proxies hear of a ready endpoint after the API server does. No
    /// answer within [`PROXY`] proves nothing: a network may keep a pod from itself.
    async fn await_proxy(&self) {
        let names = &self.webhooks.names;
        let services: Api<Service> = Api::namespaced(self.client.clone(), &names.namespace);
        let reached = async {
            let service = services.get(&names.service).await.map_err(io::Error::other)?;
            let spec = service.spec.unwrap_or_default();
            let address = spec.cluster_ip.ok_or_else(|| io::Error::other("it has no clusterIP"))?;
            while let Err(error) = TcpStream::connect((address.as_str(), SERVICE_PORT)).await {
                tracing::debug!(%error, "our own Service leads nowhere yet");
                tokio::time::sleep(GATHER).await;
            }
            Ok::<_, io::Error>(())
        };
        match tokio::time::timeout(PROXY, reached).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = with_causes(&error), "our own Service could not be tried"),
            Err(_) => {
                tracing::info!("our own Service cannot be reached from here; the webhooks are registered all the same");
            }
        }
    }

    /// A tick for each change of what we look at.
    fn events(&self) -> futures::stream::SelectAll<BoxStream<'static, ()>> {
        let service = format!("{SERVICE_LABEL}={}", self.webhooks.names.service);
        let mut streams =
            vec![ticks(watcher(self.slices(), watcher::Config::default().labels(&service)), "EndpointSlices")];
        for kind in Kind::ALL {
            let name = format!("metadata.name={}", self.webhooks.name(kind));
            streams.push(ticks(watcher(self.api(kind), watcher::Config::default().fields(&name)), kind.name()));
        }
        select_all(streams)
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), &self.webhooks.names.namespace)
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        let resource = match kind {
            Kind::Validating => ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
            Kind::Mutating => ApiResource::erase::<MutatingWebhookConfiguration>(&()),
        };
        Api::all_with(self.client.clone(), &resource)
    }

    fn what(&self, kind: Kind) -> String {
        format!("{} {}", kind.name(), self.webhooks.name(kind))
    }
}

fn tell(live: &[(Kind, Option<Value>)], told: &watch::Sender<Registration>) {
    let seen = observe(live, &told.borrow(), Timestamp::now());
    told.send_if_modified(|before| {
        let changed = *before != seen;
        *before = seen;
        changed
    });
}

fn ticks<K: Send + 'static>(
    events: impl futures::Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    what: &'static str,
) -> BoxStream<'static, ()> {
    events
        .default_backoff()
        .inspect_err(move |error| tracing::warn!(what, %error, "cannot watch; trying again"))
        .filter_map(|event| async move { event.ok().map(drop) })
        .boxed()
}

async fn call<T>(
    verb: &'static str,
    what: &str,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, RegisterError> {
    tokio::time::timeout(CALL, call)
        .await
        .map_err(|_| RegisterError::NoAnswer { verb, what: what.to_owned() })?
        .map_err(|source| RegisterError::Api { verb, what: what.to_owned(), source: Box::new(source) })
}
