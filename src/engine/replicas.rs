//! Which processes of Sluice are alive: each renews a Lease of its own, named after its pod.
//!
//! A run says which process executes it. Where that one's Lease is no longer renewed, or another process holds the
//! pod's Lease, the run is an orphan and another replica goes on with it.

use super::error::EngineError;
use crate::plan::message::with_causes;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How often a process renews its Lease.
pub const RENEW_EVERY: Duration = Duration::from_secs(2);
/// After this long without a renewal a process counts as gone.
pub const GONE_AFTER: Duration = Duration::from_secs(8);
/// Whoever has heard its own renewal within this time has heard of all others' within [`GONE_AFTER`]. Else its own ears
/// are closed: the API server is away, or the process itself was stopped and has only now gone on.
const DEAF_AFTER: Duration = GONE_AFTER.saturating_sub(RENEW_EVERY);
/// Clocks that differ by less count as the same.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);
/// The label that these Leases carry, so that they can be watched alone.
pub const COMPONENT: &str = "sluice.dev/replica";

/// One process: the pod that it runs in and a part that is new with every start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub pod: String,
    pub process: String,
}

impl Identity {
    pub fn new(pod: impl Into<String>, process: impl Into<String>) -> Self {
        Self { pod: pod.into(), process: process.into() }
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.pod, self.process)
    }
}

struct Seen {
    holder: String,
    renewed: Option<Timestamp>,
    /// By this process's own clock, so that clocks need not agree.
    at: Instant,
}

/// For how long this process has heard its own renewals without a gap.
#[derive(Clone, Copy)]
struct Heard {
    since: Instant,
    last: Instant,
}

/// What was seen of every replica's Lease.
pub struct Replicas {
    own: Identity,
    started: Instant,
    seen: RwLock<HashMap<String, Seen>>,
    heard: RwLock<Option<Heard>>,
    /// How far the API server's clock is ahead of this process's, in milliseconds.
    ahead: AtomicI64,
}

impl Replicas {
    pub fn new(own: Identity) -> Self {
        Self {
            own,
            started: Instant::now(),
            seen: RwLock::default(),
            heard: RwLock::default(),
            ahead: AtomicI64::new(0),
        }
    }

    pub fn own(&self) -> &Identity {
        &self.own
    }

    /// The time by the API server's clock, as far as the last renewal told: to the second.
    pub fn server_now(&self) -> Timestamp {
        let now = Timestamp::now();
        now.checked_add(SignedDuration::from_millis(self.ahead.load(Ordering::Relaxed))).unwrap_or(now)
    }

    /// Learns the API server's clock from the answer to a write that was sent at `sent`: it notes when each manager
    /// wrote last.
    fn note_clock(&self, written: &ObjectMeta, sent: Timestamp) {
        let times = written.managed_fields.iter().flatten();
        let own = times.filter(|entry| entry.manager.as_deref() == Some(crate::api::labels::MANAGER));
        let Some(at) = own.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max() else { return };
        // Seconds are cut off there.
        let ahead = (at - sent).total(k8s_openapi::jiff::Unit::Millisecond).unwrap_or_default();
        let ahead = if ahead.abs() <= CLOCK_TOLERANCE.as_millis() as f64 { 0 } else { ahead as i64 };
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    pub fn observe(&self, lease: &Lease) {
        self.observe_at(lease, Instant::now());
    }

    fn observe_at(&self, lease: &Lease, now: Instant) {
        let Some(spec) = &lease.spec else { return };
        let (holder, renewed) =
            (spec.holder_identity.clone().unwrap_or_default(), spec.renew_time.as_ref().map(|t| t.0));
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        match seen.get(&lease.name_any()) {
            Some(known) if known.holder == holder && known.renewed == renewed => {}
            _ => {
                if holder == self.own.to_string() {
                    let mut heard = self.heard.write().unwrap_or_else(PoisonError::into_inner);
                    let since = heard.filter(|heard| now - heard.last < DEAF_AFTER).map_or(now, |heard| heard.since);
                    *heard = Some(Heard { since, last: now });
                }
                seen.insert(lease.name_any(), Seen { holder, renewed, at: now });
            }
        }
    }

    pub fn forget(&self, lease: &str) {
        self.seen.write().unwrap_or_else(PoisonError::into_inner).remove(lease);
    }

    /// How many replicas there are, this one included.
    pub fn alive(&self) -> usize {
        let own = lease_name(&self.own.pod);
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        1 + seen.iter().filter(|(lease, seen)| **lease != own && seen.at.elapsed() < GONE_AFTER).count()
    }

    /// Whether the process that calls itself `executor` may still be at work. Only silence that this process has
    /// listened to counts: after a time in which it heard not even itself, everybody has [`GONE_AFTER`] again.
    pub fn is_alive(&self, executor: &str) -> bool {
        self.is_alive_at(executor, Instant::now())
    }

    fn is_alive_at(&self, executor: &str, now: Instant) -> bool {
        if executor == self.own.to_string() {
            return true;
        }
        let pod = executor.split_once('/').map_or(executor, |(pod, _)| pod);
        // Another process in the same pod is this one's predecessor.
        if pod == self.own.pod {
            return false;
        }
        let heard = *self.heard.read().unwrap_or_else(PoisonError::into_inner);
        let Some(heard) = heard.filter(|heard| now - heard.last < DEAF_AFTER) else { return true };
        match self.seen.read().unwrap_or_else(PoisonError::into_inner).get(&lease_name(pod)) {
            Some(seen) => seen.holder == executor && now - seen.at.max(heard.since) < GONE_AFTER,
            // The watch may not have shown it yet.
            None => now - self.started < RENEW_EVERY * 2,
        }
    }
}

/// The name of a pod's Lease.
pub fn lease_name(pod: &str) -> String {
    format!("replica-{pod}")
}

/// Renews this process's Lease for as long as the future is polled.
pub async fn keep_alive(client: Client, namespace: &str, replicas: &Replicas, pod_uid: Option<String>) {
    let own = replicas.own();
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    let (name, params) = (lease_name(&own.pod), PatchParams::apply(crate::api::labels::MANAGER).force());
    let mut ticks = tokio::time::interval(RENEW_EVERY);
    loop {
        ticks.tick().await;
        let sent = Timestamp::now();
        let lease = Patch::Apply(lease(own, pod_uid.clone()));
        let renew = leases.patch(&name, &params, &lease);
        match tokio::time::timeout(RENEW_EVERY, renew).await {
            Ok(Ok(renewed)) => replicas.note_clock(&renewed.metadata, sent),
            Ok(Err(error)) => {
                tracing::warn!(error = with_causes(&error), "the replica's lease was not renewed");
            }
            Err(_) => tracing::warn!("the replica's lease was not renewed in time"),
        }
    }
}

/// Gives the Lease up, so that others go on with this process's runs at once.
pub async fn leave(client: Client, namespace: &str, own: &Identity) -> Result<(), EngineError> {
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    match leases.delete(&lease_name(&own.pod), &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) if super::error::is_status(&error, 404) => Ok(()),
        Err(error) => Err(EngineError::api("give the replica's lease up")(error)),
    }
}

