//! Runs every example of `docs/expressions.md`.

use super::super::changes::change;
use super::super::check;
use super::super::kinds::SANDBOX;
use super::super::scope::{Scope, ScopeBuilder, with_defaults};
use super::super::template::Template;
use super::{Expression, functions, tokens};
use rstest::rstest;
use serde_json::Value as Json;

const PAGE: &str = include_str!("../../../docs/expressions.md");

/// The lines of all fenced blocks of the `language`.
fn blocks(language: &str) -> Vec<&'static str> {
    let mut lines = Vec::new();
    let mut inside = None;
    for line in PAGE.lines() {
        match (line.strip_prefix("```"), inside) {
            (Some(opened), None) => inside = Some(opened),
            (Some(_), Some(_)) => inside = None,
            (None, Some(opened)) if opened == language => lines.push(line),
            _ => {}
        }
    }
    assert!(!lines.is_empty(), "no block of {language}");
    lines
}

fn scope() -> Scope {
    let values: Json = serde_saphyr::from_str(&blocks("yaml").join("\n")).unwrap();
    let (sandbox, old) =
        (with_defaults(&SANDBOX, values["sandbox"].clone()), with_defaults(&SANDBOX, values["old"].clone()));
    ScopeBuilder::new(&SANDBOX)
        .change(change(&SANDBOX, Some(&old), Some(&sandbox)))
        .target(sandbox)
        .old(Some(old))
        .params(values["params"].clone())
        .steps(values["steps"].clone())
        .phase(serde_json::from_value(values["phase"].clone()).unwrap())
        .build()
        .unwrap()
}

/// Compares what `run` gives for every example with what the page says, and reports all differences at once.
fn compare(language: &str, run: impl Fn(&str) -> Result<Json, String>) {
    let mut wrong = Vec::new();
    for line in blocks(language) {
        let (source, expected, fails) = match (line.split_once("  →  "), line.split_once("  ✗  ")) {
            (Some((source, expected)), None) => (source, expected, false),
            (None, Some((source, expected))) => (source, expected, true),
            _ => panic!("neither an example nor a failure: {line}"),
        };
        match run(source) {
            Ok(value) if !fails && serde_json::from_str::<Json>(expected).is_ok_and(|expected| expected == value) => {}
            Err(message) if fails && message.contains(expected) => {}
            answer => wrong.push(format!("{line}\n    but: {answer:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_expression_of_the_page_gives_what_it_says() {
    let scope = scope();
    compare("cel", |source| {
        let expression = Expression::parse(source).map_err(|error| error.to_string())?;
        expression.check(&SANDBOX.names()).map_err(|error| error.to_string())?;
        expression.evaluate(&scope).map_err(|error| error.to_string())
    });
}

#[test]
fn every_template_of_the_page_gives_what_it_says() {
    let scope = scope();
    compare("template", |source| {
        let template = Template::parse(&serde_json::from_str(source).unwrap()).map_err(|error| error.to_string())?;
        template.check(&SANDBOX.names()).map_err(|error| error.to_string())?;
        template.render(&scope).map_err(|error| error.to_string())
    });
}

/// The faults of a plugin with this expression among the inputs of a script, or this template among its manifests.
fn faults(source: &str, is_template: bool) -> Vec<String> {
    let mut plugin = serde_json::json!({
        "runner": {"image": "i", "serviceAccountName": "s"},
        "preUpdate": [{"name": "branch", "script": "#!", "outputs": [{"name": "host", "valueFromPath": "/o/host"}]}],
    });
    let step = if is_template {
        let value: Json = serde_json::from_str(source).unwrap();
        let manifest = serde_json::json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "value": value});
        serde_json::json!({"name": "s", "apply": {"manifests": [manifest]}})
    } else {
        serde_json::json!({"name": "s", "script": "#!", "inputs": [{"name": "x", "value": source}]})
    };
    plugin["preUpdate"].as_array_mut().unwrap().push(step);
    check::plugin("p", &serde_json::from_value(plugin).unwrap()).iter().map(ToString::to_string).collect()
}

#[test]
fn what_the_page_gives_a_value_of_is_not_refused_when_a_plugin_is_applied() {
    for (language, is_template) in [("cel", false), ("template", true)] {
        for (source, _) in blocks(language).iter().filter_map(|line| line.split_once("  →  ")) {
            assert_eq!(faults(source, is_template), [""; 0], "{source}");
        }
    }
}

#[rstest]
#[case("1 + 1.5", true)]
#[case("quantity('1Gi')", true)]
#[case("params.size", false)]
fn what_fails_on_the_page_is_refused_where_no_value_could_help(#[case] source: &str, #[case] refused: bool) {
    assert!(blocks("cel").iter().any(|line| line.starts_with(&format!("{source}  ✗"))));
    assert_eq!(!faults(source, false).is_empty(), refused, "{source}");
}

#[test]
fn every_function_has_an_example() {
    let called: Vec<String> = blocks("cel").iter().flat_map(|line| calls(line)).collect();
    let missing: Vec<_> = functions::NAMES.iter().filter(|name| !called.iter().any(|call| call == *name)).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
}

/// The names before opening brackets: `startsWith`, and both `math.abs` and `abs`.
fn calls(line: &str) -> Vec<String> {
    let found: Vec<_> = tokens(line).collect();
    let mut names = Vec::new();
    for (at, token) in found.iter().enumerate().filter(|(_, token)| token.text == "(") {
        let back = |steps: usize| at.checked_sub(steps).map_or("", |at| found[at].text);
        if token.start > 0 {
            names.push(back(1).to_owned());
            if back(2) == "." {
                names.push(format!("{}.{}", back(3), back(1)));
            }
        }
    }
    names
}
