//! Decides the next step of the token's life, in the order in which no call is refused: the new one is accepted by every
//! replica, the webhook configurations name it, and only when every API server calls by it the old one leaves.
//!
//! Pure, like [`crate::certs::rotate`], whose order it follows.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{Token, Tokens};
use crate::certs::rotate::{RELOAD_GRACE, Registration};

/// How long a token is used. It is short because an API server that cannot reach a webhook tells whoever made the
/// change so, with the whole URL.
pub const LIFETIME: Duration = Duration::from_secs(60 * 60);

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing is due.
    Keep,
    /// Accept a new token; the webhook configurations name the old one.
    Append,
    /// Have the webhook configurations name the new one.
    Name,
    /// Accept the old ones no longer.
    Retire,
}

/// The next step for `tokens`.
pub fn next(tokens: &Tokens, registration: &Registration, now: Timestamp) -> Action {
    let known_everywhere = tokens.changed + RELOAD_GRACE <= now;
    let newest = tokens.accepted.last().unwrap_or(&tokens.current);
    if *newest != tokens.current {
        return if known_everywhere { Action::Name } else { Action::Keep };
    }
    if tokens.accepted.len() > 1 {
        return if registration.names(&tokens.current, now) { Action::Retire } else { Action::Keep };
    }
    if tokens.changed + LIFETIME <= now { Action::Append } else { Action::Keep }
}

/// `tokens` after `action`.
pub fn perform(action: Action, tokens: &Tokens, now: Timestamp) -> Tokens {
    let mut after = Tokens { changed: now, ..tokens.clone() };
    match action {
        Action::Keep => return tokens.clone(),
        Action::Append => after.accepted.push(Token::random()),
        Action::Name => after.current = after.accepted.last().unwrap_or(&after.current).clone(),
        Action::Retire => after.accepted = vec![after.current.clone()],
    }
    after
}

/// What is due for a Secret that says `read`; `remembered` is what it said last.
///
/// A Secret that was deleted or garbled becomes an ordinary rotation.
pub fn due(
    read: Option<&Tokens>,
    remembered: &Tokens,
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
        let known = !matches!(registration, Registration::Unknown);
        let action = if known { Action::Append } else { Action::Keep };
        return (action, perform(action, &tokens, now));
    };
    let action = next(tokens, registration, now);
    (action, perform(action, tokens, now))
}
