//! The types of values, as far as they are known before there is a value, and specimens of each.
//!
//! The library has no types of its own but those of values. So a type here can make values of itself, which the
//! library is tried with (see `calls`), and be read off the value that comes back.

use super::error;
use super::functions;
use kube_cel::cel::Context;
use kube_cel::cel::objects::{Key, Map, Opaque, OptionalValue, Value};
use kube_cel::cel::parser::Parser;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, LazyLock};

/// What is known of a value.
#[derive(Clone)]
pub(crate) enum Type {
    /// There is no such value: the item of a list that is always empty.
    Never,
    /// Nothing is known.
    Any,
    Null,
    Bool,
    Int,
    UInt,
    Float,
    String,
    Bytes,
    Duration,
    Timestamp,
    List(Arc<Type>),
    /// A map whose keys are the user's.
    Map(Arc<Type>),
    /// A map whose keys a schema knows.
    Object(Arc<Shape>),
    /// `null`, or this.
    Nullable(Arc<Type>),
    Optional(Arc<Type>),
    /// One of the library's own: a URL, a version. The value is a specimen.
    Opaque(Value),
}

/// The fields of an object. Two of the same name are the same.
pub(crate) struct Shape {
    /// For messages: `sandbox.spec`, `an item of sandbox.spec.forks`.
    pub name: String,
    pub fields: BTreeMap<String, Field>,
}

/// A field of an object.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub kind: Type,
    /// Whether every object has it.
    pub required: bool,
}

/// The key of a specimen of an object under which its shape is; no expression can write it by accident.
const SHAPE: &str = "@shape";
/// Texts that the functions of the library can read: numbers, a time, a duration, addresses, a version, a quantity.
const TEXTS: [&str; 9] =
    ["1", "a", "2026-03-01T04:05:06Z", "1h", "http://a.example/b?c=d", "10.0.0.1", "10.0.0.0/8", "1.2.3", "aGk="];

/// Every function and no variable.
pub(super) static FUNCTIONS: LazyLock<Context<'static>> = LazyLock::new(functions::context);
static DURATIONS: LazyLock<Vec<Value>> = LazyLock::new(|| given_by("duration('1h')"));
static TIMESTAMPS: LazyLock<Vec<Value>> = LazyLock::new(|| given_by("timestamp('2026-03-01T04:05:06Z')"));

fn given_by(source: &str) -> Vec<Value> {
    let tree = Parser::new().parse(source);
    tree.ok().and_then(|tree| Value::resolve(&tree, &FUNCTIONS).ok()).into_iter().collect()
}

impl Type {
    pub fn list(item: Type) -> Self {
        Self::List(Arc::new(item))
    }

    pub fn map(value: Type) -> Self {
        Self::Map(Arc::new(value))
    }

    pub fn nullable(self) -> Self {
        match self {
            Self::Any | Self::Null | Self::Nullable(_) => self,
            other => Self::Nullable(Arc::new(other)),
        }
    }

    pub fn optional(self) -> Self {
        Self::Optional(Arc::new(self))
    }

    /// The type of a value that is of either.
    pub fn or(&self, other: &Type) -> Type {
        let both = |a: &Arc<Type>, b: &Arc<Type>| Arc::new(a.or(b));
        match (self, other) {
            (Self::Never, other) | (other, Self::Never) => other.clone(),
            (Self::Any, _) | (_, Self::Any) => Self::Any,
            (Self::Null, Self::Null) => Self::Null,
            (Self::Null, other) | (other, Self::Null) => other.clone().nullable(),
            (Self::Nullable(a), Self::Nullable(b)) => a.or(b).nullable(),
            (Self::Nullable(a), b) | (b, Self::Nullable(a)) => a.or(b).nullable(),
            (Self::List(a), Self::List(b)) => Self::List(both(a, b)),
            (Self::Map(a), Self::Map(b)) => Self::Map(both(a, b)),
            (Self::Optional(a), Self::Optional(b)) => Self::Optional(both(a, b)),
            (Self::Object(a), Self::Object(b)) if a.name == b.name => self.clone(),
            (Self::Opaque(Value::Opaque(a)), Self::Opaque(Value::Opaque(b)))
                if a.runtime_type_name() == b.runtime_type_name() =>
            {
                self.clone()
            }
            (Self::Bool, Self::Bool)
            | (Self::Int, Self::Int)
            | (Self::UInt, Self::UInt)
            | (Self::Float, Self::Float)
            | (Self::String, Self::String)
            | (Self::Bytes, Self::Bytes)
            | (Self::Duration, Self::Duration)
            | (Self::Timestamp, Self::Timestamp) => self.clone(),
            _ => Self::Any,
        }
    }

    /// Whether nothing is known of a part of it, so that no specimen stands for all its values.
    pub fn is_vague(&self) -> bool {
        match self {
            Self::Any => true,
            Self::List(inner) | Self::Map(inner) | Self::Nullable(inner) | Self::Optional(inner) => inner.is_vague(),
            _ => false,
        }
    }

    /// This type, with `Any` where an emptiness or a `null` left a part unknown: a function may have given it by chance.
    pub fn widened(self) -> Self {
        match self {
            Self::Never | Self::Null | Self::Nullable(_) => Self::Any,
            Self::List(inner) => Self::list(Arc::unwrap_or_clone(inner).widened()),
            Self::Map(inner) => Self::map(Arc::unwrap_or_clone(inner).widened()),
            Self::Optional(inner) => Arc::unwrap_or_clone(inner).widened().optional(),
            other => other,
        }
    }

