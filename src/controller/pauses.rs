//! How long is waited between two looks at what goes by itself.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The pause between the first looks: pods mostly end within seconds, and a person waits for it.
const FIRST: Duration = Duration::from_millis(500);
/// The longest pause: what somebody's finalizer holds may stay for ever.
const LONGEST: Duration = Duration::from_secs(60);
/// The part of the time waited so far that the next pause takes: whoever waits does so an eighth longer than needed.
const PART: u32 = 8;
/// Objects that are waited for at a time. With more, those that are known are waited for anew.
const KEPT: usize = 65_536;

/// Since when something is waited for, by the UID of what it is of.
#[derive(Default)]
pub struct Pauses(Mutex<HashMap<String, Instant>>);

impl Pauses {
    /// The pause before the next look.
    pub fn next(&self, uid: &str) -> Duration {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if since.len() >= KEPT && !since.contains_key(uid) {
            since.clear();
        }
        let since = *since.entry(uid.to_owned()).or_insert_with(Instant::now);
        pause(since.elapsed())
    }

    /// What was waited for has come.
    pub fn end(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

fn pause(waited: Duration) -> Duration {
    (waited / PART).clamp(FIRST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t03_what_never_goes_is_looked_at_once_a_minute_and_what_goes_is_seen_soon() {
        let (mut looks, mut waited) = (0, Duration::ZERO);
        while waited < Duration::from_secs(60 * 60) {
            let next = pause(waited);
            assert!(next <= LONGEST && next <= FIRST.max(waited / 4), "{next:?} after {waited:?}");
            (looks, waited) = (looks + 1, waited + next);
        }
        assert_eq!(pause(waited), LONGEST);
        assert!(looks < 120, "{looks} looks in an hour");
    }

    #[test]
    fn a_wait_that_has_ended_begins_anew() {
        let pauses = Pauses::default();
        let long_ago = Instant::now().checked_sub(Duration::from_secs(80)).unwrap();
        pauses.0.lock().unwrap().insert("u".into(), long_ago);
        assert_eq!(pauses.next("another"), FIRST);
        assert!(pauses.next("u") >= Duration::from_secs(10));
        pauses.end("u");
        assert_eq!(pauses.next("u"), FIRST);
    }
}
