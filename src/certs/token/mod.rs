//! The token in the path that the webhook configurations name: who knows it is the API server.
//!
//! This file and [`rotate`] and [`accept`] are pure: they are given the time and know no client. [`keep`] is the edge.
//! It is Sluice's own in a Secret of its own, whoever issues the certificates. How it fits:
//!
//! ```text
//! every replica    keep::ensure -> accept::Accepted -> the router
//!                  keep::follow                      (Secret changed -> Accepted)
//!                  keep::replace_exposed             (Accepted's exposed tokens -> a new token, into the Secret)
//! the leader       webhook_config::keep_registered   (Accepted's current token -> webhook configurations)
//!                  keep::keep_renewed                (what those name -> the next step, into the Secret)
//! ```

pub mod accept;
pub mod exposed;
pub mod keep;
pub mod rotate;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod simulation_cases;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;
use subtle::ConstantTimeEq as _;

/// The Secret's key of the token that the webhook configurations are to name.
pub const CURRENT: &str = "current";
/// The Secret's key of all tokens that are accepted, the newest last, one a line.
pub const ACCEPTED: &str = "accepted";
/// The Secret's key of the tokens that were refused last, one a line.
pub const RETIRED: &str = "retired";
/// The Secret's key of the time at which the newest token was made.
pub const MADE: &str = "made";
/// The Secret's key of the time at which it was last written.
pub const CHANGED: &str = "changed";

const BYTES: usize = 32;

/// What a caller must know. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

// Not even its beginning: what can be printed ends in a log.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// A new one, that nobody can guess.
    pub fn random() -> Self {
        let bytes: [u8; BYTES] = rand::random();
        // Hexadecimal, since the API server takes only lower-case DNS names as parts of a webhook's path.
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
    }

    /// Reads what a path or the Secret says; none where it is no token of ours.
    pub fn read(text: &str) -> Option<Self> {
        let fits = text.len() == 2 * BYTES && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        fits.then(|| Self(text.into()))
    }

    /// The path below `base` that a caller who knows the token asks for.
    pub fn path(&self, base: &str) -> String {
        format!("{base}/{}", self.0)
    }

    /// The token in such a path.
    pub fn in_path(path: &str) -> Option<Self> {
        Self::read(path.rsplit_once('/')?.1)
    }

    /// Whether `given` is this token, in a time that does not tell how much of it is right.
    pub fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

/// What the Secret says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// The one that the webhook configurations are to name.
    pub current: Token,
    /// All that are accepted, the newest last. The current one is among them.
    pub accepted: Vec<Token>,
    /// Those that are refused at once, wherever they are remembered.
    pub retired: Vec<Token>,
    /// When the newest one was made.
    pub made: Timestamp,
    /// When the last step was taken.
    pub changed: Timestamp,
}

impl Tokens {
    /// The first ones of a Secret that is not there, where the webhook configurations name `named`: what is named
    /// stays accepted, and its successor waits until every replica knows of it.
    pub fn first(named: &[Token], now: Timestamp) -> Self {
        let new = Token::random();
        let current = named.first().unwrap_or(&new).clone();
        let accepted = named.iter().cloned().chain([new]).collect();
        Self { current, accepted, retired: Vec::new(), made: now, changed: now }
    }

    /// The one that was made last.
    pub fn newest(&self) -> &Token {
        self.accepted.last().unwrap_or(&self.current)
    }

    /// Reads a Secret's data; none where any of it is missing or garbled, for half of it may refuse a caller.
    pub fn read(data: &BTreeMap<String, ByteString>) -> Option<Self> {
        let text = |key| std::str::from_utf8(&data.get(key)?.0).ok();
        let current = Token::read(text(CURRENT)?)?;
        let accepted: Vec<Token> = text(ACCEPTED)?.lines().map(Token::read).collect::<Option<_>>()?;
        let changed: Timestamp = text(CHANGED)?.parse().ok()?;
        // Versions of Sluice before these two keys leave them out.
        let retired = text(RETIRED).map(|lines| lines.lines().filter_map(Token::read).collect()).unwrap_or_default();
        let made = text(MADE).and_then(|made| made.parse().ok()).unwrap_or(changed);
        accepted.contains(&current).then_some(Self { current, accepted, retired, made, changed })
    }

    /// The Secret's data for this.
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        let lines = |tokens: &[Token]| tokens.iter().map(|token| &*token.0).collect::<Vec<_>>().join("\n");
        let entries = [
            (CURRENT, self.current.0.to_string()),
            (ACCEPTED, lines(&self.accepted)),
            (RETIRED, lines(&self.retired)),
            (MADE, self.made.to_string()),
            (CHANGED, self.changed.to_string()),
        ];
        entries.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-30T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_token_fits_a_webhook_path_and_differs_from_the_next() {
        let (one, two) = (Token::random(), Token::random());
        assert_ne!(one, two);
        let path = one.path("/validate");
        let last = path.strip_prefix("/validate/").unwrap();
        assert_eq!(last.len(), 64);
        assert!(last.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase()));
        assert_eq!(Token::in_path(&path), Some(one));
        assert_eq!(Token::in_path("/validate"), None);
    }

    #[test]
    fn a_token_is_never_printed() {
        let tokens = Tokens::first(&[], now());
        assert!(!format!("{tokens:?}").contains(&*tokens.current.0));
    }

    #[test]
    fn the_tokens_survive_being_written_and_read() {
        let tokens = Tokens::first(&[Token::random()], now());
        assert_eq!(Tokens::read(&tokens.data()), Some(tokens));
    }

    #[test]
    fn a_secret_of_which_anything_is_missing_or_garbled_says_nothing() {
        for key in [CURRENT, ACCEPTED, CHANGED] {
            let mut data = Tokens::first(&[], now()).data();
            data.insert(key.into(), ByteString(b"garbled".to_vec()));
            assert_eq!(Tokens::read(&data), None, "{key}");
            data.remove(key);
            assert_eq!(Tokens::read(&data), None, "{key}");
        }
        let mut data = Tokens::first(&[], now()).data();
        data.extend(Tokens::first(&[], now()).data().into_iter().filter(|(key, _)| key == CURRENT));
        assert_eq!(Tokens::read(&data), None, "the current one is not accepted");
    }
}
