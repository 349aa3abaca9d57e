//! Which tokens this replica accepts, and which one the webhook configurations are to name as far as it knows.
//!
//! It knows no client: what the Secret says is offered to it, with the time, and it says when the Secret is to be read.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::{Notify, watch};

use super::exposed::Exposed;
use super::{Token, Tokens};
use crate::certs::rotate::{RELOAD_GRACE, Registration};

/// For how long a token is accepted after it has left the Secret without having been retired, so that one that somebody
/// changed by hand, or made anew while others still go by the old one, refuses nobody.
pub const LINGER: Duration = RELOAD_GRACE;
/// A token that is not known is looked for in the Secret, unless that was read within this time: less than a new token
/// waits before it is named ([`super::rotate::ACCEPTED_WITHIN`]), so whoever is sent it by then has read it or reads it.
pub const FRESH: Duration = Duration::from_secs(5);
/// What was read longer ago than this is read again before anybody is let in by it: this process was stopped, or its
/// watch is broken and its reads fail.
pub const STALE: Duration = Duration::from_secs(20);
/// How long a caller waits for such a read.
const READ: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Entry {
    token: Token,
    /// Until when, once it is not in the Secret any more.
    until: Option<Timestamp>,
}

/// What becomes of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is let in.
    LetIn,
    /// It is refused.
    Refuse,
    /// The Secret must be read first; where it cannot be, what was known decides.
    ReadFirst {
        /// Whether what was known lets it in.
        known: bool,
    },
}

/// What this replica accepts.
#[derive(Debug)]
pub struct Accepted {
    entries: RwLock<Vec<Entry>>,
    known: watch::Sender<Arc<Tokens>>,
    /// When the read began that what is known was last learned or confirmed by.
    read: RwLock<Timestamp>,
    /// When the last attempt to read began, whatever came of it.
    reads: watch::Sender<Timestamp>,
    wanted: Notify,
    /// What somebody may have seen of what is accepted.
    pub exposed: Exposed,
}

impl Accepted {
    /// Accepts what the Secret says, which was read `now`, and for a while also what the webhook configurations were
    /// seen to name.
    pub fn new(tokens: Tokens, registration: &Registration, now: Timestamp) -> Arc<Self> {
        let named = registration.named().iter().cloned().map(|token| Entry { token, until: None });
        let accepted = Self {
            entries: RwLock::new(named.collect()),
            known: watch::Sender::new(Arc::new(tokens.clone())),
            read: RwLock::new(now),
            reads: watch::Sender::new(now),
            wanted: Notify::new(),
            exposed: Exposed::default(),
        };
        accepted.offer(tokens, now);
        Arc::new(accepted)
    }

    /// Takes over what the Secret says now.
    pub fn offer(&self, tokens: Tokens, now: Timestamp) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        for entry in entries.iter_mut().filter(|entry| !tokens.accepted.contains(&entry.token)) {
            entry.until.get_or_insert(now + LINGER);
        }
        entries.retain(|entry| {
            !tokens.accepted.contains(&entry.token)
                && !tokens.retired.contains(&entry.token)
                && entry.until.is_some_and(|until| now < until)
        });
        entries.extend(tokens.accepted.iter().map(|token| Entry { token: token.clone(), until: None }));
        drop(entries);
        self.known.send_if_modified(|known| {
            let changed = **known != tokens;
            *known = Arc::new(tokens);
            changed
        });
    }

    /// What becomes of a caller that gives this.
    pub fn judge(&self, given: &str, now: Timestamp) -> Verdict {
        let read = *self.read.read().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back says nothing.
        let read_within = |time: Duration| read <= now && now < read + time;
        match self.accepts(given, now) {
            true if read_within(STALE) => Verdict::LetIn,
            true => Verdict::ReadFirst { known: true },
            false if read_within(FRESH) || Token::read(given).is_none() => Verdict::Refuse,
            false => Verdict::ReadFirst { known: false },
        }
    }

    /// Whether a caller that gives this is let in, after the Secret was read where that is needed.
    pub async fn lets_in(&self, given: &str) -> bool {
        let asked = Timestamp::now();
        match self.judge(given, asked) {
            Verdict::LetIn => return true,
            Verdict::Refuse => return false,
            Verdict::ReadFirst { .. } => {}
        }
        let mut reads = self.reads.subscribe();
        self.wanted.notify_one();
        // Whatever comes of it, what is known then decides. A read that began earlier may not have seen this token yet.
        let _ = tokio::time::timeout(READ, reads.wait_for(|began| *began >= asked)).await;
        self.accepts(given, Timestamp::now())
    }

    /// Counts the token that is `given` as seen by somebody: a call by it went wrong, or may have.
    pub fn note_exposed(&self, given: &str) {
        let now = Timestamp::now();
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.iter().find(|entry| entry.is(given, now)) {
            self.exposed.note(&entry.token);
        }
    }

    /// Counts the token that the webhook configurations are to name as seen by somebody: a call went wrong of which
    /// nothing else is known, such as a connection that was refused.
    pub fn note_current_exposed(&self) {
        self.exposed.note(&self.known.borrow().current);
    }

    fn accepts(&self, given: &str, now: Timestamp) -> bool {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        // All of them are compared, so that the time does not tell which one it was.
        entries.iter().fold(false, |found, entry| entry.is(given, now) | found)
    }

    /// What the Secret said last.
    pub fn known(&self) -> watch::Receiver<Arc<Tokens>> {
        self.known.subscribe()
    }

    /// Has whoever follows [`Accepted::known`] look at the Secret again.
    pub(super) fn wake(&self) {
        self.known.send_modify(|_| {});
    }

    /// Waits until somebody wants the Secret to be read.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// The Secret was read, from `began` on, and what it said was offered.
    pub(super) fn was_read(&self, began: Timestamp) {
        *self.read.write().unwrap_or_else(PoisonError::into_inner) = began;
        self.reads.send_replace(began);
    }

    /// The Secret could not be read, or says nothing.
    pub(super) fn was_not_read(&self, began: Timestamp) {
        self.reads.send_replace(began);
    }
}

