//! `sluice server`: everything that runs in the cluster, started in the order in which each part needs the others.

use super::follow::follow_plugins;
use super::log;
use super::probes::{Ready, probes};
use crate::certs::client;
use crate::certs::keep::keep_rotated;
use crate::certs::reload::{Patience, keep_reloaded};
use crate::certs::seal;
use crate::certs::store::SecretStore;
use crate::certs::token::keep::{self, Keeper};
use crate::certs::webhook_config::{self, Webhooks as Registered};
use crate::certs::{Names, Registration, Serving};
use crate::controller::events::Recorder;
use crate::controller::fork_outputs::SALT_SECRET;
use crate::controller::{self, ControllerSettings};
use crate::engine::replicas::{self, Identity, Replicas};
use crate::engine::{Engine, EngineSettings, PodSettings, follow_replicas, follow_runs, follow_warm};
use crate::metrics::Metrics;
use crate::plan::http::{Allowed, Target};
use crate::plan::message::with_causes;
use crate::plan::plugins::Plugins;
use crate::plan::queue;
use crate::plan::seal::Sealer;
use crate::webhook::admit::Admission;
use crate::webhook::body::Room;
use crate::webhook::find::Finder;
use crate::webhook::granted::Rights;
use crate::webhook::guests::Guests;
use crate::webhook::hold::{Holder, Limits, new_routing_key};
use crate::webhook::plugin::{PluginAdmission, RunnerLimits};
use crate::webhook::router::{Webhooks, router};
use crate::webhook::serve::{Drain, Identities, PROBE_BOUNDS, listen, serve_probes, serve_tls};
use crate::webhook::waits::Waits;
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The Secret with the serving certificate.
const SECRET: &str = "sluice-tls";
/// The Lease of the leader.
const LEADER: &str = "sluice-leader";
/// Seconds that the leader's Lease lasts, and before its end when it is renewed.
const LEADER_DURATION: u64 = 10;
const LEADER_GRACE: u64 = 4;
/// No single call to the API server may take longer, beside watches and execs, which never fall silent for so long.
const READ_TIMEOUT: Duration = Duration::from_secs(295);

