//! What Sluice's account may do, compared with what it did while the end-to-end suite ran: a right that nothing used is
//! one too many, and a request that was denied is one too few.
//!
//! `make e2e` runs the comparison after the suite, from the API server's audit log. It needs a cluster that is started
//! here: on a cluster of somebody else's (`CLUSTER=current`) there is no such log, and the suite runs without it.

// Clippy takes only the test functions themselves for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chart;
mod compare;
mod log;
mod roles;

use std::io::BufReader;
use std::process::Command;

/// Sluice's account, as `tests/cluster` installs it and the audit policy names it.
const ACCOUNT: (&str, &str) = ("sluice-system", "sluice");

/// Rights that the suite does not use, with the reason to keep each: group, resource, verb.
const KEPT: &[(&str, &str, &str, &str)] = &[];

#[test]
#[ignore = "looks at the audit log of a whole end-to-end run: make e2e"]
fn t17_every_right_of_the_chart_was_used_and_none_was_missed() {
    let path = std::env::var("CLUSTER_AUDIT_LOG").expect(
        "CLUSTER_AUDIT_LOG is not set: this needs a cluster that tests/cluster started, and no audit log is there with CLUSTER=current",
    );
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{path} cannot be read: {error}"));
    let kinds = "clusterroles,roles,clusterrolebindings,rolebindings";
    let asked = Command::new("kubectl").args(["get", kinds, "-A", "-o", "json"]).output().unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let rights = roles::of_account(&serde_json::from_slice(&asked.stdout).unwrap(), ACCOUNT).unwrap();
    let requests = log::requests(BufReader::new(file), ACCOUNT).unwrap();
    println!("{} rights, {} different requests", rights.len(), requests.len());
    let faults = compare::faults(&rights, &requests, KEPT);
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
