//! What a function of the library may make, and how long it may compare: some multiply what they are given, and none
//! looks at a clock. A bound is checked before the library is called.

use super::limits::{Budget, size};
use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, Expr};
use kube_cel::cel::objects::Value;
use kube_cel::cel::parser::Expression as Tree;
use kube_cel::cel::{Context, ExecutionError, FunctionContext, ResolveResult};
use std::sync::LazyLock;

/// The longest string that a function may make, in bytes.
pub const MAX_TEXT: usize = 1024 * 1024;
/// The longest list that `split` may make, in items.
pub const MAX_ITEMS: usize = 100_000;
/// As many items may `distinct` and `sets.*` be given, which compare each with each.
pub const MAX_COMPARED: usize = 4_000;
/// As many bytes may the items of `distinct` and `sets.*` have.
pub const MAX_COMPARED_SIZE: usize = 512 * 1024;
/// The longest text that `findAll` may be given, in bytes: it may start anew at every one of them.
pub const MAX_FIND_ALL: usize = 64 * 1024;
/// What a search may cost: the length of the text times that of what is searched for, a pattern's `{…}` counted out.
pub const MAX_SEARCH: usize = 256 * 1024 * 1024;

/// The functions that are bounded here; `join` and `lists.range` bound themselves.
const BOUNDED: &[&str] = &[
    "replace",
    "split",
    "format",
    "strings.quote",
    "jsonpatch.escapeKey",
    "base64.encode",
    "distinct",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "indexOf",
    "lastIndexOf",
    "matches",
    "find",
    "findAll",
];

/// The library as it is.
static LIBRARY: LazyLock<Context<'static>> = LazyLock::new(|| Context::default().with_all());

/// Puts the bounded functions in place of the library's.
pub(super) fn register(context: &mut Context<'_>) {
    for name in BOUNDED {
        add(context, name, move |call| bounded(name, call));
    }
}

