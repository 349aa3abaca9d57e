//! What the API server answers when it does not do what it is asked: a `Status` with a code, a reason and details.

use super::kinds::Kind;
use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails, StatusSummary};
use serde_json::{Value, json};

/// A request that was refused. It is an answer, not a fault of the world.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{} ({})", .0.message, .0.code)]
pub struct Refusal(Box<Status>);

/// One field that is wrong, in the words of the API server's `field.Error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    pub path: String,
    reason: &'static str,
    body: String,
}

impl FieldError {
    fn new(path: &str, reason: &'static str, body: String) -> Self {
        Self { path: path.to_owned(), reason, body }
    }

    pub fn invalid(path: &str, value: &Value, detail: &str) -> Self {
        Self::new(path, "FieldValueInvalid", format!("Invalid value: {value}: {detail}"))
    }

    /// A value of the wrong type; the API server names the type that it found in the value's place.
    pub fn wrong_type(path: &str, found: &str, detail: &str) -> Self {
        Self::new(path, "FieldValueTypeInvalid", format!("Invalid value: \"{found}\": {detail}"))
    }

    pub fn required(path: &str, detail: &str) -> Self {
        let body = if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self::new(path, "FieldValueRequired", body)
    }

    pub fn forbidden(path: &str, detail: &str) -> Self {
        Self::new(path, "FieldValueForbidden", format!("Forbidden: {detail}"))
    }

    pub fn duplicate(path: &str, value: &Value) -> Self {
        Self::new(path, "FieldValueDuplicate", format!("Duplicate value: {value}"))
    }

    pub fn too_long(path: &str, most: u64) -> Self {
        Self::new(path, "FieldValueTooLong", format!("Too long: may not be more than {most} bytes"))
    }

    /// Whether rules in CEL are left unchecked because of this.
    pub fn blocks_rules(&self) -> bool {
        matches!(
            self.reason,
            "FieldValueNotSupported"
                | "FieldValueRequired"
                | "FieldValueTooLong"
                | "FieldValueTooMany"
                | "FieldValueTypeInvalid"
        )
    }

    pub fn too_many(path: &str, found: u64, most: u64) -> Self {
        Self::new(path, "FieldValueTooMany", format!("Too many: {found}: must have at most {most} items"))
    }

    pub fn unsupported(path: &str, value: &Value, known: &[Value]) -> Self {
        let known: Vec<String> = known.iter().map(ToString::to_string).collect();
        let body = format!("Unsupported value: {value}: supported values: {}", known.join(", "));
        Self::new(path, "FieldValueNotSupported", body)
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.path, self.body)
    }
}

fn no_details() -> StatusDetails {
    StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: 0,
    }
}

impl Refusal {
    fn new(code: u16, reason: &str, message: String) -> Self {
        Self(Box::new(Status {
            status: Some(StatusSummary::Failure),
            code,
            message,
            reason: reason.to_owned(),
            ..Status::default()
        }))
    }

    fn about(mut self, kind: &Kind, name: &str) -> Self {
        self.0.details = Some(StatusDetails {
            name: name.to_owned(),
            group: kind.group.clone(),
            kind: kind.plural.clone(),
            ..no_details()
        });
        self
    }

    /// A refusal that came as a `Status` already, from an admission webhook or from a fault that was put in.
    pub fn of(status: Status) -> Self {
        Self(Box::new(status))
    }

    pub fn code(&self) -> u16 {
        self.0.code
    }

    pub fn status(&self) -> &Status {
        &self.0
    }

    /// The body as it goes over the wire.
    pub fn body(&self) -> Value {
        let mut body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"});
        if let (Value::Object(body), Ok(Value::Object(status))) = (&mut body, serde_json::to_value(&self.0)) {
            body.extend(status);
        }
        body
    }

