//! A run as lists and watches show it to the index.

use super::entry::RunEntry;
use crate::api::PhaseRun;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde::{Deserialize, Deserializer};

/// What the index keeps of a run. Made of the whole run as soon as it is read, so that of a page of runs there is never
/// more than one whole in memory: what a tenant wrote into its sandbox can take a hundred times its text.
#[derive(Clone, Debug, Resource)]
#[resource(inherit = "PhaseRun")]
pub struct WatchedRun {
    /// What identifies it, and no more.
    pub metadata: ObjectMeta,
    pub entry: RunEntry,
}

impl<'de> Deserialize<'de> for WatchedRun {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let run = PhaseRun::deserialize(deserializer)?;
        let metadata = ObjectMeta {
            name: run.metadata.name.clone(),
            uid: run.uid(),
            resource_version: run.resource_version(),
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, entry: RunEntry::from(&run) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Phase, PhaseRunSpec, TargetRef};
    use serde_json::json;

    #[test]
    fn t05_of_a_watched_run_there_is_what_the_index_knows_and_no_more() {
        let spec = PhaseRunSpec {
            phase: Phase::PreCreate,
            target: TargetRef { namespace: "shop".into(), name: "x".into(), ..TargetRef::default() },
            key: "k".into(),
            attempt: 1,
            requested_by: None,
            routing_key: None,
            compensates: None,
            timeout_seconds: 1,
            resources: vec![],
            object: json!({"spec": {"description": "mine"}}),
            old_object: None,
        };
        let mut run = PhaseRun::new("r-1", spec);
        run.metadata.uid = Some("u".into());
        run.metadata.resource_version = Some("7".into());
        run.metadata.annotations = Some([("a".to_owned(), "b".repeat(1000))].into());
        let watched: WatchedRun = serde_json::from_value(serde_json::to_value(&run).unwrap()).unwrap();
        assert_eq!(watched.entry, RunEntry::from(&run));
        assert_eq!(
            (watched.name_any(), watched.uid(), watched.resource_version()),
            ("r-1".into(), run.uid(), run.resource_version())
        );
        assert_eq!(watched.metadata.annotations, None);
    }
}
