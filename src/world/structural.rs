//! A value against a structural schema, in the words of the API server.

use super::refusal::FieldError;
use super::schema::of_field;
use serde_json::Value;

/// What is wrong with `value`.
pub fn check(value: &Value, schema: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(value, schema, "", &mut errors);
    errors
}

fn walk(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if let Some(error) = wrong_type(value, schema, path) {
        errors.push(error);
        return;
    }
    junctors(value, schema, path, errors);
    one_of_known(value, schema, path, errors);
    match value {
        Value::Object(fields) => {
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    errors.push(FieldError::required(&joined(path, name), ""));
                }
            }
            sized(fields.len(), schema, ["minProperties", "maxProperties"], "properties", path, value, errors);
            for (name, inner) in fields {
                // The API server checks `metadata` by its own rules.
                if let (false, Some(schema)) = (path.is_empty() && name == "metadata", of_field(schema, name)) {
                    walk(inner, schema, &joined(path, name), errors);
                }
            }
        }
        Value::Array(items) => {
            sized(items.len(), schema, ["minItems", "maxItems"], "items", path, value, errors);
            for (at, item) in items.iter().enumerate() {
                walk(item, &schema["items"], &format!("{path}[{at}]"), errors);
            }
            duplicates(items, schema, path, errors);
        }
        Value::String(text) => string(text, schema, path, errors),
        Value::Number(_) => number(value, schema, path, errors),
        _ => {}
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn wrong_type(value: &Value, schema: &Value, path: &str) -> Option<FieldError> {
    let found = type_of(value);
    if schema["x-kubernetes-int-or-string"] == true {
        let good = matches!(found, "integer" | "string");
        let detail = format!("{path} in body must be of type integer,string: \"{found}\"");
        return (!good).then(|| FieldError::wrong_type(path, found, &detail));
    }
    let wanted = schema["type"].as_str()?;
    let whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
    let good = found == wanted || (wanted == "number" && found == "integer") || (wanted == "integer" && whole);
    let detail = format!("{path} in body must be of type {wanted}: \"{found}\"");
    (!good).then(|| FieldError::wrong_type(path, found, &detail))
}

fn one_of_known(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(known) = schema["enum"].as_array()
        && !known.contains(value)
    {
        errors.push(FieldError::unsupported(path, value, known));
    }
}

/// `allOf`, `anyOf`, `oneOf` and `not`.
fn junctors(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let valid = |schema: &Value| {
        let mut found = Vec::new();
        walk(value, schema, path, &mut found);
        found.is_empty()
    };
    let mut wrong = |detail: String| errors.push(FieldError::invalid(path, &Value::from(""), &detail));
    let body = format!("{path:?}");
    if let Some(all) = schema["allOf"].as_array()
        && !all.iter().all(valid)
    {
        wrong(format!("{body} must validate all the schemas (allOf)"));
    }
    if let Some(any) = schema["anyOf"].as_array()
        && schema["x-kubernetes-int-or-string"] != true
        && !any.iter().any(valid)
    {
        wrong(format!("{body} must validate at least one schema (anyOf)"));
    }
    if let Some(one) = schema["oneOf"].as_array() {
        match one.iter().filter(|schema| valid(schema)).count() {
            1 => {}
            0 => wrong(format!("{body} must validate one and only one schema (oneOf). Found none valid")),
            more => {
                wrong(format!("{body} must validate one and only one schema (oneOf). Found {more} valid alternatives"));
            }
        }
    }
    if let Some(not) = schema.get("not")
        && valid(not)
    {
        wrong(format!("{body} must not validate the schema (not)"));
    }
}

fn sized(
    found: usize,
    schema: &Value,
    [least, most]: [&str; 2],
    what: &str,
    path: &str,
    value: &Value,
    errors: &mut Vec<FieldError>,
) {
    let found = u64::try_from(found).unwrap_or(u64::MAX);
    if let Some(least) = schema[least].as_u64().filter(|least| found < *least) {
        errors.push(FieldError::invalid(path, value, &format!("{path} in body should have at least {least} {what}")));
    }
    if let Some(most) = schema[most].as_u64().filter(|most| found > *most) {
        errors.push(FieldError::too_many(path, found, most));
    }
}

/// Two items of a set that are equal, or two of a list of maps with equal keys.
fn duplicates(items: &[Value], schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let keys: Vec<&str> =
        schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let named = |item: &Value| match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => Some(item.clone()),
        Some("map") => Some(Value::Object(
            keys.iter().filter_map(|key| item.get(*key).map(|value| ((*key).to_owned(), value.clone()))).collect(),
        )),
        _ => None,
    };
    for (at, item) in items.iter().enumerate() {
        let Some(name) = named(item) else { return };
        if items[..at].iter().any(|other| named(other).as_ref() == Some(&name)) {
            errors.push(FieldError::duplicate(&format!("{path}[{at}]"), &name));
        }
    }
}

fn string(text: &str, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let letters = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
    let value = Value::from(text);
    if let Some(least) = schema["minLength"].as_u64().filter(|least| letters < *least) {
        let detail = format!("{path} in body should be at least {least} chars long");
        errors.push(FieldError::invalid(path, &value, &detail));
    }
    if let Some(most) = schema["maxLength"].as_u64().filter(|most| letters > *most) {
        errors.push(FieldError::too_long(path, most));
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && !matches(pattern, text)
    {
        errors.push(FieldError::invalid(path, &value, &format!("{path} in body should match '{pattern}'")));
    }
}

/// Whether a text matches a pattern, by the regular expressions that CEL brings along.
fn matches(pattern: &str, text: &str) -> bool {
    use kube_cel::cel::{Context, Program, objects::Value as CelValue};
    let mut context = Context::default();
    context.add_variable_from_value("text", CelValue::from(text.to_owned()));
    context.add_variable_from_value("pattern", CelValue::from(pattern.to_owned()));
    let program = Program::compile("text.matches(pattern)");
    program.is_ok_and(|program| matches!(program.execute(&context), Ok(CelValue::Bool(true))))
}

fn number(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(found) = value.as_f64() else { return };
    let mut wrong = |detail: String| errors.push(FieldError::invalid(path, value, &format!("{path} in body {detail}")));
    if let Some(least) = schema["minimum"].as_f64() {
        let exclusive = schema["exclusiveMinimum"] == true;
        if found < least || (exclusive && found <= least) {
            let or_equal = if exclusive { "" } else { "or equal to " };
            wrong(format!("should be greater than {or_equal}{}", schema["minimum"]));
        }
    }
    if let Some(most) = schema["maximum"].as_f64() {
        let exclusive = schema["exclusiveMaximum"] == true;
        if found > most || (exclusive && found >= most) {
            let or_equal = if exclusive { "" } else { "or equal to " };
            wrong(format!("should be less than {or_equal}{}", schema["maximum"]));
        }
    }
    if let Some(step) = schema["multipleOf"].as_f64().filter(|step| *step != 0.0) {
        let times = found / step;
        if (times - times.round()).abs() > 1e-9 {
            wrong(format!("should be a multiple of {}", schema["multipleOf"]));
        }
    }
}
