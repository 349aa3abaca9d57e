//! Sluice's own pods and processes: how many there are, which leads, and what a test does to them.

use crate::cluster::{Outcome, SLUICE, eventually, get, kubectl, kubectl_file, list, run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What a replica needs to be taken over for, or to come back, on a machine that has much to do.
pub const SOON: Duration = Duration::from_secs(90);

/// The pods that are not on their way out.
pub fn pods() -> Vec<Value> {
    let mut pods = list(&["-n", SLUICE, "pods", "-l", "sluice.dev/component=server"]);
    pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    pods
}

/// The names of the pods.
pub fn names() -> Vec<String> {
    pods().iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// The pod that leads.
pub fn leader() -> String {
    eventually(SOON, "a replica leads", || {
        let lease = get(&["-n", SLUICE, "lease", "sluice-leader"])?;
        let holder = lease["spec"]["holderIdentity"].as_str()?.to_owned();
        names().contains(&holder).then_some(holder)
    })
}

/// The pod whose process executes a run.
pub fn executor(run: &Value) -> String {
    run["status"]["executor"].as_str().unwrap().split('/').next().unwrap().to_owned()
}

/// More replicas than one, or none, for as long as it lives.
pub struct Scaled(());

impl Scaled {
    /// Waits until there are so many, all of them ready.
    pub fn to(replicas: usize) -> Self {
        let scaled = Self(());
        scale(replicas);
        scaled
    }
}

impl Drop for Scaled {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What comes after must not fail for it.
            kubectl(&["-n", SLUICE, "scale", "deployment/sluice", "--replicas=1"]);
            return;
        }
        // Those that go still answer what they hold; nobody has to wait for that.
        kubectl(&["-n", SLUICE, "scale", "deployment/sluice", "--replicas=1"]).ok();
        rolled_out();
        answers();
    }
}

fn scale(replicas: usize) {
    kubectl(&["-n", SLUICE, "scale", "deployment/sluice", &format!("--replicas={replicas}")]).ok();
    rolled_out();
    eventually(SOON, "there are so many replicas", || {
        let all = list(&["-n", SLUICE, "pods", "-l", "sluice.dev/component=server"]);
        (all.len() == replicas).then_some(())
    });
}

pub fn rolled_out() {
    kubectl(&["-n", SLUICE, "rollout", "status", "deployment/sluice", "--timeout=120s"]).ok();
}

/// The server's process in a pod. Its node is this machine, or a container on it as with kind.
fn process_of(pod: &str) -> u32 {
    let name = format!("POD_NAME={pod}");
    let has = |pid: u32, file: &str, what: &dyn Fn(&[u8]) -> bool| {
        std::fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|content| what(&content))
    };
    let found = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let found = found.into_iter().find(|pid| {
        has(*pid, "cmdline", &|text| text.starts_with(b"/sluice\0server\0"))
            && has(*pid, "environ", &|text| text.split(|b| *b == 0).any(|v| v == name.as_bytes()))
    });
    found.unwrap_or_else(|| {
        panic!(
            "no process `/sluice server` with {name} is to be seen in /proc: these tests signal it, so they must run \
             as root on the machine of the cluster's node (kind's is the one that Docker runs on)"
        )
    })
}

/// The memory that a pod's server has of the machine, in MiB.
pub fn resident(pod: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process_of(pod))).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() / 1024
}

/// Sends a signal to a pod's server.
pub fn signal(pod: &str, signal: &str) {
    let sent = Command::new("kill").args([signal, &process_of(pod).to_string()]).status().unwrap();
    assert!(sent.success());
}

/// A server that is stopped in the middle of whatever it does, as on a machine that is suspended.
pub struct Paused(String);

impl Paused {
    pub fn pod(pod: &str) -> Self {
        signal(pod, "-STOP");
        Self(pod.to_owned())
    }

    /// Lets it go on as if nothing had been.
    pub fn wake(self) {}
}

impl Drop for Paused {
    fn drop(&mut self) {
        signal(&self.0, "-CONT");
    }
}

/// Ends the server of a pod as a crash does; the pod stays, and its container is started again.
pub fn crash_of(pod: &str) -> Crashed {
    let found = get(&["-n", SLUICE, "pod", pod]).unwrap();
    let restarts = found["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap();
    signal(pod, "-KILL");
    Crashed { pod: pod.to_owned(), restarts }
}

/// Replaces Sluice's pods where they have crashed before: the kubelet lets those wait longer and longer.
pub fn fresh() {
    let worn = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64().is_none_or(|n| n > 0);
    if pods().iter().any(worn) {
        kubectl(&["-n", SLUICE, "rollout", "restart", "deployment/sluice"]).ok();
        rolled_out();
        eventually(SOON, "the pods of before are gone", || (!pods().iter().any(worn)).then_some(()));
        answers();
    }
}

/// Ends Sluice's only process as a crash does.
pub fn crash() -> Crashed {
    let names = names();
    let [pod] = names.as_slice() else { panic!("one pod of Sluice was expected: {names:#?}") };
    crash_of(pod)
}

pub struct Crashed {
    pod: String,
    restarts: u64,
}

impl Crashed {
    /// Waits until the process has a successor that answers the API server.
    pub fn wait_for_successor(self) {
        eventually(SOON, "the server runs again", || {
            let pod = get(&["-n", SLUICE, "pod", &self.pod])?;
            let status = &pod["status"]["containerStatuses"][0];
            (status["restartCount"].as_u64()? > self.restarts && status["ready"] == true).then_some(())
        });
        answers();
    }
}

/// Waits until the API server reaches Sluice's webhooks.
pub fn answers() {
    eventually(SOON, "the webhooks are registered", || {
        let registered = ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"].map(|kind| {
            let webhooks = get(&[kind, "sluice"])?["webhooks"].as_array()?.clone();
            (!webhooks.is_empty()).then_some(())
        });
        registered.iter().all(Option::is_some).then_some(())
    });
    let probe = "apiVersion: sluice.dev/v1alpha1
kind: Sandbox
metadata: {name: probe, namespace: default}
spec: {}
";
    eventually(SOON, "the webhooks answer", || {
        kubectl_file(&["apply", "--dry-run=server"], probe).success.then_some(())
    });
}

pub fn helm(arguments: &[&str], input: &str) -> Outcome {
    run("helm", arguments, input)
}

/// The values that the chart is installed with.
pub fn values() -> String {
    helm(&["get", "values", "sluice", "--namespace", SLUICE, "--output", "yaml"], "").ok().stdout
}

/// Installs the chart with these values, and waits until Sluice answers.
pub fn install(values: &str) {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/sluice");
    let install = ["upgrade", "--install", "sluice", chart.to_str().unwrap(), "--namespace", SLUICE];
    let wait = ["--create-namespace", "--values", "-", "--wait", "--timeout", "3m"];
    helm(&[&install[..], &wait[..]].concat(), values).ok();
    answers();
}

/// Takes the webhooks out of their configurations, with the commands of docs/operations.md.
pub fn take_webhooks_out() {
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        let out = r#"[{"op": "remove", "path": "/webhooks"}]"#;
        kubectl(&["patch", kind, "sluice", "--type=json", "-p", out]).ok();
    }
}
