//! Expressions: CEL, checked when a plugin is applied and evaluated over a [`Scope`] when its steps run.
//!
//! Pure: no client and, but for [`Expression::evaluate_bounded`], no clock. The library that parses and evaluates has
//! neither a type checker nor limits; what bounds an expression is here: `guard` its source, `tree` its form,
//! `limits`, `loops`, `keep` and `bounds` what an evaluation may do.

mod bounds;
mod cache;
mod calls;
mod error;
mod functions;
mod guard;
mod keep;
mod limits;
mod lookups;
mod loops;
mod place;
mod places;
mod stack;
mod tokens;
mod tree;
mod trial;
mod types;
mod values;

#[cfg(test)]
mod docs;
#[cfg(test)]
mod tests;

pub use bounds::{MAX_COMPARED, MAX_COMPARED_SIZE, MAX_FIND_ALL, MAX_ITEMS, MAX_SEARCH, MAX_TEXT};
pub use error::ExpressionError;
pub use guard::{MAX_BRACKETS, MAX_LINKS, MAX_SOURCE};
pub use limits::{MAX_LOOPS, MAX_OUTPUT, MAX_RANGE, MAX_WORK, TIME};
pub use place::Place;

pub(crate) use calls::Calls;
pub(crate) use error::quoted;
pub(crate) use functions::context;
pub(crate) use limits::Cancel;
pub(crate) use stack::{Stopped, bounded};
pub(crate) use tokens::{Kind, tokens};
pub(crate) use trial::{Doubt, Remark, Tried, can_be_bool};
pub(crate) use types::{Field, Shape, Type};
pub(crate) use values::{from_json, json_length};

use super::scope::Scope;
use kube_cel::cel::ExecutionError;
use kube_cel::cel::objects::Value;
use kube_cel::cel::parser::{Expression as Tree, ParseErrors, Parser};
use serde_json::Value as Json;
use std::fmt;
use std::sync::Arc;

/// A parsed expression. Cheap to clone.
#[derive(Clone)]
pub struct Expression(Arc<Parsed>);

struct Parsed {
    source: String,
    tree: Tree,
    /// What is evaluated: the tree in which everything that is kept is paid for.
    paid: Tree,
    uses: tree::Uses,
    depth: usize,
}

impl Expression {
    /// Parses `source`, or finds what was parsed before. Never panics, whatever the source.
    pub fn parse(source: &str) -> Result<Self, ExpressionError> {
        cache::parsed(source, Self::parse_anew)
    }

    fn parse_anew(source: &str) -> Result<Self, ExpressionError> {
        let depth = guard::check(source)?;
        // Even a flat source takes the parser through all rules of its grammar, so it always gets the large stack.
        let parsed = stack::on_large(|| Parser::new().enable_optional_syntax(true).parse(source));
        let tree = match parsed {
            Ok(Ok(tree)) => tree,
            Ok(Err(errors)) => return Err(syntax_error(source, &errors)),
            Err(_) => {
                let message = "this cannot be read as an expression".to_owned();
                return Err(ExpressionError::Syntax { place: Place::of_byte(source, 0), message });
            }
        };
        let uses = tree::Uses::of(&tree);
        if let Some(message) = uses.refused.clone() {
            return Err(ExpressionError::Syntax { place: Place::of_byte(source, 0), message });
        }
        let tree = tree::rewritten(tree);
        let paid = keep::paid(tree.clone());
        Ok(Self(Arc::new(Parsed { source: source.to_owned(), tree, paid, uses, depth })))
    }

    /// The source that the expression was parsed from.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// The function whose call the whole expression is: `url.raw` of `url.raw(params.path)`.
    pub fn called(&self) -> Option<String> {
        tree::called(&self.0.tree)
    }

