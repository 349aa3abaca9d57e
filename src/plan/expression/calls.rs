//! What an operator or function makes of types: the library itself is tried with specimens of them.
//!
//! Only what the library refuses for every specimen, and because of its type, is a misfit. What it refuses because of
//! what stands in a text, or how large a number or how long a list is, says nothing.

use super::types::{FUNCTIONS, Type};
use kube_cel::cel::ExecutionError;
use kube_cel::cel::common::ast::{CallExpr, Expr, operators};
use kube_cel::cel::objects::Value;
use kube_cel::cel::parser::Expression as Tree;
use std::collections::HashMap;

/// How many calls of the library one [`Calls`] makes; past it nothing is known of what a call gives.
pub const MAX_CALLS: usize = 50_000;
/// As many combinations of specimens are tried of one call.
const COMBINATIONS: usize = 48;

/// How the library's functions say that they cannot take a type; their other messages speak of what the value is.
const REFUSALS: [&str; 8] = [
    "cannot determine the size of",
    "cannot convert",
    "cannot sum values",
    "cannot compare values of different types",
    "cannot be looped over",
    "every item must be a string",
    "the separator must be a string",
    "expected ",
];

/// Tries the library, and remembers what it answered.
#[derive(Debug)]
pub(crate) struct Calls {
    left: usize,
    answers: HashMap<String, Result<Type, String>>,
}

impl Default for Calls {
    fn default() -> Self {
        Self { left: MAX_CALLS, answers: HashMap::new() }
    }
}

impl Calls {
    /// What the operator or function `name` gives, or why it never gives anything.
    pub fn call(&mut self, name: &str, target: Option<&Type>, arguments: &[Type]) -> Result<Type, String> {
        if target.into_iter().chain(arguments).any(|kind| matches!(kind, Type::Never) || kind.is_vague()) {
            return Ok(Type::Any);
        }
        let key = format!("{name} {target:?} {arguments:?}");
        if let Some(answer) = self.answers.get(&key) {
            return answer.clone();
        }
        if self.left == 0 {
            return Ok(Type::Any);
        }
        let answer = self.tried(name, target, arguments);
        self.answers.insert(key, answer.clone());
        answer
    }

    fn tried(&mut self, name: &str, target: Option<&Type>, arguments: &[Type]) -> Result<Type, String> {
        let operands: Vec<&Type> = target.into_iter().chain(arguments).collect();
        let specimens: Vec<Vec<Value>> = operands.iter().map(|kind| kind.specimens()).collect();
        if specimens.iter().any(Vec::is_empty) {
            return Ok(Type::Any);
        }
        let tree = tree(name, target.is_some(), arguments.len());
        let simple = operands.iter().all(|kind| is_simple(kind));
        let (mut given, mut refusal, mut refused_all) = (None::<Type>, None, true);
        for combination in combinations(&specimens) {
            if self.left == 0 {
                return Ok(Type::Any);
            }
            self.left -= 1;
            match resolve(&tree, combination) {
                Ok(value) => {
                    let found = Type::of(&value);
                    let settled = simple && is_simple(&found);
                    given = Some(given.map_or(found.clone(), |given| given.or(&found)));
                    refused_all = false;
                    if settled {
                        break;
                    }
                }
                Err(error) if is_refusal(&error) => refusal = refusal.or(Some(error)),
                Err(_) => refused_all = false,
            }
        }
        match (given, refusal) {
            (Some(given), _) => Ok(given.widened()),
            (None, Some(error)) if refused_all => Err(misfit(name, &operands, &error)),
            _ => Ok(Type::Any),
        }
    }
}

/// Whether one value of the type is as good as another.
fn is_simple(kind: &Type) -> bool {
    use Type as T;
    matches!(kind, T::Bool | T::Int | T::UInt | T::Float | T::String | T::Bytes | T::Duration | T::Timestamp)
}

/// The call with a variable for each operand.
fn tree(name: &str, has_target: bool, arguments: usize) -> Tree {
    let variable = |at: usize| Tree { id: 0, expr: Expr::Ident(variable(at)) };
    let first = usize::from(has_target);
    let target = has_target.then(|| Box::new(variable(0)));
    let args = (first..first + arguments).map(variable).collect();
    Tree { id: 0, expr: Expr::Call(CallExpr { func_name: name.to_owned(), target, args }) }
}

fn variable(at: usize) -> String {
    format!("@{at}")
}

fn resolve(tree: &Tree, operands: Vec<Value>) -> Result<Value, ExecutionError> {
    let mut scope = FUNCTIONS.new_inner_scope();
    for (at, operand) in operands.into_iter().enumerate() {
        scope.add_variable_from_value(variable(at), operand);
    }
    Value::resolve(tree, &scope)
}

/// All combinations where they are few, else those in which each specimen meets many different ones.
fn combinations(specimens: &[Vec<Value>]) -> impl Iterator<Item = Vec<Value>> {
    let all = specimens.iter().try_fold(1_usize, |product, values| product.checked_mul(values.len()));
    let all = all.filter(|all| *all <= COMBINATIONS);
    let longest = specimens.iter().map(Vec::len).max().unwrap_or(1);
    (0..all.unwrap_or(COMBINATIONS)).map(move |number| {
        let mut rest = number;
        let pick = |(at, values): (usize, &Vec<Value>)| match all {
            Some(_) => {
                let value = values[rest % values.len()].clone();
                rest /= values.len();
                value
            }
            None => values[(number + at * (number / longest)) % values.len()].clone(),
        };
        specimens.iter().enumerate().map(pick).collect()
    })
}

