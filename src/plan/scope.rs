//! What an expression sees: variables with values. Knows no kind of target; a [`TargetKind`] says what is special.

use super::expression::{context, from_json, json_length};
use crate::api::Phase;
use kube_cel::cel::Context;
use kube_cel::cel::objects::Value;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The largest scope, as bytes of JSON.
pub const MAX_SCOPE: usize = 2 * 1024 * 1024;

/// The variables that every scope has beside the target's own.
pub const NAMES: [&str; 5] = ["old", "change", "params", "steps", "phase"];

/// What expressions need to know of a kind of target.
#[derive(Clone, Copy, Debug)]
pub struct TargetKind {
    /// The name of the target in expressions: `sandbox`.
    pub variable: &'static str,
    /// Optional fields that expressions always find. `a.b` is a field, `a[].b` that field of each item of `a`.
    pub defaults: &'static [(&'static str, Empty)],
    /// The lists whose items `change` tells apart.
    pub lists: &'static [TrackedList],
}

impl TargetKind {
    /// The names that an expression may use, without those that a step adds.
    pub fn names(&self) -> [&'static str; 6] {
        let [old, change, params, steps, phase] = NAMES;
        [self.variable, old, change, params, steps, phase]
    }
}

/// A list in the target's spec whose items have an identity.
#[derive(Clone, Copy, Debug)]
pub struct TrackedList {
    /// Its name in `change`.
    pub name: &'static str,
    /// Its field in the spec.
    pub field: &'static str,
    /// The fields, by JSON pointer, that make two items the same one.
    pub identity: &'static [&'static str],
}

/// What stands in for an absent field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    List,
    Map,
}

impl Empty {
    fn value(self) -> Json {
        match self {
            Empty::List => json!([]),
            Empty::Map => json!({}),
        }
    }
}

/// Why there is no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    #[error(
        "the values that expressions see have {bytes} bytes together, {MAX_SCOPE} at most are allowed: make the object or its outputs smaller"
    )]
    TooLarge { bytes: usize },
    #[error(
        "`{name}` cannot name a value in expressions: use letters, digits and _, a letter or _ first, and no keyword"
    )]
    BadName { name: String },
    #[error("`{name}` already has a meaning in expressions: choose another name")]
    TakenName { name: String },
}

/// Builds a [`Scope`].
#[derive(Clone, Debug)]
pub struct ScopeBuilder {
    kind: TargetKind,
    values: BTreeMap<String, Json>,
}

impl ScopeBuilder {
    /// Nothing yet: target and `old` null, the rest empty.
    pub fn new(kind: &TargetKind) -> Self {
        let mut values = BTreeMap::new();
        for (name, value) in [("change", json!({})), ("params", json!({})), ("steps", json!({})), ("phase", json!(""))]
        {
            values.insert(name.to_owned(), value);
        }
        values.insert("old".to_owned(), Json::Null);
        values.insert(kind.variable.to_owned(), Json::Null);
        Self { kind: *kind, values }
    }

    /// The target: as it will be, or, on a delete, as it was.
    #[must_use]
    pub fn target(mut self, object: Json) -> Self {
        self.values.insert(self.kind.variable.to_owned(), with_defaults(&self.kind, object));
        self
    }

    /// The target as it was before the change; `None` on a create and on a delete.
    #[must_use]
    pub fn old(mut self, object: Option<Json>) -> Self {
        let object = object.map_or(Json::Null, |object| with_defaults(&self.kind, object));
        self.values.insert("old".to_owned(), object);
        self
    }

    /// What [`super::changes::change`] gives.
    #[must_use]
    pub fn change(mut self, change: Json) -> Self {
        self.values.insert("change".to_owned(), change);
        self
    }

    /// The resource's parameters.
    #[must_use]
    pub fn params(mut self, params: Json) -> Self {
        self.values.insert("params".to_owned(), params);
        self
    }

    /// The outputs of the resource's steps: `{step: {output: value}}`.
    #[must_use]
    pub fn steps(mut self, steps: Json) -> Self {
        self.values.insert("steps".to_owned(), steps);
        self
    }

