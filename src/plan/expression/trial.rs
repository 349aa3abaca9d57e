//! Tries an expression on types in place of values: what can it give, and what can never work?
//!
//! A [`Misfit`] is certain: whatever the values, the evaluation fails there once it gets there. What lies behind an
//! `&&`, an `||` or a `?:` may never be reached, so a misfit there is no more than a note; the body of a loop counts as
//! reached. The rules are the library's: its operators and functions answer themselves (see `calls`), and what is
//! here are the forms that it evaluates in a way of their own.

use super::calls::Calls;
use super::error::missing;
use super::functions;
use super::loops::{ACCUMULATOR, COLLECT, FOLD};
use super::place::Place;
use super::places::places;
use super::tree::is_accumulator;
use super::types::{Shape, Type};
use super::{Expression, stack};
use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, ListExpr, LiteralValue, MapExpr, SelectExpr, operators};
use kube_cel::cel::parser::Expression as Tree;

/// How many fields of an object a message lists.
const LISTED: usize = 16;

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
struct Misfit {
    id: u64,
    message: String,
}

struct Walk<'a> {
    variable: &'a (dyn Fn(&str) -> Type + Sync),
    bound: Vec<(&'a str, Type)>,
    calls: &'a mut Calls,
    notes: Vec<Misfit>,
    doubts: Vec<(Option<String>, Misfit)>,
}

impl<'a> Walk<'a> {
    fn of(&mut self, tree: &'a Tree) -> Result<Type, Misfit> {
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

    /// `has(x.y)`: no error, whatever `x` is.
    fn has(&mut self, id: u64, select: &'a SelectExpr) -> Result<Type, Misfit> {
        let operand = self.of(&select.operand)?;
        if let Type::Object(shape) = without_null(&operand)
            && !shape.fields.contains_key(&select.field)
        {
            self.note(Misfit { id, message: no_field(&shape, &select.field, &select.operand) }, "this is never true");
        }
        Ok(Type::Bool)
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
                        self.note(misfit, NEVER_WORKS);
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
                    (Err(misfit), Ok(())) | (Ok(()), Err(misfit)) => self.note(misfit, NEVER_WORKS),
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

    /// `of[by]` and `of.by`.
    fn lookup(&mut self, id: u64, of: &Type, by: &Type, operand: &Tree, key: &Tree) -> Result<Type, Misfit> {
        match of {
            Type::Never | Type::Any => Ok(Type::Any),
            Type::Map(value) => Ok(value.as_ref().clone()),
            Type::Object(shape) => {
                let Some(key) = text(key) else { return Ok(Type::Any) };
                let Some(field) = shape.fields.get(key) else {
                    return Err(Misfit { id, message: no_field(shape, key, operand) });
                };
                if !field.required {
                    let path = path(operand).map(|path| format!("{path}.{key}"));
                    let message = missing(key, path.as_deref()).replacen("there is no", "there may be no", 1);
                    self.doubts.push((Some(key.to_owned()), Misfit { id, message }));
                }
                Ok(field.kind.clone())
            }
            Type::Nullable(inner) => {
                let whole = path(operand).unwrap_or_else(|| "what stands before it".to_owned());
                let message = format!("`{whole}` may be null: test with {whole} != null");
                self.doubts.push((None, Misfit { id, message }));
                self.lookup(id, inner, by, operand, key)
            }
            Type::Optional(inner) => {
                let doubts = self.doubts.len();
                let found = self.lookup(id, inner, by, operand, key);
                self.doubts.truncate(doubts);
                Ok(self.optional(found))
            }
            Type::List(item) if by.is_vague() => Ok(item.as_ref().clone()),
            Type::List(item) => {
                let misfit = |_| Misfit {
                    id,
                    message: "a list has no field or key: read it with [0], .first() or a loop".to_owned(),
                };
                self.calls.call(operators::INDEX, None, &[of.clone(), by.clone()]).map_err(misfit)?;
                Ok(item.as_ref().clone())
            }
            other => {
                let what = text(key).map_or_else(|| "an index".to_owned(), |key| format!("field `{key}`"));
                let misfit = |_| Misfit { id, message: format!("{} has no {what}", other.name()) };
                self.calls.call(operators::INDEX, None, &[of.clone(), Type::String]).map_err(misfit)
            }
        }
    }

    /// `of[?by]` and `of.?by`.
    fn optional_lookup(&mut self, id: u64, of: &Type, by: &Type, operand: &Tree, key: &Tree) -> Result<Type, Misfit> {
        let doubts = self.doubts.len();
        let found = match of {
            Type::Nullable(inner) => {
                let whole = path(operand).unwrap_or_else(|| "what stands before it".to_owned());
                let message = format!("`{whole}` may be null: test with {whole} != null");
                self.doubts.push((None, Misfit { id, message }));
                return self.optional_lookup(id, inner, by, operand, key);
            }
            Type::Optional(_) => return self.lookup(id, of, by, operand, key),
            Type::Object(_) | Type::Map(_) | Type::List(_) => self.lookup(id, of, by, operand, key),
            Type::Never | Type::Any => Ok(Type::Any),
            other => return self.lookup(id, other, by, operand, key),
        };
        // To read what may be absent is what a `?` is for.
        self.doubts.truncate(doubts);
        Ok(self.optional(found))
    }

    /// What a lookup with a `?` makes of what it found.
    fn optional(&mut self, found: Result<Type, Misfit>) -> Type {
        match found {
            Ok(found) => found.optional(),
            Err(misfit) => {
                self.note(misfit, "this is always absent");
                Type::Never.optional()
            }
        }
    }

    /// Notes what may never be reached, or is no error: `then` says what comes of it.
    fn note(&mut self, misfit: Misfit, then: &str) {
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
                    self.note(misfit, NEVER_WORKS);
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

fn without_null(kind: &Type) -> Type {
    match kind {
        Type::Nullable(inner) => inner.as_ref().clone(),
        other => other.clone(),
    }
}

fn text(tree: &Tree) -> Option<&str> {
    match &tree.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// `a.b.c`, where the tree is nothing else.
fn path(tree: &Tree) -> Option<String> {
    match &tree.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Call(CallExpr { func_name, args, target: None }) if func_name == operators::INDEX => {
            match args.as_slice() {
                [operand, key @ Tree { id: 0, .. }] => Some(format!("{}.{}", path(operand)?, text(key)?)),
                _ => None,
            }
        }
        _ => None,
    }
}

fn no_field(shape: &Shape, key: &str, operand: &Tree) -> String {
    let whole = path(operand).unwrap_or_else(|| shape.name.clone());
    let mut known: Vec<String> = shape.fields.keys().take(LISTED).map(|field| format!("`{field}`")).collect();
    if shape.fields.len() > LISTED {
        known.push("…".to_owned());
    }
    let near = shape.fields.keys().find(|field| is_near(field, key));
    let near = near.map(|field| format!(", did you mean `{field}`?")).unwrap_or_default();
    format!("there is no field `{key}` in {whole}{near}; there are {}", known.join(", "))
}

/// Whether one is the other with a letter more, less, or of another case.
fn is_near(a: &str, b: &str) -> bool {
    let (a, b) = (a.to_ascii_lowercase(), b.to_ascii_lowercase());
    let lacks_one = |long: &str, short: &str| {
        long.len() == short.len() + 1
            && long.char_indices().any(|(at, c)| format!("{}{}", &long[..at], &long[at + c.len_utf8()..]) == short)
    };
    a == b || lacks_one(&a, &b) || lacks_one(&b, &a)
}
