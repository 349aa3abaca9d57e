//! Plays a table of API calls to whatever a client talks to.

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Calls that belong together, in a namespace of their own: `{ns}` in paths, bodies and expectations.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub case: String,
    calls: Vec<Call>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    /// `GET /api/v1/…`, or `settle`: time for the controllers.
    call: String,
    /// Of a patch: `json`, `merge`, `strategic` or `apply`.
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    accept: Option<String>,
    #[serde(default)]
    body: Value,
    #[serde(default)]
    code: u16,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    has: Option<String>,
    /// Paths and what is there; null for what is not there.
    #[serde(default)]
    fields: Map<String, Value>,
    /// Names for later calls: `{name}`, and where they are taken from.
    #[serde(default)]
    save: BTreeMap<String, String>,
    /// Of a watch: `TYPE name` of the first events.
    #[serde(default)]
    events: Vec<String>,
}

pub fn read(text: &str) -> Vec<Case> {
    serde_saphyr::from_str(text).unwrap()
}

/// Plays one case; how many calls it had, or what was answered otherwise.
pub async fn play(client: &Client, case: &Case, ns: &str, settle: impl AsyncFn()) -> Result<usize, String> {
    let mut names = BTreeMap::from([("ns".to_owned(), ns.to_owned())]);
    let namespace = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": ns}});
    let made = ask(client, "POST", "/api/v1/namespaces", "application/json", None, &namespace).await?;
    if made.0 != 201 {
        return Err(format!("the namespace: {}", made.1));
    }
    for (at, call) in case.calls.iter().enumerate() {
        if call.call == "settle" {
            settle().await;
            continue;
        }
        one(client, call, &mut names).await.map_err(|why| format!("call {} ({}): {why}", at + 1, call.call))?;
    }
    Ok(case.calls.iter().filter(|call| call.call != "settle").count())
}

fn filled(text: &str, names: &BTreeMap<String, String>) -> String {
    names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

fn filled_value(value: &Value, names: &BTreeMap<String, String>) -> Value {
    serde_json::from_str(&filled(&value.to_string(), names)).unwrap()
}

async fn one(client: &Client, call: &Call, names: &mut BTreeMap<String, String>) -> Result<(), String> {
    let line = filled(&call.call, names);
    let (method, path) = line.split_once(' ').ok_or("no method")?;
    let content = match call.kind.as_deref() {
        Some("json") => "application/json-patch+json",
        Some("merge") => "application/merge-patch+json",
        Some("strategic") => "application/strategic-merge-patch+json",
        Some("apply") => "application/apply-patch+yaml",
        Some(other) => other,
        None => "application/json",
    };
    let body = filled_value(&call.body, names);
    if !call.events.is_empty() {
        return events(client, path, call, names).await;
    }
    let (code, answer) = ask(client, method, path, content, call.accept.as_deref(), &body).await?;
    if code != call.code {
        return Err(format!("{code} instead of {}: {answer}", call.code));
    }
    let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
    for (wanted, found) in [(&call.reason, text("reason")), (&call.message, text("message"))] {
        if let Some(wanted) = wanted.as_ref().map(|wanted| filled(wanted, names)).filter(|wanted| *wanted != found) {
            return Err(format!("{found:?} instead of {wanted:?}"));
        }
    }
    if let Some(part) = call.has.as_ref().map(|part| filled(part, names)).filter(|part| !text("message").contains(part))
    {
        return Err(format!("{:?} has no {part:?}", text("message")));
    }
    for (path, wanted) in &call.fields {
        let wanted = filled_value(wanted, names);
        let found = at(&answer, path);
        if found != wanted {
            return Err(format!("{path} is {found} instead of {wanted}: {answer}"));
        }
    }
    for (name, path) in &call.save {
        let found = at(&answer, path);
        names.insert(name.clone(), found.as_str().map_or_else(|| found.to_string(), ToOwned::to_owned));
    }
    Ok(())
}

/// `metadata.labels.a`, `items.0`, `items#` for how many; `/` parts where names have dots.
fn at(value: &Value, path: &str) -> Value {
    if let Some(path) = path.strip_suffix('#') {
        return json!(at(value, path).as_array().map_or(0, Vec::len));
    }
    let separator = if path.contains('/') { '/' } else { '.' };
    let step = |value: &Value, name: &str| match value {
        Value::Array(items) => name.parse::<usize>().ok().and_then(|at| items.get(at)).cloned(),
        other => other.get(name).cloned(),
    };
    path.split(separator).fold(value.clone(), |value, name| step(&value, name).unwrap_or(Value::Null))
}

async fn ask(
    client: &Client,
    method: &str,
    path: &str,
    content: &str,
    accept: Option<&str>,
    body: &Value,
) -> Result<(u16, Value), String> {
    let method: Method = method.parse().map_err(|_| "no method")?;
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder()
        .method(method)
        .uri(path.replace(' ', "%20"))
        .header("content-type", content)
        .header("accept", accept.unwrap_or("application/json"))
        .header("user-agent", "table/1")
        .body(Body::from(body))
        .map_err(|error| error.to_string())?;
    let response = client.send(request).await.map_err(|error| error.to_string())?;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect_bytes().await.map_err(|error| error.to_string())?;
    Ok((code, serde_json::from_slice(&bytes).unwrap_or_default()))
}

/// The first events of a watch.
async fn events(client: &Client, path: &str, call: &Call, names: &BTreeMap<String, String>) -> Result<(), String> {
    let request = Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    let lines = client.request_stream(request).await.map_err(|error| error.to_string())?.lines();
    let mut lines = Box::pin(lines.take(call.events.len()));
    for wanted in &call.events {
        let line = lines.try_next().await.map_err(|error| error.to_string())?.ok_or("the watch ended")?;
        let event: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        let text = |path: &str| at(&event, path).as_str().unwrap_or_default().to_owned();
        let what = if text("type") == "ERROR" { text("object.reason") } else { text("object.metadata.name") };
        let found = format!("{} {what}", text("type"));
        let wanted = filled(wanted, names);
        if found.trim() != wanted {
            return Err(format!("{found:?} instead of {wanted:?}"));
        }
    }
    Ok(())
}
