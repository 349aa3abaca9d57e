//! Tries an expression on types in place of values: what can it give, and what can never work?
//!
//! A [`Misfit`] is certain: whatever the values, the evaluation fails there once it gets there. What lies behind an
//! `&&`, an `||` or a `?:` may never be reached, so a misfit there is no more than a note; the body of a loop counts as
//! reached. The rules are the library's: its operators and functions answer themselves (see `calls`), and what is
//! here are the forms that it evaluates in a way of their own.

use super::calls::Calls;
use super::functions;
use super::loops::{ACCUMULATOR, COLLECT, FOLD};
use super::place::Place;
use super::places::places;
use super::tree::is_accumulator;
use super::types::Type;
use super::{Expression, stack};
use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, ListExpr, LiteralValue, MapExpr, operators};
use kube_cel::cel::parser::Expression as Tree;

/// Something to be said of a place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    pub place: Place,
    pub message: String,
}

/// A read that fails for some values and not for others.
#[derive(Clone, Debug)]
pub(crate) struct Doubt {
    /// The field that may be absent; none where what it is read of may be `null`.
    pub field: Option<String>,
    pub remark: Remark,
}

/// What a trial found.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    /// The type of what the expression gives, or why it never gives anything.
    pub result: Result<Type, Remark>,
    /// What never works, but may never be reached.
    pub notes: Vec<Remark>,
    pub doubts: Vec<Doubt>,
}

impl Expression {
    /// Tries the expression on variables of these types.
    pub(crate) fn tried(&self, variable: &(dyn Fn(&str) -> Type + Sync), calls: &mut Calls) -> Tried {
        let walked = stack::for_depth(self.0.depth, || {
            let mut walk = Walk { variable, bound: Vec::new(), calls, notes: Vec::new(), doubts: Vec::new() };
            let result = walk.of(&self.0.tree);
            (result, walk.notes, walk.doubts)
        });
        // What breaks the library down says nothing about the expression.
        let Ok((result, notes, doubts)) = walked else {
            return Tried { result: Ok(Type::Any), notes: Vec::new(), doubts: Vec::new() };
        };
        if result.is_ok() && notes.is_empty() && doubts.is_empty() {
            return Tried { result: result.map_err(|found| self.start(found.message)), notes: vec![], doubts: vec![] };
        }
        let places = places(&self.0.tree, self.source());
        let remark = |found: Misfit| match places.get(&found.id) {
            Some(at) => Remark { place: Place::of_byte(self.source(), *at), message: found.message },
            None => self.start(found.message),
        };
        Tried {
            result: result.map_err(remark),
            notes: notes.into_iter().map(remark).collect(),
            doubts: doubts.into_iter().map(|(field, found)| Doubt { field, remark: remark(found) }).collect(),
        }
    }

    /// A remark about the whole expression.
    pub(crate) fn start(&self, message: String) -> Remark {
        let at = super::tokens(self.source()).next().map_or(0, |token| token.start);
        Remark { place: Place::of_byte(self.source(), at), message }
    }
}

/// A part of the tree that never gives anything.
#[derive(Debug)]
pub(super) struct Misfit {
    pub id: u64,
    pub message: String,
}

/// One walk through a tree.
pub(super) struct Walk<'a> {
    variable: &'a (dyn Fn(&str) -> Type + Sync),
    bound: Vec<(&'a str, Type)>,
    pub calls: &'a mut Calls,
    notes: Vec<Misfit>,
    /// What may fail, and the field that may be absent, if it is that.
    pub doubts: Vec<(Option<String>, Misfit)>,
}

impl<'a> Walk<'a> {
    /// The type of what `tree` gives.
    pub fn of(&mut self, tree: &'a Tree) -> Result<Type, Misfit> {
        match &tree.expr {
            Expr::Literal(literal) => Ok(literal_type(literal)),
            Expr::Ident(name) => Ok(match self.bound.iter().rev().find(|(bound, _)| bound == name) {
                Some((_, kind)) => kind.clone(),
                None => (self.variable)(name),
            }),
            Expr::Select(select) => self.has(tree.id, select),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(map),
            Expr::Call(call) => self.call(tree.id, call),
            Expr::Comprehension(_) | Expr::Struct(_) | Expr::Unspecified => Ok(Type::Any),
        }
    }

