//! How long a change has been waiting for its turn, so that its client comes again with gaps that cover the wait.
//!
//! A client that comes again says nothing of its earlier attempts; this remembers them by the change's key.

use crate::engine::index::{RunEntry, RunIndex};
use crate::engine::life;
use crate::plan::timing::{self, Waiting};
use k8s_openapi::jiff::Timestamp;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A change that has not been asked for in this long is not waited for any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(300);
/// The pause before a client comes again that could not be served now.
pub const SHORTEST: Duration = Duration::from_secs(2);

/// How long it may take until it is known whether a change was stored: the grace, and a new leader's first look.
const DECIDED_WITHIN: Duration = Duration::from_secs(90);

struct Asked {
    first: Instant,
    last: Instant,
}

/// When each change that waits for its turn was asked for first, as far as this replica knows.
#[derive(Default)]
pub struct Waits(Mutex<HashMap<String, Asked>>);

impl Waits {
    /// When the client of this change is to come again. `limit` is the time limit of what it waits for.
    pub fn gap(&self, key: &str, limit: Duration) -> Duration {
        let now = Instant::now();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|_, asked| now.duration_since(asked.last) < FORGOTTEN_AFTER);
        let asked = waiting.entry(key.to_owned()).or_insert(Asked { first: now, last: now });
        asked.last = now;
        let elapsed = now.duration_since(asked.first);
        timing::retry_after(Waiting { limit, elapsed, usual: None, hold: Duration::ZERO }).max(SHORTEST)
    }

    /// What is known of a run for which a request waits, seen from where its command began: one that waited for its
    /// turn has used up attempts before the run was there.
    pub fn since_first_asked(&self, key: &str, run: Waiting) -> Waiting {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = waiting.get(key).map_or(Duration::ZERO, |asked| asked.first.elapsed());
        delayed(run, waited.saturating_sub(run.elapsed))
    }

    /// The change has its turn.
    pub fn forget(&self, key: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

fn delayed(run: Waiting, by: Duration) -> Waiting {
    Waiting { limit: run.limit + by, elapsed: run.elapsed + by, usual: run.usual.map(|usual| usual + by), ..run }
}

/// What is known of a run for which a request waits.
pub fn waiting(index: &RunIndex, run: &RunEntry, held: bool) -> Waiting {
    Waiting {
        limit: Duration::from_secs(run.timeout_seconds.into()),
        elapsed: life::since(run.started_at.or(run.created_at), Timestamp::now()),
        usual: index.usually_takes(run.work),
        hold: if held { timing::LONGEST_HOLD } else { Duration::ZERO },
    }
}

/// When to come again for a change that waits until it is known whether another one was stored. Its own clock tells how
/// long that takes already, so that every replica says the same.
pub fn gap_until_decided(index: &RunIndex, run: &str) -> Duration {
    let ended = index
        .get(run)
        .and_then(|run| run.admitted.as_ref().and_then(|a| a.at.as_ref().map(|at| at.0)).or(run.finished_at));
    let elapsed = ended.map_or(Duration::ZERO, |ended| life::since(Some(ended), Timestamp::now()));
    decided_gap(elapsed)
}

fn decided_gap(elapsed: Duration) -> Duration {
    timing::retry_after(Waiting { limit: DECIDED_WITHIN, elapsed, usual: None, hold: Duration::ZERO }).max(SHORTEST)
}

/// When to come again for a change that waits for a run of another one, so that one command covers that run too.
pub fn gap_until(index: &RunIndex, run: Option<&RunEntry>, held: bool) -> Duration {
    let open = run.filter(|run| run.state.is_open());
    open.map_or(SHORTEST, |run| timing::retry_after(waiting(index, run, held)).max(SHORTEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_covers_the_time_until_a_change_is_decided() {
        let mut elapsed = Duration::ZERO;
        // Ten gaps lie between eleven attempts.
        for _ in 0..10 {
            elapsed += decided_gap(elapsed);
        }
        assert!(elapsed >= DECIDED_WITHIN, "{elapsed:?}");
        assert_eq!(gap_until_decided(&RunIndex::default(), "unknown"), decided_gap(Duration::ZERO));
    }

    #[test]
    fn one_command_covers_the_wait_for_a_turn_and_the_run_that_follows() {
        let limit = Duration::from_secs(300);
        let gap = |elapsed| timing::retry_after(Waiting { limit, elapsed, usual: None, hold: Duration::ZERO });
        for turn in [10, 60, 150].map(Duration::from_secs) {
            let (mut elapsed, mut attempts) = (Duration::ZERO, 1);
            while elapsed < turn {
                elapsed += gap(elapsed);
                attempts += 1;
            }
            let begun = elapsed;
            while attempts < timing::ATTEMPTS {
                let run = Waiting { limit, elapsed: elapsed - begun, usual: None, hold: Duration::ZERO };
                elapsed += timing::retry_after(delayed(run, begun));
                attempts += 1;
            }
            assert!(elapsed - begun >= limit / 2, "{turn:?}: {:?}", elapsed - begun);
        }
    }

    #[test]
    fn who_waits_for_the_first_time_comes_again_soon_and_others_do_not_count() {
        let waits = Waits::default();
        assert!(waits.gap("a", Duration::from_secs(300)) <= Duration::from_secs(3));
        assert_eq!(waits.gap("b", Duration::from_secs(10)), SHORTEST);
        waits.forget("a");
        assert!(waits.gap("a", Duration::from_secs(300)) <= Duration::from_secs(3));
    }
}
