//! How much of what an agent says is believed.
//!
//! Scripts run as the agent's user: one of them may end the agent's connections, take its socket, and speak in its place.
//! So the engine believes a pod what it says of the step that it was asked for, within the bounds of a plugin, and
//! nothing else; and whatever it says, hearing it costs little.

use super::protocol::{Event, LOG_LIMIT, OUTPUT_LIMIT, RunStep, SILENCE_SECONDS, StepId, StepResult};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::{Duration, Instant},
};

/// The most outputs that a step may have; the definition of plugins says so too.
const MAX_OUTPUTS: usize = 64;
/// The longest version and the longest message that an agent may send, in bytes.
const MAX_WORDS: usize = 4 * 1024;
/// As many events that nobody waits for may come within [`WINDOW`]. An agent sends five; many may come at once where
/// the way was blocked for a while.
const MAX_IDLE: u32 = 120;
const WINDOW: Duration = Duration::from_secs(SILENCE_SECONDS);

/// An event as it stands in a line. Flat, because an enum would first keep everything that the line holds, at many times
/// its length.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    r#type: Type,
    version: Option<String>,
    message: Option<String>,
    id: Option<StepId>,
    exit_code: Option<i32>,
    error: Option<String>,
    #[serde(default)]
    interrupted: bool,
    #[serde(default)]
    outputs: Few,
    #[serde(default)]
    log: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Type {
    Hello,
    Ended,
    Error,
    Alive,
}

/// A map that ends being read at its limit.
#[derive(Default)]
struct Few(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Few {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Few;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("outputs by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Few, A::Error> {
                let mut found = BTreeMap::new();
                while let Some((name, content)) = map.next_entry()? {
                    if found.len() >= MAX_OUTPUTS {
                        return Err(A::Error::custom(format!("more than {MAX_OUTPUTS} outputs")));
                    }
                    found.insert(name, content);
                }
                Ok(Few(found))
            }
        }
        deserializer.deserialize_map(Reading)
    }
}

/// The event in a line, or what is wrong with it.
pub fn event(line: &[u8]) -> Result<Event, String> {
    let read: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let words = |text: Option<String>, what| {
        let text = text.ok_or_else(|| format!("it has no {what}"))?;
        if text.len() > MAX_WORDS { Err(format!("its {what} has more than {MAX_WORDS} bytes")) } else { Ok(text) }
    };
    Ok(match read.r#type {
        Type::Alive => Event::Alive,
        Type::Hello => Event::Hello { version: words(read.version, "version")? },
        Type::Error => Event::Error { message: words(read.message, "message")? },
        Type::Ended => Event::Ended(Box::new(StepResult {
            id: read.id.ok_or_else(|| "it names no step".to_owned())?,
            exit_code: read.exit_code,
            error: read.error,
            interrupted: read.interrupted,
            outputs: read.outputs.0,
            log: read.log,
        })),
    })
}

/// What a step may leave, kept from what was asked.
pub struct Asked {
    id: StepId,
    outputs: BTreeSet<String>,
}

impl From<&RunStep> for Asked {
    fn from(run: &RunStep) -> Self {
        Self { id: run.id.clone(), outputs: run.outputs.iter().map(|output| output.name.clone()).collect() }
    }
}

impl Asked {
    /// A result as far as it is believed, or why it is not.
    pub fn believed(&self, mut result: StepResult) -> Result<StepResult, String> {
        if result.id != self.id {
            let StepId { step, attempt } = short(&result.id);
            return Err(format!("it tells of step {step}, attempt {attempt}, which it was not asked for"));
        }
        if let Some(code) = result.exit_code.filter(|code| !(0..=255).contains(code)) {
            return Err(format!("it gives the exit code {code}, which no process can have"));
        }
        if let Some(name) = result.outputs.keys().find(|name| !self.outputs.contains(*name)) {
            return Err(format!("it gives an output {:?} that the step does not declare", cut(name)));
        }
        result.log = tail(result.log);
        result.error =
            result.error.map(|error| if error.len() > MAX_WORDS { cut_to(&error, MAX_WORDS) } else { error });
        if !result.succeeded() {
            result.outputs.clear();
            return Ok(result);
        }
        if let Some(name) = self.outputs.iter().find(|name| !result.outputs.contains_key(*name)) {
            return Err(format!("it says that the step succeeded, but gives no output {name}"));
        }
        let mut left = OUTPUT_LIMIT;
        for (name, content) in &result.outputs {
            let length = BASE64_STANDARD.decode(content).map_err(|error| format!("its output {name}: {error}"))?.len();
            left = left
                .checked_sub(length)
                .ok_or_else(|| format!("its outputs have more than {OUTPUT_LIMIT} bytes together"))?;
        }
        Ok(result)
    }
}

/// Counts what comes that nobody waits for.
pub struct Patience {
    since: Instant,
    heard: u32,
}

impl Patience {
    pub fn new(now: Instant) -> Self {
        Self { since: now, heard: 0 }
    }

    /// Whether one more is borne.
    pub fn bears(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= WINDOW {
            *self = Self::new(now);
        }
        self.heard += 1;
        self.heard <= MAX_IDLE
    }
}

fn short(id: &StepId) -> StepId {
    StepId { step: format!("{:?}", cut(&id.step)), attempt: id.attempt }
}