#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The namespace that this process runs in
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
    /// The name of this process's pod
    #[arg(long, env = "POD_NAME")]
    pod: String,
    /// The UID of this process's pod
    #[arg(long, env = "POD_UID")]
    pod_uid: Option<String>,
    /// The service account of this process, which no plugin may act as
    #[arg(long, env = "POD_SERVICE_ACCOUNT")]
    service_account: Option<String>,
    /// The Service that leads to the webhooks
    #[arg(long, default_value = "sluice")]
    service: String,
    /// The image of the agent in step pods: this program's own
    #[arg(long)]
    image: String,
    /// The pull policy of that image
    #[arg(long)]
    image_pull_policy: Option<String>,
    /// The namespace that plugins run in which name none
    #[arg(long)]
    default_runner_namespace: String,
    /// Further namespaces that plugins may run in; Sluice's own only where it is named
    #[arg(long, value_delimiter = ',')]
    runner_namespaces: Vec<String>,
    /// What `http` steps may call: HOST, *.DOMAIN, HOST:PORT or *.DOMAIN:PORT; nothing by default
    #[arg(long, value_delimiter = ',')]
    http_allowed_targets: Vec<Target>,
    /// The name of the ValidatingWebhookConfiguration
    #[arg(long, default_value = "sluice")]
    validating_webhook: String,
    /// The name of the MutatingWebhookConfiguration
    #[arg(long, default_value = "sluice")]
    mutating_webhook: String,
    /// A PEM file with the authorities that sign the API server's client certificate; none is asked for without it
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    /// The common names or DNS names that such a certificate may carry; any by default
    #[arg(long, value_delimiter = ',', requires = "client_ca_file")]
    client_names: Vec<String>,
    /// How many requests are held at once; more are told to come again
    #[arg(long, default_value_t = 8)]
    max_held: usize,
    /// How many requests are held at once by all replicas together
    #[arg(long, default_value_t = 16)]
    max_held_in_all: usize,
    /// How many runs all replicas together work on at once; others wait for their turn, each namespace's in turn
    #[arg(long, default_value_t = 64)]
    max_running: usize,
    /// How many of them work with plugins that run in one namespace; 0 for no limit of its own
    #[arg(long, default_value_t = 0)]
    max_running_in_runner_namespace: usize,
    /// How many of them are of sandboxes in one namespace; 0 for half of all
    #[arg(long, default_value_t = 0)]
    max_running_in_namespace: usize,
    /// How long an admitted change may take to be stored, in seconds
    #[arg(long, default_value_t = 40)]
    commit_grace_seconds: u64,
    /// How many ended runs of a sandbox are kept
    #[arg(long, default_value_t = 10)]
    history_limit: usize,
    /// How many days ended runs are kept
    #[arg(long, default_value_t = 7)]
    history_days: u64,
    /// Where the webhooks listen
    #[arg(long, default_value = "0.0.0.0:8443")]
    webhook_address: SocketAddr,
    /// Where probes and metrics are answered
    #[arg(long, default_value = "0.0.0.0:8080")]
    http_address: SocketAddr,
    /// For how many seconds new requests are still answered after the word to stop
    #[arg(long, default_value_t = 8)]
    drain_seconds: u64,
    /// How logs are written
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Json,
    Text,
}

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
    let engine = Engine::new(
        client.clone(),
        EngineSettings {
            namespace: args.namespace.clone(),
            runner_namespaces: runner_namespaces(&args),
            http: Allowed::new(args.http_allowed_targets.clone()),
            limits: queue::Limits {
                all: args.max_running,
                runner_namespace: Some(args.max_running_in_runner_namespace).filter(|most| *most > 0),
                namespace: Some(args.max_running_in_namespace).filter(|most| *most > 0),
            },
        },
        PodSettings {
            runner_namespace: args.default_runner_namespace.clone(),
            agent_image: args.image.clone(),
            image_pull_policy: args.image_pull_policy.clone(),
        },
        Replicas::new(identity.clone()),
        stop.clone(),
    );
    let plugins = Arc::new(RwLock::new(Plugins::default()));
    let metrics = Arc::new(Metrics::default());

    let (runs_synced, runs_ready) = watch::channel(false);
    let (replicas_synced, replicas_ready) = watch::channel(false);
    let (plugins_synced, plugins_ready) = watch::channel(false);
    tokio::spawn(follow_runs(engine.clone(), runs_synced));
    tokio::spawn(follow_replicas(engine.clone(), replicas_synced));
    tokio::spawn(follow_warm(engine.clone()));
    tokio::spawn(follow_plugins(client.clone(), plugins.clone(), plugins_synced));
    let alive = tokio::spawn({
        let (client, namespace, engine, uid) =
            (client.clone(), args.namespace.clone(), engine.clone(), args.pod_uid.clone());
        async move { replicas::keep_alive(client, &namespace, &engine.replicas, uid).await }
    });

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

    let listening = listen(args.webhook_address)?;
    let drain = Drain { accept: Duration::from_secs(args.drain_seconds), ..Drain::default() };
    let router = router(Arc::new(webhooks(&args, &engine, &plugins, &metrics, &sealer, &stop)), token.accepted.clone());
    let identities = identities(&args, serving.clone())?;
    let server = tokio::spawn(serve_tls(listening, router, identities, stop.clone(), drain));

    let ready = Ready { synced: [runs_ready, replicas_ready, plugins_ready.clone()], stop: stop.clone() };
    let http = listen(args.http_address).context("probes cannot be answered")?;
    let probes = probes(ready.clone(), metrics.clone(), engine.clone());
    tokio::spawn(serve_probes(http, probes, Guests::new(PROBE_BOUNDS)));

    ready.wait().await;
    let leader = tokio::spawn(lead(
        args_for_leader(&args),
        engine.clone(),
        (plugins, plugins_ready, sealer),
        metrics,
        (store, serving),
        token,
        configurations,
        stop.clone(),
    ));

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let code = tokio::select! {
        _ = terminate.recv() => ExitCode::SUCCESS,
        _ = interrupt.recv() => ExitCode::SUCCESS,
        ended = leader => {
            tracing::error!(?ended, "leadership was lost; the process ends so that nothing of it goes on");
            ExitCode::FAILURE
        }
    };
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
    let limits = Limits { held: args.max_held, held_in_all: args.max_held_in_all };
    Webhooks {
        sandboxes: Admission {
            engine: engine.clone(),
            plugins: plugins.clone(),
            finder: Finder::new(engine.client().clone(), plugins.clone()),
            rights: Rights::new(engine.client().clone()),
            holder: Holder::new(limits, stop.clone()),
            waits: Waits::default(),
            recorder: Arc::new(Recorder::new(engine.client().clone(), args.pod.clone())),
            sealer: sealer.clone(),
            own_user: args
                .service_account
                .as_ref()
                .map(|account| format!("system:serviceaccount:{}:{account}", args.namespace)),
        },
        plugins: PluginAdmission {
            engine: engine.clone(),
            plugins: plugins.clone(),
            allowed: RunnerLimits {
                own_namespace: args.namespace.clone(),
                default_namespace: args.default_runner_namespace.clone(),
                namespaces: runner_namespaces(args),
                own_service_account: args.service_account.clone(),
                own_secrets: [SECRET, keep::SECRET, SALT_SECRET, seal::SECRET].map(str::to_owned).to_vec(),
            },
        },
        metrics: metrics.clone(),
        room: Room::default(),
    }
}

