//! Templates: JSON values whose strings hold expressions as `${…}`.
//!
//! A string that is one `${…}` alone keeps the value's type; elsewhere the value is put in as text. `$${` is a literal
//! `${`. Keys are never expanded. Pure, as expressions are.

use super::expression::{Cancel, Expression, ExpressionError, Kind, Stopped, bounded, json_length, quoted, tokens};
use super::scope::Scope;
use serde_json::{Map, Value as Json};
use std::sync::Arc;

/// The largest JSON that a template may give, in bytes. etcd takes no object that is larger.
pub const MAX_RENDERED: usize = 1536 * 1024;

/// How deep lists and maps may nest in a template.
const MAX_DEPTH: usize = 100;

/// What is wrong with a template, and where: `manifests[0].spec.rules[0].host`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error(
        "{path}: `{text}` opens an expression that is never closed: add the `}}`, or write `$${{` for a literal `${{`"
    )]
    Unterminated { path: String, text: String },
    #[error("{path}: {source}")]
    Expression { path: String, source: ExpressionError },
    #[error(
        "{path}: `${{{expression}}}` is null, which has no text: give a default, as in `x.?y.orValue(\"…\")`, or let it stand alone in its string"
    )]
    Null { path: String, expression: String },
    #[error("{path}: lists and maps nest deeper than {MAX_DEPTH}: make the value flatter")]
    TooDeep { path: String },
    #[error("{path}: the value has more than {MAX_RENDERED} bytes with its expressions filled in: select less")]
    TooLarge { path: String },
    #[error("the expressions of this value could not be evaluated: {message}")]
    Stopped { message: String },
}

impl TemplateError {
    /// Where in the template the fault is, and what it is.
    pub fn parts(&self) -> (&str, String) {
        let path = match self {
            Self::Unterminated { path, .. }
            | Self::Expression { path, .. }
            | Self::Null { path, .. }
            | Self::TooDeep { path }
            | Self::TooLarge { path } => path.as_str(),
            Self::Stopped { .. } => "",
        };
        let whole = self.to_string();
        let message = whole.strip_prefix(path).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&whole);
        (path, message.to_owned())
    }
}

/// A parsed template. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Arc<Node>);

#[derive(Debug, PartialEq)]
enum Node {
    Plain(Json),
    Alone(Placed),
    Text(Vec<Part>),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

#[derive(Debug, PartialEq)]
enum Part {
    Text(String),
    Expression(Placed),
}

/// An expression and where it stands.
#[derive(Debug, PartialEq)]
struct Placed {
    path: String,
    expression: Expression,
}

impl Template {
    /// Parses `value`; paths in errors begin at it.
    pub fn parse(value: &Json) -> Result<Self, TemplateError> {
        Self::parse_at("", value)
    }

    /// Parses `value`, which stands at `path`: `apply.manifests`.
    pub fn parse_at(path: &str, value: &Json) -> Result<Self, TemplateError> {
        Ok(Self(Arc::new(parse(path, value, 0)?)))
    }

    /// The template's expressions and where each stands.
    pub fn expressions(&self) -> Vec<(&str, &Expression)> {
        let mut found = Vec::new();
        self.0.collect(&mut found);
        found.into_iter().map(|placed| (placed.path.as_str(), &placed.expression)).collect()
    }

    /// Whether every expression uses known variables and functions alone.
    pub fn check(&self, known: &[&str]) -> Result<(), TemplateError> {
        for (path, expression) in self.expressions() {
            expression.check(known).map_err(|source| TemplateError::Expression { path: path.to_owned(), source })?;
        }
        Ok(())
    }

    /// The value with every expression filled in.
    pub fn render(&self, scope: &Scope) -> Result<Json, TemplateError> {
        self.render_until(scope, &Cancel::default())
    }

    /// [`Template::render`] on a thread of its own, under the time limit of one expression;
    /// see [`Expression::evaluate_bounded`].
    pub async fn render_bounded(&self, scope: &Scope) -> Result<Json, TemplateError> {
        let (template, scope) = (self.clone(), scope.clone());
        match bounded(move |cancel| template.render_until(&scope, cancel)).await {
            Ok(answer) => answer,
            Err(stopped) => Err(unevaluated(stopped)),
        }
    }

    /// The text of a template that is one string, in its parts, as far as `scope` fills them in.
    pub async fn pieces_bounded(&self, scope: &Scope) -> Result<Vec<Piece>, TemplateError> {
        let (template, scope) = (self.clone(), scope.clone());
        match bounded(move |cancel| template.pieces_until(&scope, cancel)).await {
            Ok(answer) => answer,
            Err(stopped) => Err(unevaluated(stopped)),
        }
    }

    fn pieces_until(&self, scope: &Scope, cancel: &Cancel) -> Result<Vec<Piece>, TemplateError> {
        let mut rendering = Rendering { scope, cancel, left: MAX_RENDERED };
        let mut given = |placed: &Placed| -> Result<Piece, TemplateError> {
            let text = as_text(placed, rendering.value(placed)?)?;
            Ok(Piece::Given { text, called: placed.expression.called() })
        };
        match &*self.0 {
            Node::Alone(placed) => Ok(vec![given(placed)?]),
            Node::Text(parts) => parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) => Ok(Piece::Written(text.clone())),
                    Part::Expression(placed) => given(placed),
                })
                .collect(),
            Node::Plain(Json::String(text)) => Ok(vec![Piece::Written(text.clone())]),
            Node::Plain(other) => Ok(vec![Piece::Written(other.to_string())]),
            Node::List(_) | Node::Map(_) => Ok(Vec::new()),
        }
    }

    fn render_until(&self, scope: &Scope, cancel: &Cancel) -> Result<Json, TemplateError> {
        let mut rendering = Rendering { scope, cancel, left: MAX_RENDERED };
        rendering.node(&self.0)
    }
}

