//! Admission webhooks, called in-process: which are called is told by the configurations that the world stores, as in
//! a cluster; who answers is told by [`Hooks::serve`].

mod call;
mod matching;

use super::World;
use super::ask::{Ask, Part};
use super::kinds::Kind;
use super::refusal::Refusal;
use call::Hook;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What answers AdmissionReviews.
pub trait Handler: Send + Sync + 'static {
    /// Takes an AdmissionReview with a request, and returns one with a response.
    fn review(&self, review: Value) -> BoxFuture<'static, Value>;
}

impl<F> Handler for F
where
    F: Fn(Value) -> BoxFuture<'static, Value> + Send + Sync + 'static,
{
    fn review(&self, review: Value) -> BoxFuture<'static, Value> {
        self(review)
    }
}

/// The handlers, by the path of the webhook's service or URL (`/mutate`).
#[derive(Default)]
pub struct Hooks(Mutex<BTreeMap<String, Arc<dyn Handler>>>);

impl Hooks {
    /// From now on `handler` answers at `path`. A webhook without one fails as one that cannot be reached.
    pub fn serve(&self, path: &str, handler: Arc<dyn Handler>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), handler);
    }

    /// Nobody answers at `path` any more.
    pub fn drop(&self, path: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
    }

    fn at(&self, path: &str) -> Option<Arc<dyn Handler>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }
}

/// What is to be admitted.
pub(super) struct Attempt<'a> {
    pub ask: &'a Ask,
    pub operation: &'static str,
    /// The name of the object; empty as long as it is to be generated.
    pub name: String,
    pub old: Option<&'a Value>,
    pub options: &'static str,
}

impl Attempt<'_> {
    /// The request of an AdmissionReview.
    fn request(&self, uid: &str, object: Option<&Value>) -> Value {
        let Ask { kind, version, namespace, part, .. } = self.ask;
        let named = |kind: &Kind| match part {
            Part::Scale => json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}),
            _ => json!({"group": kind.group, "version": version, "kind": kind.kind}),
        };
        let resource = json!({"group": kind.group, "version": version, "resource": kind.plural});
        // A namespace is in itself, as the API server sees it.
        let namespace = if kind.qualified() == "namespaces" { &self.name } else { namespace };
        let shown = |object: Option<&Value>| object.map_or(Value::Null, |object| self.shown(object));
        let mut request = json!({"uid": uid, "kind": named(kind), "resource": resource, "requestKind": named(kind),
            "requestResource": resource, "name": self.name, "operation": self.operation,
            "userInfo": self.ask.user.info(), "object": shown(object), "oldObject": shown(self.old),
            "dryRun": self.ask.dry_run(),
            "options": {"kind": self.options, "apiVersion": "meta.k8s.io/v1"}});
        for (name, text) in [("namespace", namespace.as_str())] {
            if !text.is_empty() {
                request[name] = Value::from(text);
            }
        }
        if *part != Part::Whole {
            request["subResource"] = Value::from(part.as_str());
            request["requestSubResource"] = Value::from(part.as_str());
        }
        if !self.ask.manager().is_empty() && self.operation != "DELETE" {
            request["options"]["fieldManager"] = Value::from(self.ask.manager());
        }
        request
    }

    fn shown(&self, object: &Value) -> Value {
        match self.ask.part {
            Part::Scale => super::scale::of(&self.ask.kind, object),
            _ => super::read::shown(self.ask, object),
        }
    }
}

impl World {
    /// What the mutating webhooks make of an object. Those with `reinvocationPolicy: IfNeeded` are asked once more
    /// when another changed the object after them.
    pub(super) async fn mutate(&self, attempt: &Attempt<'_>, object: Option<Value>) -> Result<Option<Value>, Refusal> {
        let hooks = self.matching("mutatingwebhookconfigurations", attempt, object.as_ref());
        let mut object = object;
        let mut seen: BTreeMap<String, Option<Value>> = BTreeMap::new();
        for hook in &hooks {
            object = self.ask_to_mutate(hook, attempt, object).await?;
            seen.insert(hook.id.clone(), object.clone());
        }
        for hook in hooks.iter().filter(|hook| hook.again_if_needed()) {
            if seen.get(&hook.id).is_some_and(|seen| *seen != object) {
                object = self.ask_to_mutate(hook, attempt, object).await?;
            }
        }
        Ok(object)
    }

    /// Asks the validating webhooks, in order of their names.
    pub(super) async fn validate_by_hooks(&self, attempt: &Attempt<'_>, object: Option<&Value>) -> Result<(), Refusal> {
        for hook in self.matching("validatingwebhookconfigurations", attempt, object) {
            self.call(&hook, attempt, object).await?;
        }
        Ok(())
    }

    async fn ask_to_mutate(
        &self,
        hook: &Hook,
        attempt: &Attempt<'_>,
        object: Option<Value>,
    ) -> Result<Option<Value>, Refusal> {
        let patch = self.call(hook, attempt, object.as_ref()).await?;
        let (Some(patch), Some(known)) = (patch, object.as_ref()) else { return Ok(object) };
        if attempt.ask.part == Part::Scale {
            return Ok(object);
        }
        let mut shown = super::read::shown(attempt.ask, known);
        json_patch::patch(&mut shown, &patch).map_err(|error| Refusal::internal(&error.to_string()))?;
        if let Some(schema) = attempt.ask.kind.schema(&attempt.ask.version) {
            schema.complete(&mut shown);
        }
        Ok(Some(shown))
    }

    /// The webhooks that a request goes to, in the order of the names of their configurations.
    fn matching(&self, configurations: &str, attempt: &Attempt<'_>, object: Option<&Value>) -> Vec<Hook> {
        // Configurations of webhooks are not admitted by webhooks.
        if attempt.ask.kind.group == "admissionregistration.k8s.io" || attempt.ask.kind.review {
            return Vec::new();
        }
        let store = self.store();
        let Some(kind) = store.kinds.served("admissionregistration.k8s.io", "v1", configurations) else {
            return Vec::new();
        };
        let id = kind.id();
        let labels = |name: &str| matching::namespace_labels(&store, name);
        let mut found = Vec::new();
        for (key, configuration) in store.of_kind(&id, "") {
            for (at, webhook) in configuration["webhooks"].as_array().into_iter().flatten().enumerate() {
                if matching::matches(webhook, attempt, object, labels) {
                    found.push(Hook::new(format!("{}/{at}", key.name), webhook));
                }
            }
        }
        found
    }
}
