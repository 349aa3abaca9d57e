//! What is read of a type: fields, keys and items, with and without a `?`, and `has`.

use super::error::missing;
use super::trial::{Misfit, Walk, text, without_null};
use super::types::{Shape, Type};
use kube_cel::cel::common::ast::{CallExpr, Expr, SelectExpr, operators};
use kube_cel::cel::parser::Expression as Tree;

/// How many fields of an object a message lists.
const LISTED: usize = 16;

impl<'a> Walk<'a> {
    /// `has(x.y)`: no error, whatever `x` is.
    pub(super) fn has(&mut self, id: u64, select: &'a SelectExpr) -> Result<Type, Misfit> {
        let operand = self.of(&select.operand)?;
        if let Type::Object(shape) = without_null(&operand)
            && !shape.fields.contains_key(&select.field)
        {
            self.note(&Misfit { id, message: no_field(&shape, &select.field, &select.operand) }, "this is never true");
        }
        Ok(Type::Bool)
    }

    /// `of[by]` and `of.by`.
    pub(super) fn lookup(&mut self, id: u64, of: &Type, by: &Type, operand: &Tree, key: &Tree) -> Result<Type, Misfit> {
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
    pub(super) fn optional_lookup(
        &mut self,
        id: u64,
        of: &Type,
        by: &Type,
        operand: &Tree,
        key: &Tree,
    ) -> Result<Type, Misfit> {
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
                self.note(&misfit, "this is always absent");
                Type::Never.optional()
            }
        }
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
