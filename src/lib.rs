//! Sluice: lifecycle phases for sandboxes, run inside the admission of their changes and after they have settled.
//!
//! Pure code ([`api`], [`plan`]) knows no client; the edge ([`webhook`], [`engine`], [`controller`], [`certs`]) knows
//! no rules; [`agent`] runs inside step pods and knows no Kubernetes. [`world`] is an API server in memory, on which the
//! rest can run without a cluster.

pub mod agent;
pub mod api;
pub mod certs;
pub mod cli;
pub mod client;
pub mod controller;
pub mod engine;
pub mod metrics;
pub mod plan;
pub mod webhook;
pub mod world;
