//! What our webhook configurations must say, and whether they do.
//!
//! Pure: it is given the live objects as JSON. Every field that is ours is spelled out, also where it is the API
//! server's default, so a plain comparison of these fields is a comparison of their meaning.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use super::issue::Names;
use super::rotate::Registration;
use super::state::certificates;
use super::token::Token;
use crate::api::labels::{ADMITTED, LATEST, REGISTERED_AT, SKIP_PRE_DELETE};
use crate::api::{GROUP, VERSION};

/// Below this is where the API server sends what is to be validated; the token follows.
pub const VALIDATE_PATH: &str = "/validate";
/// Below this is where the API server sends what is to be given its defaults; the token follows.
pub const MUTATE_PATH: &str = "/mutate";
/// The name of the validating webhook.
pub const VALIDATE_NAME: &str = "validate.sluice.dev";
/// The name of the mutating webhook.
pub const MUTATE_NAME: &str = "default.sluice.dev";
/// The longest that the API server allows: a phase is held for as long as it may be.
pub const VALIDATE_TIMEOUT_SECONDS: u32 = 30;
/// The mutating webhook only computes; but a large change may have to wait for room, and where an answer comes too late
/// the API server shows its user the URL.
pub const MUTATE_TIMEOUT_SECONDS: u32 = 10;
/// The name of the condition under which the API server asks.
const CONDITION: &str = "may-run-a-phase";
/// The name of the further condition of the mutating webhook.
const MUTATES: &str = "has-something-to-note";
/// More resources than a sandbox may have: such a one is refused by its schema, so nobody need be asked.
const MOST_RESOURCES: usize = 64;
/// The annotations of a sandbox that mean something to Sluice.
const OWN_ANNOTATIONS: [&str; 3] = [LATEST, SKIP_PRE_DELETE, ADMITTED];
pub(super) const SERVICE_PORT: u16 = 443;

/// One of the two kinds of webhook configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `ValidatingWebhookConfiguration`.
    Validating,
    /// `MutatingWebhookConfiguration`.
    Mutating,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Validating, Self::Mutating];

    /// As it stands in `kind`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Validating => "ValidatingWebhookConfiguration",
            Self::Mutating => "MutatingWebhookConfiguration",
        }
    }

    /// The name of our webhook in it.
    pub fn webhook(self) -> &'static str {
        match self {
            Self::Validating => VALIDATE_NAME,
            Self::Mutating => MUTATE_NAME,
        }
    }

    /// Our webhook, reached by the Service `names`, trusted through `bundle` (PEM), and called by `token`.
    pub fn desired(self, names: &Names, bundle: &str, token: &Token) -> Value {
        let mut webhook = json!({
            "name": self.webhook(),
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [names.namespace]},
            ]},
            "objectSelector": {},
        });
        let (path, rest) = match self {
            Self::Validating => (
                VALIDATE_PATH,
                json!({
                    "sideEffects": "NoneOnDryRun",
                    "timeoutSeconds": VALIDATE_TIMEOUT_SECONDS,
                    "matchConditions": [{"name": CONDITION, "expression": asks()}],
                    "rules": [
                        rule("sandboxes", "Namespaced", &["CREATE", "UPDATE", "DELETE"]),
                        rule("resourceplugins", "Cluster", &["CREATE", "UPDATE", "DELETE"]),
                    ],
                }),
            ),
            Self::Mutating => (
                MUTATE_PATH,
                json!({
                    "sideEffects": "None",
                    "timeoutSeconds": MUTATE_TIMEOUT_SECONDS,
                    // Another webhook may change the forks after ours has sealed them.
                    "reinvocationPolicy": "IfNeeded",
                    "rules": [rule("sandboxes", "Namespaced", &["CREATE", "UPDATE"])],
                    "matchConditions": [
                        {"name": CONDITION, "expression": asks()},
                        {"name": MUTATES, "expression": mutates()},
                    ],
                }),
            ),
        };
        webhook["clientConfig"] = json!({
            "caBundle": STANDARD.encode(bundle),
            "service": {"name": names.service, "namespace": names.namespace, "path": token.path(path), "port": SERVICE_PORT},
        });
        if let (Value::Object(webhook), Value::Object(rest)) = (&mut webhook, rest) {
            webhook.extend(rest);
        }
        webhook
    }
}

/// Which updates the API server asks about, in CEL: those that a phase could run for or that could be refused. All others
/// cost nothing, and work while no replica answers.
///
/// It names what it looks at and loops over nothing. An error refuses the update, and whoever could provoke one with a
/// large object could keep it from ever being cleaned up.
fn asks() -> String {
    let annotations = OWN_ANNOTATIONS.map(|name| {
        format!("object.metadata.?annotations[?'{name}'] != oldObject.metadata.?annotations[?'{name}'] || ")
    });
    format!(
        "request.operation != 'UPDATE' || object.?spec != oldObject.?spec || \
         (request.resource.resource == 'sandboxes' && !has(object.metadata.deletionTimestamp) && (\
         object.metadata.?ownerReferences != oldObject.metadata.?ownerReferences || {}\
         object.spec.?forks.orValue([]) != [] && !object.metadata.?annotations[?'{ADMITTED}'].hasValue()))",
        annotations.concat()
    )
}

