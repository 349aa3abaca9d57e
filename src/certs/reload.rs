//! The certificate that this replica serves, swapped without a restart when the Secret changes.
//!
//! It reads the Secret and never writes it.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use super::issue::Names;
use super::state::State;
use super::store::{SecretStore, read_state};

/// How long a leaf waits that comes with an authority never published before: the Secret was made anew, and the
/// webhook configurations are only now told.
pub const HOLD: Duration = Duration::from_secs(15);

/// Why a Secret's certificate is not taken over.
#[derive(Debug, thiserror::Error)]
#[error(
    "the Secret's `tls.crt` is not valid at {now} for {server_name} under its `ca.crt`: what was served before is \
     kept; delete the Secret to have it issued anew"
)]
pub struct Unusable {
    server_name: String,
    now: Timestamp,
}

/// What became of an offered certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It is served.
    Served,
    /// Its bundle is published; offer it again after [`HOLD`].
    Held,
}

/// What this replica serves, and the bundle that whoever calls it must trust.
#[derive(Debug)]
pub struct Serving {
    names: Names,
    certified: ArcSwapOption<CertifiedKey>,
    served: Mutex<Option<Arc<State>>>,
    known: watch::Sender<Arc<State>>,
    bundle: watch::Sender<String>,
}

impl Serving {
    /// Serves nothing yet: handshakes fail until the first [`Serving::offer`].
    pub fn new(names: Names) -> Arc<Self> {
        Arc::new(Self {
            names,
            certified: ArcSwapOption::empty(),
            served: Mutex::new(None),
            known: watch::Sender::new(Arc::default()),
            bundle: watch::Sender::new(String::new()),
        })
    }

    /// The authorities that whoever calls us must trust, in PEM; empty until there are any.
    pub fn current_bundle(&self) -> watch::Receiver<String> {
        self.bundle.subscribe()
    }

    /// The last state that could be served; nothing in it until there was one.
    pub fn known(&self) -> watch::Receiver<Arc<State>> {
        self.known.subscribe()
    }

    /// Until when what is served is valid.
    pub fn valid_until(&self) -> Option<Timestamp> {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.as_ref()?.leaf.as_ref().map(|leaf| leaf.not_after)
    }

    /// Publishes the bundle of `state` and serves its leaf, unless nobody can trust that one yet.
    pub fn offer(&self, state: State, now: Timestamp, patience: Patience) -> Result<Offer, Unusable> {
        let state = Arc::new(state);
        let leaf = state.leaf.as_ref().filter(|_| state.leaf_issuer(&self.names, now).is_some());
        let Some(leaf) = leaf else {
            return Err(Unusable { server_name: self.names.server_name(), now });
        };
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let hold = patience == Patience::Hold
            && served.as_ref().is_some_and(|served| must_wait(served, &state, &self.names, now));
        self.publish(&state);
        if hold {
            return Ok(Offer::Held);
        }
        self.certified.store(Some(leaf.certified.clone()));
        *served = Some(state.clone());
        Ok(Offer::Served)
    }

    /// Has whoever follows [`Serving::known`] look at the Secret again.
    fn wake(&self) {
        self.known.send_modify(|_| {});
    }

    fn publish(&self, state: &Arc<State>) {
        self.known.send_replace(state.clone());
        let pem = state.bundle_pem();
        self.bundle.send_if_modified(|bundle| {
            let changed = *bundle != pem;
            *bundle = pem;
            changed
        });
    }
}

/// Whether a leaf may be held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Hold it if what is served can stay.
    Hold,
    /// It was held for long enough.
    Serve,
}

/// Whether `new` has a leaf that nobody can trust yet while the one that is served still is trusted.
fn must_wait(served: &State, new: &State, names: &Names, now: Timestamp) -> bool {
    let name = names.server_name();
    let covers = |state: &State, leaf: &State| {
        let authorities = state.authorities.iter().map(|authority| &authority.certificate);
        leaf.leaf.as_ref().is_some_and(|leaf| leaf.covered_by(authorities, &name, now))
    };
    !covers(served, new) && covers(new, served)
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certified.load_full()
    }
}

/// Follows the Secret for ever.
pub async fn keep_reloaded(store: SecretStore, serving: Arc<Serving>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={}", store.name));
    let mut changes = pin!(watcher(store.api.clone(), config).default_backoff());
    let mut held: Option<State> = None;
    loop {
        let (state, patience) = tokio::select! {
            change = changes.next() => match change {
                Some(Ok(Event::Apply(secret) | Event::InitApply(secret))) => {
                    (read_state(Some(&secret)), Patience::Hold)
                }
                Some(Ok(Event::Delete(_))) => {
                    tracing::warn!(secret = store.name, "the serving certificate's Secret was deleted; still serving it");
                    serving.wake();
                    continue;
                }
                Some(Ok(Event::Init | Event::InitDone)) => continue,
                Some(Err(error)) => {
                    tracing::warn!(secret = store.name, %error, "cannot watch the serving certificate; trying again");
                    continue;
                }
                None => return,
            },
            () = tokio::time::sleep(HOLD), if held.is_some() => (held.take().unwrap_or_default(), Patience::Serve),
        };
        held = match serving.offer(state.clone(), Timestamp::now(), patience) {
            Ok(Offer::Held) => Some(state),
            Ok(Offer::Served) => {
                tracing::debug!(secret = store.name, until = ?serving.valid_until(), "serving certificate loaded");
                None
            }
            Err(error) => {
                tracing::warn!(secret = store.name, %error, "serving certificate not taken over");
                serving.wake();
                held
            }
        };
    }
}
