//! `sluice server`: everything that runs in the cluster, started in the order in which each part needs the others.

mod args;
mod lead;

pub use args::ServerArgs;

use super::follow::follow_plugins;
use super::log;
use super::probes::{Ready, probes};
use crate::certs::client;
use crate::certs::reload::{Patience, keep_reloaded};
use crate::certs::seal;
use crate::certs::store::SecretStore;
use crate::certs::token::keep::{self, Keeper};
use crate::certs::webhook_config::{self, Webhooks as Registered};
use crate::certs::{Names, Serving};
use crate::controller;
use crate::controller::events::Recorder;
use crate::controller::fork_outputs::SALT_SECRET;
use crate::engine::replicas::{self, Identity, Replicas};
use crate::engine::{Engine, follow_replicas, follow_runs, follow_warm};
use crate::metrics::Metrics;
use crate::plan::message::with_causes;
use crate::plan::plugins::Plugins;
use crate::plan::seal::Sealer;
use crate::webhook::admit::Admission;
use crate::webhook::body::Room;
use crate::webhook::find::Finder;
use crate::webhook::granted::Rights;
use crate::webhook::guests::Guests;
use crate::webhook::hold::{Holder, new_routing_key};
use crate::webhook::plugin::{PluginAdmission, RunnerLimits};
use crate::webhook::router::{Webhooks, router};
use crate::webhook::serve::{Drain, Identities, PROBE_BOUNDS, listen, serve_probes, serve_tls};
use crate::webhook::waits::Waits;
use anyhow::Context as _;
use args::LogFormat;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use lead::Leader;
use std::process::ExitCode;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The Secret with the serving certificate.
const SECRET: &str = "sluice-tls";
/// No single call to the API server may take longer, beside watches and execs, which never fall silent for so long.
const READ_TIMEOUT: Duration = Duration::from_secs(295);

pub fn run(args: ServerArgs) -> anyhow::Result<ExitCode> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let is_json = matches!(args.log_format, LogFormat::Json);
    let writer = move || log::Shown::new(std::io::stderr(), is_json);
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(writer);
    match args.log_format {
        LogFormat::Json => logs.json().init(),
        LogFormat::Text => logs.init(),
    }
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("another cryptography provider is installed already"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let code = runtime.block_on(serve(args))?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(code)
}

async fn client() -> anyhow::Result<Client> {
    let mut config = kube::Config::infer().await.context("there is neither a kubeconfig nor a service account")?;
    config.read_timeout = Some(READ_TIMEOUT);
    config.connect_timeout = Some(Duration::from_secs(5));
    Ok(crate::client::connect(config)?)
}

async fn serve(args: ServerArgs) -> anyhow::Result<ExitCode> {
    let client = client().await?;
    let stop = CancellationToken::new();
    let identity = Identity::new(&args.pod, new_routing_key());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), replica = %identity, "starting");
    let replicas = Replicas::new(identity.clone());
    let engine = Engine::new(client.clone(), args.engine(), args.pods(), replicas, stop.clone());
    let plugins = Arc::new(RwLock::new(Plugins::default()));
    let metrics = Arc::new(Metrics::default());
    let synced = follow(&client, &engine, &plugins);
    let alive = tokio::spawn({
        let (client, namespace, engine, uid) =
            (client.clone(), args.namespace.clone(), engine.clone(), args.pod_uid.clone());
        async move { replicas::keep_alive(client, &namespace, &engine.replicas, uid).await }
    });

    let edge = Edge::start(&client, &args).await?;
    let listening = listen(args.webhook_address)?;
    let drain = Drain { accept: Duration::from_secs(args.drain_seconds), ..Drain::default() };
    let webhooks = Arc::new(webhooks(&args, &engine, &plugins, &metrics, &edge.sealer, &stop));
    let router = router(webhooks, edge.token.accepted.clone());
    let identities = identities(&args, edge.serving.clone())?;
    let server = tokio::spawn(serve_tls(listening, router, identities, stop.clone(), drain));

    let ready = Ready { synced: synced.clone(), stop: stop.clone() };
    let http = listen(args.http_address).context("probes cannot be answered")?;
    let probes = probes(ready.clone(), metrics.clone(), engine.clone());
    tokio::spawn(serve_probes(http, probes, Guests::new(PROBE_BOUNDS)));

    ready.wait().await;
    let validating = edge.configurations.validating.clone();
    let context = controller::Context::new(engine.clone(), plugins, args.controller(), validating, edge.sealer.clone());
    let [.., plugins_changed] = synced;
    let (pod, namespace) = (args.pod.clone(), args.namespace.clone());
    let leader =
        Leader { client: client.clone(), pod, namespace, context, plugins_changed, metrics, edge, stop: stop.clone() };
    let code = until_ended(tokio::spawn(leader.run())).await?;
    tracing::info!("stopping: what is held is told to come again, what runs is left to another replica");
    stop.cancel();
    engine.drained().await;
    alive.abort();
    if let Err(error) = replicas::leave(client, &args.namespace, &identity).await {
        tracing::warn!(error = with_causes(&error), "others will find out by themselves that this replica is gone");
    }
    server.await??;
    Ok(code)
}

