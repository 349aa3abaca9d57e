//! Decides the next step of the token's life, in the order in which no call is refused: the new one is accepted by every
//! replica, the webhook configurations name it, and only when every API server calls by it the old one leaves.
//!
//! Pure, like [`crate::certs::rotate`], whose order it follows, but faster: whoever may have seen a token must not be
//! able to use it for more than a minute. The sum of [`PAUSE`], less what overlaps, [`ACCEPTED_WITHIN`] and
//! [`HEARD_WITHIN`] is less than that. A replica that is later than [`ACCEPTED_WITHIN`] refuses nobody all the same: it
//! reads the Secret before it refuses ([`super::accept::FRESH`]).

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{Token, Tokens};
use crate::certs::rotate::Registration;

/// How long a token is used, even if nobody is known to have seen it.
pub const LIFETIME: Duration = Duration::from_secs(60 * 60);
/// How long replicas have to accept a new token before it is named. Each hears of it by a watch, in far less than a
/// second, or by its next look ([`super::keep::LOOK`]).
pub const ACCEPTED_WITHIN: Duration = Duration::from_secs(12);
/// How long API servers have to see what the webhook configurations name, before the old token is refused. They hear of
/// it by a watch.
pub const HEARD_WITHIN: Duration = Duration::from_secs(25);
/// Tokens are not replaced more often than this, whatever is noted of them: so nobody makes Sluice write for ever.
pub const PAUSE: Duration = Duration::from_secs(30);
/// How many retired tokens are remembered as such.
const REMEMBERED: usize = 16;

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing is due.
    Keep,
    /// Accept a new token; the webhook configurations name the old one.
    Append,
    /// Have the webhook configurations name the new one.
    Name,
    /// Accept those before the current one no longer.
    Retire,
}

/// Since when this process has known the newest token: its own clock, so that clocks need not agree.
#[derive(Debug, Default)]
pub struct Sighting(Option<(Token, Timestamp)>);

impl Sighting {
    /// Since when the newest of `tokens` has been known.
    pub fn since(&mut self, tokens: &Tokens, now: Timestamp) -> Timestamp {
        let newest = tokens.newest();
        match &self.0 {
            Some((known, since)) if known == newest && *since <= now => *since,
            _ => {
                self.0 = Some((newest.clone(), now));
                now
            }
        }
    }
}

/// The next step for `tokens`, the newest of which has been known since `known_since`.
pub fn next(tokens: &Tokens, known_since: Timestamp, registration: &Registration, now: Timestamp) -> Action {
    if tokens.accepted.first() != Some(&tokens.current) && tokens.accepted.contains(&tokens.current) {
        // One after the other: a token that is named while an older one is still accepted would prolong that one's life.
        return if registration.names(&tokens.current, now) { Action::Retire } else { Action::Keep };
    }
    if *tokens.newest() != tokens.current {
        return if known_since + ACCEPTED_WITHIN <= now { Action::Name } else { Action::Keep };
    }
    if tokens.made + LIFETIME <= now { Action::Append } else { Action::Keep }
}

/// `tokens` after `action`.
pub fn perform(action: Action, tokens: &Tokens, now: Timestamp) -> Tokens {
    let mut after = Tokens { changed: now, ..tokens.clone() };
    match action {
        Action::Keep => return tokens.clone(),
        Action::Append => {
            after.accepted.push(Token::random());
            after.made = now;
        }
        Action::Name => after.current = after.newest().clone(),
        Action::Retire => {
            let older = after.accepted.iter().position(|token| *token == after.current).unwrap_or_default();
            after.retired.extend(after.accepted.drain(..older));
            let forgotten = after.retired.len().saturating_sub(REMEMBERED);
            after.retired.drain(..forgotten);
        }
    }
    after
}

/// What is due where some tokens may have been seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replacement {
    /// They are on their way out, or out.
    OnItsWay,
    /// This is to be written.
    Due(Tokens),
    /// Not before this time has passed.
    After(Duration),
}

/// What is due for `tokens` where `seen` may have been seen, as was `noted` then.
pub fn replace(tokens: &Tokens, seen: &[Token], noted: Timestamp, now: Timestamp) -> Replacement {
    // A successor that waits has not been named yet, so nobody has been shown that one.
    if !seen.contains(&tokens.current) || *tokens.newest() != tokens.current {
        return Replacement::OnItsWay;
    }
    // Another replica's clock may be wrong, so no longer than the pause from when it was noted.
    match Duration::try_from(tokens.made.min(noted) + PAUSE - now) {
        Ok(wait) if !wait.is_zero() => Replacement::After(wait),
        _ => Replacement::Due(perform(Action::Append, tokens, now)),
    }
}

/// What is due for a Secret that says `read`; `remembered` is what it said last.
///
/// A Secret that was deleted or garbled becomes an ordinary rotation.
pub fn due(
    read: Option<&Tokens>,
    remembered: &Tokens,
    sighting: &mut Sighting,
    registration: &Registration,
    now: Timestamp,
) -> (Action, Tokens) {
    let Some(tokens) = read else {
        // What is remembered may be older than what the webhooks name.
        let mut tokens = remembered.clone();
        for named in registration.named() {
            if !tokens.accepted.contains(named) {
                tokens.accepted.insert(0, named.clone());
            }
        }
        if let [named] = registration.named() {
            tokens.current = named.clone();
        }
        tokens.retired.retain(|token| !tokens.accepted.contains(token));
        let known = !matches!(registration, Registration::Unknown);
        let action = if known { Action::Append } else { Action::Keep };
        return (action, perform(action, &tokens, now));
    };
    let action = next(tokens, sighting.since(tokens, now), registration, now);
    (action, perform(action, tokens, now))
}
