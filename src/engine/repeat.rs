//! `forEach`: a step's action once for each item of a list.

use super::error::StepError;
use crate::plan::expression::Expression;
use crate::plan::scope::Scope;

/// The name of an item whose step gives it none.
const ITEM: &str = "item";

/// The scopes that an action is evaluated in: `scope` itself, or `scope` with each item of the list.
pub async fn scopes(for_each: Option<&str>, name: Option<&str>, scope: &Scope) -> Result<Vec<Scope>, StepError> {
    let Some(source) = for_each else { return Ok(vec![scope.clone()]) };
    let failed = |error: &dyn std::error::Error| StepError::Failed(format!("forEach: {error}"));
    let list = Expression::parse(source).map_err(|e| failed(&e))?;
    let items = list.evaluate_list_bounded(scope).await.map_err(|e| failed(&e))?;
    items.iter().map(|item| scope.with(name.unwrap_or(ITEM), item).map_err(|e| failed(&e))).collect()
}
