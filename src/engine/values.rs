//! Values that steps are given and leave: keys of Secrets and ConfigMaps in the runner's namespace, read as the runner's
//! service account, and what expressions make.

use super::error::StepError;
use super::objects::Objects;
use crate::agent::protocol::OUTPUT_LIMIT;
use crate::api::{KeyRef, ObjectRef, Step};
use crate::plan::expression::Expression;
use crate::plan::scope::Scope;
use crate::plan::template::Template;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::collections::BTreeMap;

/// A value as a file or a variable has it: text as it is, nothing for null, all else as JSON.
pub fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.into_bytes(),
        Value::Null => Vec::new(),
        other => other.to_string().into_bytes(),
    }
}

/// A value of a step, which stands at `field`, as a template.
pub fn template(field: &str, value: &Value) -> Result<Template, StepError> {
    Template::parse_at(field, value).map_err(|e| StepError::Failed(e.to_string()))
}

/// A template with its expressions filled in.
pub async fn rendered(template: &Template, scope: &Scope) -> Result<Value, StepError> {
    template.render_bounded(scope).await.map_err(|e| StepError::Failed(e.to_string()))
}

/// The outputs that a step's expressions make of what it saw, which they know as `name`.
pub async fn outputs(
    step: &Step,
    name: &str,
    seen: &Value,
    scope: &Scope,
) -> Result<BTreeMap<String, Vec<u8>>, StepError> {
    let mut outputs = BTreeMap::new();
    let scope = scope.with(name, seen).map_err(|e| StepError::Failed(e.to_string()))?;
    let mut left = OUTPUT_LIMIT;
    for output in &step.outputs {
        let Some(source) = &output.value else { continue };
        let failed = |e: &dyn std::error::Error| StepError::Failed(format!("output {}: {e}", output.name));
        let expression = Expression::parse(source).map_err(|e| failed(&e))?;
        let content = bytes(expression.evaluate_bounded(&scope).await.map_err(|e| failed(&e))?);
        left = left.checked_sub(content.len()).ok_or_else(|| {
            StepError::Failed(format!(
                "output {}: a step's outputs may have {OUTPUT_LIMIT} bytes together: select less",
                output.name
            ))
        })?;
        outputs.insert(output.name.clone(), content);
    }
    Ok(outputs)
}

/// A key of a Secret.
pub async fn secret(objects: &Objects<'_>, from: &KeyRef) -> Result<Vec<u8>, StepError> {
    let found = read(objects, "Secret", from).await?;
    decoded(&found["data"][&from.key], "Secret", from)
}

/// A key of a ConfigMap, of its `data` or its `binaryData`.
pub async fn config_map(objects: &Objects<'_>, from: &KeyRef) -> Result<Vec<u8>, StepError> {
    let found = read(objects, "ConfigMap", from).await?;
    match found["data"][&from.key].as_str() {
        Some(text) => Ok(text.as_bytes().to_vec()),
        None => decoded(&found["binaryData"][&from.key], "ConfigMap", from),
    }
}

async fn read(objects: &Objects<'_>, kind: &str, from: &KeyRef) -> Result<Value, StepError> {
    let namespace = &objects.account.namespace;
    let reference = ObjectRef {
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        namespace: Some(namespace.clone()),
        name: from.name.clone(),
    };
    let missing = || StepError::Failed(format!("there is no {kind} {namespace}/{}: make it", from.name));
    objects.get(&reference).await?.ok_or_else(missing)
}

fn decoded(value: &Value, kind: &str, from: &KeyRef) -> Result<Vec<u8>, StepError> {
    let text = value
        .as_str()
        .ok_or_else(|| StepError::Failed(format!("{kind} {} has no key {}: add it", from.name, from.key)))?;
    let broken = |e| StepError::Failed(format!("key {} of {kind} {} is not Base64: {e}", from.key, from.name));
    STANDARD.decode(text).map_err(broken)
}
