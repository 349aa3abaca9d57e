//! What a person reads: what failed, why, and what to do next.

use crate::api::{Phase, PhaseRunSpec, PhaseRunStatus, RunState, StepState, StepStatus, labels};
use kube::core::Status;
use std::error::Error;
use std::time::Duration;

/// The longest message of a denial, in bytes.
pub const DENIAL_LIMIT: usize = 1024;

/// An error with its causes, each after a colon; a cause that is part of what was said already is not said again.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = said(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = said(error);
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// What an error says to a person: of an answer of the API server only its message, which its own display repeats.
fn said(error: &(dyn Error + 'static)) -> String {
    let answer = match error
        .downcast_ref::<kube::Error>()
        .or_else(|| error.downcast_ref::<Box<kube::Error>>().map(AsRef::as_ref))
    {
        Some(kube::Error::Api(status)) => Some(status.as_ref()),
        _ => error.downcast_ref::<Status>().or_else(|| error.downcast_ref::<Box<Status>>().map(AsRef::as_ref)),
    };
    match answer {
        Some(status) if !status.message.is_empty() => status.message.clone(),
        _ => error.to_string(),
    }
}

/// The beginning of `text`, at most `limit` bytes, cut between characters.
pub fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit.saturating_sub('…'.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

/// The end of `text`, at most `limit` bytes, cut between characters.
pub fn tail(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut start = text.len() - limit.saturating_sub('…'.len_utf8());
    while !text.is_char_boundary(start) {
        start += 1;
    }
    format!("…{}", &text[start..])
}

/// The step that made a run fail.
pub fn failed_step(steps: &[StepStatus]) -> Option<&StepStatus> {
    steps.iter().filter(|step| step.has_failed()).min_by_key(|step| step.finished_at.clone())
}

/// One line about how a run ended.
pub fn summary(run: &PhaseRunSpec, status: &PhaseRunStatus) -> String {
    if let Some(step) = failed_step(&status.steps) {
        return cut(&format!("{}: {}", place(run, step), step.message.as_deref().unwrap_or("failed")), 512);
    }
    let ran = status.steps.iter().filter(|step| step.state == StepState::Succeeded).count();
    let tolerated = status.steps.iter().filter(|step| step.tolerated).count();
    let counted = |count: usize, what| if count == 0 { String::new() } else { format!(", {count} {what}") };
    let (skipped, tolerated) =
        (counted(status.steps.len() - ran - tolerated, "skipped"), counted(tolerated, "failed, which is tolerated"));
    format!("{ran} step{}{skipped}{tolerated}", if ran == 1 { "" } else { "s" })
}

fn place(run: &PhaseRunSpec, step: &StepStatus) -> String {
    let plugin = run.resources.iter().find(|r| r.name == step.resource).map_or("?", |r| r.plugin.as_str());
    let index = run
        .resources
        .iter()
        .find(|r| r.name == step.resource)
        .and_then(|r| r.steps.iter().position(|s| s.name == step.step));
    let number = index.map_or_else(String::new, |i| format!(" (number {})", i + 1));
    format!("resource {}, plugin {plugin}, step {}{number}", step.resource, step.step)
}

/// The denial of a change whose pre-phase failed; at most [`DENIAL_LIMIT`] bytes.
pub fn denial(name: &str, run: &PhaseRunSpec, status: &PhaseRunStatus, undo: Option<(&str, RunState)>) -> String {
    let undone = match undo {
        None => String::new(),
        Some((undo, RunState::Succeeded)) => format!(" What it had done was undone ({undo})."),
        Some((undo, RunState::Failed)) => {
            format!(" Undoing what it had done FAILED: kubectl get phaserun {undo} -o yaml.")
        }
        Some((undo, _)) => format!(" What it had done is being undone ({undo})."),
    };
    let deletes = run.phase == Phase::PreDelete && run.old_object.is_none();
    let otherwise = if deletes { let_go(run) } else { String::new() };
    let nothing = if deletes { "deleted" } else { "stored" };
    let foot = format!(
        "Nothing was {nothing}.{undone} Look (it takes the right to get phaseruns): kubectl get phaserun {name} -o yaml. Then mend the cause and make the change again.{otherwise}"
    );
    with_log(&failure_of(run, "", status), status, &foot)
}

/// How a target is let go whose pre-delete cannot succeed.
fn let_go(run: &PhaseRunSpec) -> String {
    format!(
        " Or let it go all the same, if you have the verb skip: kubectl annotate {} -n {} {} {}=REASON",
        run.target.kind.to_lowercase(),
        run.target.namespace,
        run.target.name,
        labels::SKIP_PRE_DELETE
    )
}

/// What an event tells of a run that failed; at most [`DENIAL_LIMIT`] bytes.
pub fn failure(name: &str, run: &PhaseRunSpec, status: &PhaseRunStatus) -> String {
    let purpose = run.compensates.as_ref().map_or_else(String::new, |of| format!(", undoing {of},"));
    with_log(&failure_of(run, &purpose, status), status, &format!("Look: kubectl get phaserun {name} -o yaml."))
}

fn failure_of(run: &PhaseRunSpec, purpose: &str, status: &PhaseRunStatus) -> String {
    let summary = summary(run, status);
    format!("{} of {} {}{purpose} failed: {}.", run.phase, run.target.kind, run.target, summary.trim_end_matches('.'))
}

/// A text with as much of the failed step's log between its two parts as there is room for.
fn with_log(head: &str, status: &PhaseRunStatus, foot: &str) -> String {
    let log = failed_step(&status.steps).and_then(|step| step.log.as_deref()).unwrap_or_default().trim_end();
    let head = cut(head, DENIAL_LIMIT - foot.len().min(DENIAL_LIMIT / 2) - 2);
    let room = DENIAL_LIMIT.saturating_sub(head.len() + foot.len() + 20);
    let text = if log.is_empty() || room < 32 {
        format!("{head}\n{foot}")
    } else {
        format!("{head} It printed:\n{}\n{foot}", tail(log, room))
    };
    cut(&text, DENIAL_LIMIT)
}

/// What a client reads that came for the last time while the phase still ran, or waited for its turn (`ran_for` is none).
pub fn still_running(
    run: &str,
    phase: &str,
    target: &str,
    step: Option<&(String, usize, usize)>,
    why: Option<&str>,
    ran_for: Option<Duration>,
) -> String {
    let at = step.map_or_else(String::new, |(step, index, all)| format!(" at step {step} ({index} of {all})"));
    let why = why.map_or_else(String::new, |why| format!(" ({})", cut(why, DENIAL_LIMIT / 2)));
    let is = ran_for.map_or_else(
        || "waits for its turn, as many phases are at work as may be".to_owned(),
        |ran_for| format!("is still running{at}, for {} s now{why}", ran_for.as_secs()),
    );
    cut(
        &format!(
            "{phase} of {target} {is}: make the same change again to join it, or follow it with: kubectl get phaserun {run} -w"
        ),
        DENIAL_LIMIT,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Phase, RunResource, Step, TargetRef};
    use proptest::prelude::*;
    use serde_json::json;

    fn failed(log: &str) -> (PhaseRunSpec, PhaseRunStatus) {
        let step = Step { name: "branch".into(), ..Step::default() };
        let run = PhaseRunSpec {
            phase: Phase::PreCreate,
            target: TargetRef {
                kind: "Sandbox".into(),
                namespace: "shop".into(),
                name: "x".into(),
                ..TargetRef::default()
            },
            key: "k".into(),
            attempt: 1,
            requested_by: None,
            routing_key: None,
            compensates: None,
            timeout_seconds: 1,
            resources: vec![RunResource {
                name: "db".into(),
                plugin: "branch-db".into(),
                steps: vec![step],
                ..RunResource::default()
            }],
            object: json!({}),
            old_object: None,
        };
        let step = StepStatus {
            resource: "db".into(),
            step: "branch".into(),
            state: StepState::Failed,
            message: Some("exit code 3".into()),
            log: Some(log.into()),
            ..StepStatus::default()
        };
        (run, PhaseRunStatus { steps: vec![step], ..PhaseRunStatus::default() })
    }

    #[test]
    fn a_denial_says_what_failed_why_and_what_to_do() {
        let (run, status) = failed("no space left\n");
        assert_eq!(
            denial("r-1", &run, &status, Some(("u-1", RunState::Succeeded))),
            "pre-create of Sandbox shop/x failed: resource db, plugin branch-db, step branch (number 1): exit code 3. It printed:\n\
             no space left\n\
             Nothing was stored. What it had done was undone (u-1). Look (it takes the right to get phaseruns): kubectl get phaserun r-1 -o yaml. Then mend the cause and make the change again."
        );
    }

    #[test]
    fn an_event_tells_of_a_failure_what_its_denial_told() {
        let (mut run, status) = failed("no space left\n");
        let told = failure("r-1", &run, &status);
        let said = "failed: resource db, plugin branch-db, step branch (number 1): exit code 3. It printed:\n\
                    no space left\nLook: kubectl get phaserun r-1 -o yaml.";
        assert_eq!(told, format!("pre-create of Sandbox shop/x {said}"));
        run.compensates = Some("u-1".into());
        assert_eq!(failure("r-1", &run, &status), format!("pre-create of Sandbox shop/x, undoing u-1, {said}"));
    }

    #[test]
    fn an_answer_of_the_api_server_is_its_message() {
        let status = Status::failure("ingresses is forbidden", "Forbidden").with_code(403);
        let error = kube::Error::Api(Box::new(status));
        assert_eq!(with_causes(&error), "ingresses is forbidden");
    }

    #[test]
    fn who_joins_later_is_told_what_the_run_is_at_and_what_that_waits_for() {
        let (at, ran) = (("db/branch".to_owned(), 1, 2), Some(Duration::from_secs(25)));
        let why = Some("its pod waits: Unschedulable: 0/1 nodes are available");
        assert_eq!(
            still_running("r-1", "pre-create", "shop/x", Some(&at), why, ran),
            "pre-create of shop/x is still running at step db/branch (1 of 2), for 25 s now (its pod waits: \
             Unschedulable: 0/1 nodes are available): make the same change again to join it, or follow it with: \
             kubectl get phaserun r-1 -w"
        );
    }

    proptest! {
        #[test]
        fn a_denial_fits_whatever_was_printed(log in ".{0,3000}", message in ".{0,3000}") {
            let (run, mut status) = failed(&log);
            status.steps[0].message = Some(message);
            let text = denial("r-1", &run, &status, None);
            prop_assert!(text.len() <= DENIAL_LIMIT);
            prop_assert!(text.contains("make the change again"));
        }

        #[test]
        fn a_cut_text_fits(text in ".{0,300}", limit in 8_usize..200) {
            prop_assert!(cut(&text, limit).len() <= limit.max(3));
            prop_assert!(tail(&text, limit).len() <= limit.max(3));
        }
    }
}
