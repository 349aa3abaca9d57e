//! `sluice runs`: the phases of a sandbox for a person to read.

use crate::api::{PhaseRun, RunState, StepKind, StepState, StepStatus, labels};
use crate::plan::shown;
use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub struct RunsArgs {
    /// The sandbox
    name: String,
    /// Its namespace; that of the current context by default
    #[arg(short, long)]
    namespace: Option<String>,
    /// Only runs that began after this moment (RFC 3339)
    #[arg(long)]
    since: Option<Timestamp>,
}

pub fn run(args: RunsArgs) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(show(args))
}

async fn show(args: RunsArgs) -> anyhow::Result<ExitCode> {
    let client = Client::try_default().await?;
    let namespace = args.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let of = labels::selector(&namespace, &args.name);
    let mut runs = Api::<PhaseRun>::all(client).list(&ListParams::default().labels(&of)).await?.items;
    runs.retain(|run| args.since.is_none_or(|since| began(run).is_none_or(|at| at >= since)));
    runs.sort_by_key(began);
    if runs.is_empty() {
        eprintln!("no phase has run for sandbox {}", shown::line(&format!("{namespace}/{}", args.name)));
    }
    for run in &runs {
        print!("{}", text(run));
    }
    Ok(ExitCode::SUCCESS)
}

fn began(run: &PhaseRun) -> Option<Timestamp> {
    let started = run.status.as_ref().and_then(|status| status.started_at.as_ref()).map(|at| at.0);
    started.or(run.metadata.creation_timestamp.as_ref().map(|at| at.0))
}

/// One run and its steps, a line each.
fn text(run: &PhaseRun) -> String {
    let status = run.status.clone().unwrap_or_default();
    let mut text = String::new();
    let undoes = run.spec.compensates.as_ref().map_or_else(String::new, |of| format!(", undoes {of}"));
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{} {:<11} {:<11} {:>8}  {}{undoes}",
        clock(status.started_at.as_ref()),
        run.spec.phase.slug(),
        status.state.to_string(),
        took(status.started_at.as_ref(), status.finished_at.as_ref()),
        run.name_any(),
    );
    for step in &status.steps {
        let _ = writeln!(text, "{}", line(step));
    }
    if status.state == RunState::Failed
        && let Some(message) = &status.message
    {
        let _ = writeln!(text, "             {message}", message = shown::line(message));
    }
    text
}

fn line(step: &StepStatus) -> String {
    let kind = match step.kind {
        StepKind::Script => "script",
        StepKind::Apply => "apply",
        StepKind::Delete | StepKind::DeleteApplied => "delete",
        StepKind::Wait => "wait",
        StepKind::Http => "http",
    };
    let mut notes: Vec<String> = step.message.iter().cloned().collect();
    if step.state == StepState::Failed || step.exit_code.is_some_and(|code| code != 0) {
        notes.extend(step.exit_code.map(|code| format!("exit code {code}")).filter(|note| !notes.contains(note)));
    }
    notes.extend(step.applied.iter().map(ToString::to_string));
    if !step.outputs.is_empty() {
        notes.push(format!("outputs: {}", step.outputs.join(", ")));
    }
    format!(
        "{}   {:<20} {:<10} {:>8}  {kind} {}",
        clock(step.started_at.as_ref()),
        format!("{}/{}", step.resource, step.step),
        format!("{:?}", step.state),
        took(step.started_at.as_ref(), step.finished_at.as_ref()),
        shown::line(&notes.join("; ")),
    )
    .trim_end()
    .to_owned()
}

fn clock(at: Option<&MicroTime>) -> String {
    at.map_or_else(|| " ".repeat(12), |at| at.0.strftime("%H:%M:%S%.3f").to_string())
}

fn took(from: Option<&MicroTime>, to: Option<&MicroTime>) -> String {
    match (from, to) {
        (Some(from), Some(to)) => format!("{:.3} s", to.0.duration_since(from.0).as_secs_f64()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_line() {
        let at = |text: &str| Some(MicroTime(text.parse().unwrap()));
        let step = StepStatus {
            resource: "db".into(),
            step: "branch".into(),
            state: StepState::Failed,
            started_at: at("2026-01-01T10:00:00Z"),
            finished_at: at("2026-01-01T10:00:01.25Z"),
            exit_code: Some(3),
            message: Some("exit code 3".into()),
            ..StepStatus::default()
        };
        assert_eq!(line(&step), "10:00:00.000   db/branch            Failed      1.250 s  script exit code 3");
    }

    #[test]
    fn t12_a_message_of_a_step_forges_neither_lines_nor_colours() {
        let message = Some("a\u{1b}[31m\r\n12:00:00.000   db/forged  Succeeded \u{202e}".to_owned());
        let step = StepStatus { message, exit_code: None, ..StepStatus::default() };
        let shown = line(&step);
        assert!(shown.ends_with("a\\u{1b}[31m\\r\\n12:00:00.000   db/forged  Succeeded \\u{202e}"), "{shown}");
    }
}
