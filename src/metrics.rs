//! What Sluice counts, in the Prometheus text format.

use crate::engine::Engine;
use crate::webhook::review::{Answer, Operation, Request};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AdmissionLabels {
    resource: &'static str,
    operation: &'static str,
    answer: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: String,
}

/// Every metric of this process.
pub struct Metrics {
    registry: Registry,
    admissions: Family<AdmissionLabels, Counter>,
    admission_seconds: Histogram,
    runs: Family<StateLabels, Gauge>,
    leading: Gauge,
    registered: Gauge,
    outcomes: [Counter; 4],
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sluice");
        let metrics = (
            Family::<AdmissionLabels, Counter>::default(),
            Histogram::new([0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 30.0]),
            Family::<StateLabels, Gauge>::default(),
            Gauge::default(),
            Gauge::default(),
        );
        registry.register("admissions", "Validating reviews answered", metrics.0.clone());
        registry.register("admission_seconds", "How long a validating review took, in seconds", metrics.1.clone());
        registry.register("runs", "Phase runs that are known, by state", metrics.2.clone());
        registry.register("leading", "1 on the replica that reconciles", metrics.3.clone());
        registry.register(
            "webhooks_registered",
            "1 while both webhooks are in force, as the leader sees it",
            metrics.4.clone(),
        );
        let outcomes = [
            ("changes_committed", "Changes that were stored after their pre-phase, as this replica saw them"),
            ("changes_abandoned", "Changes that were not stored though their pre-phase had succeeded"),
            ("changes_compensated", "Abandoned changes whose pre-phase has been undone"),
            ("pre_deletes_skipped", "Deletions that were let through without their pre-delete"),
        ]
        .map(|(name, help)| {
            let counter = Counter::<u64>::default();
            registry.register(name, help, counter.clone());
            counter
        });
        Self {
            registry,
            outcomes,
            admissions: metrics.0,
            admission_seconds: metrics.1,
            runs: metrics.2,
            leading: metrics.3,
            registered: metrics.4,
        }
    }
}

impl Metrics {
    pub fn admission(&self, request: &Request, answer: &Answer, took: Duration) {
        let labels = AdmissionLabels {
            resource: if request.resource.resource == "sandboxes" { "sandboxes" } else { "resourceplugins" },
            operation: match request.operation {
                Operation::Create => "create",
                Operation::Update => "update",
                Operation::Delete => "delete",
                Operation::Other => "other",
            },
            answer: match answer {
                Answer::Allow { .. } => "allowed",
                Answer::Deny { retry_after: Some(_), .. } => "come_again",
                Answer::Deny { .. } => "denied",
            },
        };
        self.admissions.get_or_create(&labels).inc();
        self.admission_seconds.observe(took.as_secs_f64());
    }

    pub fn leading(&self, leading: bool) {
        self.leading.set(leading.into());
    }

    pub fn registered(&self, registered: bool) {
        self.registered.set(registered.into());
    }

    /// Everything, as text.
    pub fn text(&self, engine: &Engine) -> Result<String, std::fmt::Error> {
        self.runs.clear();
        for run in engine.index.filter(|_| true) {
            self.runs.get_or_create(&StateLabels { state: run.state.to_string() }).inc();
        }
        let outcomes = &engine.outcomes;
        let counted = [&outcomes.committed, &outcomes.abandoned, &outcomes.compensated, &outcomes.skipped];
        for (shown, counted) in self.outcomes.iter().zip(counted) {
            shown.inner().store(counted.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
