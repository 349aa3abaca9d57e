//! Which run a pod is of, and which of its pods it is.

use crate::api::{PhaseRun, labels};
use kube::ResourceExt;
use kube::api::ObjectMeta;

/// How many pods were lost before this one, where it is of this part of its run.
pub fn number(pod: &ObjectMeta, part: &str) -> Option<u32> {
    pod.labels.as_ref()?.get(labels::PART)?.strip_prefix(part)?.strip_prefix('-')?.parse().ok()
}

/// Whether a pod is this run's own. Its name and its labels can be anybody's; its owner is written by who made it for
/// this very run.
pub fn belongs_to(pod: &ObjectMeta, run: &PhaseRun) -> bool {
    run.uid().is_some_and(|uid| is_of(pod, &run.name_any(), &uid))
}

/// [`belongs_to`], of a run by its name and its UID.
pub fn is_of(pod: &ObjectMeta, run: &str, uid: &str) -> bool {
    let labelled = pod.labels.as_ref().and_then(|all| all.get(labels::RUN)) == Some(&labels::value(run));
    labelled && pod.owner_references.iter().flatten().any(|owner| owner.uid == uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[test]
    fn a_pod_with_the_name_and_the_label_of_a_run_is_not_its_own_without_being_owned_by_it() {
        let mut run = PhaseRun::new("r-1", serde_json::from_value(run_spec()).unwrap());
        run.metadata.uid = Some("u".into());
        let pod = |owner: &str| {
            let owner = json!([{"apiVersion": "sluice.dev/v1alpha1", "kind": "PhaseRun", "name": "r-1", "uid": owner}]);
            serde_json::from_value(json!({"labels": {labels::RUN: "r-1"}, "ownerReferences": owner})).unwrap()
        };
        assert!(belongs_to(&pod("u"), &run));
        assert!(!belongs_to(&pod("of an earlier run of this name"), &run));
        assert!(!belongs_to(&serde_json::from_value(json!({"labels": {labels::RUN: "r-1"}})).unwrap(), &run));
        assert!(!belongs_to(&ObjectMeta { labels: None, ..pod("u") }, &run));
    }

    #[rstest]
    #[case("0-0", "0", Some(0))]
    #[case("0-12", "0", Some(12))]
    #[case("1-0", "0", None)]
    #[case("10-0", "1", None)]
    #[case("0-2-1-3", "0-2-1", Some(3))]
    #[case("0-2-1-3", "0", None)]
    fn a_pod_is_known_by_its_part_whatever_its_name(
        #[case] label: &str,
        #[case] part: &str,
        #[case] lost: Option<u32>,
    ) {
        let pod =
            ObjectMeta { labels: Some([(labels::PART.to_owned(), label.to_owned())].into()), ..ObjectMeta::default() };
        assert_eq!(number(&pod, part), lost);
        assert_eq!(number(&ObjectMeta::default(), part), None);
    }

    fn run_spec() -> serde_json::Value {
        let target = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "Sandbox", "namespace": "shop", "name": "x"});
        json!({"phase": "PreCreate", "target": target, "key": "k", "attempt": 1, "timeoutSeconds": 1, "resources": [], "object": {}})
    }
}
