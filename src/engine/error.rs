//! Why the engine could not do what it was asked; a step that fails is no error but a result.

use super::life::Refusal;
use crate::api::ObjectRef;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the API server could not be asked to {what}")]
    Api { what: &'static str, source: Box<kube::Error> },
    #[error("run {run} is gone on with by another replica")]
    Lost { run: String },
    #[error("run {run} has the key of this change, but is of another: change the sandbox's spec a little and retry")]
    OtherChange { run: String },
    #[error("this cannot happen to run {run} as it is")]
    Refused { run: String, source: Refusal },
}

impl EngineError {
    pub fn api(what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { what, source: Box::new(source) }
    }

    /// Whether the run is another than it was thought to be: look again.
    pub fn is_outdated(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_status(source, 409),
            Self::Refused { .. } => true,
            Self::Lost { .. } | Self::OtherChange { .. } => false,
        }
    }
}

/// Why a step failed, in words for the person who made the change or the plugin.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("{0}")]
    Failed(String),
    #[error("{what}")]
    Api { what: String, source: Box<kube::Error> },
    #[error(
        "{object} exists already and does not belong to this resource: delete it, or choose another name in the plugin"
    )]
    Foreign { object: ObjectRef },
    #[error("{kind} ({api_version}) is not a kind that this cluster serves: check apiVersion and kind")]
    Unserved { kind: String, api_version: String },
    #[error("the time limit of {seconds} s was reached")]
    TimedOut { seconds: u32 },
    /// Before anything was written, for sure.
    #[error(transparent)]
    Unwritten(Box<StepError>),
}

impl StepError {
    pub fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { what: what.into(), source: Box::new(source) }
    }

    /// Whether the API server has refused what it was asked to write. Of any other error it is not known.
    pub fn is_refusal(&self) -> bool {
        let Self::Api { source, .. } = self else { return false };
        matches!(&**source, kube::Error::Api(status) if (400..500).contains(&status.code))
    }
}

/// Whether the API server answered with this HTTP status.
pub fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Whether an object was refused because its namespace is being deleted.
pub fn is_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403 && causes.any(|cause| cause.reason == "NamespaceTerminating")
}

/// Whether an object was refused because there is no such namespace.
pub fn has_no_namespace(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 404 && status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_namespace_that_is_being_deleted_is_told_from_a_missing_right() {
        let forbidden = |details| {
            let status = json!({"status": "Failure", "reason": "Forbidden", "code": 403, "details": details});
            kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
        };
        let causes = json!([{"reason": "NamespaceTerminating", "message": "…", "field": "metadata.namespace"}]);
        assert!(is_terminating(&forbidden(json!({"name": "a", "kind": "configmaps", "causes": causes}))));
        assert!(!is_terminating(&forbidden(json!({"name": "a", "kind": "configmaps"}))));
    }

    #[test]
    fn a_namespace_that_is_gone_is_told_from_an_object_that_is() {
        let missing = |kind: &str| {
            let status =
                json!({"status": "Failure", "reason": "NotFound", "code": 404, "details": {"name": "a", "kind": kind}});
            kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
        };
        assert!(has_no_namespace(&missing("namespaces")));
        assert!(!has_no_namespace(&missing("configmaps")));
    }
}
