//! Which tokens somebody may have seen. An API server whose call goes wrong says so to whoever made the change, with the
//! whole URL.
//!
//! Whoever notices such a call notes it here, and [`super::keep`] replaces the token.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::Token;

/// Tokens that are to be replaced.
#[derive(Debug, Default)]
pub struct Exposed {
    tokens: Mutex<Vec<Token>>,
    news: Notify,
}

impl Exposed {
    /// Counts `token` as seen by somebody.
    pub fn note(&self, token: &Token) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if !tokens.contains(token) {
            tokens.push(token.clone());
            self.news.notify_one();
        }
    }

    /// All that were noted and not forgotten.
    pub fn noted(&self) -> Vec<Token> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `tokens` are replaced.
    pub(super) fn forget(&self, tokens: &[Token]) {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).retain(|token| !tokens.contains(token));
    }

    /// Waits until one was noted since the last wait.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }
}