    pub fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", kind.qualified())).about(kind, name)
    }

    pub fn exists(kind: &Kind, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", kind.qualified())).about(kind, name)
    }

    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified());
        Self::new(409, "Conflict", message).about(kind, name)
    }

    /// Somebody else wrote in between.
    pub fn stale(kind: &Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// A precondition of a deletion; the API server names the kind where it means the resource.
    pub fn precondition(kind: &Kind, name: &str, why: &str) -> Self {
        let shown = if kind.group.is_empty() { kind.kind.clone() } else { format!("{}.{}", kind.kind, kind.group) };
        let message = format!("Operation cannot be fulfilled on {shown} \"{name}\": {why}");
        let mut refusal = Self::new(409, "Conflict", message).about(kind, name);
        if let Some(details) = &mut refusal.0.details {
            details.kind.clone_from(&kind.kind);
        }
        refusal
    }

    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {why}", kind.qualified());
        Self::new(403, "Forbidden", message).about(kind, name)
    }

    pub fn terminating(kind: &Kind, name: &str, namespace: &str) -> Self {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        Self::forbidden(kind, name, &why).caused(
            "NamespaceTerminating",
            "metadata.namespace",
            &format!("namespace {namespace} is being terminated"),
        )
    }

    /// `who` is the qualified kind or, where the API server itself confuses them, the qualified resource.
    pub fn invalid(group: &str, who: &str, name: &str, errors: &[FieldError]) -> Self {
        let qualified = if group.is_empty() { who.to_owned() } else { format!("{who}.{group}") };
        let mut texts: Vec<String> = Vec::new();
        for error in errors {
            let text = error.to_string();
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let texts = if texts.len() > 1 { format!("[{}]", texts.join(", ")) } else { texts.concat() };
        let mut refusal = Self::new(422, "Invalid", format!("{qualified} \"{name}\" is invalid: {texts}"));
        refusal.0.details = Some(StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: who.to_owned(),
            ..no_details()
        });
        errors.iter().fold(refusal, |refusal, error| refusal.caused(error.reason, &error.path, &error.body))
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    pub fn internal(why: &str) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {why}")).caused("", "", why)
    }

    /// A creation that names a version; the API server has no reason for it.
    pub fn version_of_nothing() -> Self {
        Self::new(500, "", "resourceVersion should not be set on objects to be created".to_owned())
    }

    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message.into())
    }

    pub fn unsupported_method() -> Self {
        let mut refusal = Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource".to_owned(),
        );
        refusal.0.details = Some(no_details());
        refusal
    }

    /// A resourceVersion that lies ahead.
    pub fn ahead(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut refusal =
            Self::new(504, "Timeout", message).caused("ResourceVersionTooLarge", "", "Too large resource version");
        refusal.0.details.get_or_insert_with(no_details).retry_after_seconds = 1;
        refusal
    }

    /// A patch that cannot be applied to what is there.
    pub fn unprocessable() -> Self {
        let message = "the server rejected our request due to an error in our request".to_owned();
        let mut refusal = Self::new(422, "Invalid", message);
        refusal.0.details = Some(no_details());
        refusal
    }

    /// No such group, version, kind or subresource.
    pub fn no_such_path() -> Self {
        let mut refusal = Self::new(404, "NotFound", "the server could not find the requested resource".to_owned());
        refusal.0.details = Some(no_details());
        refusal
    }

    pub fn media_type(found: &str, known: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            known.join(", ")
        );
        let refusal = Self::new(415, "UnsupportedMediaType", message);
        if found.is_empty() { refusal } else { refusal.caused("", "", found) }
    }

    /// Fields of an apply that others own, each with the manager as the API server prints it.
    pub fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let message = match conflicts {
            [(manager, path)] => format!("Apply failed with 1 conflict: conflict with {manager}: {path}"),
            _ => {
                let mut managers: Vec<&String> = conflicts.iter().map(|(manager, _)| manager).collect();
                managers.sort();
                managers.dedup();
                let mut lines = Vec::new();
                for manager in managers {
                    lines.push(format!("conflicts with {manager}:"));
                    lines.extend(conflicts.iter().filter(|(m, _)| m == manager).map(|(_, path)| format!("- {path}")));
                }
                format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
            }
        };
        let refusal = Self::new(409, "Conflict", message);
        conflicts.iter().fold(refusal, |refusal, (manager, path)| {
            refusal.caused("FieldManagerConflict", path, &format!("conflict with {manager}"))
        })
    }

    fn caused(mut self, reason: &str, field: &str, message: &str) -> Self {
        self.0.details.get_or_insert_with(no_details).causes.push(StatusCause {
            reason: reason.to_owned(),
            message: message.to_owned(),
            field: field.to_owned(),
        });
        self
    }
}
