//! Parsed expressions, kept: parsing one takes longer than most evaluations, and the same plugins run again and again.

use super::Expression;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// How much source is kept, in bytes. What is parsed of it takes some ten times as much.
const ROOM: usize = 512 * 1024;

#[derive(Default)]
struct Kept {
    expressions: HashMap<String, Expression>,
    bytes: usize,
}

static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

/// The expression with this source, from `parse` where it is not known.
pub fn parsed<E>(source: &str, parse: impl FnOnce(&str) -> Result<Expression, E>) -> Result<Expression, E> {
    let kept = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kept().expressions.get(source) {
        return Ok(known.clone());
    }
    let expression = parse(source)?;
    let mut kept = kept();
    if kept.bytes + source.len() > ROOM {
        *kept = Kept::default();
    }
    if kept.expressions.insert(source.to_owned(), expression.clone()).is_none() {
        kept.bytes += source.len();
    }
    Ok(expression)
}
