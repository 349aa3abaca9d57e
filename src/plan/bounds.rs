//! How large a JSON value is, and how large one may be that somebody's text makes of another.

use serde_json::Value;
use std::ops::{Add, AddAssign};

/// Bytes, as JSON and about, that a patched or customised workload may have: an object of the API server's has at most
/// 1.5 MiB.
pub const MOST_BYTES: usize = 1024 * 1024;
/// Lists, maps and scalars that it may have: each takes memory, however short it is.
pub const MOST_NODES: usize = 100_000;
/// How deep its lists and maps may nest: whoever reads, copies or frees it goes down as deep.
pub const DEEPEST: usize = 100;

/// How large a value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Lists, maps and scalars.
    pub nodes: usize,
    /// Bytes as JSON, about.
    pub bytes: usize,
}

impl Size {
    /// Whether this is more than a workload may be.
    pub fn is_too_large(self) -> bool {
        self.nodes > MOST_NODES || self.bytes > MOST_BYTES
    }

    /// What is left without a part.
    pub fn without(self, part: Self) -> Self {
        Self { nodes: self.nodes.saturating_sub(part.nodes), bytes: self.bytes.saturating_sub(part.bytes) }
    }
}

impl Add for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { nodes: self.nodes.saturating_add(other.nodes), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// The size of a value that stands `above` levels below the root; none where it nests deeper than may be.
pub fn measure(value: &Value, above: usize) -> Option<Size> {
    if above > DEEPEST {
        return None;
    }
    let mut size = Size { nodes: 1, bytes: 2 };
    match value {
        Value::Null | Value::Bool(_) => size.bytes = 5,
        Value::Number(_) => size.bytes = 8,
        Value::String(text) => size.bytes += text.len(),
        Value::Array(items) => {
            for item in items {
                size += measure(item, above + 1)?;
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                size.bytes = size.bytes.saturating_add(name.len() + 4);
                size += measure(field, above + 1)?;
            }
        }
    }
    Some(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_size_is_about_that_of_the_json() {
        let value = json!({"a": ["text", 12_345_678, true, null], "b": {"c": "d"}});
        let size = measure(&value, 0).unwrap();
        assert_eq!(size.nodes, 8);
        assert!(size.bytes.abs_diff(value.to_string().len()) < 16, "{size:?} {}", value.to_string().len());
    }

    #[test]
    fn what_nests_too_deep_has_no_size() {
        let mut value = json!(1);
        for _ in 0..DEEPEST {
            value = json!([value]);
        }
        assert!(measure(&value, 0).is_some());
        assert_eq!(measure(&json!([value]), 0), None);
    }
}
