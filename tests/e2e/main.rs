//! Sluice against a real cluster, driven with the real kubectl and helm: see `tests/cluster` for how to have one.
//!
//! `make e2e` runs this with the chart installed. Each test has a namespace of its own and names its plugins after it;
//! one that takes Sluice down is alone (see [`cluster::Space::alone`]).

// Clippy takes only the test functions themselves for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod actions;
mod applied;
mod argo;
mod chart;
mod clients;
mod cluster;
mod conditions;
mod crash;
mod deletion;
mod failing;
mod faults;
mod forks;
mod installed;
mod joining;
mod load;
mod noops;
mod orderings;
mod pods;
mod raw;
mod registered;
mod replicas;
mod runners;
mod schema;
mod scripts;
mod server;
mod skipping;
mod sleepers;
mod trust;
mod turns;
mod warm;
mod watch;
