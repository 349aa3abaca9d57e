//! The forms in which a secret may stand in a log or a message: as it is, and as programs commonly quote or encode it.
//!
//! What a script makes of a secret in any other way is not recognised.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Shorter values are no secrets, and would make a log unreadable. In bytes.
const SHORTEST_SECRET: usize = 4;
const SHORTEST_SECRET_LINE: usize = 8;
/// A longer value is data, not a key: its later lines are not masked one by one.
const MASKED_LINES: usize = 200;
/// A longer value is data too, and masked as it is alone. In bytes.
const LONGEST_ENCODED: usize = 16 * 1024;
/// Where `base64` and `openssl base64` break their lines. A log has each with the step's name before it.
const BASE64_LINES: [usize; 2] = [76, 64];
/// What percent-encoders leave as it is, besides letters, digits and `-_.~`: nothing (RFC 3986), `/` (Python's `quote`), as
/// JavaScript's `encodeURIComponent`, Go's `PathEscape` and Go's user information of a URL.
const KEPT_IN_URLS: [&str; 5] = ["", "/", "!'()*", "$&+=:@", "$&+,;="];

/// Every distinct form of a secret that is to be masked; none of one that is too short.
pub fn forms(secret: &[u8]) -> BTreeSet<String> {
    let mut forms = BTreeSet::new();
    let text = std::str::from_utf8(secret).ok().map(str::trim);
    if text.map_or(secret, str::as_bytes).len() < SHORTEST_SECRET {
        return forms;
    }
    let is_encoded = secret.len() <= LONGEST_ENCODED;
    if let Some(text) = text {
        let lines = text.lines().take(MASKED_LINES).map(str::trim).filter(|line| line.len() >= SHORTEST_SECRET_LINE);
        for part in lines.chain([text]) {
            forms.insert(part.to_owned());
            if is_encoded {
                forms.extend(quoted(part));
            }
        }
    }
    if is_encoded {
        forms.extend(text.into_iter().flat_map(percent_encoded));
        // `echo` ends what it is given with a newline.
        let texts = text.into_iter().flat_map(|text| [text.as_bytes().to_vec(), format!("{text}\n").into_bytes()]);
        forms.extend(texts.chain([secret.to_vec()]).flat_map(|bytes| base64(&bytes)));
    }
    forms
}

/// As it stands between the quotes of JSON, YAML, a shell, Go's `%q` or Rust's `{:?}`.
fn quoted(text: &str) -> Vec<String> {
    let between_quotes = |quoted: String| quoted[1..quoted.len() - 1].to_owned();
    let json = between_quotes(serde_json::Value::from(text).to_string());
    vec![
        // As Go's encoder does, so that JSON can stand in HTML (https://pkg.go.dev/encoding/json#Marshal).
        escaped(&json, |c| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}')),
        // As Python's encoder does.
        escaped(&json, |c| !c.is_ascii()),
        json,
        go_quoted(text),
        between_quotes(format!("{text:?}")),
        // YAML, and a shell in two ways, which is how `set -x` shows it.
        text.replace('\'', "''"),
        text.replace('\'', r"'\''"),
        text.replace('\'', r#"'"'"'"#),
    ]
}

/// With these characters as `\u….`, in UTF-16.
fn escaped(json: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if is_escaped(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// As Go's `%q`, without the quotes (<https://pkg.go.dev/strconv#Quote>). The API server shows faulty values so.
fn go_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        let code = u32::from(c);
        let _ = match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            '\u{7}' => write!(quoted, "\\a"),
            '\u{8}' => write!(quoted, "\\b"),
            '\t' => write!(quoted, "\\t"),
            '\n' => write!(quoted, "\\n"),
            '\u{b}' => write!(quoted, "\\v"),
            '\u{c}' => write!(quoted, "\\f"),
            '\r' => write!(quoted, "\\r"),
            _ if c.is_ascii_control() => write!(quoted, "\\x{code:02x}"),
            _ if c != ' ' && (c.is_control() || c.is_whitespace()) => write!(quoted, "\\u{code:04x}"),
            _ => write!(quoted, "{c}"),
        };
    }
    quoted
}

