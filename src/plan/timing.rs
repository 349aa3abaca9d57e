//! How long a request is held, and when its client is told to come again.
//!
//! client-go sends a request that was answered with 429 and `retryAfterSeconds` again, [`ATTEMPTS`] times in all. Holds
//! and gaps together must cover a phase's whole time limit, and a phase that is over should be noticed soon. Both
//! follow from the limit and from how long such a phase usually takes, so that every replica gives the same answer.

use std::time::Duration;

/// The longest that a request is held. The API server gives a webhook at most 30 s.
pub const LONGEST_HOLD: Duration = Duration::from_secs(27);
/// How long before the API server's own limit the answer leaves. Its clock runs from before the connection is made.
pub const ANSWER_MARGIN: Duration = Duration::from_millis(2500);
/// Requests of one client-go call that is told to come again.
pub const ATTEMPTS: u32 = 11;
/// The shortest gap that `retryAfterSeconds` can say.
const SHORTEST_GAP: f64 = 1.0;
/// How gaps may grow with the time that has passed. What is lost to waiting is at most this part of a phase's length.
const GROWTHS: [f64; 5] = [0.0, 0.1, 0.2, 0.27, 1.0 / 3.0];
/// The same for requests that find no room to be held: gaps alone must reach the limit.
const GROWTHS_UNHELD: [f64; 3] = [0.5, 0.6, 0.7];
/// Of a limit, the first gap of a request that is not held: with gaps that grow by half they just reach the limit.
const FIRST_UNHELD: f64 = 1.0 / 113.0;
/// How long before its usual end a phase is asked after again, where the request can be held over that end.
const BEFORE_USUAL_END: f64 = 2.0;
/// How long after its usual end, where it cannot.
const AFTER_USUAL_END: f64 = 0.5;

/// How long a request may be held that the API server gives `given` (its `?timeout=`).
pub fn hold(given: Option<Duration>) -> Duration {
    given.map_or(LONGEST_HOLD, |given| given.saturating_sub(ANSWER_MARGIN).min(LONGEST_HOLD))
}

/// What is known of a phase when a request for it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The phase's time limit.
    pub limit: Duration,
    /// How long it has run.
    pub elapsed: Duration,
    /// How long such phases have taken before.
    pub usual: Option<Duration>,
    /// How long the next request will be held; zero where there is no room.
    pub hold: Duration,
}

/// When to come again: whole seconds, at least one.
pub fn retry_after(waiting: Waiting) -> Duration {
    let elapsed = waiting.elapsed.as_secs_f64();
    let next = starts(waiting).into_iter().find(|start| *start > elapsed + SHORTEST_GAP / 2.0);
    let gap = next.map_or(SHORTEST_GAP, |next| next - elapsed).max(SHORTEST_GAP);
    // Rounding up must not lead past the end that it was aimed at.
    Duration::from_secs(if waiting.usual.is_some() { gap.round() } else { gap.ceil() }.max(1.0) as u64)
}

/// How long a phase may take for one command to cover it, when each request can be held for `hold`.
pub fn covered(hold: Duration) -> Duration {
    let growth = GROWTHS[GROWTHS.len() - 1];
    let starts = schedule(Plan { first: 0.0, growth, hold: hold.as_secs_f64(), aim: None });
    Duration::from_secs_f64(end(&starts, hold.as_secs_f64()))
}

/// How long a finished pre-phase waits for its change to be stored before it counts as abandoned.
///
/// Before a request has been admitted on its strength, the client's next attempt may still be a whole gap away;
/// after that the API server ends the request within 34 s.
pub fn commit_grace(limit: Duration, ran_for: Duration, admitted: bool, grace: Duration) -> Duration {
    if admitted {
        return grace;
    }
    let longest_gap = limit.mul_f64(FIRST_UNHELD) + ran_for.mul_f64(GROWTHS_UNHELD[GROWTHS_UNHELD.len() - 1]);
    grace + 2 * longest_gap
}

/// One way to spread a command's attempts.
#[derive(Clone, Copy)]
struct Plan {
    first: f64,
    growth: f64,
    hold: f64,
    /// When an attempt is to begin whatever the gaps would be.
    aim: Option<f64>,
}

