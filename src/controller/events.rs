//! Events on the target: what happened to it, for `kubectl describe` and `kubectl get events`.
//!
//! An event is a courtesy: nothing ever fails because one could not be written.

use crate::api::TargetRef;
use crate::plan::message::{self, with_causes};
use crate::plan::shown;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Reporter};

/// The API server refuses longer notes.
const NOTE_LIMIT: usize = 1024;

/// The note as it may be shown; control characters are, before it is cut.
fn note_of(note: &str) -> String {
    message::cut(&shown::lines(note), NOTE_LIMIT)
}

/// Writes events as one replica.
pub struct Recorder(kube::runtime::events::Recorder);

impl Recorder {
    pub fn new(client: Client, pod: String) -> Self {
        let reporter = Reporter { controller: "sluice.dev/sluice".to_owned(), instance: Some(pod) };
        Self(kube::runtime::events::Recorder::new(client, reporter))
    }

    pub async fn normal(&self, target: &TargetRef, reason: &str, action: &str, note: &str) {
        self.write(EventType::Normal, target, reason, action, note).await;
    }

    pub async fn warning(&self, target: &TargetRef, reason: &str, action: &str, note: &str) {
        self.write(EventType::Warning, target, reason, action, note).await;
    }

    async fn write(&self, type_: EventType, target: &TargetRef, reason: &str, action: &str, note: &str) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            action: action.to_owned(),
            note: Some(note_of(note)),
            secondary: None,
        };
        let reference = ObjectReference {
            api_version: Some(target.api_version.clone()),
            kind: Some(target.kind.clone()),
            // That of an object without one is written where the API server wants it.
            namespace: Some(target.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(target.name.clone()),
            uid: target.uid.clone(),
            ..ObjectReference::default()
        };
        if let Err(error) = self.0.publish(&event, &reference).await {
            tracing::debug!(%target, reason, error = with_causes(&error), "an event was not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t12_a_note_shows_control_characters_and_stays_within_its_limit() {
        assert_eq!(note_of("a\u{1b}[1mb\nc"), "a\\u{1b}[1mb\nc");
        let long = note_of(&"\u{202e}".repeat(NOTE_LIMIT));
        assert!(long.len() <= NOTE_LIMIT && !long.contains('\u{202e}'));
    }
}
