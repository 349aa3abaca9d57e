//! The exec that carries a session to a pod's agent, and how long a step may keep whoever waits for it.

use crate::agent::AGENT_DIR;
use crate::agent::client::Session;
use crate::agent::protocol::{RunStep, SILENCE_SECONDS};
use crate::plan::overlay::MAIN;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use std::time::Duration;
use tokio::time::Instant;

/// Bytes on their way to or from an agent at most.
const PIPE: usize = 64 * 1024;
/// How much later than its time limit an agent may tell of a step's end: it ends the step itself, and a connection that
/// broke meanwhile is noticed, made again and asked again.
const TOLD_WITHIN: Duration = Duration::from_secs(2 * SILENCE_SECONDS);

/// A session and the exec that carries it.
pub(super) struct Connection {
    pub session: Session,
    pub process: AttachedProcess,
    /// The pod.
    pub pod: String,
}

impl Connection {
    pub async fn open(pods: &Api<Pod>, pod: &str) -> Result<Self, String> {
        let binary = format!("{AGENT_DIR}/sluice");
        let command = [binary.as_str(), "agent", "connect", "--dir", AGENT_DIR];
        let params = AttachParams::default()
            .container(MAIN)
            .stdin(true)
            .stdout(true)
            .stderr(false)
            .max_stdin_buf_size(PIPE)
            .max_stdout_buf_size(PIPE);
        let mut process = pods.exec(pod, command, &params).await.map_err(|e| e.to_string())?;
        let (Some(reader), Some(writer)) = (process.stdout(), process.stdin()) else {
            return Err("the exec has no streams".to_owned());
        };
        let session = Session::start(reader, writer).await.map_err(|e| e.to_string())?;
        Ok(Self { session, process, pod: pod.to_owned() })
    }
}

/// How long the end of a step is waited for, whatever its pod says: its agent is to end it in time, but a script may
/// have taken the agent's place. Counts from when the step's pod was there, anew for a pod that takes its place.
pub(super) struct Patience {
    limit: Duration,
    counting: Option<(String, Instant)>,
}

impl Patience {
    pub fn with(step: &RunStep) -> Self {
        Self { limit: Duration::from_secs(step.timeout_seconds.into()) + TOLD_WITHIN, counting: None }
    }

    /// Until when this pod is listened to.
    pub fn until(&mut self, pod: &str, now: Instant) -> Instant {
        match &self.counting {
            Some((counted, until)) if counted == pod => *until,
            _ => {
                let until = now + self.limit;
                self.counting = Some((pod.to_owned(), until));
                until
            }
        }
    }

    /// Whether this pod has been listened to for long enough.
    pub fn is_over(&mut self, pod: &str, now: Instant) -> bool {
        self.until(pod, now) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::StepId;

    #[test]
    fn t11_a_pod_is_listened_to_for_the_time_of_its_step() {
        let step = RunStep {
            id: StepId { step: "s".into(), attempt: 1 },
            script: String::new(),
            env: Default::default(),
            files: Vec::new(),
            outputs: Vec::new(),
            timeout_seconds: 20,
        };
        let (mut patience, begun) = (Patience::with(&step), Instant::now());
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert!(!patience.is_over("a", begun) && !patience.is_over("a", after(20 + 89)));
        assert!(patience.is_over("a", after(20 + 90)) && patience.is_over("a", after(1000)));
        assert!(!patience.is_over("b", after(1000)), "another pod begins anew");
    }
}