/// Follows what the API server has of runs, replicas, waiting pods and plugins; tells of each whether all of it is known,
/// of plugins also when they change.
fn follow(client: &Client, engine: &Arc<Engine>, plugins: &Arc<RwLock<Plugins>>) -> [watch::Receiver<bool>; 3] {
    let (runs_synced, runs_ready) = watch::channel(false);
    let (replicas_synced, replicas_ready) = watch::channel(false);
    let (plugins_synced, plugins_ready) = watch::channel(false);
    tokio::spawn(follow_runs(engine.clone(), runs_synced));
    tokio::spawn(follow_replicas(engine.clone(), replicas_synced));
    tokio::spawn(follow_warm(engine.clone()));
    tokio::spawn(follow_plugins(client.clone(), plugins.clone(), plugins_synced));
    [runs_ready, replicas_ready, plugins_ready]
}

/// Waits until this process is told to end, or leads no more.
async fn until_ended(leader: JoinHandle<anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => ExitCode::SUCCESS,
        _ = interrupt.recv() => ExitCode::SUCCESS,
        ended = leader => {
            tracing::error!(?ended, "leadership was lost; the process ends so that nothing of it goes on");
            ExitCode::FAILURE
        }
    })
}

/// What the webhooks are reached, trusted and called by.
struct Edge {
    configurations: Registered,
    store: SecretStore,
    serving: Arc<Serving>,
    token: Keeper,
    sealer: Arc<Sealer>,
}

impl Edge {
    /// Reads or makes the Secrets, and follows them from then on.
    async fn start(client: &Client, args: &ServerArgs) -> anyhow::Result<Self> {
        let names = Names { service: args.service.clone(), namespace: args.namespace.clone() };
        let configurations = Registered {
            validating: args.validating_webhook.clone(),
            mutating: args.mutating_webhook.clone(),
            names: names.clone(),
            secret: SECRET.to_owned(),
        };
        let store = SecretStore::new(client.clone(), SECRET, names.clone());
        let serving = Serving::new(names.clone());
        let registration = webhook_config::look(client.clone(), configurations.clone())
            .await
            .context("the webhook configurations could not be read")?;
        let state = store.ensure(&registration).await.context("there is no serving certificate")?;
        serving.offer(state, Timestamp::now(), Patience::Hold).context("the serving certificate cannot be used")?;
        tokio::spawn(keep_reloaded(store.clone(), serving.clone()));
        let sealer = seal::start(client.clone(), names.clone()).await.context("there is no key to seal forks with")?;
        let token = Keeper::start(client.clone(), names, &registration);
        let token = token.await.context("there is no token for the webhooks' path")?;
        Ok(Self { configurations, store, serving, token, sealer })
    }
}

/// What the webhooks' port shows, and asks for.
fn identities(args: &ServerArgs, serving: Arc<Serving>) -> anyhow::Result<Identities> {
    let mut identities = Identities::from(serving);
    if let Some(path) = &args.client_ca_file {
        let verifier = client::Verifier::read(path, args.client_names.clone())
            .context("no client certificate can be asked for")?;
        tokio::spawn(client::keep_reloaded(verifier.clone()));
        identities.clients = Some(verifier);
    }
    Ok(identities)
}

fn webhooks(
    args: &ServerArgs,
    engine: &Arc<Engine>,
    plugins: &Arc<RwLock<Plugins>>,
    metrics: &Arc<Metrics>,
    sealer: &Arc<Sealer>,
    stop: &CancellationToken,
) -> Webhooks {
    Webhooks {
        sandboxes: Admission {
            engine: engine.clone(),
            plugins: plugins.clone(),
            finder: Finder::new(engine.client().clone(), plugins.clone()),
            rights: Rights::new(engine.client().clone()),
            holder: Holder::new(args.held(), stop.clone()),
            waits: Waits::default(),
            recorder: Arc::new(Recorder::new(engine.client().clone(), args.pod.clone())),
            sealer: sealer.clone(),
            own_user: args.own_user(),
        },
        plugins: PluginAdmission {
            engine: engine.clone(),
            plugins: plugins.clone(),
            allowed: RunnerLimits {
                own_namespace: args.namespace.clone(),
                default_namespace: args.default_runner_namespace.clone(),
                namespaces: args.all_runner_namespaces(),
                own_service_account: args.service_account.clone(),
                own_secrets: [SECRET, keep::SECRET, SALT_SECRET, seal::SECRET].map(str::to_owned).to_vec(),
            },
        },
        metrics: metrics.clone(),
        room: Room::default(),
    }
}
