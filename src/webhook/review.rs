//! AdmissionReview as it comes and goes (<https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/>).
//!
//! Only what is needed is typed; objects stay as they came, so that no field is lost on the way.

use crate::plan::message::DENIAL_LIMIT;
use crate::plan::shown;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use json_patch::PatchOperation;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, Deserialize)]
pub struct Review {
    pub request: Option<Request>,
}

/// What the API server asks about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub uid: String,
    #[serde(default)]
    pub resource: Resource,
    #[serde(default)]
    pub sub_resource: Option<String>,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub operation: Operation,
    #[serde(default)]
    pub user_info: UserInfo,
    /// Null on DELETE.
    #[serde(default)]
    pub object: Value,
    /// Null on CREATE.
    #[serde(default)]
    pub old_object: Value,
    #[serde(default)]
    pub dry_run: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Resource {
    #[serde(default)]
    pub group: String,
    #[serde(default)]
    pub resource: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// One that no rule of ours asks for.
    #[default]
    #[serde(other)]
    Other,
}

/// Who made the change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UserInfo {
    #[serde(default)]
    pub username: String,
    #[serde(default)]
    pub uid: Option<String>,
    #[serde(default)]
    pub groups: Option<Vec<String>>,
    #[serde(default)]
    pub extra: Option<BTreeMap<String, Vec<String>>>,
}

/// The answer to a review.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Allow { warnings: Vec<String>, patch: Vec<PatchOperation>, audit: Vec<Audit> },
    Deny { code: u16, reason: &'static str, message: String, retry_after: Option<Duration>, audit: Vec<Audit> },
}

/// What the API server's audit log keeps beside an answer, under the webhook's name and this key.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    pub key: &'static str,
    pub value: String,
}

impl Answer {
    pub const fn allow() -> Self {
        Self::Allow { warnings: Vec::new(), patch: Vec::new(), audit: Vec::new() }
    }

    pub const fn warn(warnings: Vec<String>) -> Self {
        Self::Allow { warnings, patch: Vec::new(), audit: Vec::new() }
    }

    /// The change is not let through, with this HTTP status.
    pub fn refusal(code: u16, reason: &'static str, message: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self::Deny { code, reason, message: message.into(), retry_after, audit: Vec::new() }
    }

    /// The same answer, of which the audit log keeps this too.
    #[must_use]
    pub fn with_audit(mut self, more: impl IntoIterator<Item = Audit>) -> Self {
        let (Self::Allow { audit, .. } | Self::Deny { audit, .. }) = &mut self;
        audit.extend(more);
        self
    }

    /// The same answer where it refuses; else with the warnings of another one that allows, and all that is noted of it.
    #[must_use]
    pub fn joined(mut self, more: Self) -> Self {
        if let (Self::Allow { warnings, audit, .. }, Self::Allow { warnings: others, audit: notes, .. }) =
            (&mut self, more)
        {
            warnings.extend(others);
            for note in notes {
                match audit.iter_mut().find(|known| known.key == note.key) {
                    // The log keeps one for a key.
                    Some(known) => known.value = format!("{}; {}", known.value, note.value),
                    None => audit.push(note),
                }
            }
        }
        self
    }

    /// The change is not right, or a phase did not let it through.
    pub fn deny(message: impl Into<String>) -> Self {
        Self::refusal(422, "Invalid", message, None)
    }

    /// The requester may not do this.
    pub fn forbid(message: impl Into<String>) -> Self {
        Self::refusal(403, "Forbidden", message, None)
    }