    /// The variables that the expression reads from its scope, in alphabetical order.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.0.uses.variables.iter().map(String::as_str)
    }

    /// What the expression reads of `variable` by fixed names: `["branch", "host"]` for `steps.branch["host"]` of
    /// `steps`, and each path that this one begins with.
    pub fn reads(&self, variable: &str) -> impl Iterator<Item = &[String]> {
        self.0.uses.reads.iter().filter_map(move |path| match path.split_first() {
            Some((first, rest)) if first == variable => Some(rest),
            _ => None,
        })
    }

    /// Whether every variable is one of `known`, and every function exists.
    pub fn check(&self, known: &[&str]) -> Result<(), ExpressionError> {
        if let Some(name) = self.0.uses.functions.iter().find(|name| !functions::is_known(name)) {
            let last = name.rsplit('.').next().unwrap_or(name);
            let place = self.place_of(last, |_, after| after == Some("("));
            return Err(ExpressionError::UnknownFunction { name: name.clone(), near: functions::near(name), place });
        }
        if let Some(name) = self.variables().find(|name| !known.contains(name)) {
            let place = self.place_of(name, |before, _| before != Some("."));
            return Err(ExpressionError::UnknownVariable { name: name.to_owned(), known: listed(known), place });
        }
        Ok(())
    }

    /// The value over `scope`.
    pub fn evaluate(&self, scope: &Scope) -> Result<Json, ExpressionError> {
        self.evaluate_until(scope, &Cancel::default())
    }

    /// The value over `scope`, where it must be true or false.
    pub fn evaluate_bool(&self, scope: &Scope) -> Result<bool, ExpressionError> {
        self.truth(&self.evaluate(scope)?)
    }

    /// The items over `scope`, where the value must be a list.
    pub fn evaluate_list(&self, scope: &Scope) -> Result<Vec<Json>, ExpressionError> {
        self.items(self.evaluate(scope)?)
    }

    /// The value over `scope`, or an error after [`TIME`].
    ///
    /// Runs on a thread of its own, so a slow expression holds up nothing else. A thread cannot be killed: one that is
    /// past its time ends at the next round of a loop, and until then it keeps its place among the blocking threads.
    pub async fn evaluate_bounded(&self, scope: &Scope) -> Result<Json, ExpressionError> {
        let (expression, scope) = (self.clone(), scope.clone());
        let answer = bounded(move |cancel| expression.evaluate_until(&scope, cancel)).await;
        answer.unwrap_or_else(|stopped| Err(self.stopped(stopped)))
    }

    /// [`Expression::evaluate_bool`], bounded as [`Expression::evaluate_bounded`] is.
    pub async fn evaluate_bool_bounded(&self, scope: &Scope) -> Result<bool, ExpressionError> {
        self.truth(&self.evaluate_bounded(scope).await?)
    }

    /// [`Expression::evaluate_list`], bounded as [`Expression::evaluate_bounded`] is.
    pub async fn evaluate_list_bounded(&self, scope: &Scope) -> Result<Vec<Json>, ExpressionError> {
        self.items(self.evaluate_bounded(scope).await?)
    }

    pub(crate) fn evaluate_until(&self, scope: &Scope, cancel: &Cancel) -> Result<Json, ExpressionError> {
        let evaluated = self.resolved(scope, cancel);
        let expression = || quoted(self.source());
        let secret = self.variables().any(|name| scope.may_be_secret(name));
        let json = match evaluated {
            Ok(Ok(Ok(json))) => json,
            Ok(Ok(Err(message))) => return Err(ExpressionError::Evaluation { expression: expression(), message }),
            Ok(Err(error)) => {
                let message = error::explain(&error, self.source(), secret, |key| self.selection_of(key));
                return Err(ExpressionError::Evaluation { expression: expression(), message });
            }
            Err(_) if secret => {
                let message = "its message may hold an output of a step".into();
                return Err(ExpressionError::Broken { expression: expression(), message });
            }
            Err(message) => return Err(ExpressionError::Broken { expression: expression(), message }),
        };
        let length = json_length(&json);
        if length > MAX_OUTPUT {
            return Err(ExpressionError::OutputTooLarge { expression: expression(), length });
        }
        Ok(json)
    }

    /// Whether the evaluation over `scope` fails because it reads a key that is not there, or of `null`: the key, or
    /// none for `null`.
    pub(crate) fn lacks(&self, scope: &Scope, cancel: &Cancel) -> Option<Option<String>> {
        match self.resolved(scope, cancel) {
            Ok(Err(ExecutionError::NoSuchKey(key))) => Some(Some(key.to_string())),
            Ok(Err(ExecutionError::NoSuchOverload)) => Some(None),
            _ => None,
        }
    }

    /// The value as JSON or why it has none, the library's error, or how it broke down.
    #[allow(clippy::type_complexity)]
    fn resolved(&self, scope: &Scope, cancel: &Cancel) -> Result<Result<Result<Json, String>, ExecutionError>, String> {
        stack::for_depth(self.0.depth, || {
            scope.with_context(|context| {
                limits::Budget::install(context, cancel);
                Value::resolve(&self.0.paid, context).map(|value| values::to_json(&value))
            })
        })
    }

    /// The error for an evaluation that was not waited for to its end.
    pub(crate) fn stopped(&self, stopped: Stopped) -> ExpressionError {
        let expression = quoted(self.source());
        match stopped {
            Stopped::TooSlow => ExpressionError::TooSlow { expression },
            Stopped::Broken(message) => ExpressionError::Broken { expression, message },
        }
    }

    fn truth(&self, value: &Json) -> Result<bool, ExpressionError> {
        value.as_bool().ok_or_else(|| self.wrong_type("true or false", value))
    }

    fn items(&self, value: Json) -> Result<Vec<Json>, ExpressionError> {
        match value {
            Json::Array(items) => Ok(items),
            other => Err(self.wrong_type("a list", &other)),
        }
    }

    fn wrong_type(&self, wanted: &'static str, value: &Json) -> ExpressionError {
        ExpressionError::WrongType { expression: quoted(self.source()), wanted, got: error::json_type_name(value) }
    }

    /// The selection in the source that reads `key`.
    fn selection_of(&self, key: &str) -> Option<String> {
        let reads = |path: &&String| path.rsplit('.').next().is_some_and(|field| field.trim_matches('`') == key);
        self.0.uses.selections.iter().find(reads).cloned()
    }

    /// The first place of `name` whose neighbours are as `fits` wants them.
    fn place_of(&self, name: &str, fits: impl Fn(Option<&str>, Option<&str>) -> bool) -> Place {
        let found: Vec<_> = tokens(self.source()).collect();
        let neighbour = |at: Option<usize>| at.and_then(|at| found.get(at)).map(|token| token.text);
        let at = found
            .iter()
            .enumerate()
            .find(|(at, token)| token.text == name && fits(neighbour(at.checked_sub(1)), neighbour(at.checked_add(1))));
        Place::of_byte(self.source(), at.map_or(0, |(_, token)| token.start))
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source()).finish()
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source() == other.source()
    }
}

fn listed(known: &[&str]) -> String {
    match known {
        [] => "none".to_owned(),
        known => known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

/// The first of the library's errors, in shorter words.
fn syntax_error(source: &str, errors: &ParseErrors) -> ExpressionError {
    let Some(error) = errors.errors.first() else {
        return ExpressionError::Syntax { place: Place::of_byte(source, 0), message: "it cannot be read".into() };
    };
    let message = error.msg.strip_prefix("Syntax error: ").unwrap_or(&error.msg);
    // What it lists as expected is every token there is.
    let message =
        message.split(" expecting {").next().unwrap_or(message).replace("'<EOF>'", "the end of the expression");
    let position = |at: isize| usize::try_from(at).unwrap_or(1);
    ExpressionError::Syntax {
        place: Place::new(source, position(error.pos.0), position(error.pos.1)),
        message: quoted(&message),
    }
}
