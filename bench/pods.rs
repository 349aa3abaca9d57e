//! Sluice's pods as the chart runs them: their memory, their addresses, how often they came up again.

use crate::server::NAMESPACE;
use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use std::net::IpAddr;

/// One pod's server.
pub struct Replica {
    pub address: IpAddr,
    process: u32,
}

pub async fn replicas(client: &Client) -> anyhow::Result<Vec<Replica>> {
    let mut found = Vec::new();
    for pod in list(client).await? {
        let name = pod.metadata.name.unwrap_or_default();
        let address = pod.status.and_then(|status| status.pod_ip).with_context(|| format!("pod {name} has no IP"))?;
        found.push(Replica { address: address.parse()?, process: process_of(&name)? });
    }
    ensure!(!found.is_empty(), "there is no pod of Sluice's in {NAMESPACE}");
    Ok(found)
}

/// How often the containers of all pods have been started again.
pub async fn restarts(client: &Client) -> anyhow::Result<i32> {
    let statuses = list(client).await?.into_iter().filter_map(|pod| pod.status?.container_statuses);
    Ok(statuses.flatten().map(|container| container.restart_count).sum())
}

async fn list(client: &Client) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let of_server = ListParams::default().labels("sluice.dev/component=server");
    Ok(pods.list(&of_server).await?.items)
}

/// The node is this machine.
fn process_of(pod: &str) -> anyhow::Result<u32> {
    let name = format!("POD_NAME={pod}");
    let is_it = |process: &u32| {
        let file = |name: &str| std::fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
        file("cmdline").starts_with(b"/sluice\0server\0")
            && file("environ").split(|byte| *byte == 0).any(|variable| variable == name.as_bytes())
    };
    let mut processes = std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes
        .find(is_it)
        .with_context(|| format!("no process of pod {pod} is to be seen: run this as root on its node"))
}

impl Replica {
    /// Has [`Replica::peak`] begin anew.
    pub fn forget_peak(&self) -> anyhow::Result<()> {
        std::fs::write(format!("/proc/{}/clear_refs", self.process), "5").context("the peak of memory cannot be reset")
    }

    /// The most memory that the process had of the machine since then, in MiB.
    pub fn peak(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process))
            .context("a process of Sluice's has ended")?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
        Ok(peak.trim().trim_end_matches("kB").trim().parse::<f64>()? / 1024.0)
    }
}