    /// A phase of the change failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::refusal(400, "BadRequest", message, None)
    }

    /// Something of ours did not work; nothing is said about the change.
    pub fn broken(message: impl Into<String>) -> Self {
        Self::refusal(500, "InternalError", message, None)
    }

    /// The client is to send the same request again: client-go does, up to 11 times, and says nothing until then.
    pub fn later(message: impl Into<String>, after: Duration) -> Self {
        Self::refusal(429, "TooManyRequests", message, Some(after))
    }

    /// The answer as the API server reads it.
    pub fn into_review(self, uid: &str) -> Value {
        let (Self::Allow { audit, .. } | Self::Deny { audit, .. }) = &self;
        let audit: BTreeMap<&str, String> = audit.iter().map(|a| (a.key, shown::line(&a.value).into())).collect();
        let audit = (!audit.is_empty()).then(|| json!(audit));
        let mut response = match self {
            Self::Allow { warnings, patch, .. } => {
                let mut response = json!({"uid": uid, "allowed": true});
                if !warnings.is_empty() {
                    // The API server drops a warning of more than one line.
                    let lines: Vec<_> = warnings.iter().map(|warning| shown::line(warning)).collect();
                    response["warnings"] = json!(lines);
                }
                if !patch.is_empty() {
                    response["patchType"] = json!("JSONPatch");
                    response["patch"] = json!(STANDARD.encode(json!(patch).to_string()));
                }
                response
            }
            Self::Deny { code, reason, message, retry_after, .. } => {
                let message = shown::within(&message, DENIAL_LIMIT);
                let mut status = json!({"code": code, "reason": reason, "message": message, "status": "Failure"});
                if let Some(after) = retry_after {
                    status["details"] = json!({"retryAfterSeconds": after.as_secs().max(1)});
                }
                json!({"uid": uid, "allowed": false, "status": status})
            }
        };
        if let Some(audit) = audit {
            response["auditAnnotations"] = audit;
        }
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }
}

/// The time that the API server gives, of its `?timeout=`: a Go duration such as `30s` or `1m30.5s`.
pub fn timeout(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        total += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    Duration::try_from_secs_f64(total).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("30s", Some(30.0))]
    #[case("1m30.5s", Some(90.5))]
    #[case("250ms", Some(0.25))]
    #[case("30", None)]
    #[case("-3s", None)]
    #[case("3 s", None)]
    fn a_go_duration_is_read(#[case] text: &str, #[case] seconds: Option<f64>) {
        assert_eq!(timeout(text).map(|d| d.as_secs_f64()), seconds);
    }

    #[test]
    fn come_again_is_said_the_way_that_client_go_obeys() {
        let review = Answer::later("still running", Duration::from_secs(2)).into_review("u");
        assert_eq!(review["response"]["status"]["code"], 429);
        assert_eq!(review["response"]["status"]["reason"], "TooManyRequests");
        assert_eq!(review["response"]["status"]["details"]["retryAfterSeconds"], 2);
    }

    #[test]
    fn an_answer_that_is_joined_keeps_every_warning_and_note() {
        let skipped = |why: &str| {
            let audit = Audit { key: "pre-delete-skipped", value: why.into() };
            Answer::warn(vec![why.into()]).with_audit([audit])
        };
        let joined = skipped("a").joined(skipped("b")).into_review("u");
        assert_eq!(joined["response"]["warnings"], json!(["a", "b"]));
        assert_eq!(joined["response"]["auditAnnotations"]["pre-delete-skipped"], "a; b");
        assert_eq!(Answer::deny("no").joined(skipped("a")), Answer::deny("no"));
    }

    #[test]
    fn t12_an_answer_shows_control_characters_and_sends_none() {
        let denied = Answer::deny("params.\u{1b}]0;x\u{7}\r:\nwrong \u{202e}").into_review("u");
        assert_eq!(denied["response"]["status"]["message"], "params.\\u{1b}]0;x\\u{7}\\r:\nwrong \\u{202e}");
        let long = Answer::failed("\u{1b}".repeat(1000)).into_review("u");
        assert!(long["response"]["status"]["message"].as_str().unwrap().len() <= DENIAL_LIMIT);
        let warned = Answer::warn(vec!["a\u{9b}31m\nforged".into()]).into_review("u");
        assert_eq!(warned["response"]["warnings"][0], "a\\u{9b}31m\\nforged");
    }

    #[test]
    fn a_patch_is_base64_of_json() {
        let patch = serde_json::from_value(json!([{"op": "add", "path": "/a", "value": 1}])).unwrap();
        let review = Answer::Allow { warnings: vec![], patch, audit: vec![] }.into_review("u");
        assert_eq!(review["response"]["patch"], "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d");
    }

    #[test]
    fn a_delete_has_no_object() {
        let review: Review = serde_json::from_value(
            json!({"request": {"uid": "u", "operation": "DELETE", "object": null, "oldObject": {"kind": "Sandbox"}}}),
        )
        .unwrap();
        let request = review.request.unwrap();
        assert!(request.object.is_null() && request.operation == Operation::Delete);
    }
}