/// A part of a text: what the template's author wrote, or what an expression gave.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Written(String),
    Given {
        text: String,
        /// The function whose call the whole expression is.
        called: Option<String>,
    },
}

fn unevaluated(stopped: Stopped) -> TemplateError {
    let message = match stopped {
        Stopped::TooSlow => format!("it took longer than {} s; make them do less", super::expression::TIME.as_secs()),
        Stopped::Broken(message) => message,
    };
    TemplateError::Stopped { message }
}

impl Node {
    fn collect<'a>(&'a self, found: &mut Vec<&'a Placed>) {
        match self {
            Node::Plain(_) => {}
            Node::Alone(placed) => found.push(placed),
            Node::Text(parts) => found.extend(parts.iter().filter_map(|part| match part {
                Part::Expression(placed) => Some(placed),
                Part::Text(_) => None,
            })),
            Node::List(items) => items.iter().for_each(|item| item.collect(found)),
            Node::Map(fields) => fields.iter().for_each(|(_, field)| field.collect(found)),
        }
    }
}

struct Rendering<'a> {
    scope: &'a Scope,
    cancel: &'a Cancel,
    left: usize,
}

impl Rendering<'_> {
    fn node(&mut self, node: &Node) -> Result<Json, TemplateError> {
        Ok(match node {
            Node::Plain(value) => value.clone(),
            Node::Alone(placed) => self.value(placed)?,
            Node::Text(parts) => {
                let mut text = String::new();
                for part in parts {
                    match part {
                        Part::Text(literal) => text.push_str(literal),
                        Part::Expression(placed) => text.push_str(&as_text(placed, self.value(placed)?)?),
                    }
                }
                Json::String(text)
            }
            Node::List(items) => Json::Array(items.iter().map(|item| self.node(item)).collect::<Result<_, _>>()?),
            Node::Map(fields) => {
                let mut map = Map::new();
                for (key, field) in fields {
                    map.insert(key.clone(), self.node(field)?);
                }
                Json::Object(map)
            }
        })
    }

    fn value(&mut self, placed: &Placed) -> Result<Json, TemplateError> {
        let path = || placed.path.clone();
        let evaluated = placed.expression.evaluate_until(self.scope, self.cancel);
        let value = evaluated.map_err(|source| TemplateError::Expression { path: path(), source })?;
        self.left =
            self.left.checked_sub(json_length(&value)).ok_or_else(|| TemplateError::TooLarge { path: path() })?;
        Ok(value)
    }
}

/// Strings as they are, everything else as compact JSON.
fn as_text(placed: &Placed, value: Json) -> Result<String, TemplateError> {
    match value {
        Json::String(text) => Ok(text),
        Json::Null => {
            Err(TemplateError::Null { path: placed.path.clone(), expression: quoted(placed.expression.source()) })
        }
        other => Ok(other.to_string()),
    }
}

fn parse(path: &str, value: &Json, depth: usize) -> Result<Node, TemplateError> {
    if depth > MAX_DEPTH {
        return Err(TemplateError::TooDeep { path: path.to_owned() });
    }
    match value {
        Json::String(text) => parse_text(path, text),
        Json::Array(items) => {
            let item = |(at, item): (usize, &Json)| parse(&format!("{path}[{at}]"), item, depth + 1);
            Ok(Node::List(items.iter().enumerate().map(item).collect::<Result<_, _>>()?))
        }
        Json::Object(fields) => {
            let field = |(key, field): (&String, &Json)| Ok((key.clone(), parse(&below(path, key), field, depth + 1)?));
            Ok(Node::Map(fields.iter().map(field).collect::<Result<_, _>>()?))
        }
        plain => Ok(Node::Plain(plain.clone())),
    }
}

/// The path of the field `key` of what stands at `path`.
fn below(path: &str, key: &str) -> String {
    let simple = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    match (simple, path) {
        (true, "") => key.to_owned(),
        (true, path) => format!("{path}.{key}"),
        (false, path) => format!("{path}[{}]", Json::from(key)),
    }
}

fn parse_text(path: &str, text: &str) -> Result<Node, TemplateError> {
    let mut parts: Vec<Part> = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        literal.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$${") {
            literal.push_str("${");
            rest = after;
        } else if let Some(after) = rest.strip_prefix("${") {
            let Some(end) = closing_brace(after) else {
                return Err(TemplateError::Unterminated { path: path.to_owned(), text: quoted(rest) });
            };
            let expression = Expression::parse(&after[..end])
                .map_err(|source| TemplateError::Expression { path: path.to_owned(), source })?;
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(Part::Expression(Placed { path: path.to_owned(), expression }));
            rest = &after[end + 1..];
        } else {
            literal.push('$');
            rest = &rest[1..];
        }
    }
    literal.push_str(rest);
    Ok(match (parts.pop(), literal.is_empty()) {
        (None, _) => Node::Plain(Json::String(literal)),
        (Some(Part::Expression(placed)), true) if parts.is_empty() => Node::Alone(placed),
        (Some(last), empty) => {
            parts.push(last);
            if !empty {
                parts.push(Part::Text(literal));
            }
            Node::Text(parts)
        }
    })
}

/// Where the `}` stands that ends the expression at the beginning of `source`.
fn closing_brace(source: &str) -> Option<usize> {
    let mut open = 0_usize;
    for token in tokens(source) {
        match (token.kind, token.text) {
            (Kind::OpenText, _) => return None,
            (Kind::Sign, "{") => open += 1,
            (Kind::Sign, "}") if open == 0 => return Some(token.start),
            (Kind::Sign, "}") => open -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests;