/// When each attempt begins, in seconds: with the smallest gaps that cover the limit, and, where that leaves the limit
/// covered, with one attempt at the phase's usual end.
fn starts(waiting: Waiting) -> Vec<f64> {
    let (limit, hold) = (waiting.limit.as_secs_f64(), waiting.hold.as_secs_f64());
    let is_held = hold > 0.0;
    let (first, growths) = if is_held { (0.0, &GROWTHS[..]) } else { (limit * FIRST_UNHELD, &GROWTHS_UNHELD[..]) };
    let aim = waiting
        .usual
        .map(|usual| usual.as_secs_f64())
        .filter(|usual| *usual < limit)
        .map(|usual| if is_held { usual - BEFORE_USUAL_END } else { usual + AFTER_USUAL_END });
    let plans = |aim| growths.iter().map(move |growth| schedule(Plan { first, growth: *growth, hold, aim }));
    let covers = |starts: &Vec<f64>| end(starts, hold) >= limit;
    let aimed = aim.and_then(|aim| plans(Some(aim)).find(covers));
    aimed.or_else(|| plans(None).find(covers)).or_else(|| plans(None).next_back()).unwrap_or_default()
}

fn schedule(plan: Plan) -> Vec<f64> {
    let Plan { first, growth, hold, mut aim } = plan;
    let mut starts = vec![0.0];
    while starts.len() < ATTEMPTS as usize {
        let left = starts[starts.len() - 1] + hold;
        let mut next = left + (first + left * growth).max(SHORTEST_GAP).ceil();
        if let Some(at) = aim
            && next >= at
        {
            // A usual end that falls into a hold needs no attempt of its own.
            if at >= left + SHORTEST_GAP {
                next = at;
            }
            aim = None;
        }
        starts.push(next);
    }
    starts
}

fn end(starts: &[f64], hold: f64) -> f64 {
    starts.last().map_or(0.0, |last| last + hold)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const HELD: Duration = LONGEST_HOLD;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What one command sees of a phase that takes `length`: how long after its end it is told, if it ever is.
    fn lost(limit: u64, length: f64, usual: Option<Duration>, hold: Duration) -> Option<f64> {
        let mut now = 0.0;
        for _ in 0..ATTEMPTS {
            if length <= now + hold.as_secs_f64() {
                return Some((now - length).max(0.0));
            }
            now += hold.as_secs_f64();
            let elapsed = Duration::from_secs_f64(now);
            now += retry_after(Waiting { limit: seconds(limit), elapsed, usual, hold }).as_secs_f64();
        }
        None
    }

    #[rstest]
    fn one_command_covers_the_whole_limit_and_loses_little(
        #[values(1, 30, 75, 120, 300, 301, 480, 481, 900, 1300, 1800)] limit: u64,
        #[values(None, Some(5), Some(20), Some(29), Some(63), Some(250), Some(700), Some(1600))] usual: Option<u64>,
    ) {
        let usual = usual.map(seconds);
        for tenth in 1..=10 {
            let length = limit as f64 * f64::from(tenth) / 10.0;
            let lost = lost(limit, length, usual, HELD).unwrap_or_else(|| panic!("{length} of {limit} is not covered"));
            let part = if limit > 300 { 1.0 / 3.0 } else { 0.1 };
            assert!(lost <= 2.0 + length * part, "{lost} of {length} of {limit}, usually {usual:?}");
        }
    }

    #[rstest]
    fn a_request_that_is_never_held_reaches_the_limit_too(
        #[values(1, 30, 75, 300, 301, 900, 1800)] limit: u64,
        #[values(None, Some(20), Some(700))] usual: Option<u64>,
    ) {
        assert!(lost(limit, limit as f64 - 0.1, usual.map(seconds), Duration::ZERO).is_some());
    }

    #[rstest]
    fn the_usual_end_is_noticed_at_once(
        #[values(40, 95, 210, 333, 600, 900)] usual: u64,
        #[values(900, 1300)] limit: u64,
    ) {
        if usual < limit {
            let lost = lost(limit, usual as f64 - 0.3, Some(seconds(usual)), HELD).unwrap();
            assert!(lost <= 1.0, "{lost}");
        }
    }

    #[test]
    fn the_usual_end_of_a_short_phase_is_noticed_though_there_is_no_room_to_hold() {
        let lost = lost(300, 19.9, Some(seconds(20)), Duration::ZERO).unwrap();
        assert!(lost <= 2.0, "{lost}");
    }

    #[test]
    fn the_answer_leaves_before_the_api_server_gives_up() {
        assert_eq!(hold(Some(Duration::from_secs(30))), LONGEST_HOLD);
        assert_eq!(hold(Some(Duration::from_secs(10))), Duration::from_millis(7500));
        assert_eq!(hold(Some(Duration::from_secs(1))), Duration::ZERO);
        assert_eq!(hold(None), LONGEST_HOLD);
    }

    #[test]
    fn what_one_command_covers_depends_on_how_long_requests_are_held() {
        assert!(covered(HELD) >= seconds(1800));
        assert!(covered(seconds(8)) < seconds(600), "{:?}", covered(seconds(8)));
    }
}
