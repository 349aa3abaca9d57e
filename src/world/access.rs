//! Reviews of access: the world knows no RBAC and asks a hook.

use super::World;
use super::ask::{Ask, User};
use super::refusal::Refusal;
use serde_json::{Value, json};
use std::sync::PoisonError;

/// Who decides what a user may do.
pub trait Access: Send + Sync + 'static {
    /// `spec` is that of a SubjectAccessReview.
    fn allows(&self, spec: &Value) -> bool;
}

pub struct Everything;

impl Access for Everything {
    fn allows(&self, _spec: &Value) -> bool {
        true
    }
}

impl<F: Fn(&Value) -> bool + Send + Sync + 'static> Access for F {
    fn allows(&self, spec: &Value) -> bool {
        self(spec)
    }
}

fn about_self(spec: &mut Value, user: &User) {
    spec["user"] = Value::from(user.name.clone());
    spec["groups"] = Value::from(user.groups.clone());
}

impl World {
    /// Answers a review; nothing is stored.
    pub(super) fn review(&self, ask: &Ask, mut review: Value) -> Result<Value, Refusal> {
        if !review["spec"].is_object() {
            return Err(Refusal::bad_request("a review without a spec"));
        }
        let mut spec = review["spec"].clone();
        if ask.kind.plural.starts_with("self") {
            about_self(&mut spec, &ask.user);
        }
        let access = self.0.access.lock().unwrap_or_else(PoisonError::into_inner).clone();
        review["status"] = json!({"allowed": access.allows(&spec)});
        Ok(review)
    }
}