fn cut(text: &str) -> String {
    cut_to(text, 64)
}

fn cut_to(text: &str, limit: usize) -> String {
    text[..text.floor_char_boundary(limit)].to_owned()
}

fn tail(log: String) -> String {
    match log.len().checked_sub(LOG_LIMIT) {
        Some(over @ 1..) => log[log.ceil_char_boundary(over)..].to_owned(),
        _ => log,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn asked() -> Asked {
        Asked { id: StepId { step: "s".into(), attempt: 1 }, outputs: ["host".to_owned()].into() }
    }

    fn result(change: &[(&str, serde_json::Value)]) -> StepResult {
        let mut result = json!({
            "type": "ended", "id": {"step": "s", "attempt": 1}, "exitCode": 0, "outputs": {"host": "aGk="}, "log": "l",
        });
        change.iter().for_each(|(key, value)| result[*key] = value.clone());
        match event(result.to_string().as_bytes()).unwrap() {
            Event::Ended(result) => *result,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_event_is_heard_as_it_was_said() {
        let whole = result(&[("exitCode", json!(3)), ("error", json!("e")), ("interrupted", json!(true))]);
        let hello = Event::Hello { version: "1".into() };
        for said in [hello, Event::Alive, Event::Error { message: "m".into() }, Event::Ended(Box::new(whole))] {
            assert_eq!(event(&serde_json::to_vec(&said).unwrap()), Ok(said));
        }
    }

    #[rstest]
    #[case(b"{\"type\":\"hello\",\"version\":\"\xff\"}".to_vec())]
    #[case(br#"{"type":"dance"}"#.to_vec())]
    #[case(br#"{"type":"ended"}"#.to_vec())]
    #[case(br#"{"type":"hello"}"#.to_vec())]
    #[case(br#"{"type":"alive","type":"ended"}"#.to_vec())]
    #[case(br#"{"type":"ended","id":{"step":"s","attempt":-1}}"#.to_vec())]
    #[case(br#"{"type":"ended","id":{"step":"s","attempt":1},"exitCode":3e99}"#.to_vec())]
    #[case(format!("{{\"type\":\"alive\",\"x\":{}", "[".repeat(100_000)).into_bytes())]
    #[case(format!("{{\"type\":\"hello\",\"version\":\"{}\"}}", "v".repeat(MAX_WORDS + 1)).into_bytes())]
    fn t11_what_is_no_event_is_refused(#[case] line: Vec<u8>) {
        assert!(event(&line).is_err());
    }

    #[test]
    fn t11_more_outputs_than_a_step_can_have_are_not_read() {
        let outputs: serde_json::Map<_, _> = (0..=MAX_OUTPUTS).map(|at| (format!("o{at}"), json!(""))).collect();
        let line = json!({"type": "ended", "id": {"step": "s", "attempt": 1}, "outputs": outputs}).to_string();
        assert!(event(line.as_bytes()).unwrap_err().contains("more than 64 outputs"));
    }

    #[rstest]
    #[case(&[], None)]
    #[case(&[("id", json!({"step": "other", "attempt": 1}))], Some("was not asked for"))]
    #[case(&[("id", json!({"step": "s", "attempt": 2}))], Some("was not asked for"))]
    #[case(&[("exitCode", json!(-1))], Some("the exit code -1"))]
    #[case(&[("exitCode", json!(256))], Some("the exit code 256"))]
    #[case(&[("outputs", json!({"host": "", "admin": ""}))], Some("\"admin\" that the step does not declare"))]
    #[case(&[("outputs", json!({"admin": ""})), ("exitCode", json!(1))], Some("does not declare"))]
    #[case(&[("outputs", json!({}))], Some("gives no output host"))]
    #[case(&[("outputs", json!({"host": "!"}))], Some("its output host"))]
    #[case(&[("outputs", json!({"host": "A".repeat(OUTPUT_LIMIT / 3 * 4 + 8)}))], Some("more than 524288 bytes"))]
    fn t11_a_result_is_believed_within_what_was_asked(
        #[case] change: &[(&str, serde_json::Value)],
        #[case] why: Option<&str>,
    ) {
        match (asked().believed(result(change)), why) {
            (Ok(_), None) => {}
            (Err(said), Some(why)) => assert!(said.contains(why), "{said}"),
            (other, _) => panic!("{other:?}"),
        }
    }

    #[test]
    fn t11_a_long_log_and_error_are_cut_and_a_failure_leaves_no_outputs() {
        let long = "ä".repeat(LOG_LIMIT);
        let believed = asked().believed(result(&[("log", json!(long)), ("error", json!(long))])).unwrap();
        assert!(believed.log.len() <= LOG_LIMIT && believed.log.len() > LOG_LIMIT - 4);
        assert!(believed.error.is_some_and(|error| error.len() <= MAX_WORDS));
        assert!(believed.outputs.is_empty());
    }

    #[test]
    fn t11_patience_ends_with_a_babbler_alone() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        assert!((0..MAX_IDLE).all(|_| patience.bears(start)) && !patience.bears(start));
        let mut patience = Patience::new(start);
        assert!((1..1000).all(|at| patience.bears(start + Duration::from_secs(at))));
    }
}
