//! Where parsing and evaluation run: on a stack that holds them, with panics turned into errors, and under a time limit.

use super::error::quoted;
use super::limits::{Cancel, TIME};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Without optimisation the library needs 8 MiB for an expression that reaches the limits, with it half a MiB. Only
/// the pages that are touched become memory.
const LARGE: usize = 32 << 20;
/// Up to this depth an evaluation fits the stack that a thread of the runtime has left.
const SHALLOW: usize = 12;

/// Runs `work` here if it is known to be shallow, else on a large stack.
pub(super) fn for_depth<T: Send>(depth: usize, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    if depth > SHALLOW {
        return on_large(work);
    }
    // Nothing that a panic could leave half done outlives `work`.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| said(&*panic))
}

/// Runs `work` on a thread with a large stack, and waits for it.
pub(super) fn on_large<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("expression".into()).stack_size(LARGE).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("no thread for it: {error}"))?;
        thread.join().map_err(|panic| said(&*panic))
    })
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).map_or_else(|| "no message".into(), |text| quoted(&text))
}

/// Why [`bounded`] has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Stopped {
    TooSlow,
    Broken(String),
}

/// Runs `work` on a blocking thread for at most [`TIME`], then tells it to end and leaves it.
pub(crate) async fn bounded<T: Send + 'static>(work: impl FnOnce(&Cancel) -> T + Send + 'static) -> Result<T, Stopped> {
    let cancel = Cancel::default();
    let seen = cancel.clone();
    let running = tokio::task::spawn_blocking(move || work(&seen));
    match tokio::time::timeout(TIME, running).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Stopped::Broken(error.to_string())),
        Err(_) => {
            cancel.cancel();
            Err(Stopped::TooSlow)
        }
    }
}
