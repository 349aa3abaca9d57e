//! Which tokens this replica accepts, and which one the webhook configurations are to name as far as it knows.
//!
//! It knows no client: what the Secret says is offered to it, with the time.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;

use super::{Token, Tokens};
use crate::certs::rotate::{RELOAD_GRACE, Registration};

/// For how long a token is accepted after it has left the Secret, so that one that somebody changed by hand, or made
/// anew while others still go by the old one, refuses nobody.
pub const LINGER: Duration = RELOAD_GRACE;

#[derive(Debug)]
struct Entry {
    token: Token,
    /// Until when, once it is not in the Secret any more.
    until: Option<Timestamp>,
}

/// What this replica accepts.
#[derive(Debug)]
pub struct Accepted {
    entries: RwLock<Vec<Entry>>,
    known: watch::Sender<Arc<Tokens>>,
}

impl Accepted {
    /// Accepts what the Secret says, and for a while also what the webhook configurations were seen to name.
    pub fn new(tokens: Tokens, registration: &Registration, now: Timestamp) -> Arc<Self> {
        let named = registration.named().iter().cloned().map(|token| Entry { token, until: None });
        let accepted =
            Self { entries: RwLock::new(named.collect()), known: watch::Sender::new(Arc::new(tokens.clone())) };
        accepted.offer(tokens, now);
        Arc::new(accepted)
    }

    /// Takes over what the Secret says now.
    pub fn offer(&self, tokens: Tokens, now: Timestamp) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        for entry in entries.iter_mut().filter(|entry| !tokens.accepted.contains(&entry.token)) {
            entry.until.get_or_insert(now + LINGER);
        }
        entries.retain(|entry| !tokens.accepted.contains(&entry.token) && entry.until.is_some_and(|until| now < until));
        entries.extend(tokens.accepted.iter().map(|token| Entry { token: token.clone(), until: None }));
        drop(entries);
        self.known.send_if_modified(|known| {
            let changed = **known != tokens;
            *known = Arc::new(tokens);
            changed
        });
    }

    /// Whether a caller that gives this is let in.
    pub fn accepts(&self, given: &str, now: Timestamp) -> bool {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let valid = entries.iter().filter(|entry| entry.until.is_none_or(|until| now < until));
        // All of them are compared, so that the time does not tell which one it was.
        valid.fold(false, |found, entry| entry.token.is(given) | found)
    }

    /// What the Secret said last.
    pub fn known(&self) -> watch::Receiver<Arc<Tokens>> {
        self.known.subscribe()
    }

    /// Has whoever follows [`Accepted::known`] look at the Secret again.
    pub(super) fn wake(&self) {
        self.known.send_modify(|_| {});
    }
}
