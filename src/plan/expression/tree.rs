//! Reads and rewrites the tree that the library's parser makes.
//!
//! Reading finds the free variables, the functions and the selections. Rewriting puts our loops in place of the
//! library's (see `loops`), and mends what its evaluation gets wrong: it takes `x.y` for `false` where `x` is no map,
//! and fails on `x.?y` where `y` is missing. Both become lookups, `x["y"]` and `x[?"y"]`, which it does right.

use super::functions;
use super::limits::MAX_LOOPS;
use super::loops::{ACCUMULATOR, COLLECT, FOLD};
use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue, MapEntryExpr, MapExpr,
    SelectExpr, operators,
};
use kube_cel::cel::parser::Expression as Tree;
use std::collections::BTreeSet;

/// What an expression uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// Variables that it does not bind itself.
    pub variables: BTreeSet<String>,
    /// Functions by the name that they are called with.
    pub functions: BTreeSet<String>,
    /// Selections as they stand in the source: `params.size`.
    pub selections: BTreeSet<String>,
    /// Fields and constant keys that are read of variables: `["steps", "a-b", "out"]` for `steps["a-b"].out`.
    pub reads: BTreeSet<Vec<String>>,
    /// What the tree cannot contain, in words.
    pub refused: Option<String>,
}

impl Uses {
    /// What `tree` uses.
    pub fn of(tree: &Tree) -> Self {
        let mut uses = Uses::default();
        uses.read(tree, &mut Vec::new());
        uses
    }

    fn read<'a>(&mut self, tree: &'a Tree, bound: &mut Vec<&'a str>) {
        if let Some(keys) = keys(tree).filter(|keys| keys.len() > 1 && !bound.contains(&keys[0].as_str())) {
            self.reads.insert(keys);
        }
        match &tree.expr {
            Expr::Unspecified => self.refuse("it is incomplete"),
            Expr::Literal(_) => {}
            Expr::Ident(name) => {
                if !name.starts_with('@') && !bound.contains(&name.as_str()) {
                    self.variables.insert(name.clone());
                }
            }
            Expr::Call(call) => self.read_call(call, bound),
            Expr::Select(select) => {
                if let Some(path) = path(tree) {
                    self.selections.insert(path);
                }
                self.read(&select.operand, bound);
            }
            Expr::List(list) => list.elements.iter().for_each(|element| self.read(element, bound)),
            Expr::Map(map) => {
                for entry in &map.entries {
                    match &entry.expr {
                        EntryExpr::MapEntry(entry) => {
                            self.read(&entry.key, bound);
                            self.read(&entry.value, bound);
                        }
                        EntryExpr::StructField(field) => self.read(&field.value, bound),
                    }
                }
            }
            Expr::Struct(message) => {
                let name = &message.type_name;
                self.refuse(&format!(
                    "`{name}{{…}}` makes a message, which there are none of: write a map, {{\"key\": value}}"
                ));
            }
            Expr::Comprehension(comprehension) => self.read_loop(comprehension, bound),
        }
    }

    fn read_call<'a>(&mut self, call: &'a CallExpr, bound: &mut Vec<&'a str>) {
        let mut name = call.func_name.clone();
        let mut target = call.target.as_deref();
        if let Some(Expr::Ident(prefix)) = target.map(|tree| &tree.expr) {
            let whole = format!("{prefix}.{name}");
            if functions::is_known(&whole)
                || !functions::is_known(&name)
                    && !bound.contains(&prefix.as_str())
                    && LIBRARIES.contains(&prefix.as_str())
            {
                (name, target) = (whole, None);
            }
        }
        if !is_operator(&name) {
            self.functions.insert(name);
        }
        if let Some(target) = target {
            self.read(target, bound);
        }
        call.args.iter().for_each(|argument| self.read(argument, bound));
    }

    fn read_loop<'a>(&mut self, comprehension: &'a ComprehensionExpr, bound: &mut Vec<&'a str>) {
        self.read(&comprehension.iter_range, bound);
        self.read(&comprehension.accu_init, bound);
        bound.push(&comprehension.iter_var);
        if bound.len() > MAX_LOOPS {
            self.refuse(&format!("loops nest deeper than {MAX_LOOPS}: split the expression"));
        } else {
            self.read(&comprehension.loop_cond, bound);
            self.read(&comprehension.loop_step, bound);
            self.read(&comprehension.result, bound);
        }
        bound.pop();
    }

    fn refuse(&mut self, why: &str) {
        self.refused.get_or_insert_with(|| why.to_owned());
    }
}

/// The prefixes of functions; `math.foo()` is an unknown function, not a method of an unknown variable `math`.
const LIBRARIES: [&str; 10] =
    ["math", "sets", "lists", "strings", "format", "base64", "jsonpatch", "optional", "ip", "url"];

/// The function whose call the whole tree is, with its prefix.
pub(super) fn called(tree: &Tree) -> Option<String> {
    let Expr::Call(CallExpr { func_name, target, .. }) = &tree.expr else { return None };
    match target.as_deref().map(|target| &target.expr) {
        None => Some(func_name.clone()),
        Some(Expr::Ident(prefix)) => Some(format!("{prefix}.{func_name}")),
        Some(_) => None,
    }
}

pub(super) fn is_operator(name: &str) -> bool {
    name.starts_with('@') || name.contains(['_', '!', '-']) && !name.contains(|c: char| c.is_ascii_alphanumeric())
}

/// `a.b.c` as it stands in the source, if the tree is a selection from a name.
fn path(tree: &Tree) -> Option<String> {
    match &tree.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(SelectExpr { operand, field, .. }) => Some(format!("{}.{field}", path(operand)?)),
        _ => None,
    }
}