/// Which sandboxes the mutating webhook may write an annotation of: those with forks or `@latest`, or with an annotation
/// that must not be there without. Most have none of it, and one that the schema is going to refuse, such as one with megabytes
/// of text, is not sent to anybody first.
///
/// No schema has been looked at yet, so what is not of its type is sent. The one loop is over as many as a sandbox may have.
fn mutates() -> String {
    format!(
        "type(object.?spec.orValue({{}})) != map || object.?spec.?forks.orValue([]) != [] || \
         object.metadata.?annotations[?'{ADMITTED}'].hasValue() || object.metadata.?annotations[?'{LATEST}'].hasValue() || \
         type(object.?spec.?resources.orValue([])) != list || \
         (size(object.?spec.?resources.orValue([])) <= {MOST_RESOURCES} && object.?spec.?resources.orValue([]).exists(r, \
         type(r) != map || type(r.?plugin.orValue('')) != string || r.?plugin.orValue('').endsWith('@latest')))"
    )
}

fn rule(resource: &str, scope: &str, operations: &[&str]) -> Value {
    json!({
        "apiGroups": [GROUP],
        "apiVersions": [VERSION],
        "resources": [resource],
        "scope": scope,
        "operations": operations,
    })
}

/// Our webhook in the live configuration `live`, if it is there.
pub fn ours(live: &Value, kind: Kind) -> Option<&Value> {
    live.get("webhooks")?.as_array()?.iter().find(|webhook| webhook["name"] == kind.webhook())
}

/// Whether a field of ours is missing in `live` or says something else. Fields and webhooks of others do not count.
pub fn differs(live: &Value, kind: Kind, desired: &Value) -> bool {
    let (Some(live_webhook), Some(desired)) = (ours(live, kind), desired.as_object()) else { return true };
    let is_there = |(field, value): (&String, &Value)| match (field.as_str(), &live_webhook[field], value) {
        // A list by name, to which an apply adds: those of others stay beside ours whatever is written.
        ("matchConditions", Value::Array(live), Value::Array(own)) => own.iter().all(|one| live.contains(one)),
        (_, live, value) => live == value,
    };
    registered_at(live).is_none() || !desired.iter().all(is_there)
}

/// Since when our webhook has been in the live configuration.
pub fn registered_at(live: &Value) -> Option<Timestamp> {
    live.get("metadata")?.get("annotations")?.get(REGISTERED_AT)?.as_str()?.parse().ok()
}

/// The object to apply over `live`: with its UID, so that one that is gone is never made again, and with its version,
/// so that nothing is written over what others made of it since.
///
/// Its time of registration stays, unless our webhook was taken out since: then nobody was asked for a while.
pub fn apply_over(live: &Value, kind: Kind, desired: &Value, now: Timestamp) -> Value {
    let since = ours(live, kind).and_then(|_| registered_at(live)).unwrap_or(now);
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind.name(),
        "metadata": {
            "name": live["metadata"]["name"],
            "uid": live["metadata"]["uid"],
            "resourceVersion": live["metadata"]["resourceVersion"],
            "annotations": {REGISTERED_AT: format!("{since:.0}")},
        },
        "webhooks": [desired],
    })
}

/// What the live configurations trust together and name, at `now`; `before` is what they did when last looked at.
pub fn observe(live: &[(Kind, Option<Value>)], before: &Registration, now: Timestamp) -> Registration {
    let webhooks: Vec<&Value> = live.iter().filter_map(|(kind, object)| ours(object.as_ref()?, *kind)).collect();
    let Some((first, rest)) = webhooks.split_first() else { return Registration::Absent };
    let mut authorities = trusted(first);
    for webhook in rest {
        let also = trusted(webhook);
        authorities.retain(|authority| also.contains(authority));
    }
    let mut named: Vec<Token> = Vec::new();
    for token in
        webhooks.iter().filter_map(|webhook| Token::in_path(webhook["clientConfig"]["service"]["path"].as_str()?))
    {
        if !named.contains(&token) {
            named.push(token);
        }
    }
    let complete = webhooks.len() == live.len();
    let (since, named_since) = match before {
        Registration::Trusting { authorities: old, named: old_named, since, named_since, .. } => {
            (if *old == authorities { *since } else { now }, if *old_named == named { *named_since } else { now })
        }
        _ => (now, now),
    };
    Registration::Trusting { authorities, named, since, named_since, complete }
}

fn trusted(webhook: &Value) -> Vec<CertificateDer<'static>> {
    webhook["clientConfig"]["caBundle"]
        .as_str()
        .and_then(|encoded| STANDARD.decode(encoded).ok())
        .and_then(|pem| certificates(&pem).ok())
        .unwrap_or_default()
}

/// Whether anything behind the Service can answer. An endpoint that says nothing of itself counts as ready.
pub fn has_ready_endpoint(slices: &[EndpointSlice]) -> bool {
    slices.iter().flat_map(|slice| &slice.endpoints).any(|endpoint| {
        !endpoint.addresses.is_empty()
            && endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
    })
}

/// How fast to write again when somebody else keeps changing what is ours.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    last: Option<Timestamp>,
    pause: Duration,
}

impl Pace {
    const FIRST: Duration = Duration::from_secs(1);
    const MOST: Duration = Duration::from_secs(300);

    /// How long to wait before the next write; zero if it may go now.
    pub fn wait(&self, now: Timestamp) -> Duration {
        let Some(last) = self.last else { return Duration::ZERO };
        Duration::try_from(last + self.pause - now).unwrap_or_default()
    }

    /// A write was made. Peace for longer than the longest pause counts as a new beginning.
    pub fn wrote(&mut self, now: Timestamp) {
        let recent = self.last.is_some_and(|last| now < last + self.pause + Self::MOST);
        self.pause = if recent { (self.pause * 2).clamp(Self::FIRST, Self::MOST) } else { Self::FIRST };
        self.last = Some(now);
    }
}

#[cfg(test)]
#[path = "webhook_spec_tests.rs"]
mod tests;
