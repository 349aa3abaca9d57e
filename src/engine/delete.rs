//! The `delete` step: objects of the plugin's choice, deleted as the runner's service account.

use super::error::StepError;
use super::objects::Objects;
use super::{repeat, values};
use crate::api::{Delete, ObjectRef, ObjectTemplate};
use crate::plan::scope::Scope;
use serde_json::json;

/// The objects of the step, its expressions evaluated.
pub async fn render(
    objects: &Objects<'_>,
    delete: &Delete,
    namespace: &str,
    scope: &Scope,
) -> Result<Vec<ObjectRef>, StepError> {
    let mut found = Vec::new();
    let scopes = repeat::scopes(delete.for_each.as_deref(), delete.as_.as_deref(), scope).await?;
    for (index, object) in delete.objects.iter().enumerate() {
        let field = format!("delete.objects[{index}]");
        for scope in &scopes {
            let object = rendered(object, &field, scope).await?;
            let reference = objects.reference(&object, namespace, &field).await?;
            if !found.contains(&reference) {
                found.push(reference);
            }
        }
    }
    Ok(found)
}

/// The names of an object, their expressions evaluated.
pub async fn rendered(object: &ObjectTemplate, field: &str, scope: &Scope) -> Result<ObjectTemplate, StepError> {
    let value = values::rendered(&values::template(field, &json!(object))?, scope).await?;
    serde_json::from_value(value).map_err(|e| StepError::Failed(format!("{field}: {e}: every field must be a string")))
}

/// Deletes the objects that are there; says how many there were.
pub async fn delete(objects: &Objects<'_>, references: &[ObjectRef]) -> Result<String, StepError> {
    let mut deleted = 0;
    for reference in references {
        deleted += usize::from(objects.delete(reference, None).await?);
    }
    let missing = references.len() - deleted;
    let missing = if missing == 0 { String::new() } else { format!(", {missing} not there") };
    Ok(format!("{deleted} deleted{missing}"))
}
