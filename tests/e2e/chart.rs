//! The chart installed with other values for the time of a test.

use crate::cluster::{Outcome, SLUICE, eventually, get, list, run, run_in};
use crate::server::answers;
use std::path::Path;
use std::time::Duration;

/// Until it is dropped, Sluice runs with other values. Only for a test that is alone.
pub struct Values {
    before: String,
}

impl Values {
    /// Upgrades the release with these values (`name=value`) beside those that it has.
    pub fn set(values: &[&str]) -> Self {
        let before =
            run("helm", &["get", "values", "sluice", "--namespace", SLUICE, "--output", "yaml"], "").ok().stdout;
        let set: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
        upgrade(&set, &before).ok();
        taken_over();
        Self { before }
    }
}

impl Drop for Values {
    fn drop(&mut self) {
        let back = upgrade(&[], &self.before);
        if !std::thread::panicking() {
            back.ok();
            taken_over();
        }
    }
}

fn upgrade(more: &[&str], values: &str) -> Outcome {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/sluice");
    let upgrade = ["upgrade", "sluice", chart.to_str().unwrap(), "--namespace", SLUICE, "--reset-values"];
    let wait = ["--values", "-", "--wait", "--timeout", "3m"];
    run_in(Path::new("."), "helm", &[&upgrade[..], &wait[..], more].concat(), values)
}

/// Waits until no replica answers any more that was there before.
fn taken_over() {
    let deployment = get(&["-n", SLUICE, "deployment", "sluice"]).unwrap();
    eventually(Duration::from_secs(90), "the replicas of before are gone", || {
        let pods = list(&["-n", SLUICE, "pods", "-l", "sluice.dev/component=server"]);
        (Some(pods.len() as u64) == deployment["spec"]["replicas"].as_u64()).then_some(())
    });
    answers();
}
