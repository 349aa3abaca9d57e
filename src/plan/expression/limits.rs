//! What an evaluation may cost. The library has no limits of its own: the loops are ours (see `loops`), and they count,
//! as does what is kept elsewhere (see `keep`). What single functions may do is in `bounds`.

use kube_cel::cel::objects::{Opaque, Value};
use kube_cel::cel::{Context, ExecutionError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The largest JSON that one expression may give, in bytes.
pub const MAX_OUTPUT: usize = 512 * 1024;
/// How deep `map`, `filter`, `all`, `exists` and `exists_one` may nest.
pub const MAX_LOOPS: usize = 3;
/// How many bytes of values one evaluation may go through in loops, and make and keep.
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
        let paid = Self::of(context, |budget| budget.pay(ROUND + size(value)));
        paid.unwrap_or_else(|| Err(ExecutionError::function_error("@budget", "a loop runs without a budget")))
    }

    /// Spends what `value` costs that is kept for a while. Free where there is no budget, as in a trial.
    pub fn hold(context: &Context<'_>, value: &Value) -> Result<(), ExecutionError> {
        Self::of(context, |budget| budget.pay(size(value))).unwrap_or(Ok(()))
    }

    /// An error if the evaluation was told to end.
    pub fn go_on(context: &Context<'_>) -> Result<(), ExecutionError> {
        Self::of(context, |budget| budget.pay(0)).unwrap_or(Ok(()))
    }

    /// What `ask` says of the budget in `context`; none if there is none.
    fn of<T>(context: &Context<'_>, ask: impl FnOnce(&Budget) -> T) -> Option<T> {
        let held = context.get_variable(VARIABLE)?;
        let Ok(Value::Opaque(held)) = Value::try_from(held.as_ref()) else { return None };
        held.downcast_ref::<Budget>().map(ask)
    }

    fn pay(&self, cost: usize) -> Result<(), ExecutionError> {
        if self.cancel.is_cancelled() {
            return Err(ExecutionError::function_error("@budget", "its time is up"));
        }
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(cost));
        left.map(drop).map_err(|_| {
            let most = MAX_WORK >> 20;
            let message = format!("it goes through and makes more than {most} MiB of values: loop over and make less");
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

/// About how many bytes `value` holds, in the forms that the library has it in at one time.
pub(super) fn size(value: &Value) -> usize {
    const WORD: usize = 64;
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
