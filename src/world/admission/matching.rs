//! Whether a webhook is to see a request: rules, selectors and conditions.

use super::Attempt;
use crate::world::ask::Part;
use crate::world::kinds::KindId;
use crate::world::store::{Key, Store};
use kube_cel::KubeCelExt;
use kube_cel::cel::objects::Value as CelValue;
use kube_cel::cel::{Context, Program};
use serde_json::{Value, json};

pub fn matches(webhook: &Value, attempt: &Attempt<'_>, object: Option<&Value>, labels: impl Fn(&str) -> Value) -> bool {
    let mut rules = webhook["rules"].as_array().into_iter().flatten();
    let kind = &attempt.ask.kind;
    let namespaced = if kind.namespaced { Some(attempt.ask.namespace.as_str()) } else { None };
    let itself = kind.qualified() == "namespaces";
    let of_namespace = match namespaced {
        Some(name) => Some(labels(name)),
        None if itself => Some(object.or(attempt.old).map_or(Value::Null, |own| own["metadata"]["labels"].clone())),
        None => None,
    };
    let own = |object: Option<&Value>| {
        object.is_some_and(|object| selects(&webhook["objectSelector"], &object["metadata"]["labels"]))
    };
    rules.any(|rule| rule_matches(rule, webhook, attempt))
        && of_namespace.is_none_or(|labels| selects(&webhook["namespaceSelector"], &labels))
        && (own(object) || own(attempt.old))
        && conditions(webhook, attempt, object)
}

fn rule_matches(rule: &Value, webhook: &Value, attempt: &Attempt<'_>) -> bool {
    let ask = attempt.ask;
    let has = |field: &str, wanted: &str| {
        let known = rule[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        known.into_iter().any(|known| known == "*" || known == wanted)
    };
    let part = ask.part.as_str();
    let resource = if part.is_empty() { ask.kind.plural.clone() } else { format!("{}/{part}", ask.kind.plural) };
    let mut resources = rule["resources"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let named = resources.any(|known| {
        known == resource
            || known == "*/*"
            || (known == "*" && ask.part == Part::Whole)
            || known.strip_suffix("/*").is_some_and(|plural| plural == ask.kind.plural)
            || known.strip_prefix("*/").is_some_and(|known| known == part && !part.is_empty())
    });
    let scope = match rule["scope"].as_str() {
        Some("Namespaced") => ask.kind.namespaced,
        Some("Cluster") => !ask.kind.namespaced,
        _ => true,
    };
    let equivalent = webhook["matchPolicy"] != "Exact" && ask.kind.versions.iter().any(|v| has("apiVersions", v));
    has("operations", attempt.operation)
        && has("apiGroups", &ask.kind.group)
        && (has("apiVersions", &ask.version) || equivalent)
        && named
        && scope
}

/// A LabelSelector; none selects all.
pub fn selects(selector: &Value, labels: &Value) -> bool {
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    let equal =
        selector["matchLabels"].as_object().into_iter().flatten().all(|(key, value)| label(key) == value.as_str());
    let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    equal
        && expressions.all(|expression| {
            let found = expression["key"].as_str().and_then(label);
            let mut values = expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str);
            match expression["operator"].as_str() {
                Some("In") => found.is_some_and(|found| values.any(|value| value == found)),
                Some("NotIn") => found.is_none_or(|found| values.all(|value| value != found)),
                Some("Exists") => found.is_some(),
                Some("DoesNotExist") => found.is_none(),
                _ => false,
            }
        })
}

/// `matchConditions`: all must be true. One that fails lets the webhook be called, which then decides; where
/// `failurePolicy` is `Ignore` it is not called.
fn conditions(webhook: &Value, attempt: &Attempt<'_>, object: Option<&Value>) -> bool {
    let conditions = webhook["matchConditions"].as_array().map_or(&[][..], Vec::as_slice);
    if conditions.is_empty() {
        return true;
    }
    let null = Value::Null;
    let request = attempt.request("", None);
    let mut context = Context::default().with_all();
    for (name, value) in
        [("object", object.unwrap_or(&null)), ("oldObject", attempt.old.unwrap_or(&null)), ("request", &request)]
    {
        if context.add_variable(name, value.clone()).is_err() {
            return true;
        }
    }
    let holds = |condition: &Value| {
        let program = Program::compile(condition["expression"].as_str().unwrap_or_default()).ok()?;
        match program.execute(&context) {
            Ok(CelValue::Bool(holds)) => Some(holds),
            _ => None,
        }
    };
    let found: Vec<Option<bool>> = conditions.iter().map(holds).collect();
    if found.contains(&Some(false)) {
        return false;
    }
    found.iter().all(Option::is_some) || webhook["failurePolicy"] != "Ignore"
}

/// The labels of a namespace; of one that is not there, none.
pub fn namespace_labels(store: &Store, name: &str) -> Value {
    let kind = KindId { group: String::new(), plural: "namespaces".to_owned() };
    let key = Key { kind, namespace: String::new(), name: name.to_owned() };
    store.get(&key).map_or_else(|| json!({}), |namespace| namespace["metadata"]["labels"].clone())
}