    /// The phase, as it stands in a `PhaseRun`: `PreCreate`.
    #[must_use]
    pub fn phase(mut self, phase: Phase) -> Self {
        self.values.insert("phase".to_owned(), json!(phase));
        self
    }

    /// The scope, if it is not too large.
    pub fn build(self) -> Result<Scope, ScopeError> {
        let mut bytes = 0;
        let mut root = context();
        let mut names = Vec::new();
        for (name, value) in self.values {
            bytes += json_length(&value);
            if bytes > MAX_SCOPE {
                return Err(ScopeError::TooLarge { bytes });
            }
            root.add_variable_from_value(name.as_str(), from_json(&value));
            names.push(name);
        }
        Ok(Scope { root: Arc::new(root), names: Arc::new(names), added: Vec::new(), bytes })
    }
}

/// The variables that an expression sees. Cheap to clone, and to add to.
#[derive(Clone)]
pub struct Scope {
    root: Arc<Context<'static>>,
    names: Arc<Vec<String>>,
    added: Vec<(String, Value)>,
    bytes: usize,
}

impl Scope {
    /// This scope with one more variable: the item of a `forEach`.
    pub fn with(&self, name: &str, value: &Json) -> Result<Self, ScopeError> {
        check_name(name)?;
        if self.names().any(|known| known == name) {
            return Err(ScopeError::TakenName { name: name.to_owned() });
        }
        let bytes = self.bytes + json_length(value);
        if bytes > MAX_SCOPE {
            return Err(ScopeError::TooLarge { bytes });
        }
        let mut scope = Self { bytes, ..self.clone() };
        scope.added.push((name.to_owned(), from_json(value)));
        Ok(scope)
    }

    /// The names of all variables.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().chain(self.added.iter().map(|(name, _)| name)).map(String::as_str)
    }

    /// Whether the value of `name` may be an output of a step: `steps`, and the item of a `forEach` over them.
    pub(crate) fn may_be_secret(&self, name: &str) -> bool {
        name == "steps" || self.added.iter().any(|(added, _)| added == name)
    }

    /// Gives `evaluate` a context of its own with all variables.
    pub(crate) fn with_context<T>(&self, evaluate: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let mut context = self.root.new_inner_scope();
        for (name, value) in &self.added {
            context.add_variable_from_value(name.as_str(), value.clone());
        }
        evaluate(&mut context)
    }
}

impl fmt::Debug for Scope {
    /// The names alone: values may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// Whether `name` can be the name of a variable at all.
pub fn check_name(name: &str) -> Result<(), ScopeError> {
    // The reserved words of CEL's specification; the parser refuses the first four, other implementations all.
    const KEYWORDS: [&str; 23] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
        "has",
        "math",
    ];
    let first = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
    let rest = name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
    if first && rest && !KEYWORDS.contains(&name) {
        return Ok(());
    }
    Err(ScopeError::BadName { name: name.to_owned() })
}

/// `object` with the kind's optional fields filled in.
pub fn with_defaults(kind: &TargetKind, mut object: Json) -> Json {
    for (path, empty) in kind.defaults {
        fill(&mut object, path, *empty);
    }
    object
}

fn fill(object: &mut Json, path: &str, empty: Empty) {
    let (field, rest) = path.split_once('.').map_or((path, None), |(field, rest)| (field, Some(rest)));
    let Json::Object(fields) = object else { return };
    match (field.strip_suffix("[]"), rest) {
        (None, None) => replace_absent(fields, field, empty),
        (None, Some(rest)) => {
            replace_absent(fields, field, Empty::Map);
            if let Some(inner) = fields.get_mut(field) {
                fill(inner, rest, empty);
            }
        }
        (Some(list), Some(rest)) => {
            if let Some(Json::Array(items)) = fields.get_mut(list) {
                items.iter_mut().for_each(|item| fill(item, rest, empty));
            }
        }
        (Some(_), None) => {}
    }
}

fn replace_absent(fields: &mut Map<String, Json>, field: &str, empty: Empty) {
    let value = fields.entry(field.to_owned()).or_insert(Json::Null);
    if value.is_null() {
        *value = empty.value();
    }
}
