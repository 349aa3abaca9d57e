//! The life of a run as pure rules.
//!
//! [`transition`] is what happens to one run; [`next`] and [`obstacle`] are what a request for a change does, given
//! the runs that are known; [`fate`] is what becomes of a finished pre-phase, given what is stored. Nothing in here
//! knows a clock, a client or a replica: `tests/life` puts all of them around these rules and tries every order.

mod fate;
mod request;
#[cfg(test)]
mod tests;
mod transition;

pub use fate::{Fate, Stored, fate};
pub use request::{Asker, Asking, FAILURE_TTL, Next, Obstacle, is_blocked, is_early, next, obstacle, undo_is_due};
pub use transition::{Admission, Effect, Event, Life, Refusal, Role, transition};

use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// How often the undoing of a run is tried in all.
pub const UNDO_ATTEMPTS: u32 = 3;

/// The time from `moment` to `now`, nothing where it is unknown or later.
pub fn since(moment: Option<Timestamp>, now: Timestamp) -> Duration {
    moment.and_then(|m| Duration::try_from(now.duration_since(m)).ok()).unwrap_or_default()
}
