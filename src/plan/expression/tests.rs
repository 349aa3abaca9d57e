//! What expressions give, and what is said of wrong ones.

use super::super::kinds::SANDBOX;
use super::super::scope::{MAX_SCOPE, ScopeBuilder, ScopeError};
use super::super::specimen::{create, update};
use super::*;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

fn evaluated(source: &str) -> Result<Json, ExpressionError> {
    let expression = Expression::parse(source)?;
    expression.check(&SANDBOX.names())?;
    expression.evaluate(&update())
}

fn fault(source: &str) -> String {
    match evaluated(source) {
        Ok(value) => panic!("{source} gives {value}"),
        Err(error) => error.to_string(),
    }
}

#[rstest]
// the examples of the design
#[case("sandbox.spec.forks.filter(f, f.forkOf.name.startsWith(\"graphql-\")).map(f, f.forkOf.name)", json!(["graphql-cart", "graphql-user"]))]
#[case("sandbox.spec.forks.filter(f, f.forkOf.name.startsWith(\"graphql-\"))", json!([{"forkOf": {"kind": "Deployment", "name": "graphql-cart"}}, {"forkOf": {"kind": "Deployment", "name": "graphql-user"}}]))]
#[case("change.forks.added.size() > 0", json!(true))]
#[case("sandbox.spec.forks.map(f, f.forkOf.name)", json!(["graphql-cart", "graphql-user", "web"]))]
// the scope
#[case("sandbox.metadata.name + '.' + params.domain", json!("feature-x.dev.example.com"))]
#[case("sandbox.metadata.namespace", json!("shop"))]
#[case("change.forks.removed.map(f, f.forkOf.name)", json!(["mail"]))]
#[case("change.resources.added.map(r, r.name)", json!(["db"]))]
#[case("steps.branch.host", json!("db-7.example.com"))]
#[case("phase == 'PreUpdate'", json!(true))]
#[case("old.spec.forks.size()", json!(2))]
#[case("old != null", json!(true))]
// fields that are absent in the stored object
#[case("sandbox.spec.labels", json!({}))]
#[case("sandbox.metadata.labels.size()", json!(0))]
#[case("sandbox.spec.resources[0].params", json!({}))]
#[case("old.spec.resources", json!([]))]
#[case("'team' in sandbox.metadata.annotations", json!(true))]
// optional fields
#[case("has(params.domain)", json!(true))]
#[case("has(params.nothing)", json!(false))]
#[case("has(params.nothing) ? params.nothing : 'small'", json!("small"))]
#[case("params.?nothing.orValue('small')", json!("small"))]
#[case("params.?domain.orValue('small')", json!("dev.example.com"))]
#[case("params[?'nothing'].orValue('small')", json!("small"))]
#[case("sandbox.?spec.nothing.deep.orValue(1)", json!(1))]
#[case("sandbox.?metadata.name.orValue('')", json!("feature-x"))]
#[case("has(sandbox.?nothing.deep)", json!(false))]
#[case("has(sandbox.?metadata.name)", json!(true))]
#[case("params.?nothing", json!(null))]
#[case("params['a.b/c']", json!("odd"))]
#[case("params.`a.b/c`", json!("odd"))]
#[case("params['größe']", json!("ü"))]
// types
#[case("null", json!(null))]
#[case("1 + 2", json!(3))]
#[case("1 - -1", json!(2))]
#[case("1--1", json!(2))]
#[case("-9223372036854775808", json!(i64::MIN))]
#[case("18446744073709551615u", json!(u64::MAX))]
#[case("1.5", json!(1.5))]
#[case("int(params.replicas) * 2", json!(6))]
#[case("{'a': [1, 2u, 'x', null, true, 1.5]}", json!({"a": [1, 2, "x", null, true, 1.5]}))]
#[case("duration('1h30m')", json!("5400s"))]
#[case("duration('-1500ms')", json!("-1.5s"))]
#[case("timestamp('2026-01-02T03:04:05Z') + duration('1h')", json!("2026-01-02T04:04:05Z"))]
#[case("timestamp('2026-01-02T03:04:05+02:00')", json!("2026-01-02T03:04:05+02:00"))]
#[case("b'hi'", json!("aGk="))]
#[case("'}' + \"\\\"\" + r'\\d' + '\\n\\u00e9'", json!("}\"\\d\né"))]
#[case("size(b'\\xff\\x00')", json!(2))]
#[case("''", json!(""))]
#[case("!(1 > 2) && !false", json!(true))]
#[case("[3, 1, 2].sort()", json!([1, 2, 3]))]
// loops
#[case("[1, 2, 3].map(x, x > 1, x * 10)", json!([20, 30]))]
#[case("[1, 2, 3].all(x, x > 0)", json!(true))]
#[case("[1, 2, 3].exists(x, x == 2)", json!(true))]
#[case("[1, 2, 3].exists_one(x, x > 1)", json!(false))]
#[case("[[1, 2], [3]].map(x, x.map(y, [y].map(z, z + x.size())))", json!([[[3], [4]], [[4]]]))]
#[case("[1, 2].map(x, [x, [x]])", json!([[1, [1]], [2, [2]]]))]
#[case("[].map(x, x)", json!([]))]
#[case("{'b': 1, 'a': 2, 'c': 3, 'e': 4, 'd': 5}.map(k, k)", json!(["a", "b", "c", "d", "e"]))]
#[case("[1, 2].map(sandbox, sandbox)", json!([1, 2]))]
#[case("lists.range(3)", json!([0, 1, 2]))]
fn an_expression_gives(#[case] source: &str, #[case] expected: Json) {
    assert_eq!(evaluated(source), Ok(expected), "{source}");
}

