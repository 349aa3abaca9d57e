//! How long a request is held, and when its client is told to come again.
//!
//! client-go sends a request that was answered with 429 and `retryAfterSeconds` again, 11 attempts in all. Holds and
//! gaps together must cover a phase's whole time limit.

use std::time::Duration;

/// The longest that a request is held. The API server gives a webhook at most 30 s.
pub const LONGEST_HOLD: Duration = Duration::from_secs(28);
/// How long before the API server's own limit the answer leaves.
pub const ANSWER_MARGIN: Duration = Duration::from_millis(1500);
/// Requests of one client-go call that is told to come again.
pub const ATTEMPTS: u32 = 11;
/// The longest limit that [`ATTEMPTS`] holds with gaps of a second cover.
const COVERED_BY_HOLDS: Duration = Duration::from_secs(300);
/// The longest limit that holds and gaps of a tenth of the elapsed time cover.
const COVERED_BY_TENTHS: Duration = Duration::from_secs(480);

/// How long a request may be held that the API server gives `given` (its `?timeout=`).
pub fn hold(given: Option<Duration>) -> Duration {
    given.map_or(LONGEST_HOLD, |given| given.saturating_sub(ANSWER_MARGIN).min(LONGEST_HOLD))
}

/// When to come again, for a phase with this time limit that has run for `elapsed`: whole seconds, at least one.
///
/// A held request loses only the gap, so gaps are short while holds alone cover the limit. A request that found no
/// room to be held must reach the limit by its gaps alone: they grow by half of the elapsed time.
pub fn retry_after(limit: Duration, elapsed: Duration, held: bool) -> Duration {
    let seconds = if !held {
        limit.as_secs_f64() / 113.0 + elapsed.as_secs_f64() / 2.0
    } else if limit <= COVERED_BY_HOLDS {
        1.0
    } else if limit <= COVERED_BY_TENTHS {
        elapsed.as_secs_f64() / 10.0
    } else {
        elapsed.as_secs_f64() / 3.0
    };
    Duration::from_secs(seconds.ceil().clamp(1.0, limit.as_secs_f64().max(1.0)) as u64)
}

/// How long a finished pre-phase waits for its change to be stored before it counts as abandoned.
///
/// Before a request has been admitted on its strength, the client's next attempt may still be a whole gap away;
/// after that the API server ends the request within 34 s.
pub fn commit_grace(limit: Duration, ran_for: Duration, admitted: bool, grace: Duration) -> Duration {
    if admitted { grace } else { grace + 2 * retry_after(limit, ran_for, false) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// The time that one command covers.
    fn covered(limit: u64, held: bool) -> f64 {
        let limit = Duration::from_secs(limit);
        let mut elapsed = Duration::ZERO;
        for attempt in 1..=ATTEMPTS {
            if held {
                elapsed += LONGEST_HOLD;
            }
            if attempt < ATTEMPTS {
                elapsed += retry_after(limit, elapsed, held);
            }
        }
        elapsed.as_secs_f64()
    }

    #[rstest]
    fn one_command_covers_the_whole_limit(
        #[values(1, 30, 75, 120, 300, 301, 480, 481, 900, 1800)] limit: u64,
        #[values(true, false)] held: bool,
    ) {
        assert!(covered(limit, held) >= limit as f64, "{} of {limit}", covered(limit, held));
    }

    #[test]
    fn the_answer_leaves_before_the_api_server_gives_up() {
        assert_eq!(hold(Some(Duration::from_secs(30))), Duration::from_secs(28));
        assert_eq!(hold(Some(Duration::from_secs(10))), Duration::from_millis(8500));
        assert_eq!(hold(Some(Duration::from_secs(1))), Duration::ZERO);
        assert_eq!(hold(None), LONGEST_HOLD);
    }

    #[test]
    fn a_held_request_of_a_short_phase_loses_a_second() {
        assert_eq!(retry_after(Duration::from_secs(300), Duration::from_secs(56), true), Duration::from_secs(1));
    }
}
