//! What one replica at a time does: it waits to become the leader, then leads.

use super::Edge;
use crate::certs::Registration;
use crate::certs::keep::keep_rotated;
use crate::certs::webhook_config;
use crate::controller;
use crate::metrics::Metrics;
use kube::Client;
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The Lease of the leader.
const LEASE: &str = "sluice-leader";
/// Seconds that the leader's Lease lasts, and before its end when it is renewed.
const DURATION: u64 = 10;
const GRACE: u64 = 4;

/// What the leader works with.
pub(super) struct Leader {
    pub client: Client,
    /// The name of this process's pod: a container that is started again in it goes on with its predecessor's lease.
    pub pod: String,
    pub namespace: String,
    pub context: Arc<controller::Context>,
    /// Plugins were added, changed or deleted.
    pub plugins_changed: watch::Receiver<bool>,
    pub metrics: Arc<Metrics>,
    pub edge: Edge,
    pub stop: CancellationToken,
}

impl Leader {
    /// Waits to become the leader, then leads; ends when leadership is lost.
    ///
    /// Fails where the Lease cannot be watched, or the webhook configurations cannot be kept.
    pub async fn run(self) -> anyhow::Result<()> {
        let lease = self.lease().await?;
        let (mut leading, renewing) = lease.watch().await;
        while !*leading.borrow_and_update() {
            tokio::select! {
                changed = leading.changed() => changed?,
                () = self.stop.cancelled() => return Ok(()),
            }
        }
        tracing::info!("leading");
        self.metrics.leading(true);
        let lost = async { while leading.changed().await.is_ok() && *leading.borrow_and_update() {} };
        let stop = self.stop.clone();
        tokio::select! {
            () = lost => {}
            () = stop.cancelled() => {
                drop(leading);
                // The lease is released, so that another leads at once.
                if let Err(error) = renewing.await { tracing::warn!(%error, "the leader's lease was not released"); }
                std::future::pending::<()>().await;
            }
            ended = self.lead() => { ended?; }
        }
        Ok(())
    }

    async fn lease(&self) -> anyhow::Result<LeaseManager> {
        let lease = LeaseManagerBuilder::new(self.client.clone(), LEASE)
            .with_namespace(&self.namespace)
            .with_identity(&self.pod)
            .with_duration(DURATION)
            .with_grace(GRACE);
        Ok(lease.build().await?)
    }

    async fn lead(self) -> anyhow::Result<()> {
        let (told, registered) = watch::channel(Registration::default());
        let Edge { configurations, store, serving, token, .. } = self.edge;
        let (bundle, accepted) = (serving.current_bundle(), token.accepted.known());
        tokio::select! {
            ended = webhook_config::keep_registered(self.client, configurations, bundle, accepted, told) => { ended?; }
            _ = keep_rotated(store, serving.known(), registered.clone()) => {}
            _ = token.renew(registered.clone()) => {}
            _ = gauge(&self.metrics, registered) => {}
            () = controller::lead(self.context, self.plugins_changed) => {}
        }
        Ok(())
    }
}

/// Tells whether the webhooks are registered.
async fn gauge(metrics: &Metrics, mut registered: watch::Receiver<Registration>) -> Infallible {
    loop {
        metrics.registered(registered.borrow_and_update().in_force());
        if registered.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
