//! What was measured, and how it is shown.

use crate::sample::ms;
use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What of a run begins so is of `make bench-hostile`, in `results.json` as well.
const HOSTILE: &str = "hostile";

enum Goal {
    AtLeast(f64),
    Under(f64),
}

/// What is aimed at: its key, what it is, the unit, and the target.
const GOALS: [(&str, &str, &str, Goal); 12] = [
    ("script_cold_times_faster", "five script steps, cold pod, against five Helm hook Jobs", "×", Goal::AtLeast(7.0)),
    ("script_warm_times_faster", "five script steps, warm pod, against the same", "×", Goal::AtLeast(50.0)),
    ("apply_times_faster", "five `apply` steps, against the same", "×", Goal::AtLeast(200.0)),
    ("apply_step_over_write_ms", "one `apply` step, over the API server's own write", "ms", Goal::Under(15.0)),
    ("nohook_p50_ms", "a review of 4 KiB that runs no hook, one connection: p50", "ms", Goal::Under(0.3)),
    ("nohook_p99_ms", "the same: p99", "ms", Goal::Under(1.5)),
    ("reviews_vs_bare", "such reviews a second with 64 connections, over a bare server's", "", Goal::AtLeast(0.6)),
    ("rss_idle_mib", "server memory at rest", "MiB", Goal::Under(60.0)),
    ("rss_10k_mib", "server memory with 10,000 sandboxes and 50,000 runs", "MiB", Goal::Under(150.0)),
    ("post_latency_p99_ms", "from `Ready` to the post-phase's first step: p99 of 100", "ms", Goal::Under(300.0)),
    ("post_latency_p50_ms", "the same: p50", "ms", Goal::Under(300.0)),
    ("growth_10k", "`nohook_p50_ms` with 10,000 sandboxes over that with 10", "", Goal::Under(1.2)),
];

/// What must hold while somebody means Sluice ill.
const HOSTILE_GOALS: [(&str, &str, &str, Goal); 3] = [
    ("hostile_rss_peak_mib", "the most memory of a replica, whatever is done to it", "MiB", Goal::Under(200.0)),
    ("hostile_create_p99_ms", "another user's small create in the meantime: the worst p99", "ms", Goal::Under(1000.0)),
    ("hostile_restarts", "restarts of Sluice's containers", "", Goal::Under(1.0)),
];

/// Everything that was measured in one run.
#[derive(Default)]
pub struct Results {
    keys: Map<String, Value>,
    details: Vec<Value>,
}

impl Results {
    /// Takes in a number that has a target.
    pub fn key(&mut self, key: &str, value: f64) {
        eprintln!("bench: {key} = {}", shown(value));
        self.keys.insert(key.to_owned(), json!(rounded(value)));
    }

    pub fn get(&self, key: &str) -> Option<f64> {
        self.keys.get(key)?.as_f64()
    }

    /// Takes in a number that explains others.
    pub fn detail(&mut self, what: impl Into<String>, value: f64, unit: &str) {
        let what = what.into();
        eprintln!("bench: {what}: {} {unit}", shown(value));
        self.details.push(json!({"what": what, "value": rounded(value), "unit": unit}));
    }

    pub fn time(&mut self, what: impl Into<String>, time: Duration) {
        self.detail(what, ms(time), "ms");
    }

    /// Everything, with the date, the machine and the commit; beside it what `stored` has of `make bench-hostile`.
    pub fn into_json(self, root: &Path, stored: &Value) -> anyhow::Result<Value> {
        let mut all = Map::new();
        for (key, ..) in GOALS {
            all.insert(key.to_owned(), self.keys.get(key).cloned().unwrap_or_default());
        }
        let of_hostile = stored.as_object().into_iter().flatten().filter(|(key, _)| key.starts_with(HOSTILE));
        all.extend(of_hostile.map(|(key, value)| (key.clone(), value.clone())));
        all.extend(self.run(root)?);
        Ok(all.into())
    }

    /// `stored` with what this run of `make bench-hostile` found.
    pub fn into_hostile(self, root: &Path, stored: Value) -> anyhow::Result<Value> {
        let mut all = stored;
        for (key, ..) in HOSTILE_GOALS {
            all[key] = self.keys.get(key).cloned().unwrap_or_default();
        }
        all[HOSTILE] = self.run(root)?.into();
        Ok(all)
    }

