//! What the API server's audit log keeps of an admission: the runs that it hung on, and the right that it was refused for.
//!
//! The API server writes each under the webhook's name: `validate.sluice.dev/run`
//! (<https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#response>).

use super::review::{Answer, Audit};
use super::rights::Right;
use crate::api::Phase;

/// As much is kept of one annotation.
const LIMIT: usize = 1024;

/// What was found on the way to an answer.
#[derive(Debug, Default)]
pub struct Trail {
    passed: Vec<(Phase, String, &'static str)>,
    lacked: Option<String>,
}

impl Trail {
    /// A phase, its run and what came of it. The last word on a run counts.
    pub fn ran(&mut self, phase: Phase, run: &str, outcome: &'static str) {
        self.passed.retain(|(_, known, _)| known != run);
        self.passed.push((phase, run.to_owned(), outcome));
    }

    /// The requester lacks this right.
    pub fn lacks(&mut self, right: &Right) {
        self.lacked = Some(right.to_string());
    }

    /// The answer, with what is to be kept of it.
    pub fn onto(self, answer: Answer) -> Answer {
        let joined = |of: &dyn Fn(&(Phase, String, &'static str)) -> String| {
            self.passed.iter().map(of).collect::<Vec<_>>().join(",")
        };
        let mut audit = Vec::new();
        if !self.passed.is_empty() {
            audit.push(("run", joined(&|(_, run, _)| run.clone())));
            audit.push(("phases", joined(&|(phase, ..)| phase.to_string())));
            audit.push(("outcome", joined(&|(.., outcome)| (*outcome).to_owned())));
        }
        audit.extend(self.lacked.map(|right| ("right", right)));
        answer.with_audit(
            audit.into_iter().map(|(key, value)| Audit { key, value: crate::plan::message::cut(&value, LIMIT) }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_tells_which_runs_it_hung_on() {
        let mut trail = Trail::default();
        trail.ran(Phase::PreCreate, "pre-create-k-1", "running");
        trail.ran(Phase::PreCreate, "pre-create-k-1", "succeeded");
        trail.ran(Phase::PreUpdate, "pre-update-k-1", "failed");
        let review = trail.onto(Answer::failed("no")).into_review("u");
        assert_eq!(
            review["response"]["auditAnnotations"],
            json!({"run": "pre-create-k-1,pre-update-k-1", "phases": "pre-create,pre-update", "outcome": "succeeded,failed"})
        );
    }

    #[test]
    fn a_refusal_names_the_right_that_is_lacking() {
        let right = Right {
            verb: "use",
            group: "sluice.dev",
            resource: "resourceplugins",
            namespace: None,
            name: Some("db".into()),
            field: "spec.resources[0].plugin".into(),
        };
        let mut trail = Trail::default();
        trail.lacks(&right);
        let review = trail.onto(Answer::forbid("no")).into_review("u");
        assert_eq!(review["response"]["auditAnnotations"], json!({"right": "use resourceplugins.sluice.dev \"db\""}));
    }

    #[test]
    fn nothing_is_kept_of_what_ran_nothing() {
        let review = Trail::default().onto(Answer::allow()).into_review("u");
        assert!(review["response"]["auditAnnotations"].is_null());
    }
}
