//! YAML that somebody wrote into a field of an object: read within bounds, whatever its anchors and aliases make of it.

use serde_json::Value;
use serde_saphyr::{alias_limits, budget, options};

/// Lists, maps and scalars that a text may stand for, those of its aliases counted as often as they stand there.
const MOST_NODES: usize = 20_000;
/// Bytes that its scalars may have together, counted the same way.
const MOST_BYTES: usize = 1024 * 1024;
/// How deep its lists and maps may nest.
const DEEPEST: usize = 64;
/// A message of the library that is longer shows more of the text than helps.
const MESSAGE: usize = 400;

/// What a text stands for, or why it cannot be read.
pub fn read(text: &str) -> Result<Value, String> {
    let bounded = options! {
        budget: budget! {
            max_nodes: MOST_NODES,
            max_events: 4 * MOST_NODES,
            max_total_scalar_bytes: MOST_BYTES,
            max_recorded_anchor_events: 4 * MOST_NODES,
            max_recorded_anchor_bytes: 4 * MOST_BYTES,
            max_depth: DEEPEST,
            max_documents: 1,
        },
        alias_limits: alias_limits! {
            max_total_replayed_events: 2 * MOST_NODES,
            max_replay_stack_depth: DEEPEST,
        },
    };
    serde_saphyr::from_str_with_options(text, bounded).map_err(|error| super::message::cut(&error.to_string(), MESSAGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::bounds;
    use rstest::rstest;
    use serde_json::json;
    use std::fmt::Write;

    /// Each line stands for ten of the one before it.
    fn tenfold(lines: usize, first: &str) -> String {
        let mut text = format!("a0: &a0 {first}\n");
        for line in 1..lines {
            let before = format!("*a{},", line - 1).repeat(10);
            let _ = writeln!(text, "a{line}: &a{line} [{before}]");
        }
        text
    }

    #[test]
    fn aliases_are_read() {
        assert_eq!(read("a: &a {b: 1}\nc: *a\n"), Ok(json!({"a": {"b": 1}, "c": {"b": 1}})));
    }

    #[rstest]
    #[case::lists(tenfold(9, "[x, x, x, x]"))]
    #[case::one_long_text(tenfold(5, &"x".repeat(30_000)))]
    #[case::nesting(format!("{}{}", "[".repeat(5_000), "]".repeat(5_000)))]
    #[case::nesting_by_lines(format!("{}x", "- ".repeat(5_000)))]
    #[case::two_documents("a: 1\n---\nb: 2\n".to_owned())]
    fn t03_aliases_and_nesting_are_bounded_before_they_are_spelled_out(#[case] text: String) {
        assert!(text.len() < 65_536, "such a text may be stored");
        let began = std::time::Instant::now();
        let refused = read(&text).unwrap_err();
        assert!(!refused.is_empty() && refused.len() <= MESSAGE, "{refused}");
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    }

    #[test]
    fn t03_what_can_be_read_is_no_larger_than_a_patch_may_leave() {
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(20_000), "*a,".repeat(40));
        let size = bounds::measure(&read(&text).unwrap(), 0).unwrap();
        assert!(size.bytes <= MOST_BYTES + size.nodes * 8, "{size:?}");
    }
}