#[rstest]
#[case("old == null", json!(true))]
#[case("old == null || old.spec.forks.size() > 1", json!(true))]
#[case("old != null && old.spec.forks.size() > 1", json!(false))]
#[case("has(old.spec)", json!(false))]
#[case("change.forks.added.size() == sandbox.spec.forks.size()", json!(true))]
fn on_a_create(#[case] source: &str, #[case] expected: Json) {
    assert_eq!(Expression::parse(source).unwrap().evaluate(&create()), Ok(expected), "{source}");
}

#[rstest]
#[case("", "the expression is empty")]
#[case(" // nothing", "the expression is empty")]
#[case("sandbox.", "line 1, column 9")]
#[case("1 +\n  * 2", "line 2, column 3")]
#[case("a b", "column 3")]
#[case("(1", "this bracket is not closed\n  (1\n  ^")]
#[case("1)", "`)` closes nothing\n  1)\n   ^")]
#[case("'abc", "its quote is missing")]
#[case("!!true", "two signs in a row")]
#[case("- -1", "two signs in a row")]
#[case("1 - - -1", "two signs in a row")]
#[case("Pod{name: 'x'}", "write a map")]
#[case("99999999999999999999", "invalid int literal")]
#[case(
    "sandbx.metadata.name",
    "there is no variable `sandbx` here; there are `sandbox`, `old`, `change`, `params`, `steps`, `phase`\n  sandbx.metadata.name\n  ^"
)]
#[case("[1].map(x, x) + y", "variable `y` here")]
#[case("[x].map(x, x)", "variable `x` here")]
#[case(
    "params.domain.startswith('d')",
    "no function `startswith`; did you mean `startsWith`?\n  params.domain.startswith('d')\n                ^"
)]
#[case("math.foo(1)", "no function `math.foo`")]
#[case("[1].map(x)", "with these arguments: has(x.y), x.map(v, …)")]
#[case("has(params)", "invalid argument to has() macro")]
#[case("params.size", "there is no `size`: test with has(params.size), or give a default with params.?size.orValue(…)")]
#[case("params['size']", "there is no `size`: test with `in`")]
#[case("sandbox.spec.forks[7]", "no item at this index")]
#[case("sandbox.metadata.name.first", "a field of null, a string or a number is read")]
#[case("1 + 'a'", "the types do not fit")]
#[case("1 / 0", "divided by zero")]
#[case("1.0 / 0.0", "JSON has no form for")]
#[case("{1: 2}", "the key 1: keys must be strings")]
#[case("quantity('1Gi')", "JSON has no form for")]
#[case("'abc'.map(x, x)", "a string cannot be looped over")]
#[case("[1].filter(x, x)", "a loop's condition must be true or false, it is an integer")]
#[case("[1].map(a, [1].map(b, [1].map(c, [1].map(d, 1))))", "loops nest deeper than 3")]
#[case("lists.range(100000000000)", "lists.range(): the length must be from 0 to 10000")]
#[case("[1, 2].join(',')", "every item must be a string")]
#[case("lists.range(10000).map(x, lists.range(10000).map(y, 1).size())", "more than 128 MiB")]
#[case("lists.range(9999).map(x, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')", "524288")]
#[case("'''a'''", "triple quotes are not supported")]
#[case("b\"\"\"a\"\"\"", "triple quotes are not supported")]
#[case("r'\\'", "this raw string is not supported")]
#[case("br'a'", "this raw string is not supported")]
#[case("'%.99999999f'.format([1.0])", "")]
fn a_wrong_expression_is_explained(#[case] source: &str, #[case] expected: &str) {
    let message = fault(source);
    assert!(message.contains(expected), "{source}: {message}");
}

