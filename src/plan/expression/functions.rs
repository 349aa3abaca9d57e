//! The functions that expressions have: those of the library, where needed with a bound.

use super::super::http;
use super::limits::MAX_RANGE;
use super::{bounds, keep, loops};
use kube_cel::KubeCelExt;
use kube_cel::cel::extractors::{Arguments, This};
use kube_cel::cel::objects::Value;
use kube_cel::cel::{Context, ExecutionError, ResolveResult};
use std::sync::Arc;

/// The names that a call may have. The library cannot list them; a test compares this list with what it answers.
#[rustfmt::skip]
pub(super) const NAMES: &[&str] = &[
    // CEL itself
    "contains", "size", "max", "min", "startsWith", "endsWith", "matches", "string", "bytes", "double", "int", "uint",
    "duration", "timestamp", "getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek",
    "getHours", "getMinutes", "getSeconds", "getMilliseconds",
    // optionals
    "optional.none", "optional.of", "optional.ofNonZeroValue", "value", "hasValue", "or", "orValue",
    // strings
    "charAt", "indexOf", "lastIndexOf", "lowerAscii", "upperAscii", "replace", "split", "substring", "trim", "join",
    "reverse", "format", "strings.quote", "find", "findAll", "base64.decode", "base64.encode", "jsonpatch.escapeKey",
    // lists
    "isSorted", "sum", "slice", "sort", "flatten", "distinct", "first", "last", "lists.range", "sets.contains",
    "sets.equivalent", "sets.intersects",
    // numbers
    "math.ceil", "math.floor", "math.round", "math.trunc", "math.abs", "math.sign", "math.isInf", "math.isNaN",
    "math.isFinite", "math.bitAnd", "math.bitOr", "math.bitXor", "math.bitNot", "math.bitShiftLeft",
    "math.bitShiftRight", "math.sqrt", "math.greatest", "math.least",
    // URLs
    "url", "isURL", "getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "getQuery",
    "url.encode", "url.raw",
    // IP addresses
    "ip", "isIP", "ip.isCanonical", "family", "isLoopback", "isUnspecified", "isLinkLocalMulticast",
    "isLinkLocalUnicast", "isGlobalUnicast", "isIPv4", "isIPv6", "cidr", "isCIDR", "containsIP", "containsCIDR",
    "prefixLength", "masked", "isCIDRv4", "isCIDRv6",
    // versions and quantities
    "semver", "isSemver", "major", "minor", "patch", "isGreaterThan", "isLessThan", "compareTo", "quantity",
    "isQuantity", "isInteger", "asInteger", "asApproximateFloat", "sign", "add", "sub",
    // formats
    "format.dns1123Label", "format.dns1123Subdomain", "format.dns1035Label", "format.dns1035LabelPrefix",
    "format.dns1123LabelPrefix", "format.dns1123SubdomainPrefix", "format.qualifiedName", "format.labelValue",
    "format.uri", "format.uuid", "format.byte", "format.date", "format.datetime", "format.named", "validate",
];

/// The loops, which the parser knows as macros. They are named here for messages alone.
const LOOPS: &[&str] = &["has", "map", "filter", "all", "exists", "exists_one"];

/// A context with every function and no variable.
pub(crate) fn context() -> Context<'static> {
    let mut context = Context::default().with_all();
    context.add_function("lists.range", range);
    context.add_function("join", join);
    context.add_function("url.encode", |text: Arc<String>| url_encode(&text));
    context.add_function("url.raw", url_raw);
    bounds::register(&mut context);
    keep::register(&mut context);
    loops::register(&mut context);
    context
}

/// Whether `name` may be called.
pub(super) fn is_known(name: &str) -> bool {
    NAMES.contains(&name)
}

/// What to say of the unknown function `name`, to be put after its name.
pub(super) fn near(name: &str) -> String {
    if LOOPS.contains(&name) {
        return " with these arguments: has(x.y), x.map(v, …), x.map(v, condition, …), x.filter(v, …), x.all(v, …), \
                x.exists(v, …), x.exists_one(v, …)"
            .into();
    }
    let same = |known: &&&str| {
        let last = known.rsplit('.').next().unwrap_or(known);
        known.eq_ignore_ascii_case(name) || last.eq_ignore_ascii_case(name.rsplit('.').next().unwrap_or(name))
    };
    match NAMES.iter().find(same) {
        Some(known) => format!("; did you mean `{known}`?"),
        None => "; docs/expressions.md lists them all".into(),
    }
}

/// The library's own makes a list of any length.
fn range(length: i64) -> ResolveResult {
    match length {
        0..=MAX_RANGE => Ok(Value::List(Arc::new((0..length).map(Value::Int).collect()))),
        _ => Err(ExecutionError::function_error("lists.range", format!("the length must be from 0 to {MAX_RANGE}"))),
    }
}

/// For a text that is put into a URL, or a form, by hand.
fn url_encode(text: &str) -> ResolveResult {
    let encoded = text.bytes().filter(|byte| !byte.is_ascii_alphanumeric() && !b"-_.~".contains(byte)).count();
    bounds::may_make("url.encode", text.len() + 2 * encoded)?;
    Ok(Value::String(Arc::new(http::encoded(text))))
}

/// The text as it is; that it was called is what `http.url` looks at.
fn url_raw(text: Arc<String>) -> ResolveResult {
    Ok(Value::String(text))
}

/// The library's own puts `Int(1)` for the number 1.
fn join(This(items): This<Arc<Vec<Value>>>, Arguments(arguments): Arguments) -> ResolveResult {
    let separator = match arguments.first() {
        None => "",
        Some(Value::String(text)) => text.as_str(),
        Some(_) => return Err(ExecutionError::function_error("join", "the separator must be a string")),
    };
    let texts: Option<Vec<&str>> =
        items.iter().map(|item| if let Value::String(t) = item { Some(t.as_str()) } else { None }).collect();
    match texts {
        Some(texts) => {
            let between = separator.len().saturating_mul(texts.len().saturating_sub(1));
            bounds::may_make("join", texts.iter().map(|text| text.len()).fold(between, usize::saturating_add))?;
            Ok(Value::String(Arc::new(texts.join(separator))))
        }
        None => {
            Err(ExecutionError::function_error("join", "every item must be a string: use .map(v, string(v)) first"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_cel::cel::Program;

    #[test]
    fn every_name_is_a_function_of_the_library() {
        let context = context();
        for name in NAMES {
            let answer = Program::compile(&format!("{name}()")).unwrap().execute(&context);
            assert!(!matches!(answer, Err(ExecutionError::UndeclaredReference(_))), "{name}");
        }
    }

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        assert!(near("startswith").contains("`startsWith`"));
        assert!(near("strings.join").contains("`join`"));
        assert!(near("frobnicate").contains("docs/expressions.md"));
    }
}