/// As it stands in a URL or a form, where a space is `+`.
fn percent_encoded(text: &str) -> Vec<String> {
    let encoded = |kept: &str| {
        let mut encoded = String::with_capacity(text.len());
        for byte in text.bytes() {
            let c = char::from(byte);
            if c.is_ascii_alphanumeric() || "-_.~".contains(c) || kept.contains(c) {
                encoded.push(c);
            } else {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
        encoded
    };
    let mut forms: Vec<String> = KEPT_IN_URLS.into_iter().map(encoded).collect();
    forms.push(encoded("").replace("%20", "+"));
    forms
}

/// With both alphabets, padded and not, in one line and in several.
fn base64(bytes: &[u8]) -> Vec<String> {
    let mut forms: Vec<String> =
        [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD].iter().map(|engine| engine.encode(bytes)).collect();
    let whole = STANDARD.encode(bytes);
    for width in BASE64_LINES.into_iter().filter(|width| whole.len() > *width) {
        let lines = whole.as_bytes().chunks(width).take(MASKED_LINES).map(String::from_utf8_lossy);
        forms.extend(lines.filter(|line| line.len() >= SHORTEST_SECRET_LINE).map(|line| line.into_owned()));
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("pass word", "pass word")]
    #[case::json(r#"pa"ss\word<&>zz"#, r#"pa\"ss\\word<&>zz"#)]
    #[case::json_of_lines("first\nsecond\tx", r"first\nsecond\tx")]
    #[case::json_of_go(r#"pa"ss\word<&>zz"#, r#"pa\"ss\\word\u003c\u0026\u003ezz"#)]
    #[case::json_in_ascii("päss😀", r"p\u00e4ss\ud83d\ude00")]
    #[case::go("pass\u{7}\u{1b}\"\u{a0}ö", "pass\\a\\x1b\\\"\\u00a0ö")]
    #[case::rust("pass\u{1b}\"", "pass\\u{1b}\\\"")]
    #[case::yaml("it's me", "it''s me")]
    #[case::shell("it's me", r"it'\''s me")]
    #[case::busybox("it's me", r#"it'"'"'s me"#)]
    #[case::a_line_of_json("{\n  \"password\": 1\n}", r#"\"password\": 1"#)]
    #[case::url("a b/c+ü!@", "a%20b%2Fc%2B%C3%BC%21%40")]
    #[case::url_with_slashes("a b/c", "a%20b/c")]
    #[case::url_of_javascript("it's(1)*/", "it's(1)*%2F")]
    #[case::path_of_go("a b/c:@d", "a%20b%2Fc:@d")]
    #[case::user_of_go("a,b/c:@d", "a,b%2Fc%3A%40d")]
    #[case::form("a b/c", "a+b%2Fc")]
    #[case::base64("pass>>??", "cGFzcz4+Pz8=")]
    #[case::base64_unpadded("pass>>??", "cGFzcz4+Pz8")]
    #[case::base64_for_urls("pass>>??", "cGFzcz4-Pz8=")]
    #[case::base64_for_urls_unpadded("pass>>??", "cGFzcz4-Pz8")]
    #[case::base64_of_the_file("hunter22\n", "aHVudGVyMjIK")]
    #[case::base64_of_what_the_file_says(" hunter22\n", "aHVudGVyMjI=")]
    #[case::base64_of_echo("hunter22", "aHVudGVyMjIK")]
    fn a_secret_is_known_in_this_form(#[case] secret: &str, #[case] form: &str) {
        let forms = forms(secret.as_bytes());
        assert!(forms.contains(form), "{forms:#?}");
    }

    #[test]
    fn bytes_that_are_no_text_are_known_as_base64() {
        assert!(forms(&[0xff; 4]).contains("/////w=="));
        assert!(forms(&[0xff; 4]).contains("_____w"));
    }

    #[rstest]
    #[case(76)]
    #[case(64)]
    fn long_base64_is_known_line_by_line(#[case] width: usize) {
        let secret: Vec<u8> = (0..=255).collect();
        let whole = STANDARD.encode(&secret);
        let forms = forms(&secret);
        assert!(whole.as_bytes().chunks(width).all(|line| forms.contains(std::str::from_utf8(line).unwrap())));
    }

    #[rstest]
    #[case::short(b"abc".as_slice(), 0)]
    #[case::short_without_spaces(b" abc\n\n", 0)]
    #[case::few_bytes(&[0xff; 3], 0)]
    // Itself; the base64 of it, and of it and a newline, padded and not.
    #[case::nothing_to_quote(b"hunter22", 4)]
    fn only_distinct_forms_are_kept_and_none_of_what_is_too_short(#[case] secret: &[u8], #[case] count: usize) {
        assert_eq!(forms(secret).len(), count, "{:?}", forms(secret));
    }

    #[test]
    fn what_is_too_long_to_be_a_key_is_known_as_it_is_alone() {
        assert_eq!(forms(&b"\"".repeat(LONGEST_ENCODED + 1)).len(), 1);
    }
}
