//! A place in an expression's source, shown as the line with a caret below.

use std::fmt;

/// How much of a long line is shown.
const WINDOW: usize = 100;

/// A place in a source; lines and columns count from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub line: usize,
    pub column: usize,
    text: String,
}

impl Place {
    /// The place of the byte `at`.
    pub fn of_byte(source: &str, at: usize) -> Self {
        let before = source.get(..at).unwrap_or(source);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self::new(source, line, column)
    }

    /// The place at `line` and `column`, moved into the source where it is outside.
    pub fn new(source: &str, line: usize, column: usize) -> Self {
        let last = source.lines().count().max(1);
        let line = line.clamp(1, last);
        let text = source.lines().nth(line - 1).unwrap_or_default().to_owned();
        let column = column.clamp(1, text.chars().count() + 1);
        Self { line, column, text }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = (self.column - 1).saturating_sub(WINDOW * 2 / 3);
        let shown: String = self.text.chars().skip(skipped).take(WINDOW).map(blank_control).collect();
        writeln!(f, "  {shown}")?;
        write!(f, "  {}^", " ".repeat(self.column - 1 - skipped))
    }
}

/// Control characters and tabs would move the caret away from its character.
fn blank_control(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_stands_below_its_character() {
        assert_eq!(Place::of_byte("é + ü\nab + $", 13).to_string(), "  ab + $\n       ^");
        assert_eq!(Place::of_byte("é + ü", 5).to_string(), "  é + ü\n      ^");
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret() {
        let place = Place::of_byte(&format!("{}$", "a".repeat(3000)), 3000);
        assert!(place.to_string().lines().all(|line| line.len() <= WINDOW + 2));
        assert!(place.to_string().contains('$'));
    }

    #[test]
    fn a_place_outside_the_source_is_its_end() {
        assert_eq!(Place::new("ab", 9, 9).to_string(), "  ab\n    ^");
    }
}