    /// When and where this run was, and its details.
    fn run(self, root: &Path) -> anyhow::Result<Map<String, Value>> {
        let date = Timestamp::now().strftime("%Y-%m-%d").to_string();
        Ok(Map::from_iter([
            ("date".to_owned(), json!(date)),
            ("machine".to_owned(), json!(machine()?)),
            ("commit".to_owned(), json!(commit(root))),
            ("details".to_owned(), json!(self.details)),
        ]))
    }
}

/// Puts the results as tables into the page, in place of those that are there.
pub fn put_into(page: &Path, results: &Value) -> anyhow::Result<()> {
    let what = || page.display().to_string();
    let mut text = std::fs::read_to_string(page).with_context(what)?;
    for (command, tables) in [("make bench", markdown(results)?), ("make bench-hostile", hostile_markdown(results)?)] {
        let (begin, end) =
            (format!("<!-- what `{command}` wrote -->"), format!("<!-- end of what `{command}` wrote -->"));
        let (before, rest) = text.split_once(&begin).with_context(|| format!("{} has no line {begin}", what()))?;
        let (_, after) = rest.split_once(&end).with_context(|| format!("{} has no line {end}", what()))?;
        text = format!("{before}{begin}\n\n{tables}\n{end}{after}");
    }
    std::fs::write(page, text).with_context(what)
}

/// The results of `make bench` as tables.
pub fn markdown(results: &Value) -> anyhow::Result<String> {
    tables(results, results, &GOALS)
}

/// Those of `make bench-hostile`.
pub fn hostile_markdown(results: &Value) -> anyhow::Result<String> {
    tables(results, &results[HOSTILE], &HOSTILE_GOALS)
}

fn tables(results: &Value, run: &Value, goals: &[(&str, &str, &str, Goal)]) -> anyhow::Result<String> {
    if run.is_null() {
        return Ok("Not measured yet.\n".to_owned());
    }
    let text = |field: &str| run[field].as_str().unwrap_or("unknown").to_owned();
    let mut page = format!("Measured on {}, commit {}, on {}.\n\n", text("date"), text("commit"), text("machine"));
    page += "| what | key | measured | target | reached |\n| --- | --- | --- | --- | --- |\n";
    for (key, what, unit, goal) in goals {
        let (target, reached) = match (goal, results[*key].as_f64()) {
            (Goal::AtLeast(least), measured) => (format!("at least {least}"), measured.map(|value| value >= *least)),
            (Goal::Under(most), measured) => (format!("under {most}"), measured.map(|value| value < *most)),
        };
        let measured = results[*key].as_f64().map_or("not measured".to_owned(), |value| with_unit(value, unit));
        let reached = reached.map_or("–", |reached| if reached { "yes" } else { "**no**" });
        writeln!(page, "| {what} | `{key}` | {measured} | {target} | {reached} |")?;
    }
    page += "\nWhat these come from, and what else was measured:\n\n| what | measured |\n| --- | --- |\n";
    for detail in run["details"].as_array().into_iter().flatten() {
        let value =
            with_unit(detail["value"].as_f64().unwrap_or_default(), detail["unit"].as_str().unwrap_or_default());
        writeln!(page, "| {} | {value} |", detail["what"].as_str().unwrap_or_default())?;
    }
    Ok(page)
}

/// Three digits say all that a measurement of this kind can.
fn rounded(value: f64) -> f64 {
    if value == 0.0 {
        return value;
    }
    let scale = 10f64.powi(2 - value.abs().log10().floor() as i32);
    if scale < 1.0 { value.round() } else { (value * scale).round() / scale }
}

fn shown(value: f64) -> String {
    let text = rounded(value).to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() { grouped } else { format!("{grouped}.{fraction}") }
}

fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "" => shown(value),
        "×" => format!("{} ×", shown(value)),
        unit => format!("{} {unit}", shown(value)),
    }
}

fn machine() -> anyhow::Result<String> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field(&cpus, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cores = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let memory = field(&std::fs::read_to_string("/proc/meminfo")?, "MemTotal").unwrap_or_default();
    let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or_default();
    Ok(format!("{cores} × {model}, {} GiB", kib.div_ceil(1024 * 1024)))
}

fn commit(root: &Path) -> String {
    let described = Command::new("git")
        .args(["describe", "--always", "--dirty", "--exclude", "*"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|output| output.status.success());
    described.map_or("unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
