//! JSON to CEL values and back, without loss.

use super::error::type_name;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube_cel::cel::objects::{Key, Map, OptionalValue, Value};
use serde_json::{Number, Value as Json};
use std::collections::HashMap;
use std::sync::Arc;

/// The CEL value of `json`. Whole numbers become `int`, and `uint` where they are too large for one.
pub(crate) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::Int(value),
            (None, Some(value)) => Value::UInt(value),
            (None, None) => number.as_f64().map_or(Value::Null, Value::Float),
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(from_json).collect())),
        Json::Object(fields) => {
            let entry = |(key, value): (&String, &Json)| (Key::String(Arc::new(key.clone())), from_json(value));
            Value::Map(Map { map: Arc::new(fields.iter().map(entry).collect::<HashMap<_, _>>()) })
        }
    }
}

/// The JSON of `value`, or why it has none.
///
/// A timestamp becomes RFC 3339 text, a duration seconds (`5400s`), bytes base64, an optional its value or null.
pub(super) fn to_json(value: &Value) -> Result<Json, String> {
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) => Json::from(*value),
        Value::UInt(value) => Json::from(*value),
        Value::Float(value) => match Number::from_f64(*value) {
            Some(number) => Json::Number(number),
            None => return Err("it gives an infinite number or NaN, which JSON has no form for".into()),
        },
        Value::String(text) => Json::String(text.to_string()),
        Value::Bytes(bytes) => Json::String(BASE64_STANDARD.encode(bytes.as_slice())),
        Value::Timestamp(time) => {
            let text = time.to_rfc3339();
            Json::String(text.strip_suffix("+00:00").map_or(text.clone(), |utc| format!("{utc}Z")))
        }
        Value::Duration(duration) => match duration.num_nanoseconds() {
            Some(nanoseconds) => Json::String(seconds(nanoseconds)),
            None => Json::String(format!("{}s", duration.num_seconds())),
        },
        Value::List(items) => Json::Array(items.iter().map(to_json).collect::<Result<_, _>>()?),
        Value::Map(map) => {
            let entry = |(key, value): (&Key, &Value)| match key {
                Key::String(key) => Ok((key.to_string(), to_json(value)?)),
                other => Err(format!("it gives a map with the key {}: keys must be strings", shown(other))),
            };
            Json::Object(map.map.iter().map(entry).collect::<Result<_, _>>()?)
        }
        Value::Opaque(object) => match object.downcast_ref::<OptionalValue>() {
            Some(optional) => optional.value().map_or(Ok(Json::Null), to_json)?,
            None => {
                let kind = object.runtime_type_name();
                return Err(format!("it gives a `{kind}`, which JSON has no form for: give a string or number of it"));
            }
        },
        Value::Function(..) => return Err(format!("it gives {}: call it", type_name(value))),
    })
}

/// The number of bytes of `json`'s compact form, without making it.
pub(crate) fn json_length(json: &Json) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting cannot fail, and a `Value` has string keys alone.
    let _ = serde_json::to_writer(&mut count, json);
    count.0
}

fn shown(key: &Key) -> String {
    match key {
        Key::Int(key) => key.to_string(),
        Key::Uint(key) => format!("{key}u"),
        Key::Bool(key) => key.to_string(),
        Key::String(key) => key.to_string(),
    }
}

/// A duration as protobuf's JSON has it, which Go's `time.ParseDuration` reads too: `1.5s`, `-3600s`.
fn seconds(nanoseconds: i64) -> String {
    const SECOND: u64 = 1_000_000_000;
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let (whole, part) = (nanoseconds.unsigned_abs() / SECOND, nanoseconds.unsigned_abs() % SECOND);
    if part == 0 {
        return format!("{sign}{whole}s");
    }
    let part = format!("{part:09}");
    format!("{sign}{whole}.{}s", part.trim_end_matches('0'))
}
