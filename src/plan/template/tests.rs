//! What templates give, and what is said of wrong ones.

use super::super::kinds::SANDBOX;
use super::super::specimen::update;
use super::*;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

fn rendered(value: &Json) -> Result<Json, TemplateError> {
    let template = Template::parse(value)?;
    template.check(&SANDBOX.names())?;
    template.render(&update())
}

#[rstest]
#[case(json!("${change.forks.added}"), json!([{"forkOf": {"kind": "Deployment", "name": "graphql-user"}}, {"forkOf": {"kind": "Deployment", "name": "web"}}]))]
#[case(json!("${sandbox.metadata.name}.${params.domain}"), json!("feature-x.dev.example.com"))]
#[case(json!("${1 + 1}"), json!(2))]
#[case(json!("${1 + 1} "), json!("2 "))]
#[case(json!("n=${1.5} ${true}"), json!("n=1.5 true"))]
#[case(json!("${[1, 'a']}!"), json!("[1,\"a\"]!"))]
#[case(json!("${{'a': {'b': '}'}}}"), json!({"a": {"b": "}"}}))]
#[case(json!("${{'a': 1}}${\"}\"}"), json!("{\"a\":1}}"))]
#[case(json!("${r'}\\d'}x"), json!("}\\dx"))]
#[case(json!("${'\\''}"), json!("'"))]
#[case(json!("${null}"), json!(null))]
#[case(json!("$${a}"), json!("${a}"))]
#[case(json!("$$${phase}"), json!("$${phase}"))]
#[case(json!("$${phase} ${phase}"), json!("${phase} PreUpdate"))]
#[case(json!("$ $a {b} $$ }${''}"), json!("$ $a {b} $$ }"))]
#[case(json!({"${phase}": ["${phase}", 1, null, {"a": true}]}), json!({"${phase}": ["PreUpdate", 1, null, {"a": true}]}))]
#[case(json!("ü${params['größe']}ü"), json!("üüü"))]
fn a_template_gives(#[case] value: Json, #[case] expected: Json) {
    assert_eq!(rendered(&value), Ok(expected));
}

#[test]
fn the_example_of_the_design_makes_an_ingress() {
    let manifest = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": "${fork.forkOf.name}-${sandbox.metadata.name}", "namespace": "${sandbox.metadata.namespace}"},
        "spec": {"rules": [{"host": "${sandbox.metadata.name}.${params.domain}"}]},
    });
    let scope = update().with("fork", &json!({"forkOf": {"name": "graphql-cart"}})).unwrap();
    let ingress = Template::parse(&manifest).unwrap().render(&scope).unwrap();
    assert_eq!(ingress["metadata"], json!({"name": "graphql-cart-feature-x", "namespace": "shop"}));
    assert_eq!(ingress["spec"]["rules"][0]["host"], json!("feature-x.dev.example.com"));
}

#[rstest]
#[case(json!({"manifests": [{"spec": {"rules": [{"host": "a.${params.size}"}]}}]}), "manifests[0].spec.rules[0].host: `params.size`: there is no `size`: test with has(params.size)")]
#[case(json!({"metadata": {"labels": {"a.b/c": "${"}}}), "metadata.labels[\"a.b/c\"]: `${` opens an expression that is never closed: add the `}`, or write `$${`")]
#[case(json!(["x ${a"]), "[0]: `${a` opens an expression that is never closed")]
#[case(json!(["${'a}"]), "never closed")]
#[case(json!({"a": "${'''}'''}"}), "a: line 1, column 1: triple quotes are not supported")]
#[case(json!({"a": "${}"}), "a: the expression is empty")]
#[case(json!({"a": "${1 +}"}), "a: line 1, column 4")]
#[case(json!({"a": "${b}"}), "a: line 1, column 1: there is no variable `b`")]
#[case(json!({"a": "x${old.spec.forks.size() > 9 ? 1 : null}"}), "a: `${old.spec.forks.size() > 9 ? 1 : null}` is null")]
fn a_wrong_template_is_explained(#[case] value: Json, #[case] expected: &str) {
    let message = rendered(&value).unwrap_err().to_string();
    assert!(message.contains(expected), "{message}");
}

#[test]
fn paths_begin_where_the_caller_says() {
    let template = Template::parse_at("apply.manifests", &json!([{"a": "${phase} ${1}"}])).unwrap();
    let places: Vec<_> =
        template.expressions().iter().map(|(path, found)| (path.to_string(), found.source().to_owned())).collect();
    assert_eq!(
        places,
        [("apply.manifests[0].a".into(), "phase".into()), ("apply.manifests[0].a".into(), "1".to_owned())]
    );
}

#[test]
fn a_value_that_is_too_deep_or_too_large_is_refused() {
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    assert!(matches!(Template::parse(&deep), Err(TemplateError::TooDeep { .. })));
    let scope = update().with("x", &json!("a".repeat(400_000))).unwrap();
    let large = Template::parse(&json!(["${x}", "${x}", "${x}", "${x}"])).unwrap().render(&scope);
    assert_eq!(large, Err(TemplateError::TooLarge { path: "[3]".into() }));
}

#[tokio::test]
async fn a_bounded_template_gives_the_same() {
    assert_eq!(
        Template::parse(&json!(["${phase}"])).unwrap().render_bounded(&update()).await,
        Ok(json!(["PreUpdate"]))
    );
}

proptest! {
    #[test]
    fn text_without_an_expression_stays_as_it_is(text in "\\PC{0,80}") {
        prop_assume!(!text.contains("${"));
        prop_assert_eq!(rendered(&json!(text)), Ok(json!(text)));
    }

    #[test]
    fn any_text_can_be_written(text in "[$ {}a'\"]{0,20}") {
        let escaped = text.replace("${", "$${");
        prop_assert_eq!(rendered(&json!(escaped)), Ok(json!(text)));
    }

    #[test]
    fn no_text_panics(text in "[$ {}a'\"\\\\/.()1ü]{0,40}") {
        let _ = rendered(&json!(text));
    }
}
