//! Cuts CEL source into tokens: just enough to find where an expression ends inside a string, and to refuse what
//! would exhaust the parser's stack before the parser sees it. Knows the lexical rules of CEL, not its grammar.

use std::str::Chars;

/// What a token is, as far as the callers need to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or keyword, also one in backticks.
    Word,
    Number,
    Text,
    /// A string or bytes literal whose closing quote is missing; it reaches to the end of its line or of the source.
    OpenText,
    /// An operator, bracket or anything else; two characters for `&&`, `||`, `==`, `!=`, `<=`, `>=`.
    Sign,
}

/// A token and where it stands, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    pub start: usize,
}

impl Token<'_> {
    /// Whether an operand can end here, so that a `-` after it is a subtraction.
    pub fn ends_operand(&self) -> bool {
        match self.kind {
            Kind::Word => self.text != "in",
            Kind::Number | Kind::Text | Kind::OpenText => true,
            Kind::Sign => matches!(self.text, ")" | "]" | "}"),
        }
    }
}

/// The tokens of `source`, white space and comments left out.
pub(crate) fn tokens(source: &str) -> Tokens<'_> {
    Tokens { source, at: 0 }
}

/// See [`tokens`].
pub(crate) struct Tokens<'a> {
    source: &'a str,
    at: usize,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blank();
        let rest = &self.source[self.at..];
        let first = rest.chars().next()?;
        let (kind, length) = if let Some(found) = text(rest) {
            found
        } else if first == '_' || first.is_ascii_alphabetic() {
            (Kind::Word, run(rest, |c| c == '_' || c.is_ascii_alphanumeric()))
        } else if first == '`' {
            (Kind::Word, rest[1..].find('`').map_or(rest.len(), |close| close + 2))
        } else if first.is_ascii_digit() {
            (Kind::Number, run(rest, |c| c == '.' || c.is_ascii_alphanumeric()))
        } else {
            let pair = ["&&", "||", "==", "!=", "<=", ">="].iter().any(|pair| rest.starts_with(pair));
            (Kind::Sign, if pair { 2 } else { first.len_utf8() })
        };
        let token = Token { kind, text: &rest[..length], start: self.at };
        self.at += length;
        Some(token)
    }
}

impl Tokens<'_> {
    fn skip_blank(&mut self) {
        loop {
            let rest = &self.source[self.at..];
            let blank = run(rest, |c| matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{c}'));
            let comment = if rest[blank..].starts_with("//") { run(&rest[blank..], |c| c != '\n') } else { 0 };
            if blank + comment == 0 {
                return;
            }
            self.at += blank + comment;
        }
    }
}

/// The bytes at the beginning of `rest` whose characters are all `wanted`.
fn run(rest: &str, wanted: impl Fn(char) -> bool) -> usize {
    rest.find(|c| !wanted(c)).unwrap_or(rest.len())
}

/// The string or bytes literal that `rest` begins with.
fn text(rest: &str) -> Option<(Kind, usize)> {
    let prefix = rest.find(['"', '\'']).filter(|&at| at <= 2)?;
    let raw = match rest[..prefix].to_ascii_lowercase().as_str() {
        "" | "b" => false,
        "r" | "br" => true,
        _ => return None,
    };
    let body = &rest[prefix..];
    let quote = &body[..1];
    let triple = [quote; 3].concat();
    let (close, lines) = if body.starts_with(&triple) { (triple.as_str(), true) } else { (quote, false) };
    let mut characters: Chars<'_> = body[close.len()..].chars();
    loop {
        let left = characters.as_str();
        let at = rest.len() - left.len();
        if left.starts_with(close) {
            return Some((Kind::Text, at + close.len()));
        }
        match characters.next() {
            Some('\\') if !raw => {
                characters.next();
            }
            Some('\n' | '\r') if !lines => return Some((Kind::OpenText, at)),
            Some(_) => {}
            None => return Some((Kind::OpenText, rest.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a.b == 1", &["a", ".", "b", "==", "1"])]
    #[case("a // b }\n c", &["a", "c"])]
    #[case(r#""}\"" + '}'"#, &[r#""}\"""#, "+", "'}'"])]
    #[case(r#"r'\' + 1"#, &[r#"r'\'"#, "+", "1"])]
    #[case("'''a'b''' x", &["'''a'b'''", "x"])]
    #[case("bR\"\"\"\"\"\"", &["bR\"\"\"\"\"\""])]
    #[case("!!a<=-1", &["!", "!", "a", "<=", "-", "1"])]
    #[case("a.`b-c`", &["a", ".", "`b-c`"])]
    fn source_is_cut_where_cel_cuts_it(#[case] source: &str, #[case] expected: &[&str]) {
        assert_eq!(tokens(source).map(|token| token.text).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_string_on_one_line_does_not_reach_the_next() {
        let found: Vec<Token<'_>> = tokens("'a\nb").collect();
        assert_eq!((found[0].kind, found[0].text), (Kind::OpenText, "'a"));
        assert_eq!(found[1].text, "b");
    }
}
