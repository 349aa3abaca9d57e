//! What a review will take in memory once it is parsed, found out from its text alone: a JSON text of many tiny objects
//! grows by a factor of a hundred.
//!
//! It knows serde_json's `Value`, and rounds up wherever the text does not tell.

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
    use rstest::rstest;

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
}
