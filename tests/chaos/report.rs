//! The figures that are printed at the end.

use crate::check::history::{Call, History, Told};
use crate::faults::Fault;
use std::collections::BTreeMap;

/// Prints what was done, what ran and what went wrong on purpose.
pub fn figures(history: &History, faults: &BTreeMap<Fault, usize>) {
    println!("changes: {}", history.calls.len());
    table(history.calls.iter().map(|call| format!("{:?} {:?}", call.verb, call.told)));
    let undos = history.runs.values().filter(|run| run.compensates.is_some()).count();
    let (runs, taken_back) = (history.runs.len(), history.taken_back);
    println!("runs: {runs}, {undos} of them to undo another; {taken_back} more were taken back before they began");
    table(history.runs.values().map(|run| {
        let undo = if run.compensates.is_some() { " (undo)" } else { "" };
        let doomed = if run.doomed { " (on purpose)" } else { "" };
        let phase = run.phase.map_or("?", |phase| phase.slug());
        match run.state() {
            sluice::api::RunState::Failed => format!("{phase}{undo} Failed{doomed}"),
            state => format!("{phase}{undo} {state}"),
        }
    }));
    let stored = history.sandboxes.iter().filter(|v| !v.deleted).count();
    println!(
        "stored: {stored} states of {} sandboxes; written by steps: {}",
        history.lives().len(),
        history.effects.len()
    );
    println!("faults injected: {}", faults.values().sum::<usize>());
    for (fault, count) in faults {
        println!("  {fault:?}: {count}");
    }
    reasons(&history.calls);
}

/// Why changes were refused, the commonest first: a wrong reason is seen here.
fn reasons(calls: &[Call]) {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for call in calls.iter().filter(|call| matches!(call.told, Told::Refused | Told::Unknown)) {
        // Names differ from one to the other.
        let words =
            call.message.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit() || c == '"'));
        *reasons.entry(words.take(14).collect::<Vec<_>>().join(" ")).or_default() += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    println!("refused or unknown, because of:");
    for (reason, count) in reasons.iter().take(10) {
        println!("  {count} × {reason}");
    }
}

fn table(rows: impl Iterator<Item = String>) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    rows.for_each(|row| *counts.entry(row).or_default() += 1);
    for (row, count) in counts {
        println!("  {row}: {count}");
    }
}
