//! Whether a history keeps the promise of `docs/design.md`: every phase of every stored change runs, once in effect, in
//! order; nothing runs for a change that was not stored, or it is undone; nothing is stuck; clients are told the truth.
//!
//! Pure: a history in, its violations out.

mod changes;
mod effects;
pub mod history;
mod order;
mod undo;

use history::History;
use std::fmt;

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

fn broken(rule: &'static str, what: impl Into<String>) -> Violation {
    Violation { rule, what: what.into() }
}

/// Every violation of a history in which nothing is under way any more.
pub fn check(history: &History) -> Vec<Violation> {
    let mut found: Vec<Violation> = history.left.iter().map(|left| broken("left over", left.clone())).collect();
    found.extend(changes::check(history));
    found.extend(undo::check(history));
    found.extend(order::check(history));
    found.extend(effects::check(history));
    found
}