fn is_refusal(error: &ExecutionError) -> bool {
    use ExecutionError as E;
    match error {
        E::NoSuchOverload
        | E::UnexpectedType { .. }
        | E::UnsupportedBinaryOperator(..)
        | E::UnsupportedUnaryOperator(..)
        | E::UnsupportedTargetType { .. }
        | E::NotSupportedAsMethod { .. }
        | E::UnsupportedKeyType(_)
        | E::UnsupportedMapIndex(_)
        | E::UnsupportedListIndex(_)
        | E::UnsupportedIndex(..)
        | E::ValuesNotComparable(..)
        | E::InvalidArgumentCount { .. }
        | E::MissingArgumentOrTarget => true,
        E::FunctionError { message, .. } => {
            message.contains("not supported on type") || REFUSALS.iter().any(|refusal| message.starts_with(refusal))
        }
        _ => false,
    }
}

fn misfit(name: &str, operands: &[&Type], error: &ExecutionError) -> String {
    let names: Vec<&str> = operands.iter().map(|kind| kind.name()).collect();
    match error {
        ExecutionError::InvalidArgumentCount { expected, actual } => {
            return format!("`{name}()` is given {actual} arguments, it takes {expected}");
        }
        ExecutionError::MissingArgumentOrTarget => return format!("`{name}()` is called without an argument"),
        _ => {}
    }
    let numbers = |kind: &&&Type| matches!(kind, Type::Int | Type::UInt | Type::Float);
    let hint = match operands {
        [a, b] if [a, b].iter().any(numbers) && is_simple(a) && is_simple(b) => {
            ": convert one, for example with int(…) or string(…)"
        }
        _ => "",
    };
    let called = symbol(name).map_or_else(|| format!("{name}()"), str::to_owned);
    match names.as_slice() {
        [] => format!("`{called}` cannot be called like this"),
        [first, middle @ .., last] if !middle.is_empty() => {
            format!("`{called}` cannot take {first}, {} and {last}{hint}", middle.join(", "))
        }
        names => format!("`{called}` cannot take {}{hint}", names.join(" and ")),
    }
}

/// The operator as it stands in the source.
pub(super) fn symbol(name: &str) -> Option<&'static str> {
    Some(match name {
        operators::ADD => "+",
        operators::SUBSTRACT | operators::NEGATE => "-",
        operators::MULTIPLY => "*",
        operators::DIVIDE => "/",
        operators::MODULO => "%",
        operators::LESS => "<",
        operators::LESS_EQUALS => "<=",
        operators::GREATER => ">",
        operators::GREATER_EQUALS => ">=",
        operators::EQUALS => "==",
        operators::NOT_EQUALS => "!=",
        operators::IN => "in",
        operators::LOGICAL_AND => "&&",
        operators::LOGICAL_OR => "||",
        operators::LOGICAL_NOT => "!",
        operators::CONDITIONAL => "?",
        operators::INDEX | operators::OPT_INDEX => "[",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn called(name: &str, arguments: &[Type]) -> String {
        Calls::default().call(name, None, arguments).map_or_else(|message| message, |kind| format!("{kind:?}"))
    }

    #[rstest]
    #[case(operators::ADD, &[Type::Int, Type::Int], "an integer")]
    #[case("size", &[Type::list(Type::Bool)], "an integer")]
    #[case("first", &[Type::list(Type::Bool)], "?a boolean")]
    #[case("split", &[Type::String, Type::String], "[a string]")]
    #[case("timestamp", &[Type::String], "a timestamp")]
    #[case("semver", &[Type::String], "opaque kubernetes.Semver")]
    #[case("orValue", &[Type::Int.optional(), Type::String], "any")]
    #[case("sum", &[Type::list(Type::Float)], "any")]
    #[case("size", &[Type::Any], "any")]
    #[case("size", &[Type::list(Type::Any)], "any")]
    #[case("size", &[Type::Int.nullable()], "`size()` cannot take an integer")]
    #[case("substring", &[Type::String, Type::Int, Type::Bool], "`substring()` cannot take a string, an integer and a boolean")]
    #[case("size", &[], "`size()` is called without an argument")]
    fn the_library_says_what_a_call_gives(#[case] name: &str, #[case] arguments: &[Type], #[case] given: &str) {
        assert_eq!(called(name, arguments), given);
    }

    #[test]
    fn an_object_is_known_again_in_what_a_function_gives() {
        let shape = super::super::types::Shape { name: "sandbox".into(), fields: Default::default() };
        let list = Type::list(Type::Object(shape.into()));
        assert_eq!(called("reverse", std::slice::from_ref(&list)), "[<sandbox>]");
        assert_eq!(called(operators::ADD, &[list.clone(), list]), "[<sandbox>]");
    }

    #[test]
    fn past_its_calls_nothing_is_known() {
        let mut calls = Calls { left: 3, ..Calls::default() };
        let types = [Type::String, Type::Int];
        assert!(matches!(calls.call(operators::SUBSTRACT, None, &types), Ok(Type::Any)));
        assert!(matches!(calls.call(operators::MODULO, None, &types), Ok(Type::Any)));
        assert!(Calls::default().call(operators::MODULO, None, &types).is_err());
    }
}