/// The variable and the fields and constant keys that the tree reads of it, if it is nothing else.
fn keys(tree: &Tree) -> Option<Vec<String>> {
    let (operand, key) = match &tree.expr {
        Expr::Ident(name) => return Some(vec![name.clone()]),
        Expr::Select(SelectExpr { operand, field, .. }) => (operand.as_ref(), field.trim_matches('`')),
        Expr::Call(CallExpr { func_name, args, target: None })
            if [operators::INDEX, operators::OPT_INDEX, operators::OPT_SELECT].contains(&func_name.as_str()) =>
        {
            let [operand, Tree { expr: Expr::Literal(LiteralValue::String(key)), .. }] = args.as_slice() else {
                return None;
            };
            (operand, key.as_ref())
        }
        _ => return None,
    };
    let mut keys = keys(operand)?;
    keys.push(key.to_owned());
    Some(keys)
}

/// The tree that is evaluated in place of `tree`.
pub(super) fn rewritten(tree: Tree) -> Tree {
    let Tree { id, expr } = tree;
    let expr = match expr {
        Expr::Call(CallExpr { func_name, args, .. }) if func_name == operators::OPT_SELECT => {
            // Only what stands in brackets in the source has a key with an id, see `places`.
            let without_id = |(at, tree): (usize, Tree)| if at == 0 { rewritten(tree) } else { Tree { id: 0, ..tree } };
            let args = args.into_iter().enumerate().map(without_id).collect();
            call(operators::OPT_INDEX, args).expr
        }
        Expr::Call(CallExpr { func_name, target, args }) => Expr::Call(CallExpr {
            func_name,
            target: target.map(|target| Box::new(rewritten(*target))),
            args: args.into_iter().map(rewritten).collect(),
        }),
        Expr::Select(SelectExpr { operand, field, test }) => selection(rewritten(*operand), &field, test),
        Expr::List(ListExpr { elements, optional_indices }) => {
            Expr::List(ListExpr { elements: elements.into_iter().map(rewritten).collect(), optional_indices })
        }
        Expr::Map(MapExpr { entries }) => {
            Expr::Map(MapExpr { entries: entries.into_iter().map(rewritten_entry).collect() })
        }
        Expr::Comprehension(comprehension) => looped(*comprehension),
        other => other,
    };
    Tree { id, expr }
}

fn rewritten_entry(entry: IdedEntryExpr) -> IdedEntryExpr {
    let expr = match entry.expr {
        EntryExpr::MapEntry(MapEntryExpr { key, value, optional }) => {
            EntryExpr::MapEntry(MapEntryExpr { key: rewritten(key), value: rewritten(value), optional })
        }
        other => other,
    };
    IdedEntryExpr { id: entry.id, expr }
}

fn selection(operand: Tree, field: &str, test: bool) -> Expr {
    let field = field.trim_matches('`');
    let optional = is_optional(&operand);
    if test && !optional {
        return Expr::Select(SelectExpr { operand: Box::new(operand), field: field.to_owned(), test });
    }
    let lookup = call(operators::INDEX, vec![operand, text(field)]);
    if test {
        return Expr::Call(CallExpr { func_name: "hasValue".into(), target: Some(Box::new(lookup)), args: Vec::new() });
    }
    lookup.expr
}

/// Whether a (rewritten) lookup gives an optional because a `?` stands further left.
fn is_optional(tree: &Tree) -> bool {
    match &tree.expr {
        Expr::Call(call) if call.func_name == operators::OPT_INDEX => true,
        Expr::Call(call) if call.func_name == operators::INDEX => call.args.first().is_some_and(is_optional),
        _ => false,
    }
}

fn looped(comprehension: ComprehensionExpr) -> Expr {
    let ComprehensionExpr { iter_range, iter_var, accu_init, loop_cond, loop_step, result, .. } = comprehension;
    let range = rewritten(iter_range);
    let makes_list = matches!(&accu_init.expr, Expr::List(list) if list.elements.is_empty());
    let collected = if makes_list { collected(&loop_step) } else { None };
    let arguments = match collected {
        Some((condition, value)) => {
            let condition =
                condition.map_or_else(|| literal(LiteralValue::Boolean(true.into())), |tree| rewritten(tree.clone()));
            return call(COLLECT, vec![range, text(&iter_var), condition, rewritten(value.clone())]).expr;
        }
        None => vec![
            range,
            text(&iter_var),
            rewritten(accu_init),
            rewritten(loop_cond),
            rewritten(loop_step),
            rewritten(result),
        ],
    };
    call(FOLD, arguments).expr
}

/// The condition and the value of a step that `map` or `filter` was expanded to: `@result + [value]`, or
/// `condition ? @result + [value] : @result`.
fn collected(step: &Tree) -> Option<(Option<&Tree>, &Tree)> {
    let Expr::Call(CallExpr { func_name, args, .. }) = &step.expr else { return None };
    match (func_name.as_str(), args.as_slice()) {
        (operators::ADD, [before, added]) if is_accumulator(before) => match &added.expr {
            Expr::List(list) => list.elements.first().map(|value| (None, value)),
            _ => None,
        },
        (operators::CONDITIONAL, [condition, then, otherwise]) if is_accumulator(otherwise) => {
            collected(then).map(|(_, value)| (Some(condition), value))
        }
        _ => None,
    }
}

pub(super) fn is_accumulator(tree: &Tree) -> bool {
    matches!(&tree.expr, Expr::Ident(name) if name == ACCUMULATOR)
}

fn call(name: &str, args: Vec<Tree>) -> Tree {
    Tree { id: 0, expr: Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }) }
}

fn text(value: &str) -> Tree {
    literal(LiteralValue::String(value.into()))
}

fn literal(value: LiteralValue) -> Tree {
    Tree { id: 0, expr: Expr::Literal(value) }
}
