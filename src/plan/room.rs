//! Whether what is noted of a change and of its phases fits into what the API server stores as one object.
//!
//! What does not fit could never be written down, and what is not written down is never done: better to refuse it while
//! somebody reads the answer.

use super::message;
use super::plugins::Plugins;
use super::runs::{self, Change, PlannedRun, Side};
use crate::api::{ObjectRef, PhaseRunStatus, StepState, StepStatus};
use serde::Serialize;
use std::io;

/// Bytes that one object may have: etcd's 1.5 MiB (`--max-request-bytes`), less what the API server adds.
const OBJECT: usize = 1_400_000;
/// Of these, what is left for the status of a run.
const STATUS: usize = 400_000;
/// Bytes that the names of all objects may have which a run applies.
const APPLIED: usize = 256 * 1024;
/// A sandbox that is no larger than this and asks for nothing is not looked at.
const SMALL: usize = 64 * 1024;
/// Bytes of a log that must be made shorter.
const SHORT_LOG: usize = 1024;
/// Bytes of a message that must be.
const SHORT: usize = 200;

/// Why what a change brings about cannot be noted. `planned` are its pre-phases.
pub fn fault(change: Change<'_>, planned: &[PlannedRun], plugins: &Plugins) -> Option<String> {
    let (old, new) = match change {
        Change::Create { new } => (None, new),
        Change::Update { old, new } => (Some(old), new),
        Change::Delete { .. } => return None,
    };
    let asks = old.is_none_or(|old| old["spec"]["resources"] != new["spec"]["resources"]) || !planned.is_empty();
    let whole = size(new);
    if whole <= SMALL && !asks {
        return None;
    }
    // What is stored already may always be made smaller.
    if whole > SMALL && old.is_some_and(|old| size(old) >= whole) {
        return None;
    }
    let own = size(&runs::snapshot(new));
    let after = |change| runs::plan(change, Side::Post, plugins).map_or(0, |runs| runs.iter().map(of_run).sum());
    let last: usize = after(Change::Delete { old: new });
    // The record keeps the object as it was created, is stored, was settled and is being settled.
    let record = 4 * own + last.max(after(change));
    let run = planned.iter().map(of_run).max().unwrap_or_default();
    let (what, needed, most) = if record > OBJECT {
        ("what is noted of it for its later phases", record, OBJECT)
    } else if run > OBJECT - STATUS {
        ("what is noted of one phase", run, OBJECT - STATUS)
    } else {
        return None;
    };
    Some(format!(
        "spec: the sandbox has {} KiB, so that {what} would have {} KiB, and at most {} KiB can be stored: give it shorter params, or fewer resources, or their plugins shorter scripts",
        own / 1024,
        needed / 1024,
        most / 1024
    ))
}

/// Why a step's objects cannot be noted beside those of the steps before it.
pub fn too_many<'a>(steps: impl Iterator<Item = &'a StepStatus>, objects: &[ObjectRef]) -> Option<String> {
    let known: usize = steps.map(|step| size(&step.applied)).sum();
    let needed = known + size(&objects);
    (needed > APPLIED).then(|| {
        format!(
            "apply: the names of its {} objects would make {} KiB with those of the other steps, and a run can note {} KiB: make fewer objects",
            objects.len(),
            needed / 1024,
            APPLIED / 1024
        )
    })
}

/// The bytes that are left for the status beside a run's spec.
pub fn for_status(spec: &impl Serialize) -> usize {
    OBJECT.saturating_sub(size(spec)).max(SMALL)
}

/// Makes a status fit: what scripts printed goes first, of those that succeeded before the others; then messages are cut.
pub fn fit(status: &mut PhaseRunStatus, limit: usize) {
    let shorter: [fn(&mut StepStatus); 4] = [
        |step| step.log = step.log.take().filter(|_| step.state != StepState::Succeeded),
        |step| step.log = step.log.take().map(|log| message::tail(&log, SHORT_LOG)),
        |step| step.log = None,
        |step| step.message = step.message.take().map(|text| message::cut(&text, SHORT)),
    ];
    for shorten in shorter {
        if size(status) <= limit {
            return;
        }
        status.steps.iter_mut().for_each(shorten);
    }
}

fn of_run(run: &PlannedRun) -> usize {
    size(&run.resources) + size(&run.object) + run.old_object.as_ref().map_or(0, size)
}

/// The bytes of a value as JSON.
pub fn size(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be written as JSON is refused by whoever writes it.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ResourcePluginSpec, Step};
    use rstest::rstest;
    use serde_json::{Value, json};

    fn plugins(script: usize) -> Plugins {
        let steps = Some(vec![Step { name: "s".into(), script: Some("x".repeat(script)), ..Step::default() }]);
        let spec = ResourcePluginSpec { post_create: steps.clone(), post_delete: steps, ..Default::default() };
        Plugins::new([("p".to_owned(), spec)])
    }

    fn sandbox(kib: usize) -> Value {
        let params = json!({"a": "x".repeat(kib * 1024)});
        json!({"metadata": {"name": "x"}, "spec": {"resources": [{"name": "r", "plugin": "p", "params": params}]}})
    }

    #[rstest]
    #[case::usual(64, 1000, true)]
    #[case::larger(128, 1000, true)]
    #[case::too_large(320, 1000, false)]
    #[case::of_a_long_script(64, 1_300_000, false)]
    fn a_sandbox_is_refused_whose_phases_could_not_be_noted(
        #[case] kib: usize,
        #[case] script: usize,
        #[case] right: bool,
    ) {
        let new = sandbox(kib);
        let found = fault(Change::Create { new: &new }, &[], &plugins(script));
        assert_eq!(found.is_none(), right, "{found:?}");
        assert_eq!(fault(Change::Update { old: &new, new: &new }, &[], &plugins(script)), None, "it does not grow");
        assert_eq!(fault(Change::Delete { old: &new }, &[], &plugins(script)), None);
    }

    #[test]
    fn a_status_that_is_too_large_loses_logs_before_anything_else() {
        let step = |state: StepState| StepStatus {
            state,
            log: Some("\u{1}".repeat(4000)),
            message: Some("m".repeat(500)),
            ..StepStatus::default()
        };
        let steps = (0..40).map(|_| step(StepState::Succeeded)).chain([step(StepState::Failed)]).collect();
        let mut status = PhaseRunStatus { steps, ..PhaseRunStatus::default() };
        let whole = status.clone();
        fit(&mut status, 10_000_000);
        assert_eq!(status, whole);
        fit(&mut status, 100_000);
        assert!(size(&status) <= 100_000);
        assert_eq!(status.steps[40], whole.steps[40], "what failed keeps its log");
        assert_eq!((&status.steps[0].log, &status.steps[0].message), (&None, &whole.steps[0].message));
        fit(&mut status, 20_000);
        assert!(size(&status) <= 20_000, "{}", size(&status));
    }

    #[test]
    fn a_step_that_would_apply_more_than_can_be_noted_is_told_so() {
        let object = |n: usize| ObjectRef { name: format!("{n:0240}"), ..ObjectRef::default() };
        let few: Vec<_> = (0..100).map(object).collect();
        let many: Vec<_> = (0..1000).map(object).collect();
        let known = [StepStatus { applied: few.clone(), ..StepStatus::default() }];
        assert_eq!(too_many(known.iter(), &few), None);
        assert!(too_many(known.iter(), &many).unwrap().contains("1000 objects"));
    }
}
