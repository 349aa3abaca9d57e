//! What an evaluation holds beside its loops is paid for as well: the library copies every value that becomes part of a
//! list or a map, an operand of `+` or an argument, so that `[x, x, …]` is many times `x`.

use super::functions;
use super::limits::Budget;
use super::loops::{COLLECT, FOLD};
use super::tree::{is_accumulator, is_operator};
use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, operators};
use kube_cel::cel::objects::Value;
use kube_cel::cel::parser::Expression as Tree;
use kube_cel::cel::{Context, ExecutionError, FunctionContext, ResolveResult};

/// `@keep(value)`: the value, paid for.
const KEEP: &str = "@keep";

/// Registers it.
pub(super) fn register(context: &mut Context<'_>) {
    context.add_function(KEEP, keep);
}

fn keep(call: &FunctionContext<'_, '_>) -> ResolveResult {
    let [value] = call.args else {
        return Err(ExecutionError::invalid_argument_count(1, call.args.len()));
    };
    let value = Value::resolve(value, call.ptx)?;
    Budget::hold(call.ptx, &value)?;
    Ok(value)
}

/// The (rewritten) tree in which everything that is kept is paid for.
pub(super) fn paid(mut tree: Tree) -> Tree {
    match &mut tree.expr {
        Expr::Call(call) => pay_call(call),
        Expr::Select(select) => in_place(&mut select.operand, paid),
        Expr::List(list) => list.elements.iter_mut().for_each(|element| in_place(element, |tree| held(paid(tree)))),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    in_place(&mut entry.key, |tree| held(paid(tree)));
                    in_place(&mut entry.value, |tree| held(paid(tree)));
                }
            }
        }
        _ => {}
    }
    tree
}

fn pay_call(call: &mut CallExpr) {
    let is_library = match call.target.as_deref() {
        Some(Tree { expr: Expr::Ident(prefix), .. }) => functions::is_known(&format!("{prefix}.{}", call.func_name)),
        _ => false,
    };
    let is_method = call.target.is_some() && !is_library;
    let nests = call.args.iter().any(calls);
    if let Some(target) = call.target.as_deref_mut().filter(|_| is_method) {
        // It is there already while the arguments are evaluated.
        in_place(target, |tree| if nests { held(paid(tree)) } else { paid(tree) });
    }
    let holds = match call.func_name.as_str() {
        operators::ADD => true,
        name if is_operator(name) => false,
        _ => is_method || call.args.len() > 1,
    };
    for argument in &mut call.args {
        in_place(argument, |tree| if holds { held(paid(tree)) } else { paid(tree) });
    }
}

/// The value of a (paid) tree, paid for where its parts were not.
fn held(mut tree: Tree) -> Tree {
    let is_paid = match &mut tree.expr {
        Expr::Literal(_) | Expr::List(_) | Expr::Map(_) => true,
        Expr::Call(call) if call.func_name == operators::CONDITIONAL => {
            call.args.iter_mut().skip(1).for_each(|branch| in_place(branch, held));
            true
        }
        Expr::Call(call) => match call.func_name.as_str() {
            operators::INDEX | operators::OPT_INDEX | COLLECT | FOLD => false,
            name => is_operator(name),
        },
        _ => is_accumulator(&tree),
    };
    if is_paid {
        return tree;
    }
    let id = tree.id;
    Tree { id, expr: Expr::Call(CallExpr { func_name: KEEP.into(), target: None, args: vec![tree] }) }
}

/// Whether a function is called in it, or a loop made.
fn calls(tree: &Tree) -> bool {
    match &tree.expr {
        Expr::Call(call) => {
            let name = call.func_name.as_str();
            !is_operator(name) || name.starts_with('@') || call.args.iter().any(calls)
        }
        Expr::Select(select) => calls(&select.operand),
        Expr::List(list) => list.elements.iter().any(calls),
        Expr::Map(map) => map.entries.iter().any(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => calls(&entry.key) || calls(&entry.value),
            EntryExpr::StructField(_) => false,
        }),
        _ => false,
    }
}

fn in_place(tree: &mut Tree, change: impl FnOnce(Tree) -> Tree) {
    let before = std::mem::replace(tree, Tree { id: 0, expr: Expr::Unspecified });
    *tree = change(before);
}
