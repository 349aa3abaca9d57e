//! Where time and names come from. The world itself knows no clock and no chance, so one seed makes one history.

use futures::future::BoxFuture;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// The time as the API server sees it.
pub trait Clock: Send + Sync + 'static {
    /// Time since 1970-01-01T00:00:00Z.
    fn now(&self) -> Duration;
    /// Ends when `now` is `span` later.
    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()>;
}

/// What makes objects distinct.
pub trait Ids: Send + Sync + 'static {
    /// A UID that was never given before, in the usual form of 36 characters.
    fn uid(&self) -> String;
    /// Five characters that a `generateName` is completed with.
    fn suffix(&self) -> String;
}

/// A clock that stands still until somebody moves it.
#[derive(Debug)]
pub struct HandClock(watch::Sender<Duration>);

impl HandClock {
    pub fn at(start: Duration) -> Self {
        Self(watch::Sender::new(start))
    }

    /// Moves the time on and wakes whoever slept that long.
    pub fn advance(&self, span: Duration) {
        self.0.send_modify(|now| *now = now.saturating_add(span));
    }
}

impl Clock for HandClock {
    fn now(&self) -> Duration {
        *self.0.borrow()
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        let mut time = self.0.subscribe();
        let end = self.now().saturating_add(span);
        Box::pin(async move {
            if time.wait_for(|now| *now >= end).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}

/// UIDs and suffixes from a seed (SplitMix64): equal seeds give equal worlds.
#[derive(Debug)]
pub struct SeededIds(AtomicU64);

/// The characters of the API server's generated names: no vowels, so no words.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

impl SeededIds {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    fn next(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut word = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }
}

impl Ids for SeededIds {
    fn uid(&self) -> String {
        let (high, low) = (self.next(), self.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xFFFF,
            high & 0x0FFF,
            0x8000 | ((low >> 48) & 0x3FFF),
            low & 0xFFFF_FFFF_FFFF
        )
    }

    fn suffix(&self) -> String {
        let mut word = self.next();
        let mut text = String::new();
        for _ in 0..5 {
            let at = usize::try_from(word % 27).unwrap_or_default();
            text.push(char::from(LETTERS[at]));
            word /= 27;
        }
        text
    }
}

/// `2026-01-02T03:04:05Z`, as `metadata` writes times: whole seconds.
pub fn stamp(time: Duration) -> String {
    use k8s_openapi::jiff::Timestamp;
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| Timestamp::UNIX_EPOCH.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_ids_and_no_two_are_the_same() {
        let (one, other) = (SeededIds::new(7), SeededIds::new(7));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1_000 {
            let uid = one.uid();
            assert_eq!(uid, other.uid());
            assert_eq!(uid.len(), 36);
            assert!(seen.insert(uid));
        }
        assert_eq!(one.suffix().len(), 5);
    }

    #[test]
    fn times_are_whole_seconds() {
        assert_eq!(stamp(Duration::from_millis(1_500)), "1970-01-01T00:00:01Z");
    }

    #[tokio::test]
    async fn a_sleeper_wakes_when_the_hands_pass() {
        let clock = HandClock::at(Duration::from_secs(10));
        let mut sleep = clock.sleep(Duration::from_secs(5));
        clock.advance(Duration::from_secs(4));
        assert!(futures::poll!(&mut sleep).is_pending());
        clock.advance(Duration::from_secs(1));
        assert!(futures::poll!(&mut sleep).is_ready());
    }
}
