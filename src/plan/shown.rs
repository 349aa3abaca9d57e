//! Text that came from users, pods or other servers, as it may stand before a person: what a terminal would obey, or what
//! would make a text look like another, is written out.
//!
//! Where text leaves Sluice it goes through here once: answers of the webhooks, events, statuses, the log, what the
//! command line prints. A text that went through comes out of it unchanged the next time.

use super::message::{DENIAL_LIMIT, cut, tail};
use crate::api::PhaseRunStatus;
use std::borrow::Cow;
use std::fmt::Write;

/// `text` over as many lines as it has, with every other control or format character written as `\u{1b}`.
pub fn lines(text: &str) -> Cow<'_, str> {
    shown(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

/// `text` on one line.
pub fn line(text: &str) -> Cow<'_, str> {
    shown(text, is_hidden)
}

/// [`lines`] of `text` within `limit` bytes, or within its own length where that is more.
pub fn within(text: &str, limit: usize) -> String {
    cut(&lines(text), limit.max(text.len()))
}

/// The texts of a status, as they may be shown; each keeps its bounds.
pub fn settle(status: &mut PhaseRunStatus) {
    let messages = status.steps.iter_mut().map(|step| &mut step.message).chain([&mut status.message]);
    for message in messages.flatten() {
        if let Cow::Owned(shown) = lines(message) {
            *message = cut(&shown, DENIAL_LIMIT.max(message.len()));
        }
    }
    for log in status.steps.iter_mut().filter_map(|step| step.log.as_mut()) {
        if let Cow::Owned(shown) = lines(log) {
            *log = tail(&shown, log.len().max(DENIAL_LIMIT));
        }
    }
}

/// What is formatted as JSON, with what JSON leaves as it is escaped in its own way. Only strings can hold such
/// characters, so the value stays the same.
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden_in_json) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden_in_json(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

fn shown(text: &str, is_hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' if is_hidden(c) => shown.push_str("\\n"),
            '\t' if is_hidden(c) => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            c if is_hidden(c) => {
                // Writing to a string cannot fail.
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// The control characters of ASCII do not stand raw in JSON's strings, and between its values are no harm.
fn is_hidden_in_json(c: char) -> bool {
    !(c.is_ascii_control() && c != '\u{7f}') && is_hidden(c)
}

/// Whether a character is obeyed instead of shown: controls (C0, DEL, C1), separators of lines and paragraphs, and what
/// has no form of its own: direction, joining, annotation, tags, fillers
/// (<https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing>).
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::StepStatus;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("\u{1b}[2J\u{1b}]0;owned\u{7}", "\\u{1b}[2J\\u{1b}]0;owned\\u{7}")]
    #[case("real\rforged", "real\\rforged")]
    #[case("a\u{8}\u{7f}\u{9b}31m", "a\\u{8}\\u{7f}\\u{9b}31m")]
    #[case("\u{202e}gpj.exe\u{2066}\u{2069}", "\\u{202e}gpj.exe\\u{2066}\\u{2069}")]
    #[case(
        "a\u{200b}\u{200f}\u{2028}\u{2029}\u{feff}\u{e0041}",
        "a\\u{200b}\\u{200f}\\u{2028}\\u{2029}\\u{feff}\\u{e0041}"
    )]
    #[case("one\n\ttwo äöü 漢字 🎉", "one\n\ttwo äöü 漢字 🎉")]
    fn t12_what_a_terminal_would_obey_is_written_out(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(lines(text), expected);
        assert_eq!(line(text), expected.replace('\n', "\\n").replace('\t', "\\t"));
    }

    #[test]
    fn t12_a_line_of_json_stays_the_same_value() {
        let value = serde_json::json!({"a": "\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}\n"});
        let text = json(&value.to_string()).into_owned();
        assert!(text.is_ascii() && !text.contains(|c: char| c.is_control()), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn t12_a_status_keeps_its_bounds_and_the_end_of_its_logs() {
        let step = |message: &str, log: String| StepStatus {
            message: Some(message.into()),
            log: Some(log),
            ..StepStatus::default()
        };
        let mut status = PhaseRunStatus {
            message: Some("\u{1b}".repeat(1000)),
            steps: vec![step("a\rb", format!("{}end", "\u{1b}".repeat(8000))), step("plain", "plain\n".into())],
            ..PhaseRunStatus::default()
        };
        settle(&mut status);
        assert!(status.message.as_ref().is_some_and(|message| message.len() <= DENIAL_LIMIT));
        assert_eq!(status.steps[0].message.as_deref(), Some("a\\rb"));
        let log = status.steps[0].log.as_deref().unwrap();
        assert!(log.len() <= 8003 && log.ends_with("end") && !log.contains('\u{1b}'));
        assert_eq!(status.steps[1].log.as_deref(), Some("plain\n"));
        let again = status.clone();
        settle(&mut status);
        assert_eq!(status, again);
    }

    proptest! {
        #[test]
        fn t12_what_is_shown_holds_nothing_hidden_and_stays_within_its_limit(text in "(?s).{0,200}", limit in 10_usize..300) {
            let once = lines(&text).into_owned();
            prop_assert!(!once.contains(|c| is_hidden(c) && !matches!(c, '\n' | '\t')));
            prop_assert!(!line(&text).contains(is_hidden));
            prop_assert_eq!(&lines(&once), &once);
            prop_assert!(within(&text, limit).len() <= limit.max(text.len()));
        }
    }
}
