//! The loops of expressions: `map`, `filter`, `all`, `exists`, `exists_one`.
//!
//! The library copies the whole result in every round and goes through a map in an order that changes from one
//! evaluation to the next. Here a result grows in place, a map's keys come sorted, and every round is paid for.

use super::error::type_name;
use super::limits::Budget;
use kube_cel::cel::common::ast::{Expr, LiteralValue};
use kube_cel::cel::objects::Value;
use kube_cel::cel::parser::Expression as Tree;
use kube_cel::cel::{Context, ExecutionError, FunctionContext, ResolveResult};
use std::sync::Arc;

/// `@collect(range, "variable", condition, value)`: the list of the values of those items that fulfil the condition.
pub(super) const COLLECT: &str = "@collect";
/// `@fold(range, "variable", first, goOn, next, result)`: the library's own form of every other loop.
pub(super) const FOLD: &str = "@fold";
/// The variable that a fold keeps its value in; the library's macros write it.
pub(super) const ACCUMULATOR: &str = "@result";

/// Registers both.
pub(super) fn register(context: &mut Context<'_>) {
    context.add_function(COLLECT, collect);
    context.add_function(FOLD, fold);
}

fn collect(call: &FunctionContext<'_, '_>) -> ResolveResult {
    let [range, variable, condition, value] = call.args else {
        return Err(ExecutionError::invalid_argument_count(4, call.args.len()));
    };
    let variable = name(variable)?;
    let mut inner = call.ptx.new_inner_scope();
    let mut collected = Vec::new();
    for item in items(range, call.ptx)? {
        Budget::spend(call.ptx, &item)?;
        inner.add_variable_from_value(variable, item);
        if is_true(condition, &inner)? {
            let value = Value::resolve(value, &inner)?;
            Budget::spend(call.ptx, &value)?;
            collected.push(value);
        }
    }
    Ok(Value::List(Arc::new(collected)))
}

fn fold(call: &FunctionContext<'_, '_>) -> ResolveResult {
    let [range, variable, first, go_on, next, result] = call.args else {
        return Err(ExecutionError::invalid_argument_count(6, call.args.len()));
    };
    let variable = name(variable)?;
    let mut inner = call.ptx.new_inner_scope();
    inner.add_variable_from_value(ACCUMULATOR, Value::resolve(first, call.ptx)?);
    for item in items(range, call.ptx)? {
        if !is_true(go_on, &inner)? {
            break;
        }
        Budget::spend(call.ptx, &item)?;
        inner.add_variable_from_value(variable, item);
        let value = Value::resolve(next, &inner)?;
        inner.add_variable_from_value(ACCUMULATOR, value);
    }
    Value::resolve(result, &inner)
}

/// The items of a list, or the keys of a map in their order.
fn items(range: &Tree, context: &Context<'_>) -> Result<Vec<Value>, ExecutionError> {
    match Value::resolve(range, context)? {
        Value::List(items) => Ok(Arc::unwrap_or_clone(items)),
        Value::Map(map) => {
            let mut keys: Vec<_> = map.map.keys().collect();
            keys.sort();
            Ok(keys.into_iter().map(Value::from).collect())
        }
        other => {
            let message = format!("{} cannot be looped over: it must be a list or a map", type_name(&other));
            Err(ExecutionError::function_error(COLLECT, message))
        }
    }
}

fn is_true(condition: &Tree, context: &Context<'_>) -> Result<bool, ExecutionError> {
    match Value::resolve(condition, context)? {
        Value::Bool(answer) => Ok(answer),
        other => {
            let message = format!("a loop's condition must be true or false, it is {}", type_name(&other));
            Err(ExecutionError::function_error(COLLECT, message))
        }
    }
}

fn name(argument: &Tree) -> Result<&str, ExecutionError> {
    match &argument.expr {
        Expr::Literal(LiteralValue::String(name)) => Ok(name.inner()),
        _ => Err(ExecutionError::function_error(COLLECT, "a loop has no variable")),
    }
}