/// The compiler sees what the closure takes by this signature alone.
fn add<F>(context: &mut Context<'_>, name: &str, function: F)
where
    F: Fn(&FunctionContext<'_, '_>) -> ResolveResult + Send + Sync + 'static,
{
    context.add_function(name, function);
}

fn bounded(name: &str, call: &FunctionContext<'_, '_>) -> ResolveResult {
    let mut operands: Vec<Value> = call.this.iter().cloned().collect();
    for argument in call.args {
        operands.push(Value::resolve(argument, call.ptx)?);
    }
    Budget::go_on(call.ptx)?;
    check(name, &operands)?;
    let mut scope = LIBRARY.new_inner_scope();
    let variable = |at: usize| format!("@{at}");
    let operand = |at: usize| Tree { id: 0, expr: Expr::Ident(variable(at)) };
    let first = usize::from(call.this.is_some());
    let target = call.this.is_some().then(|| Box::new(operand(0)));
    let args = (first..operands.len()).map(operand).collect();
    for (at, value) in operands.into_iter().enumerate() {
        scope.add_variable_from_value(variable(at), value);
    }
    let tree = Tree { id: 0, expr: Expr::Call(CallExpr { func_name: name.to_owned(), target, args }) };
    Value::resolve(&tree, &scope)
}

/// Whether the function may be called; operands of types that it does not take are left to the library.
fn check(name: &str, operands: &[Value]) -> Result<(), ExecutionError> {
    match (name, operands) {
        ("replace", [Value::String(text), Value::String(from), Value::String(to), rest @ ..]) => {
            let found = count(text, from, rest.first(), usize::MAX);
            may_make(name, (text.len() - found * from.len()).saturating_add(found.saturating_mul(to.len())))
        }
        ("split", [Value::String(text), Value::String(separator), rest @ ..]) => {
            let items = count(text, separator, rest.first(), usize::MAX).saturating_add(1);
            at_most(name, "would give a list of", items, MAX_ITEMS, "items")
        }
        ("format", [Value::String(template), Value::List(arguments)]) => {
            let printed = arguments.iter().map(printed).fold(0, usize::saturating_add);
            may_make(name, template.len().saturating_add(printed).saturating_add(precisions(template)))
        }
        ("strings.quote", [Value::String(text)]) => {
            let escaped = |byte: &u8| matches!(byte, b'\\' | b'"' | 0x07..=0x0d);
            may_make(name, text.len() + 2 + text.bytes().filter(|byte| escaped(byte)).count())
        }
        ("jsonpatch.escapeKey", [Value::String(text)]) => {
            may_make(name, text.len() + text.bytes().filter(|byte| matches!(byte, b'~' | b'/')).count())
        }
        ("base64.encode", [Value::Bytes(bytes)]) => may_make(name, bytes.len().div_ceil(3) * 4),
        ("distinct", [list @ Value::List(items)]) => compared(name, items.len(), list),
        ("sets.contains" | "sets.equivalent" | "sets.intersects", [a @ Value::List(left), b @ Value::List(right)]) => {
            let items = left.len().max(right.len());
            compared(name, items, if size(a) > size(b) { a } else { b })
        }
        ("indexOf" | "lastIndexOf", [Value::String(text), Value::String(sought), ..]) => {
            may_search(name, text.len(), sought.len())
        }
        ("matches" | "find", [Value::String(text), Value::String(pattern)]) => {
            may_search(name, text.len(), weight(pattern))
        }
        ("findAll", [Value::String(text), Value::String(pattern), ..]) => {
            at_most(name, "is given a text of", text.len(), MAX_FIND_ALL, "bytes")?;
            may_search(name, text.len(), weight(pattern))
        }
        _ => Ok(()),
    }
}

/// An error where `function` would make more than [`MAX_TEXT`] bytes.
pub(super) fn may_make(function: &str, bytes: usize) -> Result<(), ExecutionError> {
    at_most(function, "would give a string of up to", bytes, MAX_TEXT, "bytes")
}

fn compared(function: &str, items: usize, list: &Value) -> Result<(), ExecutionError> {
    at_most(function, "is given a list of", items, MAX_COMPARED, "items")?;
    at_most(function, "is given a list of", size(list), MAX_COMPARED_SIZE, "bytes")
}

fn may_search(function: &str, text: usize, sought: usize) -> Result<(), ExecutionError> {
    if text.saturating_mul(sought) <= MAX_SEARCH {
        return Ok(());
    }
    let most = MAX_SEARCH / sought.max(1);
    at_most(function, "is given a text that is too long for what it searches:", text, most, "bytes")
}

/// The error names sizes alone, no value: it may be shown whatever the values are.
fn at_most(function: &str, what: &str, got: usize, most: usize, unit: &str) -> Result<(), ExecutionError> {
    if got <= most {
        return Ok(());
    }
    let message = format!("{function}() {what} {got} {unit}, {most} at most are allowed");
    Err(ExecutionError::function_error("@bound", message))
}

/// How often `sought` is in `text`, counted up to what the function's last argument allows.
fn count(text: &str, sought: &str, limit: Option<&Value>, most: usize) -> usize {
    let limit = match limit {
        Some(Value::Int(limit)) if *limit >= 0 => usize::try_from(*limit).unwrap_or(most),
        _ => most,
    };
    text.matches(sought).take(limit).count()
}

/// At most so many bytes has `value` in what `format` makes.
fn printed(value: &Value) -> usize {
    match value {
        // The largest number in full, and the longest in binary.
        Value::Float(_) => 330,
        Value::Int(_) | Value::UInt(_) => 66,
        // In hexadecimal, or what is no text shown as a character of three bytes.
        Value::String(text) => 2 * text.len() + 2,
        Value::Bytes(bytes) => 3 * bytes.len() + 2,
        Value::List(items) => items.iter().map(|item| 2 + printed(item)).sum::<usize>() + 2,
        Value::Map(map) => {
            map.map.iter().map(|(key, value)| 4 + printed(&Value::from(key)) + printed(value)).sum::<usize>() + 2
        }
        _ => 64,
    }
}

/// The sum of the precisions that a template asks for: `%.3f`.
fn precisions(template: &str) -> usize {
    let precision = |part: &str| {
        let digits = part.strip_prefix('.').unwrap_or_default();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        number(&digits[..end])
    };
    template.split('%').skip(1).map(precision).fold(0, usize::saturating_add)
}

/// The length of `pattern` with its repetitions counted out, as the library's automaton has them. Each multiplies the
/// whole: which part it repeats is not looked for.
fn weight(pattern: &str) -> usize {
    let repeated = pattern.split('{').skip(1).filter_map(|part| part.split_once('}')).map(|(counts, _)| {
        let numbers = counts.split(',').map(str::trim).filter(|count| count.bytes().all(|byte| byte.is_ascii_digit()));
        numbers.map(number).max().unwrap_or(1).max(1)
    });
    repeated.fold(pattern.len(), usize::saturating_mul)
}

/// What is no number is none, what is too large is the largest.
fn number(digits: &str) -> usize {
    if digits.is_empty() { 0 } else { digits.parse().unwrap_or(usize::MAX) }
}

#[cfg(test)]
mod tests {
    use super::super::super::specimen::update;
    use super::super::Expression;
    use rstest::rstest;
    use serde_json::{Value as Json, json};
    use std::time::{Duration, Instant};

    fn evaluated(source: &str, item: &Json) -> Result<Json, String> {
        let scope = update().with("x", item).unwrap();
        Expression::parse(source).unwrap().evaluate(&scope).map_err(|error| error.to_string())
    }

    /// What is refused is refused at once: it was not begun.
    #[rstest]
    #[case(&format!("[lists.range(10000).map(x, '').join('{}')].map(s, lists.range(60).map(x, '').join(s)).size() > 5", "x".repeat(3500)), json!(1), "join() would give")]
    #[case("lists.range(1100).map(i, '').join(x)", json!("a".repeat(1000)), "join() would give a string of up to 1099000 bytes, 1048576 at most")]
    #[case("x.replace('a', 'aaaaaaaaaaaa')", json!("a".repeat(100_000)), "replace() would give a string of up to 1200000 bytes")]
    #[case("x.replace('', 'aaaaaaaaaaaa')", json!("a".repeat(100_000)), "replace() would give")]
    #[case("x.split('')", json!("a".repeat(100_000)), "split() would give a list of 100002 items, 100000 at most")]
    #[case("'%s%s%s'.format([x, x, x])", json!("a".repeat(200_000)), "format() would give")]
    #[case("x.format(lists.range(40).map(i, 1.0))", json!("%.60000f".repeat(40)), "format() would give")]
    #[case("'%.99999999f'.format([1.0])", json!(1), "format() would give")]
    #[case("strings.quote(strings.quote(x))", json!("\"".repeat(300_000)), "strings.quote() would give")]
    #[case("jsonpatch.escapeKey(x)", json!("~".repeat(600_000)), "jsonpatch.escapeKey() would give")]
    #[case("base64.encode(bytes(x))", json!("a".repeat(900_000)), "base64.encode() would give")]
    #[case("url.encode(x)", json!("/".repeat(400_000)), "url.encode() would give a string of up to 1200000 bytes")]
    #[case("lists.range(5).map(i, lists.range(1000).map(j, i*1000+j)).flatten().distinct().size() > 5", json!(1), "distinct() is given a list of 5000 items, 4000 at most")]
    #[case("lists.range(4001).distinct()", json!(1), "distinct() is given a list of 4001 items")]
    #[case("x.distinct()", json!(["a".repeat(600_000)]), "distinct() is given a list of 600")]
    #[case("sets.contains(lists.range(4001), [1])", json!(1), "sets.contains() is given")]
    #[case("sets.equivalent(lists.range(4001), [1])", json!(1), "sets.equivalent() is given")]
    #[case("sets.intersects([1], lists.range(4001))", json!(1), "sets.intersects() is given")]
    #[case("x.indexOf(x.substring(100000))", json!("a".repeat(200_000)), "indexOf() is given a text")]
    #[case("x.lastIndexOf(x.substring(100000))", json!("a".repeat(200_000)), "lastIndexOf() is given a text")]
    #[case("x.matches('(.{1,1000}){1,100}b')", json!("a".repeat(200_000)), "matches() is given a text")]
    #[case("x.find('(.{1,1000}){1,100}b')", json!("a".repeat(200_000)), "find() is given a text")]
    #[case("x.findAll('.*b|a')", json!("a".repeat(70_000)), "findAll() is given a text of 70000 bytes, 65536 at most")]
    #[case("x.findAll('(.{1,1000}){1,100}b')", json!("a".repeat(60_000)), "findAll() is given a text")]
    // the parts of lists and maps, operands of + and arguments are paid for before there is too much of them
    #[case(&format!("[{}].size()", vec!["x"; 1000].join(",")), json!("a".repeat(1_000_000)), "more than 128 MiB")]
    #[case(&format!("[{}].size()", vec!["{'a': x}"; 300].join(",")), json!("a".repeat(1_000_000)), "more than 128 MiB")]
    #[case(&format!("({}).size()", vec!["x"; 100].join("+")), json!("a".repeat(1_900_000)), "more than 128 MiB")]
    #[case(&format!("max({})", vec!["x"; 1000].join(",")), json!("a".repeat(1_000_000)), "more than 128 MiB")]
    #[case(&format!("[x]{}.size()", ".map(a, a + a)".repeat(20)), json!("a".repeat(100_000)), "more than 128 MiB")]
    #[case(&format!("[[1]]{}.size()", ".map(a, [a, a])".repeat(40)), json!(1), "more than 128 MiB")]
    fn what_multiplies_is_bounded(#[case] source: &str, #[case] item: Json, #[case] expected: &str) {
        let started = Instant::now();
        let message = evaluated(source, &item).unwrap_err();
        // A busy machine may take too long to make as much as is allowed.
        let is_late = expected == "more than 128 MiB" && message.contains("took longer than");
        assert!(message.contains(expected) || is_late, "{message}");
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }

    #[rstest]
    #[case("x.replace('a', 'bb', 2).size()", json!("a".repeat(900_000)), json!(900_002))]
    #[case("x.split('', 2).size()", json!("a".repeat(200_000)), json!(2))]
    #[case("lists.range(2000).distinct().size()", json!(1), json!(2000))]
    #[case("lists.range(10000).sum()", json!(1), json!(49_995_000))]
    #[case("x.contains('b')", json!("a".repeat(1_000_000)), json!(false))]
    #[case("x.matches('^[a-z]{1,63}$')", json!("a".repeat(63)), json!(true))]
    #[case("x.indexOf('needle')", json!("a".repeat(100_000)), json!(-1))]
    #[case("[x, ?optional.none(), x].size()", json!("a"), json!(2))]
    #[case("{'a': x, ?'b': optional.of(x), x: 1}", json!("k"), json!({"a": "k", "b": "k", "k": 1}))]
    fn what_is_usual_is_not(#[case] source: &str, #[case] item: Json, #[case] expected: Json) {
        assert_eq!(evaluated(source, &item), Ok(expected));
    }

    #[test]
    fn a_cancelled_evaluation_calls_no_slow_function() {
        let cancel = super::super::Cancel::default();
        cancel.cancel();
        let error = Expression::parse("[1].distinct()").unwrap().evaluate_until(&update(), &cancel).unwrap_err();
        assert!(error.to_string().contains("its time is up"), "{error}");
    }
}
