//! Sluice's server as a process beside the cluster, so that nothing but it is measured: the one that the chart runs,
//! connected to the same API server.

use crate::load::Target;
use crate::plain;
use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use sluice::certs::token;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

pub const NAMESPACE: &str = "sluice-system";
/// Where plugins run: the chart makes it, and an uninstallation keeps it.
pub const RUNNERS: &str = "sluice-runners";
const WEBHOOK: ([u8; 4], u16) = ([127, 0, 0, 1], 18_443);
const PROBES: ([u8; 4], u16) = ([127, 0, 0, 1], 18_080);
const START_WITHIN: Duration = Duration::from_secs(120);
const SETTLE_WITHIN: Duration = Duration::from_secs(600);
/// Over this long the process must have been as good as idle.
const LOOK: Duration = Duration::from_secs(5);
/// Hundredths of a second of processor time, which Linux counts in, for each second: 2 %.
const IDLE: u64 = 2;

/// The server, for as long as it is not dropped.
pub struct Server {
    process: Child,
    pid: u32,
    pub target: Target,
}

impl Server {
    /// Starts it and waits until it leads.
    pub async fn start(client: &Client) -> anyhow::Result<Self> {
        let program = sluice()?;
        let mut process = Command::new(&program)
            .args(["server", "--namespace", NAMESPACE, "--pod", "bench", "--image", "cluster.local/sluice:bench"])
            .args(["--default-runner-namespace", RUNNERS])
            .args(["--webhook-address", &SocketAddr::from(WEBHOOK).to_string()])
            .args(["--http-address", &SocketAddr::from(PROBES).to_string(), "--drain-seconds", "0"])
            .env("RUST_LOG", "warn")
            .env_remove("POD_UID")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| program.display().to_string())?;
        let pid = process.id().context("the server ended at once")?;
        let since = Instant::now();
        while !metrics().await.is_ok_and(|text| text.lines().any(|line| line == "sluice_leading 1")) {
            if let Some(status) = process.try_wait()? {
                bail!("the server ended: {status}");
            }
            if since.elapsed() > START_WITHIN {
                bail!("the server does not lead after {START_WITHIN:?}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let of = |name: &'static str, key: &'static str| {
            let secrets = secrets.clone();
            async move {
                let data = secrets.get(name).await?.data.unwrap_or_default();
                anyhow::Ok(data.get(key).with_context(|| format!("Secret {name} has no {key}"))?.0.clone())
            }
        };
        let token = String::from_utf8(of("sluice-token", token::CURRENT).await?)?;
        let authorities = of("sluice-tls", "ca.crt").await?;
        let name = format!("sluice.{NAMESPACE}.svc");
        let target = Target::new(WEBHOOK.into(), format!("/validate/{token}"), &name, &authorities)?;
        Ok(Self { process, pid, target })
    }

    /// Waits until the server has done what it found to do.
    pub async fn settle(&self) -> anyhow::Result<()> {
        let since = Instant::now();
        let mut before = self.processor_time()?;
        while since.elapsed() < SETTLE_WITHIN {
            tokio::time::sleep(LOOK).await;
            let now = self.processor_time()?;
            if now - before <= IDLE * LOOK.as_secs() {
                return Ok(());
            }
            before = now;
        }
        bail!("the server is still busy after {SETTLE_WITHIN:?}")
    }

    /// The memory that the process has of the machine, in MiB; and the most that it ever had.
    pub fn memory(&self) -> anyhow::Result<(f64, f64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).context("the server is gone")?;
            let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
            anyhow::Ok(kib / 1024.0)
        };
        Ok((field("VmRSS:")?, field("VmHWM:")?))
    }

    /// In hundredths of a second.
    fn processor_time(&self) -> anyhow::Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        let (_, fields) = stat.rsplit_once(')').context("the server is gone")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
    }

    /// Ends it as a rollout does, so that its Lease is free.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        Command::new("kill").arg(self.pid.to_string()).status().await?;
        tokio::time::timeout(Duration::from_secs(60), self.process.wait()).await??;
        Ok(())
    }
}

async fn metrics() -> anyhow::Result<String> {
    plain::ask(PROBES.into(), "GET", "/metrics", "").await
}

/// The program that was built with this one.
fn sluice() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(|examples| examples.parent()).context("where is this program?")?;
    Ok(folder.join("sluice"))
}
