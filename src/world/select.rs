//! Label and field selectors.

use super::kinds::Kind;
use super::refusal::Refusal;
use serde_json::Value;

/// What a list or a watch asks for.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, bool, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

impl Requirement {
    fn holds(&self, labels: &Value) -> bool {
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        let number = |key: &str| label(key).and_then(|text| text.parse::<i64>().ok());
        match self {
            Self::In(key, values) => label(key).is_some_and(|found| values.iter().any(|value| value == found)),
            Self::NotIn(key, values) => label(key).is_none_or(|found| values.iter().all(|value| value != found)),
            Self::Exists(key) => label(key).is_some(),
            Self::Absent(key) => label(key).is_none(),
            Self::Greater(key, bound) => number(key).is_some_and(|found| found > *bound),
            Self::Less(key, bound) => number(key).is_some_and(|found| found < *bound),
        }
    }
}

impl Selector {
    pub fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self, Refusal> {
        let mut selector = Self::default();
        for part in split(labels) {
            let bad = || Refusal::bad_request(format!("unable to parse requirement: {part}"));
            selector.labels.push(requirement(part.trim()).ok_or_else(bad)?);
        }
        for part in fields.split(',').filter(|part| !part.is_empty()) {
            let parsed = [("!=", false), ("==", true), ("=", true)]
                .iter()
                .find_map(|(operator, equal)| part.split_once(operator).map(|(field, value)| (field, *equal, value)));
            let (field, equal, value) = parsed.ok_or_else(|| {
                Refusal::bad_request(format!("invalid selector: '{part}'; can't understand '{part}'"))
            })?;
            if !known(kind, field) {
                return Err(Refusal::bad_request(format!("field label not supported: {field}")));
            }
            selector.fields.push((field.to_owned(), equal, value.to_owned()));
        }
        Ok(selector)
    }

    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|requirement| requirement.holds(labels))
            && self.fields.iter().all(|(path, equal, value)| (field(object, path) == *value) == *equal)
    }
}

fn known(kind: &Kind, field: &str) -> bool {
    let more: &[&str] = match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "type",
        ],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "nodes") => &["spec.unschedulable"],
        ("apps", "replicasets") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        _ => &[],
    };
    field == "metadata.name" || (field == "metadata.namespace" && kind.namespaced) || more.contains(&field)
}

/// The value of a field as text; what is not there is empty, as in the API server's indexes.
fn field(object: &Value, path: &str) -> String {
    let found = path.split('.').fold(object, |value, name| &value[name]);
    match found {
        Value::String(text) => text.clone(),
        Value::Null if path == "spec.hostNetwork" || path == "spec.unschedulable" => "false".to_owned(),
        Value::Null if path == "status.successful" || path == "status.replicas" => "0".to_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The parts of a label selector: commas within parentheses do not part.
fn split(labels: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0_usize, 0, Vec::new());
    for (at, letter) in labels.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&labels[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    if !labels[from..].trim().is_empty() {
        parts.push(&labels[from..]);
    }
    parts
}

fn requirement(part: &str) -> Option<Requirement> {
    if let Some(key) = part.strip_prefix('!') {
        return label_key(key).map(Requirement::Absent);
    }
    if let Some((key, rest)) = part.split_once(char::is_whitespace) {
        let rest = rest.trim();
        let set = |rest: &str| {
            let inside = rest.trim().strip_prefix('(')?.strip_suffix(')')?;
            Some(inside.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>())
        };
        if let Some(rest) = rest.strip_prefix("notin") {
            return Some(Requirement::NotIn(label_key(key)?, set(rest)?));
        }
        if let Some(rest) = rest.strip_prefix("in") {
            return Some(Requirement::In(label_key(key)?, set(rest)?));
        }
    }
    for (operator, build) in OPERATORS {
        if let Some((key, value)) = part.split_once(operator) {
            return build(label_key(key.trim())?, value.trim());
        }
    }
    label_key(part).map(Requirement::Exists)
}

type Build = fn(String, &str) -> Option<Requirement>;

const OPERATORS: &[(&str, Build)] = &[
    ("!=", |key, value| label_value(value).map(|value| Requirement::NotIn(key, vec![value]))),
    ("==", |key, value| label_value(value).map(|value| Requirement::In(key, vec![value]))),
    ("=", |key, value| label_value(value).map(|value| Requirement::In(key, vec![value]))),
    (">", |key, value| value.parse().ok().map(|bound| Requirement::Greater(key, bound))),
    ("<", |key, value| value.parse().ok().map(|bound| Requirement::Less(key, bound))),
];

fn label_key(key: &str) -> Option<String> {
    let key = key.trim();
    let good = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    good.then(|| key.to_owned())
}

fn label_value(value: &str) -> Option<String> {
    let good = value.len() <= 63 && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    good.then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn holds(selector: &str, labels: &Value) -> bool {
        let kinds = super::super::builtin::kinds();
        let pods = kinds.served("", "v1", "pods").unwrap();
        Selector::parse(&pods, selector, "").unwrap().matches(&json!({"metadata": {"labels": labels}}))
    }

    #[test]
    fn every_operator_of_a_label_selector_holds_as_documented() {
        let labels = json!({"app": "web", "tier": "2"});
        for (selector, expected) in [
            ("app=web", true),
            ("app==web,tier=2", true),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (web, db)", true),
            ("app in (db)", false),
            ("app notin (db),tier", true),
            ("other notin (db)", true),
            ("!other", true),
            ("!app", false),
            ("tier>1", true),
            ("tier<2", false),
            ("app>1", false),
            ("", true),
        ] {
            assert_eq!(holds(selector, &labels), expected, "{selector}");
        }
    }
}