/// Every namespace that plugins may run in.
fn runner_namespaces(args: &ServerArgs) -> BTreeSet<String> {
    let further = args.runner_namespaces.iter().filter(|namespace| !namespace.is_empty());
    further.chain([&args.default_runner_namespace]).cloned().collect()
}

fn args_for_leader(args: &ServerArgs) -> (String, String, ControllerSettings) {
    let settings = ControllerSettings {
        commit_grace: Duration::from_secs(args.commit_grace_seconds),
        history_limit: args.history_limit,
        history_age: Duration::from_secs(args.history_days * 86_400),
    };
    (args.namespace.clone(), args.pod.clone(), settings)
}

/// Waits to become the leader, then leads; ends when leadership is lost.
#[allow(clippy::too_many_arguments)]
async fn lead(
    (namespace, pod, settings): (String, String, ControllerSettings),
    engine: Arc<Engine>,
    (plugins, plugins_changed, sealer): (Arc<RwLock<Plugins>>, watch::Receiver<bool>, Arc<Sealer>),
    metrics: Arc<Metrics>,
    (store, serving): (SecretStore, Arc<Serving>),
    token: Keeper,
    configurations: Registered,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let client = engine.client().clone();
    // A container that is started again in the same pod goes on with its predecessor's lease.
    let lease = kube_lease_manager::LeaseManagerBuilder::new(client.clone(), LEADER)
        .with_namespace(&namespace)
        .with_identity(&pod)
        .with_duration(LEADER_DURATION)
        .with_grace(LEADER_GRACE)
        .build()
        .await?;
    let (mut leading, renewing) = lease.watch().await;
    loop {
        if *leading.borrow_and_update() {
            break;
        }
        tokio::select! {
            changed = leading.changed() => changed?,
            () = stop.cancelled() => return Ok(()),
        }
    }
    tracing::info!("leading");
    metrics.leading(true);
    let (told, registered) = watch::channel(Registration::default());
    let context = controller::Context::new(engine, plugins, settings, configurations.validating.clone(), sealer);
    let gauge = {
        let mut registered = registered.clone();
        async move {
            loop {
                metrics.registered(registered.borrow_and_update().in_force());
                if registered.changed().await.is_err() {
                    return;
                }
            }
        }
    };
    let lost = async {
        loop {
            if leading.changed().await.is_err() || !*leading.borrow_and_update() {
                return;
            }
        }
    };
    tokio::select! {
        () = lost => {}
        () = stop.cancelled() => {
            drop(leading);
            // The lease is released, so that another leads at once.
            if let Err(error) = renewing.await { tracing::warn!(%error, "the leader's lease was not released"); }
            std::future::pending::<()>().await;
        }
        ended = webhook_config::keep_registered(
            client, configurations, serving.current_bundle(), token.accepted.known(), told,
        ) => { ended?; }
        _ = keep_rotated(store, serving.known(), registered.clone()) => {}
        _ = token.renew(registered) => {}
        () = gauge => {}
        () = controller::lead(context, plugins_changed) => {}
    }
    Ok(())
}
