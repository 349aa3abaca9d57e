//! What an evaluation may cost. The library has no limits of its own: the loops are ours (see `loops`), and they count.

use kube_cel::cel::objects::{Opaque, Value};
use kube_cel::cel::{Context, ExecutionError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The largest JSON that one expression may give, in bytes.
pub const MAX_OUTPUT: usize = 512 * 1024;
/// How deep `map`, `filter`, `all`, `exists` and `exists_one` may nest.
pub const MAX_LOOPS: usize = 3;
/// How many bytes of values the loops of one evaluation may go through and keep.
pub const MAX_WORK: usize = 128 * 1024 * 1024;
/// How long a bounded evaluation may take.
pub const TIME: Duration = Duration::from_secs(1);
/// The largest list that `lists.range` makes.
pub const MAX_RANGE: i64 = 10_000;

/// What one round of a loop costs beside its value, so that empty rounds are bounded too.
const ROUND: usize = 256;
/// The name of the variable that carries the budget into the loops. No expression can write it.
const VARIABLE: &str = "@budget";

/// Tells the loops of an evaluation to end; clones are one flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the evaluation at its next round of a loop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`Cancel::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What an evaluation has left to spend.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicUsize,
    cancel: Cancel,
}

impl Budget {
    /// A whole budget, put into `context`.
    pub fn install(context: &mut Context<'_>, cancel: &Cancel) {
        let budget = Budget { left: AtomicUsize::new(MAX_WORK), cancel: cancel.clone() };
        context.add_variable_from_value(VARIABLE, Value::Opaque(Arc::new(budget)));
    }

    /// Spends what a loop's round over `value` costs.
    pub fn spend(context: &Context<'_>, value: &Value) -> Result<(), ExecutionError> {
        let Some(held) = context.get_variable(VARIABLE) else {
            return Err(ExecutionError::function_error("@budget", "a loop runs without a budget"));
        };
        let Value::Opaque(held) = Value::try_from(held.as_ref())? else {
            return Err(ExecutionError::function_error("@budget", "a loop runs without a budget"));
        };
        let Some(budget) = held.downcast_ref::<Budget>() else {
            return Err(ExecutionError::function_error("@budget", "a loop runs without a budget"));
        };
        if budget.cancel.is_cancelled() {
            return Err(ExecutionError::function_error("@budget", "its time is up"));
        }
        let cost = ROUND + size(value);
        let left = budget.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(cost));
        left.map(drop).map_err(|_| {
            let message = format!("its loops go through more than {} MiB of values: loop over less", MAX_WORK >> 20);
            ExecutionError::function_error("@budget", message)
        })
    }
}

impl PartialEq for Budget {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Budget {}

impl Opaque for Budget {
    fn runtime_type_name(&self) -> &str {
        "sluice.budget"
    }
}

/// About how many bytes `value` holds.
fn size(value: &Value) -> usize {
    const WORD: usize = 16;
    match value {
        Value::String(text) => WORD + text.len(),
        Value::Bytes(bytes) => WORD + bytes.len(),
        Value::List(items) => WORD + items.iter().map(size).sum::<usize>(),
        Value::Map(map) => {
            WORD + map.map.iter().map(|(key, value)| WORD + size(&Value::from(key)) + size(value)).sum::<usize>()
        }
        _ => WORD,
    }
}
