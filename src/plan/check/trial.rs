//! Tries the expressions of a plugin on what the schema of sandboxes says of their values.
//!
//! What can never work is a fault. What fails where a field is absent or `old` is `null`, and what can never work but
//! may never be reached, is worth a warning: only the author knows which sandboxes the plugin is for.

use super::Fault;
use super::specimen::SPECIMENS;
use crate::api::Workflow;
use crate::plan::expression::{Calls, Cancel, Doubt, Expression, Remark, Tried, Type, bounded, can_be_bool};
use serde_json::{Map, Value as Json, json};

/// As many warnings are given at once; the API server cuts what is longer.
const MAX_WARNINGS: usize = 10;
/// Stands for every parameter and output; `int` and the like can read it.
const TEXT: &str = "1";

/// What an expression has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Anything,
    /// True or false.
    Condition,
    List,
}

/// What is seen beside the variables of every expression: an item, what was answered.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub name: String,
    pub kind: Type,
    /// The `forEach` that it is the item of.
    pub list: Option<Expression>,
}

/// Where an expression is evaluated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    pub field: &'a str,
    pub workflow: Workflow,
    /// The step's `when`, which the rest of the step waits for.
    pub when: Option<&'a Expression>,
    pub item: Option<&'a Item>,
}

/// The trials of one plugin.
#[derive(Debug, Default)]
pub(super) struct Trial {
    calls: Calls,
    found: Warnings,
}

/// What is worth a warning, or may be.
#[derive(Debug, Default)]
pub struct Warnings {
    notes: Vec<String>,
    doubts: Vec<Doubtful>,
}

/// An expression that fails for some sandboxes.
#[derive(Debug)]
struct Doubtful {
    field: String,
    workflow: Workflow,
    expression: Expression,
    doubts: Vec<Doubt>,
    when: Option<Expression>,
    item: Option<Item>,
}

impl Trial {
    /// The type of what an expression gives, or why it cannot work where it stands.
    pub fn expression(&mut self, at: Setting<'_>, expression: &Expression, wanted: Wanted) -> Result<Type, Fault> {
        let variable = |name: &str| match at.item {
            Some(item) if item.name == name => item.kind.clone(),
            _ => SPECIMENS.variable(name, at.workflow),
        };
        let Tried { result, notes, doubts } = expression.tried(&variable, &mut self.calls);
        let given = result.and_then(|given| match unfit(&given, wanted) {
            Some(message) => Err(expression.start(message)),
            None => Ok(given),
        });
        let given = given.map_err(|remark| Fault::new(at.field, whole(&remark)))?;
        self.found.notes.extend(notes.iter().map(|note| line(at.field, note)));
        if !doubts.is_empty() {
            self.found.doubts.push(Doubtful {
                field: at.field.to_owned(),
                workflow: at.workflow,
                expression: expression.clone(),
                doubts,
                when: at.when.cloned(),
                item: at.item.cloned(),
            });
        }
        Ok(given)
    }

    /// What is to be said beside the faults.
    pub fn warnings(self) -> Warnings {
        self.found
    }
}

impl Warnings {
    /// The warnings, as far as they are found within the time that one evaluation may take.
    pub async fn within_time(self) -> Vec<String> {
        let notes = self.notes.clone();
        bounded(move |cancel| self.listed(cancel)).await.unwrap_or(notes)
    }

    /// The warnings. Evaluates the doubtful expressions over the smallest sandbox, until `cancel` says that it took
    /// too long.
    pub(super) fn listed(&self, cancel: &Cancel) -> Vec<String> {
        let doubts = self.doubts.iter().take_while(|_| !cancel.is_cancelled());
        let all = self.notes.iter().cloned().chain(doubts.filter_map(|doubtful| doubtful.warning(cancel)));
        let mut listed: Vec<String> = all.take(MAX_WARNINGS + 1).collect();
        if listed.len() > MAX_WARNINGS {
            listed.truncate(MAX_WARNINGS);
            listed.push("there are more warnings: they are given once these are gone".to_owned());
        }
        listed
    }
}

impl Doubtful {
    fn warning(&self, cancel: &Cancel) -> Option<String> {
        let mut scope = SPECIMENS.smallest(self.workflow, self.read("params"), self.read("steps"))?;
        if let Some(when) = &self.when
            && when.evaluate_until(&scope, cancel) != Ok(Json::Bool(true))
        {
            return None;
        }
        if let Some(item) = &self.item {
            let list = item.list.as_ref()?.evaluate_until(&scope, cancel).ok()?;
            scope = scope.with(&item.name, list.as_array()?.first()?).ok()?;
        }
        let lacked = self.expression.lacks(&scope, cancel)?;
        let doubt = self.doubts.iter().find(|doubt| doubt.field == lacked)?;
        Some(line(&self.field, &doubt.remark))
    }

    /// Every parameter or output that is read by fixed names.
    fn read(&self, variable: &str) -> Json {
        let mut found = json!({});
        let expressions =
            [Some(&self.expression), self.when.as_ref(), self.item.as_ref().and_then(|item| item.list.as_ref())];
        let depth = if variable == "steps" { 2 } else { 1 };
        for path in expressions.into_iter().flatten().flat_map(|expression| expression.reads(variable)) {
            let Some((last, inner)) = path.get(..depth).and_then(<[String]>::split_last) else { continue };
            let fields = inner.iter().fold(found.as_object_mut(), |fields, key| {
                fields?.entry(key.clone()).or_insert_with(|| Json::Object(Map::new())).as_object_mut()
            });
            if let Some(fields) = fields {
                fields.insert(last.clone(), json!(TEXT));
            }
        }
        found
    }
}

/// Why a value of this type is not what is wanted, if it never is.
fn unfit(given: &Type, wanted: Wanted) -> Option<String> {
    let inner = match given {
        Type::Nullable(inner) | Type::Optional(inner) => inner.as_ref(),
        given => given,
    };
    let (fits, what) = match wanted {
        Wanted::Anything => (!matches!(inner, Type::Opaque(_)), "a value that JSON has a form for"),
        Wanted::Condition => (can_be_bool(inner), "true or false"),
        Wanted::List => (matches!(inner, Type::List(_) | Type::Any | Type::Never), "a list"),
    };
    (!fits).then(|| format!("this gives {}, but {what} is needed here", inner.name()))
}

/// With the source below.
fn whole(remark: &Remark) -> String {
    let Remark { place, message } = remark;
    format!("line {}, column {}: {message}\n{place}", place.line, place.column)
}

/// On one line, as a warning has to be.
fn line(field: &str, remark: &Remark) -> String {
    format!("{field}: line {}, column {}: {}", remark.place.line, remark.place.column, remark.message)
}