    fn list(&mut self, list: &'a ListExpr) -> Result<Type, Misfit> {
        let mut items = Type::Never;
        for (at, element) in list.elements.iter().enumerate() {
            let mut item = self.of(element)?;
            if let (true, Type::Optional(inner)) = (list.optional_indices.contains(&at), &item) {
                item = inner.as_ref().clone();
            }
            items = items.or(&item);
        }
        Ok(Type::list(items))
    }

    fn map(&mut self, map: &'a MapExpr) -> Result<Type, Misfit> {
        let mut values = Type::Never;
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else { return Ok(Type::Any) };
            self.of(&entry.key)?;
            let mut value = self.of(&entry.value)?;
            if let (true, Type::Optional(inner)) = (entry.optional, &value) {
                value = inner.as_ref().clone();
            }
            values = values.or(&value);
        }
        Ok(Type::map(values))
    }

    fn call(&mut self, id: u64, call: &'a CallExpr) -> Result<Type, Misfit> {
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, then, otherwise]) => {
                let condition_type = self.of(condition)?;
                expect_bool(&condition_type, "the condition before `?`", id)?;
                let branches = (self.of(then), self.of(otherwise));
                match branches {
                    (Ok(then), Ok(otherwise)) => Ok(then.or(&otherwise)),
                    (Ok(kind), Err(misfit)) | (Err(misfit), Ok(kind)) => {
                        self.note(&misfit, NEVER_WORKS);
                        Ok(kind)
                    }
                    (Err(misfit), Err(_)) => Err(misfit),
                }
            }
            (operators::LOGICAL_AND | operators::LOGICAL_OR, [left, right]) => {
                let symbol = if call.func_name == operators::LOGICAL_AND { "&&" } else { "||" };
                let left = self.of(left).and_then(|kind| expect_bool(&kind, &format!("the left of `{symbol}`"), id));
                let right = self.of(right).and_then(|kind| expect_bool(&kind, &format!("the right of `{symbol}`"), id));
                match (left, right) {
                    (Err(misfit), Err(_)) => return Err(misfit),
                    (Err(misfit), Ok(())) | (Ok(()), Err(misfit)) => self.note(&misfit, NEVER_WORKS),
                    (Ok(()), Ok(())) => {}
                }
                Ok(Type::Bool)
            }
            (operators::EQUALS | operators::NOT_EQUALS, [left, right]) => {
                self.of(left)?;
                self.of(right)?;
                Ok(Type::Bool)
            }
            (operators::INDEX, [operand, key]) => {
                let (of, by) = (self.of(operand)?, self.of(key)?);
                self.lookup(id, &of, &by, operand, key)
            }
            (operators::OPT_INDEX, [operand, key]) => {
                let (of, by) = (self.of(operand)?, self.of(key)?);
                self.optional_lookup(id, &of, &by, operand, key)
            }
            (COLLECT, [range, variable, condition, value]) => self.collect(id, range, variable, condition, value),
            (FOLD, [range, variable, first, _, next, result]) => self.fold(id, range, variable, first, next, result),
            _ => self.function(id, call),
        }
    }

    fn function(&mut self, id: u64, call: &'a CallExpr) -> Result<Type, Misfit> {
        let whole = match call.target.as_deref() {
            Some(Tree { expr: Expr::Ident(prefix), .. }) => Some(format!("{prefix}.{}", call.func_name)),
            _ => None,
        };
        let whole = whole.filter(|whole| functions::is_known(whole));
        let target = match (&whole, &call.target) {
            (None, Some(target)) => Some(self.of(target)?),
            _ => None,
        };
        let mut arguments = Vec::with_capacity(call.args.len());
        for argument in &call.args {
            arguments.push(self.of(argument)?);
        }
        let name = whole.as_deref().unwrap_or(&call.func_name);
        let given = self.calls.call(name, target.as_ref(), &arguments);
        let given = given.map_err(|message| Misfit { id, message })?;
        let compares = [
            operators::LESS,
            operators::LESS_EQUALS,
            operators::GREATER,
            operators::GREATER_EQUALS,
            operators::IN,
            operators::LOGICAL_NOT,
        ];
        Ok(if compares.contains(&name) { Type::Bool } else { given })
    }

    /// Notes what may never be reached, or is no error: `then` says what comes of it.
    pub fn note(&mut self, misfit: &Misfit, then: &str) {
        self.notes.push(Misfit { id: misfit.id, message: format!("{}: {then}", misfit.message) });
    }

    fn collect(
        &mut self,
        id: u64,
        range: &'a Tree,
        variable: &'a Tree,
        condition: &'a Tree,
        value: &'a Tree,
    ) -> Result<Type, Misfit> {
        let item = self.items(id, range)?;
        if matches!(item, Type::Never) {
            return Ok(Type::list(Type::Never));
        }
        let bound = self.bound.len();
        self.bound.push((text(variable).unwrap_or_default(), item));
        let given = self.of(condition).and_then(|kind| expect_bool(&kind, "the condition of the loop", id));
        let given = given.and_then(|()| {
            let always = matches!(&condition.expr, Expr::Literal(_));
            match self.of(value) {
                Err(misfit) if !always => {
                    self.note(&misfit, NEVER_WORKS);
                    Ok(Type::Never)
                }
                given => given,
            }
        });
        self.bound.truncate(bound);
        given.map(Type::list)
    }

    fn fold(
        &mut self,
        id: u64,
        range: &'a Tree,
        variable: &'a Tree,
        first: &'a Tree,
        next: &'a Tree,
        result: &'a Tree,
    ) -> Result<Type, Misfit> {
        let item = self.items(id, range)?;
        let first = self.of(first)?;
        let bound = self.bound.len();
        self.bound.push((ACCUMULATOR, first));
        if !matches!(item, Type::Never) {
            self.bound.push((text(variable).unwrap_or_default(), item));
        }
        let looped = if self.bound.len() == bound + 1 { Ok(()) } else { self.fold_body(id, next) };
        let result = looped.and_then(|()| self.of(result));
        self.bound.truncate(bound);
        result
    }

    /// What the user wrote of a fold's step is a condition, beside the macro's own `@result`.
    fn fold_body(&mut self, id: u64, step: &'a Tree) -> Result<(), Misfit> {
        let Expr::Call(call) = &step.expr else { return Ok(()) };
        let Some(written) = call.args.iter().find(|argument| !is_accumulator(argument)) else { return Ok(()) };
        let kind = self.of(written)?;
        expect_bool(&kind, "the condition of the loop", id)
    }

    /// What a loop's variable is.
    fn items(&mut self, id: u64, range: &'a Tree) -> Result<Type, Misfit> {
        match without_null(&self.of(range)?) {
            Type::List(item) => Ok(item.as_ref().clone()),
            Type::Object(_) => Ok(Type::String),
            Type::Any | Type::Map(_) | Type::Never => Ok(Type::Any),
            other => {
                let message = format!("{} cannot be looped over: it must be a list or a map", other.name());
                Err(Misfit { id, message })
            }
        }
    }
}

/// What comes of an error that is not certain to be reached.
const NEVER_WORKS: &str = "this fails wherever it is reached";

fn literal_type(literal: &LiteralValue) -> Type {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Bytes(_) => Type::Bytes,
        LiteralValue::Double(_) => Type::Float,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::Null => Type::Null,
        LiteralValue::String(_) => Type::String,
        LiteralValue::UInt(_) => Type::UInt,
    }
}

/// Whether `kind` can be true or false.
pub(crate) fn can_be_bool(kind: &Type) -> bool {
    matches!(without_null(kind), Type::Bool | Type::Any | Type::Never)
}

fn expect_bool(kind: &Type, what: &str, id: u64) -> Result<(), Misfit> {
    if can_be_bool(kind) {
        return Ok(());
    }
    Err(Misfit { id, message: format!("{what} must be true or false, it is {}", kind.name()) })
}

pub(super) fn without_null(kind: &Type) -> Type {
    match kind {
        Type::Nullable(inner) => inner.as_ref().clone(),
        other => other.clone(),
    }
}

pub(super) fn text(tree: &Tree) -> Option<&str> {
    match &tree.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}
