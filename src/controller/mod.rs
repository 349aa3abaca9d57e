//! What the leader does: forks, status and post-phases of sandboxes, what outlives them, and what becomes of runs.
//!
//! Each reconcile is a pipeline that reads first, decides purely and writes last.

pub mod events;
pub mod fork;
pub mod fork_outputs;
mod forks;
mod heavy;
mod history;
pub mod kept;
mod leftovers;
mod pauses;
mod post;
mod recorded;
mod records;
mod runs;
mod sandboxes;
mod sightings;
pub mod status;
mod sweep;
mod turns;
mod unseen;
mod warm;

pub use runs::TIDY_EVERY;

use crate::api::{API_VERSION, GROUP, Sandbox, VERSION};
use crate::engine::Engine;
use crate::plan::plugins::Plugins;
use crate::plan::seal::Sealer;
use futures::FutureExt;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::reflector::Store;
use kube::{Api, Client, CustomResourceExt};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::sync::watch;

/// What the leader is told at start.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// How long an admitted change may take to be stored.
    pub commit_grace: Duration,
    /// How many ended runs of a target are kept.
    pub history_limit: usize,
    /// How long ended runs are kept.
    pub history_age: Duration,
}

/// What every part of the leader's work needs.
pub struct Context {
    pub client: Client,
    pub engine: Arc<Engine>,
    pub plugins: Arc<RwLock<Plugins>>,
    pub settings: ControllerSettings,
    /// The configuration that notes since when the webhooks have been in force.
    pub validating_webhook: String,
    pub recorder: events::Recorder,
    /// Which forks an admission has seen.
    pub sealer: Arc<Sealer>,
    sightings: sightings::Sightings,
    turns: turns::Turns,
    room: forks::Room,
    pauses: pauses::Pauses,
    heavy: heavy::Heavy,
    salt: fork_outputs::Salt,
}

impl Context {
    pub fn new(
        engine: Arc<Engine>,
        plugins: Arc<RwLock<Plugins>>,
        settings: ControllerSettings,
        validating_webhook: String,
        sealer: Arc<Sealer>,
    ) -> Arc<Self> {
        let client = engine.client().clone();
        let recorder = events::Recorder::new(client.clone(), engine.replicas.own().pod.clone());
        let (sightings, turns, room, pauses, heavy, salt) = Default::default();
        Arc::new(Self {
            client,
            engine,
            plugins,
            settings,
            validating_webhook,
            recorder,
            sealer,
            sightings,
            turns,
            room,
            pauses,
            heavy,
            salt,
        })
    }
}

/// Does the leader's work for as long as the future is polled.
///
/// `plugins` tells of every change of a plugin.
pub async fn lead(context: Arc<Context>, plugins: watch::Receiver<bool>) {
    let (sandboxes, sandbox_store) = sandboxes::controller(context.clone());
    let (records, record_store) = records::controller(context.clone());
    let runs = runs::follow(context.clone(), sandbox_store.clone(), record_store.clone());
    let again = sandboxes::sweep(sandbox_store, context.clone());
    let records_again = records::sweep(record_store, context.clone());
    tokio::join!(sandboxes, records, again, records_again, runs, warm::keep(context, plugins));
}

/// The sandboxes as they are, no field lost.
pub fn sandbox_resource() -> ApiResource {
    ApiResource {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        api_version: API_VERSION.to_owned(),
        kind: Sandbox::api_resource().kind,
        plural: Sandbox::api_resource().plural,
    }
}

/// The sandboxes of a namespace.
fn sandboxes_in(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &sandbox_resource())
}

type SandboxStore = Store<kept::KeptSandbox>;
type RecordStore = Store<kept::KeptRecord>;

/// Why a reconcile did not get to its end; it is done again.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    #[error("the API server could not be asked to {what}")]
    Api { what: &'static str, source: Box<kube::Error> },
    #[error(transparent)]
    Engine(#[from] crate::engine::EngineError),
    #[error(
        "Secret {secret} in Sluice's namespace is not what Sluice wrote: delete it, and forks with outputs roll once"
    )]
    Salt { secret: &'static str },
    #[error("{what} is not of the form that it should be")]
    Shape { what: &'static str, source: serde_json::Error },
    #[error("a fault of Sluice's own ended the work at this object; the log has where")]
    Panicked,
    #[error("the post-phases cannot be planned")]
    Plan(#[from] crate::plan::runs::PlanError),
}

impl ControllerError {
    fn api(what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { what, source: Box::new(source) }
    }

    fn shape(what: &'static str) -> impl FnOnce(serde_json::Error) -> Self {
        move |source| Self::Shape { what, source }
    }

    /// The name of what went wrong, for logs and metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Api { .. } => "api",
            Self::Engine(_) => "engine",
            Self::Shape { .. } => "shape",
            Self::Plan(_) => "plan",
            Self::Salt { .. } => "salt",
            Self::Panicked => "panic",
        }
    }
}

/// Does the work at one object so that a fault of ours at this one never ends the work at all others. What it leaves
/// behind is in the API server alone, so the next look finds whatever there is.
async fn alone<T>(work: impl Future<Output = Result<T, ControllerError>>) -> Result<T, ControllerError> {
    Box::pin(AssertUnwindSafe(work).catch_unwind()).await.unwrap_or(Err(ControllerError::Panicked))
}

/// The pause before a failed reconcile is done again.
const RETRY_AFTER: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn t03_a_panic_at_one_object_ends_the_work_at_no_other() {
        let panics = async || -> Result<(), ControllerError> { panic!("at this one") };
        assert!(matches!(alone(panics()).await, Err(ControllerError::Panicked)));
        assert!(alone(async { Ok(1) }).await.is_ok());
    }
}
