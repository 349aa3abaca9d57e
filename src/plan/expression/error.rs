//! What can be wrong with an expression, in words for whoever wrote it.
//!
//! The library's own messages print whole values, and a step's outputs are secrets: only types and names are taken
//! from them.

use super::limits;
use super::place::Place;
use kube_cel::cel::ExecutionError;
use kube_cel::cel::objects::Value;
use std::fmt::Write;

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    #[error("the expression is empty: give one, or leave the field out")]
    Empty,
    #[error("the expression has {length} bytes, {} at most are allowed: split it", super::MAX_SOURCE)]
    TooLong { length: usize },
    #[error("line {}, column {}: {message}\n{place}", place.line, place.column)]
    Syntax { place: Place, message: String },
    #[error("line {}, column {}: there is no variable `{name}` here; there are {known}\n{place}", place.line, place.column)]
    UnknownVariable { name: String, known: String, place: Place },
    #[error("line {}, column {}: there is no function `{name}`{near}\n{place}", place.line, place.column)]
    UnknownFunction { name: String, near: String, place: Place },
    #[error("`{expression}`: {message}")]
    Evaluation { expression: String, message: String },
    #[error("`{expression}` gives {got}, but {wanted} is needed here")]
    WrongType { expression: String, wanted: &'static str, got: &'static str },
    #[error("`{expression}` gives {length} bytes of JSON, {} at most are allowed: select less", limits::MAX_OUTPUT)]
    OutputTooLarge { expression: String, length: usize },
    #[error("`{expression}` took longer than {} s: make it do less", limits::TIME.as_secs())]
    TooSlow { expression: String },
    #[error("`{expression}`: the evaluation broke down: {message}; please report it")]
    Broken { expression: String, message: String },
}

/// `source` as it stands in a message: on one line, cut where it is long.
pub(crate) fn quoted(source: &str) -> String {
    const SHOWN: usize = 160;
    let line = source.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// What happened, without any value. `path_of` finds the selection in the source that reads a key. The functions' own
/// messages quote what they were given, so they are left out where that may be `secret`.
pub(super) fn explain(
    error: &ExecutionError,
    source: &str,
    secret: bool,
    path_of: impl Fn(&str) -> Option<String>,
) -> String {
    use ExecutionError as E;
    match error {
        E::NoSuchKey(key) if !source.contains(key.as_str()) => {
            "a map has no such key: test with `in`, or give a default with [?…].orValue(…)".into()
        }
        E::NoSuchKey(key) => missing(key, path_of(key).as_deref()),
        E::UndeclaredReference(name) => format!("there is no variable or function `{name}` here"),
        E::NoSuchOverload => {
            "the types do not fit: an operator or function cannot take its operands, or a field of null, \
             a string or a number is read (is something null that you compare or select from?)"
                .into()
        }
        E::UnsupportedBinaryOperator(operator, left, right) => {
            format!("cannot {operator} {} and {}", type_name(left), type_name(right))
        }
        E::UnsupportedUnaryOperator(operator, value) => format!("cannot {operator} {}", type_name(value)),
        E::ValuesNotComparable(left, right) => {
            format!(
                "{} cannot be compared to {}: convert one, for example with int(…)",
                type_name(left),
                type_name(right)
            )
        }
        E::UnsupportedTargetType { target } => format!("the function cannot be called on {}", type_name(target)),
        E::NotSupportedAsMethod { method, target } => format!("`{method}` cannot be called on {}", type_name(target)),
        E::UnsupportedKeyType(value) => format!("{} cannot be the key of a map", type_name(value)),
        E::UnsupportedMapIndex(value) => format!("{} is not a key of a map", type_name(value)),
        E::UnsupportedListIndex(value) => format!("{} is not an index of a list: use a whole number", type_name(value)),
        E::UnsupportedIndex(index, value) => {
            format!("{} cannot be looked up in {}", type_name(index), type_name(value))
        }
        E::IndexOutOfBounds(_) => "the list has no item at this index: test its size() first".into(),
        E::DivisionByZero(_) | E::RemainderByZero(_) => "a number is divided by zero: test the divisor first".into(),
        E::Overflow(operator, ..) => format!("the result of {operator} is too large"),
        E::InvalidArgumentCount { expected, actual } => {
            format!("a function is given {actual} arguments, it takes {expected}")
        }
        E::MissingArgumentOrTarget => {
            "a function is called without its argument, or with what is not there: test that with has(…) first".into()
        }
        E::UnexpectedType { got, want } => format!("{} is given where {want} is needed", without_values(got)),
        E::FunctionError { function, message } if function.starts_with('@') => without_values(message),
        E::FunctionError { function, .. } if secret => format!("{function}() cannot take what it is given"),
        // The library's own words for what it could not read are those of its parser.
        E::FunctionError { function, message } if message.contains("Error {") => {
            format!("{function}() cannot read what it is given")
        }
        E::FunctionError { function, message } => format!("{function}(): {}", without_values(message)),
        _ => "it cannot be evaluated".into(),
    }
}

pub(super) fn missing(key: &str, path: Option<&str>) -> String {
    let mut message = format!("there is no `{key}`");
    match path.and_then(|path| path.rsplit_once('.')) {
        Some((whole, field)) => {
            let _ =
                write!(message, ": test with has({whole}.{field}), or give a default with {whole}.?{field}.orValue(…)");
        }
        None => message.push_str(": test with `in`, or give a default with [?…].orValue(…)"),
    }
    message
}

/// The library prints values as `String("…")`, `List([…])` and so on; what begins there is left out.
fn without_values(message: &str) -> String {
    const VALUES: [&str; 11] = [
        "String(",
        "List(",
        "Map(",
        "Bytes(",
        "Int(",
        "UInt(",
        "Float(",
        "Bool(",
        "Opaque<",
        "Timestamp(",
        "Duration(",
    ];
    let end = VALUES.iter().filter_map(|value| message.find(value)).min();
    match end {
        Some(at) => {
            let kind: String = message[at..].chars().take_while(char::is_ascii_alphabetic).collect();
            let shown = message[..at].trim_end_matches(['\'', '"', ' ']);
            format!("{shown} a value of type {}", kind.to_lowercase()).trim_start().to_owned()
        }
        None => quoted(message),
    }
}

/// The type of a value, with its article.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
        Value::Function(..) => "a function",
        Value::Int(_) => "an integer",
        Value::UInt(_) => "an unsigned integer",
        Value::Float(_) => "a floating-point number",
        Value::String(_) => "a string",
        Value::Bytes(_) => "bytes",
        Value::Bool(_) => "a boolean",
        Value::Duration(_) => "a duration",
        Value::Timestamp(_) => "a timestamp",
        Value::Opaque(_) => "an object",
        Value::Null => "null",
    }
}

/// The type of a JSON value, with its article.
pub(super) fn json_type_name(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "a boolean",
        serde_json::Value::Number(_) => "a number",
        serde_json::Value::String(_) => "a string",
        serde_json::Value::Array(_) => "a list",
        serde_json::Value::Object(_) => "a map",
    }
}
