//! Where the parts of a tree stand in its source. The library's parser knows, but does not tell.
//!
//! The operators, the names after a dot and the names before a bracket stand in the source in the order in which a
//! walk through the tree meets them, so the two are laid beside each other. What a macro adds to the tree is left out.

use super::calls::symbol;
use super::loops::{COLLECT, FOLD};
use super::tokens::{Kind, Token, tokens};
use super::tree::is_accumulator;
use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, operators};
use kube_cel::cel::parser::Expression as Tree;
use std::collections::HashMap;

const LOOPS: [&str; 5] = ["map", "filter", "all", "exists", "exists_one"];

/// The byte of `source` at which each part of its (rewritten) tree is to be shown, by the part's id.
pub(super) fn places(tree: &Tree, source: &str) -> HashMap<u64, usize> {
    let mut found = Vec::new();
    marks(tree, &mut found);
    let signs = signs(source);
    let (mut places, mut from) = (HashMap::new(), 0);
    for (id, mark) in found {
        let fits = |token: &Token<'_>| match mark {
            Mark::Text(text) => token.text.trim_matches('`') == text,
            Mark::Loop => LOOPS.contains(&token.text),
        };
        if let Some(at) = signs[from..].iter().position(fits) {
            places.insert(id, signs[from + at].start);
            from += at + 1;
        }
    }
    places
}

/// What stands in the source for a part of the tree.
#[derive(Clone, Copy)]
enum Mark<'a> {
    Text(&'a str),
    /// The name of any loop.
    Loop,
}

/// The tokens that can be a mark.
fn signs(source: &str) -> Vec<Token<'_>> {
    let all: Vec<Token<'_>> = tokens(source).collect();
    let is_sign = |at: usize| {
        let token = &all[at];
        let before = at.checked_sub(1).map(|at| &all[at]);
        match (token.kind, token.text) {
            (Kind::Word, "in") => true,
            (Kind::Word, _) => {
                let optional = before.is_some_and(|token| token.text == "?")
                    && at.checked_sub(2).is_some_and(|at| all[at].text == ".");
                optional
                    || before.is_some_and(|token| token.text == ".")
                    || all.get(at + 1).is_some_and(|token| token.text == "(")
            }
            (Kind::Sign, "-" | "[" | "?") => before.is_some_and(Token::ends_operand),
            (Kind::Sign, _) => true,
            _ => false,
        }
    };
    (0..all.len()).filter(|at| is_sign(*at)).map(|at| all[at]).collect()
}

fn marks<'a>(tree: &'a Tree, found: &mut Vec<(u64, Mark<'a>)>) {
    match &tree.expr {
        Expr::Call(call) if call.func_name == COLLECT => {
            if let [range, _, condition, value] = call.args.as_slice() {
                marks(range, found);
                found.push((tree.id, Mark::Loop));
                marks(condition, found);
                marks(value, found);
            }
        }
        Expr::Call(call) if call.func_name == FOLD => {
            if let [range, _, _, _, next, _] = call.args.as_slice() {
                marks(range, found);
                found.push((tree.id, Mark::Loop));
                fold_body(next, found);
            }
        }
        Expr::Call(call) => call_marks(tree.id, call, found),
        Expr::Select(select) => {
            marks(&select.operand, found);
            found.push((tree.id, Mark::Text(&select.field)));
        }
        Expr::List(list) => list.elements.iter().for_each(|element| marks(element, found)),
        Expr::Map(map) => {
            for entry in &map.entries {
                if let EntryExpr::MapEntry(entry) = &entry.expr {
                    marks(&entry.key, found);
                    marks(&entry.value, found);
                }
            }
        }
        _ => {}
    }
}

/// What the user wrote of a fold's step: the condition beside the macro's own `@result`.
fn fold_body<'a>(step: &'a Tree, found: &mut Vec<(u64, Mark<'a>)>) {
    if let Expr::Call(call) = &step.expr
        && let Some(written) = call.args.iter().find(|argument| !is_accumulator(argument))
    {
        marks(written, found);
    }
}

fn call_marks<'a>(id: u64, call: &'a CallExpr, found: &mut Vec<(u64, Mark<'a>)>) {
    let is_lookup = [operators::INDEX, operators::OPT_INDEX].contains(&call.func_name.as_str());
    match (symbol(&call.func_name), call.args.as_slice()) {
        // A selection, written as a lookup.
        (Some(_), [operand, Tree { id: 0, expr: Expr::Literal(LiteralValue::String(key)) }]) if is_lookup => {
            marks(operand, found);
            found.push((id, Mark::Text(key.inner())));
        }
        // The library makes a number of a minus before it.
        (Some("-"), [operand]) => marks(operand, found),
        (Some(symbol), [operand]) => {
            found.push((id, Mark::Text(symbol)));
            marks(operand, found);
        }
        (Some(symbol), [first, rest @ ..]) => {
            marks(first, found);
            found.push((id, Mark::Text(symbol)));
            rest.iter().for_each(|argument| marks(argument, found));
        }
        _ => {
            if let Some(target) = &call.target {
                marks(target, found);
            }
            found.push((id, Mark::Text(&call.func_name)));
            call.args.iter().for_each(|argument| marks(argument, found));
        }
    }
}