impl Entry {
    fn is(&self, given: &str, now: Timestamp) -> bool {
        self.token.is(given) & self.until.is_none_or(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_token_that_left_the_secret_unretired_lingers_for_a_while_and_a_retired_one_does_not() {
        let now: Timestamp = "2026-12-02T12:00:00Z".parse().unwrap();
        let (before, mut after) = (Tokens::first(&[], now), Tokens::first(&[], now));
        let accepted = Accepted::new(before.clone(), &Registration::Absent, now);
        let old = before.current.path("")[1..].to_owned();
        accepted.offer(after.clone(), now);
        assert!(accepted.accepts(&old, now + LINGER - SECOND) && !accepted.accepts(&old, now + LINGER));
        after.retired = vec![before.current];
        accepted.offer(after, now);
        assert!(!accepted.accepts(&old, now));
    }

    #[test]
    fn the_secret_is_read_before_an_unknown_token_is_refused_or_anybody_let_in_by_what_is_old() {
        let now: Timestamp = "2026-12-02T12:00:00Z".parse().unwrap();
        let tokens = Tokens::first(&[], now);
        let accepted = Accepted::new(tokens.clone(), &Registration::Absent, now);
        let (known, unknown) = (tokens.current.path("")[1..].to_owned(), Token::random().path("")[1..].to_owned());
        assert_eq!(accepted.judge(&unknown, now + FRESH - SECOND), Verdict::Refuse);
        assert_eq!(accepted.judge(&unknown, now + FRESH), Verdict::ReadFirst { known: false });
        assert_eq!(accepted.judge("guess", now + FRESH), Verdict::Refuse, "it is no token");
        assert_eq!(accepted.judge(&known, now + STALE - SECOND), Verdict::LetIn);
        assert_eq!(accepted.judge(&known, now + STALE), Verdict::ReadFirst { known: true });
        assert_eq!(accepted.judge(&known, now - SECOND), Verdict::ReadFirst { known: true }, "a clock set back");
    }

    #[tokio::test]
    async fn a_read_that_began_before_a_caller_came_does_not_refuse_it() {
        let long_ago = Timestamp::now() - Duration::from_secs(3600);
        let tokens = Tokens::first(&[], long_ago);
        let accepted = Accepted::new(tokens.clone(), &Registration::Absent, long_ago);
        let mut next = tokens;
        let new = Token::random();
        let asked = accepted.clone();
        let given = new.path("")[1..].to_owned();
        tokio::spawn(async move {
            asked.wanted().await;
            // This is another's read, which ends only now.
            asked.was_read(Timestamp::now() - SECOND);
            tokio::task::yield_now().await;
            next.accepted.push(new);
            asked.offer(next, Timestamp::now());
            asked.was_read(Timestamp::now());
        });
        assert!(accepted.lets_in(&given).await);
    }

    #[tokio::test]
    async fn where_the_secret_cannot_be_read_what_was_known_decides() {
        let long_ago = Timestamp::now() - Duration::from_secs(3600);
        let tokens = Tokens::first(&[], long_ago);
        let accepted = Accepted::new(tokens.clone(), &Registration::Absent, long_ago);
        let asked = accepted.clone();
        tokio::spawn(async move {
            loop {
                asked.wanted().await;
                asked.was_not_read(Timestamp::now());
            }
        });
        assert!(accepted.lets_in(&tokens.current.path("")[1..]).await);
        assert!(!accepted.lets_in(&Token::random().path("")[1..]).await);
    }
}