    /// The type of the value once it has been JSON, as the item of a `forEach` has.
    pub fn as_json(&self) -> Self {
        match self {
            Self::Bytes | Self::Duration | Self::Timestamp => Self::String,
            Self::UInt | Self::Opaque(_) | Self::Never => Self::Any,
            Self::List(inner) => Self::list(inner.as_json()),
            Self::Map(inner) => Self::map(inner.as_json()),
            Self::Nullable(inner) | Self::Optional(inner) => inner.as_json().nullable(),
            other => other.clone(),
        }
    }

    /// Values of this type that are as different as its values can be; none where nothing is known.
    pub(super) fn specimens(&self) -> Vec<Value> {
        let text = |text: &&str| Value::String(Arc::new((*text).to_owned()));
        match self {
            Self::Never | Self::Any => Vec::new(),
            Self::Null => vec![Value::Null],
            Self::Bool => vec![Value::Bool(true), Value::Bool(false)],
            Self::Int => [0, 1, 2, -1].map(Value::Int).to_vec(),
            Self::UInt => [0, 1, 2].map(Value::UInt).to_vec(),
            Self::Float => [0.5, 2.0].map(Value::Float).to_vec(),
            Self::String => TEXTS.iter().map(text).collect(),
            Self::Bytes => vec![Value::Bytes(Arc::new(b"hi".to_vec()))],
            Self::Duration => DURATIONS.clone(),
            Self::Timestamp => TIMESTAMPS.clone(),
            Self::List(item) => {
                let items: Vec<Value> = item.specimens().into_iter().take(2).collect();
                let lists = (0..=items.len()).map(|length| items[..length].to_vec());
                let repeated = items.first().filter(|_| items.len() == 1).map(|one| vec![one.clone(), one.clone()]);
                lists.chain(repeated).map(|items| Value::List(Arc::new(items))).collect()
            }
            Self::Map(value) => {
                let filled = value.specimens().into_iter().next().map(|value| map("a", value));
                [Some(Value::Map(Map { map: Arc::default() })), filled].into_iter().flatten().collect()
            }
            Self::Object(shape) => vec![map(SHAPE, Value::Opaque(shape.clone()))],
            Self::Nullable(inner) => [Value::Null].into_iter().chain(inner.specimens()).collect(),
            Self::Optional(inner) => {
                let some = inner.specimens().into_iter().take(2).map(OptionalValue::of);
                [OptionalValue::none()].into_iter().chain(some).map(|o| Value::Opaque(Arc::new(o))).collect()
            }
            Self::Opaque(value) => vec![value.clone()],
        }
    }

    /// The type of a value that the library made of specimens.
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Bool,
            Value::Int(_) => Self::Int,
            Value::UInt(_) => Self::UInt,
            Value::Float(_) => Self::Float,
            Value::String(_) => Self::String,
            Value::Bytes(_) => Self::Bytes,
            Value::Duration(_) => Self::Duration,
            Value::Timestamp(_) => Self::Timestamp,
            Value::Function(..) => Self::Any,
            Value::List(items) => Self::list(all(items.iter())),
            Value::Map(map) => match map.map.get(&Key::String(Arc::new(SHAPE.to_owned()))) {
                Some(shape) => Self::of(shape),
                None => Self::map(all(map.map.values())),
            },
            Value::Opaque(object) => {
                if let Some(optional) = object.downcast_ref::<OptionalValue>() {
                    optional.value().map_or(Self::Never, Self::of).optional()
                } else if let Some(shape) = object.downcast_ref::<Shape>() {
                    Self::Object(Arc::new(shape.clone()))
                } else {
                    Self::Opaque(value.clone())
                }
            }
        }
    }

    /// Its name, with its article.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Never | Self::Any => "a value",
            Self::Nullable(inner) => inner.name(),
            Self::Optional(_) => "an optional",
            Self::Object(_) => "a map",
            other => other.specimens().first().map_or("a value", error::type_name),
        }
    }
}

fn all<'a>(values: impl Iterator<Item = &'a Value>) -> Type {
    values.fold(Type::Never, |all, value| all.or(&Type::of(value)))
}

fn map(key: &str, value: Value) -> Value {
    let entries = HashMap::from([(Key::String(Arc::new(key.to_owned())), value)]);
    Value::Map(Map { map: Arc::new(entries) })
}

impl fmt::Debug for Type {
    /// Unambiguous: what is known of a call is kept under the types of its arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(item) => write!(f, "[{item:?}]"),
            Self::Map(value) => write!(f, "{{{value:?}}}"),
            Self::Object(shape) => write!(f, "<{}>", shape.name),
            Self::Nullable(inner) => write!(f, "null|{inner:?}"),
            Self::Optional(inner) => write!(f, "?{inner:?}"),
            Self::Opaque(Value::Opaque(object)) => write!(f, "opaque {}", object.runtime_type_name()),
            Self::Never => f.write_str("never"),
            Self::Any => f.write_str("any"),
            other => f.write_str(other.name()),
        }
    }
}

impl Clone for Shape {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), fields: self.fields.clone() }
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Shape {}

impl Opaque for Shape {
    fn runtime_type_name(&self) -> &str {
        "sluice.shape"
    }
}