fn lease(own: &Identity, pod_uid: Option<String>) -> Lease {
    let owner = pod_uid.map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: own.pod.clone(),
        uid,
        ..OwnerReference::default()
    });
    Lease {
        metadata: ObjectMeta {
            name: Some(lease_name(&own.pod)),
            labels: Some([(COMPONENT.to_owned(), "true".to_owned())].into()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(own.to_string()),
            lease_duration_seconds: Some(GONE_AFTER.as_secs() as i32),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_the_api_server_is_learnt_from_what_it_writes() {
        let replicas = Replicas::new(Identity::new("a", "1"));
        let sent = Timestamp::now();
        let written = |at: Timestamp| -> ObjectMeta {
            let fields = serde_json::json!([{"manager": "sluice", "time": at.to_string()}]);
            serde_json::from_value(serde_json::json!({"managedFields": fields})).unwrap()
        };
        let difference = |replicas: &Replicas| (replicas.server_now() - Timestamp::now()).get_seconds();
        replicas.note_clock(&written(sent - Duration::from_secs(1)), sent);
        assert_eq!(difference(&replicas), 0, "seconds are cut off");
        replicas.note_clock(&written(sent + Duration::from_secs(300)), sent);
        assert!((299..=300).contains(&difference(&replicas)), "{}", difference(&replicas));
    }

    #[test]
    fn a_restarted_container_knows_that_its_predecessor_is_gone() {
        let replicas = Replicas::new(Identity::new("a", "2"));
        assert!(replicas.is_alive("a/2"));
        assert!(!replicas.is_alive("a/1"));
    }

    /// A process `a/1` that began to hear itself at this moment, and heard of `b/2` then.
    fn hearing(at: Instant) -> Replicas {
        let replicas = Replicas::new(Identity::new("a", "1"));
        replicas.observe_at(&renewal("a", "1"), at);
        replicas.observe_at(&renewal("b", "2"), at);
        replicas
    }

    /// Each is another, as its time has microseconds.
    fn renewal(pod: &str, process: &str) -> Lease {
        std::thread::sleep(Duration::from_micros(2));
        lease(&Identity::new(pod, process), None)
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn another_pod_lives_while_its_lease_names_the_process() {
        let now = Instant::now();
        let replicas = hearing(now);
        assert!(replicas.is_alive_at("b/2", now));
        assert!(!replicas.is_alive_at("b/1", now));
    }

    #[test]
    fn another_is_gone_whose_renewals_stop_while_ones_own_are_heard() {
        let start = Instant::now();
        let replicas = hearing(start);
        for n in [2, 4, 6] {
            replicas.observe_at(&renewal("a", "1"), start + seconds(n));
        }
        assert!(replicas.is_alive_at("b/2", start + seconds(7)));
        assert!(!replicas.is_alive_at("b/2", start + seconds(8)));
    }

    #[test]
    fn one_that_was_stopped_itself_takes_nobody_for_gone() {
        let start = Instant::now();
        let replicas = hearing(start);
        let woken = start + seconds(30);
        assert!(replicas.is_alive_at("b/2", woken), "it has not listened");
        assert!(replicas.is_alive_at("b/3", woken), "another process may hold the lease by now");
        replicas.observe_at(&renewal("a", "1"), woken);
        assert!(replicas.is_alive_at("b/2", woken), "it has only begun to listen");
        for n in [2, 4, 6] {
            replicas.observe_at(&renewal("a", "1"), woken + seconds(n));
        }
        assert!(!replicas.is_alive_at("b/2", woken + seconds(8)));
    }
}
