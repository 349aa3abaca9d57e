//! The flags of `sluice server`, and the settings that they stand for.

use crate::controller::ControllerSettings;
use crate::engine::{EngineSettings, PodSettings};
use crate::plan::http::{Allowed, Target};
use crate::plan::queue;
use crate::webhook::hold::Limits;
use clap::{Args, ValueEnum};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The namespace that this process runs in
    #[arg(long, env = "POD_NAMESPACE")]
    pub(super) namespace: String,
    /// The name of this process's pod
    #[arg(long, env = "POD_NAME")]
    pub(super) pod: String,
    /// The UID of this process's pod
    #[arg(long, env = "POD_UID")]
    pub(super) pod_uid: Option<String>,
    /// The service account of this process, which no plugin may act as
    #[arg(long, env = "POD_SERVICE_ACCOUNT")]
    pub(super) service_account: Option<String>,
    /// The Service that leads to the webhooks
    #[arg(long, default_value = "sluice")]
    pub(super) service: String,
    /// The image of the agent in step pods: this program's own
    #[arg(long)]
    pub(super) image: String,
    /// The pull policy of that image
    #[arg(long)]
    pub(super) image_pull_policy: Option<String>,
    /// The namespace that plugins run in which name none
    #[arg(long)]
    pub(super) default_runner_namespace: String,
    /// Further namespaces that plugins may run in; Sluice's own only where it is named
    #[arg(long, value_delimiter = ',')]
    pub(super) runner_namespaces: Vec<String>,
    /// What `http` steps may call: HOST, *.DOMAIN, HOST:PORT or *.DOMAIN:PORT; nothing by default
    #[arg(long, value_delimiter = ',')]
    pub(super) http_allowed_targets: Vec<Target>,
    /// The name of the ValidatingWebhookConfiguration
    #[arg(long, default_value = "sluice")]
    pub(super) validating_webhook: String,
    /// The name of the MutatingWebhookConfiguration
    #[arg(long, default_value = "sluice")]
    pub(super) mutating_webhook: String,
    /// A PEM file with the authorities that sign the API server's client certificate; none is asked for without it
    #[arg(long)]
    pub(super) client_ca_file: Option<PathBuf>,
    /// The common names or DNS names that such a certificate may carry; any by default
    #[arg(long, value_delimiter = ',', requires = "client_ca_file")]
    pub(super) client_names: Vec<String>,
    /// How many requests are held at once; more are told to come again
    #[arg(long, default_value_t = 8)]
    pub(super) max_held: usize,
    /// How many requests are held at once by all replicas together
    #[arg(long, default_value_t = 16)]
    pub(super) max_held_in_all: usize,
    /// How many runs all replicas together work on at once; others wait for their turn, each namespace's in turn
    #[arg(long, default_value_t = 64)]
    pub(super) max_running: usize,
    /// How many of them work with plugins that run in one namespace; 0 for no limit of its own
    #[arg(long, default_value_t = 0)]
    pub(super) max_running_in_runner_namespace: usize,
    /// How many of them are of sandboxes in one namespace; 0 for half of all
    #[arg(long, default_value_t = 0)]
    pub(super) max_running_in_namespace: usize,
    /// How long an admitted change may take to be stored, in seconds
    #[arg(long, default_value_t = 40)]
    pub(super) commit_grace_seconds: u64,
    /// How many ended runs of a sandbox are kept
    #[arg(long, default_value_t = 10)]
    pub(super) history_limit: usize,
    /// How many days ended runs are kept
    #[arg(long, default_value_t = 7)]
    pub(super) history_days: u64,
    /// Where the webhooks listen
    #[arg(long, default_value = "0.0.0.0:8443")]
    pub(super) webhook_address: SocketAddr,
    /// Where probes and metrics are answered
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub(super) http_address: SocketAddr,
    /// For how many seconds new requests are still answered after the word to stop
    #[arg(long, default_value_t = 8)]
    pub(super) drain_seconds: u64,
    /// How logs are written
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(super) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LogFormat {
    Json,
    Text,
}

impl ServerArgs {
    pub(super) fn engine(&self) -> EngineSettings {
        EngineSettings {
            namespace: self.namespace.clone(),
            runner_namespaces: self.all_runner_namespaces(),
            http: Allowed::new(self.http_allowed_targets.clone()),
            limits: queue::Limits {
                all: self.max_running,
                runner_namespace: Some(self.max_running_in_runner_namespace).filter(|most| *most > 0),
                namespace: Some(self.max_running_in_namespace).filter(|most| *most > 0),
            },
        }
    }

    pub(super) fn pods(&self) -> PodSettings {
        PodSettings {
            runner_namespace: self.default_runner_namespace.clone(),
            agent_image: self.image.clone(),
            image_pull_policy: self.image_pull_policy.clone(),
        }
    }

    pub(super) fn controller(&self) -> ControllerSettings {
        ControllerSettings {
            commit_grace: Duration::from_secs(self.commit_grace_seconds),
            history_limit: self.history_limit,
            history_age: Duration::from_secs(self.history_days * 86_400),
        }
    }

    pub(super) fn held(&self) -> Limits {
        Limits { held: self.max_held, held_in_all: self.max_held_in_all }
    }

    /// Every namespace that plugins may run in.
    pub(super) fn all_runner_namespaces(&self) -> BTreeSet<String> {
        let further = self.runner_namespaces.iter().filter(|namespace| !namespace.is_empty());
        further.chain([&self.default_runner_namespace]).cloned().collect()
    }

    /// The name by which the API server knows this process.
    pub(super) fn own_user(&self) -> Option<String> {
        let account = self.service_account.as_ref()?;
        Some(format!("system:serviceaccount:{}:{account}", self.namespace))
    }
}
