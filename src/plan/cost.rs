//! What JSON will take in memory once it is parsed, found out from its text alone: a JSON text of many tiny objects
//! grows by a factor of a hundred.
//!
//! It knows serde_json's `Value`, and rounds up wherever the text does not tell.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// What a map takes with its first field: room for eleven fields, used or not.
const MAP: usize = 700;
/// What a list takes with its first item: room for four.
const LIST: usize = 144;
/// What each further field or item takes: maps are filled by half, and lists double.
const FURTHER: usize = 128;
/// What a text takes beside its bytes: the allocator has no smaller piece.
const TEXT: usize = 16;

/// In bytes, both of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// What the objects take for as long as they live.
    pub objects: usize,
    /// What is taken while the text is parsed, and given back at its end.
    pub parsing: usize,
}

/// What a value would take in bytes if it were kept; it is counted while it is read, and passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight(pub usize);

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Weigh)
    }
}

struct Weigh;

impl<'de> Visitor<'de> for Weigh {
    type Value = Weight;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Weight, E> {
        Ok(Weight(0))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Weight, E> {
        Ok(Weight(0))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Weight, E> {
        Ok(Weight(0))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Weight, E> {
        Ok(Weight(0))
    }

    fn visit_unit<E>(self) -> Result<Weight, E> {
        Ok(Weight(0))
    }

    fn visit_none<E>(self) -> Result<Weight, E> {
        Ok(Weight(0))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Weight, D::Error> {
        Weight::deserialize(deserializer)
    }

    fn visit_str<E>(self, text: &str) -> Result<Weight, E> {
        Ok(Weight(TEXT + text.len()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Weight, A::Error> {
        let (mut sum, mut count) = (LIST, 0_usize);
        while let Some(Weight(item)) = items.next_element()? {
            (sum, count) = (sum + item, count + 1);
        }
        Ok(Weight(sum + count.saturating_sub(1) * FURTHER))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Weight, A::Error> {
        let (mut sum, mut count) = (MAP, 0_usize);
        while let Some((Weight(name), Weight(value))) = fields.next_entry()? {
            (sum, count) = (sum + name + value, count + 1);
        }
        Ok(Weight(sum + count.saturating_sub(1) * FURTHER))
    }
}

/// The cost of parsing `text`, which need not be JSON: what is not costs no more, for the parser stops there.
pub fn of(text: &[u8]) -> Cost {
    let mut cost = Cost::default();
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'{' => cost.objects += MAP,
            b'[' => cost.objects += LIST,
            b',' => cost.objects += FURTHER,
            b'"' => {
                let string = string(text, at);
                at = string.end;
                cost.objects += TEXT + string.bytes;
                // What holds escapes is put together in a buffer that doubles.
                if string.has_escapes {
                    cost.parsing = cost.parsing.max(2 * string.bytes);
                }
            }
            _ => {}
        }
    }
    cost
}

struct Text {
    /// After the closing quote.
    end: usize,
    bytes: usize,
    has_escapes: bool,
}

/// The string whose opening quote is before `start`.
fn string(text: &[u8], start: usize) -> Text {
    let (mut at, mut bytes, mut has_escapes) = (start, 0, false);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return Text { end: at + 1, bytes, has_escapes },
            b'\\' => {
                has_escapes = true;
                let unicode = text.get(at + 1) == Some(&b'u');
                bytes += if unicode { width(text.get(at + 2..at + 6).unwrap_or_default()) } else { 1 };
                at += if unicode { 6 } else { 2 };
            }
            _ => {
                bytes += 1;
                at += 1;
            }
        }
    }
    Text { end: text.len(), bytes, has_escapes }
}

/// How many bytes of UTF-8 four hexadecimal digits stand for; one half of a pair is counted as a whole character.
fn width(digits: &[u8]) -> usize {
    match digits {
        [b'0', b'0', b'0'..=b'7', _] => 1,
        [b'0', b'0'..=b'7', ..] => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::Value;
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    #[rstest]
    #[case::text(r#""abc""#, Cost { objects: 19, parsing: 0 })]
    #[case::escaped(r#""\u003c\u003c\n""#, Cost { objects: 19, parsing: 6 })]
    #[case::wide(r#""\u00e9\u20ac""#, Cost { objects: 21, parsing: 10 })]
    #[case::nothing_inside_a_text_counts(r#""{[,\"{""#, Cost { objects: 21, parsing: 10 })]
    #[case::map(r#"{"a":1}"#, Cost { objects: 717, parsing: 0 })]
    #[case::list("[1,2,3]", Cost { objects: 144 + 2 * 128, parsing: 0 })]
    #[case::cut_off(r#"{"a\u00"#, Cost { objects: 720, parsing: 8 })]
    #[case::nothing("", Cost::default())]
    fn t05_a_text_tells_what_it_will_cost(#[case] text: &str, #[case] cost: Cost) {
        assert_eq!(of(text.as_bytes()), cost);
    }

    /// What this thread has allocated and not given back, in bytes.
    struct Counting;

    thread_local! {
        static TAKEN: Cell<isize> = const { Cell::new(0) };
    }

    fn count(bytes: isize) {
        let _ = TAKEN.try_with(|taken| taken.set(taken.get() + bytes));
    }

    // SAFETY: everything is passed on to the system's allocator as it came.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count(layout.size().cast_signed());
            // SAFETY: the caller keeps to the contract.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            count(-layout.size().cast_signed());
            // SAFETY: the caller keeps to the contract.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    fn really(text: &str) -> usize {
        let before = TAKEN.get();
        let value: Value = serde_json::from_str(text).unwrap();
        let taken = TAKEN.get() - before;
        drop(value);
        usize::try_from(taken).unwrap()
    }

    #[rstest]
    #[case::one_field(r#"{"a":1}"#)]
    #[case::nested_maps(r#"{"a":{"b":{"c":{}}}}"#)]
    #[case::lists("[[1],[2],[]]")]
    #[case::texts(r#"["","a","b"]"#)]
    #[case::two_fields(r#"{"a":"","b":[0]}"#)]
    fn t05_no_text_costs_more_than_it_tells(#[case] piece: &str) {
        for pieces in [1, 2, 5, 12, 1000, 1025] {
            let list = format!("[{}]", vec![piece; pieces].join(","));
            assert!(of(list.as_bytes()).objects >= really(&list), "{pieces} of {piece} in a list");
            for step in [1, 7919] {
                let fields = (0..pieces).map(|at| format!("\"{:05}\":{piece}", at * step % 10_007));
                let map = format!("{{{}}}", fields.collect::<Vec<_>>().join(","));
                assert!(of(map.as_bytes()).objects >= really(&map), "{pieces} of {piece} in a map");
            }
        }
    }

    proptest! {
        #[test]
        fn t05_no_value_costs_more_than_its_text_tells(value in value()) {
            let text = value.to_string();
            prop_assert!(of(text.as_bytes()).objects >= really(&text), "{}", text);
            prop_assert_eq!(serde_json::from_str::<Weight>(&text).unwrap().0, of(text.as_bytes()).objects);
            prop_assert_eq!(Weight::deserialize(&value).unwrap().0, of(text.as_bytes()).objects);
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<i32>().prop_map(Value::from), ".{0,40}".prop_map(Value::from), Just(Value::Null)];
        leaf.prop_recursive(5, 200, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::from),
                prop::collection::btree_map(".{0,10}", inner, 0..20)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }
}
