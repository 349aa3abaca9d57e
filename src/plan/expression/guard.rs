//! Refuses, before the parser sees it, source that would exhaust a stack or that the library reads wrongly.
//!
//! The library's parser, its evaluation and the destructor of its tree all recurse, so the depth of the tree has to be
//! bounded from the tokens alone.

use super::tokens::{Kind, Token, tokens};
use super::{ExpressionError, place::Place};

/// The longest expression, in bytes. The schemas of the custom resources say the same.
pub const MAX_SOURCE: usize = 4096;
/// How deep parentheses, brackets and braces may nest.
pub const MAX_BRACKETS: usize = 32;
/// How many operators, calls and selections may hang on one another. It bounds the depth of the tree.
pub const MAX_LINKS: usize = 128;

/// One open bracket.
#[derive(Default)]
struct Level {
    /// Where it opens.
    start: usize,
    /// Operators since the last comma.
    links: usize,
    /// The deepest bracket since the last comma.
    deepest: usize,
    /// The deepest of the parts that commas have ended.
    parts: usize,
}

impl Level {
    fn depth(&self) -> usize {
        self.parts.max(self.links + self.deepest)
    }
}

/// Checks `source` against the limits, and gives the depth that its tree has at most.
pub(super) fn check(source: &str) -> Result<usize, ExpressionError> {
    if source.len() > MAX_SOURCE {
        return Err(ExpressionError::TooLong { length: source.len() });
    }
    let fault =
        |at: usize, message: String| Err(ExpressionError::Syntax { place: Place::of_byte(source, at), message });
    let mut levels = vec![Level::default()];
    let mut before: Option<Token<'_>> = None;
    let mut signs = 0;
    for token in tokens(source) {
        let operand_before = before.is_some_and(|token| token.ends_operand());
        if token.kind == Kind::OpenText {
            return fault(token.start, "this string is not closed: its quote is missing".into());
        }
        if let Some(why) = Some(token.text).filter(|_| token.kind == Kind::Text).and_then(misread) {
            return fault(token.start, why.into());
        }
        // The library drops every second sign of a chain (`!!a` is read as `!a`).
        signs = match token.text {
            "!" => signs + 1,
            "-" if !operand_before => signs + 1,
            _ => 0,
        };
        if signs > 1 {
            return fault(token.start, "two signs in a row: put the second one into parentheses".into());
        }
        match (token.kind, token.text) {
            (Kind::Sign, "(" | "[" | "{") => {
                if levels.len() > MAX_BRACKETS {
                    return fault(
                        token.start,
                        format!("brackets nest deeper than {MAX_BRACKETS}: split the expression"),
                    );
                }
                count(&mut levels);
                levels.push(Level { start: token.start, ..Level::default() });
            }
            (Kind::Sign, ")" | "]" | "}") => {
                let Some(closed) = levels.pop().filter(|_| !levels.is_empty()) else {
                    return fault(token.start, format!("`{}` closes nothing", token.text));
                };
                if let Some(level) = levels.last_mut() {
                    level.deepest = level.deepest.max(closed.depth());
                }
            }
            (Kind::Sign, ",") => {
                if let Some(level) = levels.last_mut() {
                    *level = Level { start: level.start, parts: level.depth(), ..Level::default() };
                }
            }
            (Kind::Sign, _) | (Kind::Word, "in") => count(&mut levels),
            _ => {}
        }
        if levels.last().is_some_and(|level| level.depth() > MAX_LINKS) {
            let message =
                format!("more than {MAX_LINKS} operators, calls and selections hang together: split the expression");
            return fault(token.start, message);
        }
        before = Some(token);
    }
    if before.is_none() {
        return Err(ExpressionError::Empty);
    }
    if let [_, .., open] = levels.as_slice() {
        return fault(open.start, "this bracket is not closed".into());
    }
    Ok(levels.first().map_or(0, Level::depth))
}

/// What the library reads wrongly about a string or bytes literal, or `None`.
fn misread(literal: &str) -> Option<&'static str> {
    let prefix = literal.find(['"', '\'']).unwrap_or(0);
    let (prefix, body) = literal.split_at(prefix);
    let quote = body.get(..1).unwrap_or_default();
    let raw = prefix.contains(['r', 'R']);
    if body.len() >= 6 && body.starts_with(&[quote; 3].concat()) {
        return Some("triple quotes are not supported: use single ones, and \\n for a new line");
    }
    if raw && (prefix.len() > 1 || body.contains("\\'") || body.contains("\\\"")) {
        return Some("this raw string is not supported: write it without r, each \\ as \\\\");
    }
    None
}

fn count(levels: &mut [Level]) {
    if let Some(level) = levels.last_mut() {
        level.links += 1;
    }
}