#[rstest]
#[case("steps.branch.password + 1")]
#[case("int(steps.branch.password)")]
#[case("steps.branch.password / 2")]
#[case("steps.branch[steps.branch.password == 'x' ? 1 : 2]")]
#[case("steps.branch.password.map(x, x)")]
#[case("size(steps.branch.password == '')")]
#[case("-steps.branch.password")]
#[case("steps.branch.password < 1")]
#[case("sum(steps.branch)")]
#[case("sum([1, steps.branch.password])")]
#[case("math.abs(steps.branch.password)")]
#[case("{steps.branch.password: 1}.other")]
#[case("semver(steps.branch.password)")]
#[case("quantity(steps.branch.password)")]
#[case("url(steps.branch.password)")]
#[case("ip(steps.branch.password)")]
#[case("cidr(steps.branch.password)")]
#[case("timestamp(steps.branch.password)")]
#[case("duration(steps.branch.password)")]
#[case("double(steps.branch.password)")]
#[case("uint(steps.branch.password)")]
#[case("'a'.matches(steps.branch.password + '(')")]
#[case("'a'.find(steps.branch.password + '(')")]
#[case("(steps.branch.password + '%z').format([1])")]
#[case("'%d'.format([steps.branch.password])")]
#[case("base64.decode(steps.branch.password + '!')")]
#[case("steps.branch[steps.branch.password]")]
#[case("steps.branch.password.charAt(99)")]
#[case("steps.branch.password.substring(99)")]
#[case("steps.branch.password.foo")]
#[case("[1][steps.branch.password]")]
#[case("math.greatest(steps.branch.password, 1)")]
#[case("cidr('10.0.0.0/8').containsIP(steps.branch.password)")]
fn no_error_shows_an_output(#[case] source: &str) {
    let message = fault(source);
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn no_error_shows_an_item_that_may_come_from_an_output() {
    let scope = update().with("item", &json!("hunter2")).unwrap();
    let message = Expression::parse("quantity(item)").unwrap().evaluate(&scope).unwrap_err().to_string();
    assert_eq!(message, "`quantity(item)`: quantity() cannot take what it is given");
}

#[test]
fn a_parameter_may_be_shown() {
    assert!(fault("quantity(params.domain)").contains("dev.example.com"));
}

#[test]
fn an_unknown_name_is_evaluated_to_an_error_too() {
    let error = Expression::parse("nothing").unwrap().evaluate(&update()).unwrap_err();
    assert!(error.to_string().contains("no variable or function `nothing`"), "{error}");
}

#[test]
fn what_is_needed_is_said() {
    let number = Expression::parse("1").unwrap();
    assert_eq!(
        number.evaluate_bool(&update()).unwrap_err().to_string(),
        "`1` gives a number, but true or false is needed here"
    );
    assert_eq!(
        number.evaluate_list(&update()).unwrap_err().to_string(),
        "`1` gives a number, but a list is needed here"
    );
}

#[test]
fn the_item_of_for_each_joins_the_scope() {
    let scope = update().with("fork", &json!({"forkOf": {"name": "web"}})).unwrap();
    assert_eq!(Expression::parse("fork.forkOf.name + phase").unwrap().evaluate(&scope), Ok(json!("webPreUpdate")));
    assert_eq!(scope.names().last(), Some("fork"));
    for (name, wrong) in
        [("sandbox", "already has a meaning"), ("1a", "cannot name"), ("in", "cannot name"), ("", "cannot name")]
    {
        assert!(update().with(name, &json!(1)).unwrap_err().to_string().contains(wrong), "{name}");
    }
}

#[test]
fn a_scope_is_bounded() {
    let large = json!("a".repeat(MAX_SCOPE));
    assert!(matches!(ScopeBuilder::new(&SANDBOX).params(large.clone()).build(), Err(ScopeError::TooLarge { .. })));
    assert!(matches!(update().with("x", &large), Err(ScopeError::TooLarge { .. })));
}

#[test]
fn a_scope_shows_no_values() {
    assert!(!format!("{:?}", update()).contains("hunter2"));
}

#[test]
fn a_long_expression_is_refused() {
    assert_eq!(Expression::parse(&"a".repeat(4097)), Err(ExpressionError::TooLong { length: 4097 }));
}

/// What reaches the limits must still fit the stack of a thread of the runtime, also in a build without optimisation.
#[rstest]
#[case(format!("{}1{}", "(".repeat(32), ")".repeat(32)))]
#[case(format!("{}1{}", "[".repeat(32), "]".repeat(32)))]
#[case(format!("{}1{}", "{'a':".repeat(32), "}".repeat(32)))]
#[case(format!("{}1{}", "int(".repeat(32), ")".repeat(32)))]
#[case(format!("1{}", " + 1".repeat(128)))]
#[case(format!("params{}", ".a".repeat(128)))]
#[case(format!("params{}", ".?a".repeat(64)))]
#[case(format!("{}1", "true ? 1 : ".repeat(64)))]
#[case(format!("''{}", ".trim()".repeat(64)))]
#[case(format!("true{}", " && true".repeat(128)))]
#[case(format!("!({}true{})", "!(".repeat(31), ")".repeat(31)))]
#[case(format!("[1]{}", ".map(x, [1].map(y, y)[0])".repeat(60)))]
#[case(format!("[{}]", "1, ".repeat(1300)))]
#[case(format!("[{}]", "params.domain == 'a' ? 1 : 2, ".repeat(130)))]
fn what_reaches_a_limit_fits_the_stack(#[case] source: String) {
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        let started = std::time::Instant::now();
        let parsed = Expression::parse(&source);
        let took = started.elapsed();
        let _ = parsed.unwrap_or_else(|error| panic!("{source}: {error}")).evaluate(&update());
        println!("parsed in {took:?}, all in {:?}: {}", started.elapsed(), &source[..20]);
    });
    thread.unwrap().join().unwrap();
}

#[rstest]
#[case("(")]
#[case("[")]
#[case("{")]
#[case("!")]
#[case("-")]
#[case("!(")]
#[case("a.")]
#[case("a(")]
#[case("a?")]
#[case("a?a:")]
#[case("a+")]
#[case("a in ")]
#[case("a&&")]
#[case("'")]
#[case("has(")]
#[case("[a].map(a,")]
#[case("{a:")]
#[case("a{")]
#[case("-1")]
#[case("`")]
fn a_chain_of_anything_ends(#[case] link: &str) {
    for closing in ["", "a", "1)", "]"] {
        let source = link.repeat(4000 / link.len()) + closing;
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || drop(Expression::parse(&source)));
        thread.unwrap().join().unwrap();
    }
}

proptest! {
    #[test]
    fn no_source_makes_the_parser_panic(source in "\\PC{0,200}") {
        let _ = Expression::parse(&source);
    }

    #[test]
    fn no_mix_of_tokens_panics(parts in prop::collection::vec(prop::sample::select(vec![
        "a", "sandbox", ".", "?", "[", "]", "(", ")", "{", "}", ",", ":", "!", "-", "+", "&&", "in", "1", "1u", "0x", "1.5e3",
        "'x'", "\"", "'''", "r'", "b'\\xff'", "'\\u12'", "has(", ".map(x,", "null", "true", "//", "\n", "`a`", "Msg{", "==", "é", "$",
    ]), 0..40)) {
        if let Ok(expression) = Expression::parse(&parts.concat()) {
            let _ = expression.evaluate(&update());
        }
        if let Ok(expression) = Expression::parse(&parts.join(" ")) {
            let _ = expression.evaluate(&update());
        }
    }

    #[test]
    fn a_value_comes_through_as_it_is(value in json_value()) {
        let scope = update().with("x", &value).unwrap();
        prop_assert_eq!(Expression::parse("x").unwrap().evaluate(&scope), Ok(value.clone()));
        prop_assert_eq!(Expression::parse("[x].map(y, y)[0]").unwrap().evaluate(&scope), Ok(value));
    }
}

fn json_value() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        prop::num::f64::NORMAL.prop_map(Json::from),
        "\\PC{0,12}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::from),
            prop::collection::btree_map("\\PC{0,6}", inner, 0..5).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

#[tokio::test]
async fn a_bounded_evaluation_gives_the_same() {
    let (scope, sum) = (update(), Expression::parse("1 + 1").unwrap());
    assert_eq!(sum.evaluate_bounded(&scope).await, Ok(json!(2)));
    assert_eq!(Expression::parse("old != null").unwrap().evaluate_bool_bounded(&scope).await, Ok(true));
    assert_eq!(Expression::parse("[1]").unwrap().evaluate_list_bounded(&scope).await, Ok(vec![json!(1)]));
}

#[tokio::test]
async fn an_endless_evaluation_is_left_and_told_to_end() {
    let (ended, told) = std::sync::mpsc::channel();
    let stopped = bounded(move |cancel| {
        while !cancel.is_cancelled() {
            std::thread::yield_now();
        }
        let _ = ended.send(());
    });
    assert!(matches!(stopped.await, Err(Stopped::TooSlow)));
    told.recv_timeout(TIME).unwrap();
}

#[test]
fn a_cancelled_evaluation_ends_at_its_next_round() {
    let cancel = Cancel::default();
    cancel.cancel();
    let error = Expression::parse("[1].map(x, x)").unwrap().evaluate_until(&update(), &cancel).unwrap_err();
    assert!(error.to_string().contains("its time is up"), "{error}");
}
