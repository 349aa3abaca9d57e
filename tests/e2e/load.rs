//! More asks than can be done, and less time than it takes: whoever asks is told at once, or a moment before time is up.

use crate::chart::Values;
use crate::cluster::{SLUICE, Space, eventually, kubectl, list, step_image};
use crate::raw::{Answer, Proxy, all_at_once};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// The longest that the API server waits for a webhook.
const GIVEN: Duration = Duration::from_secs(30);

/// A sandbox of this name whose pre-create sleeps for so long.
fn sleeper(space: &Space, name: &str, seconds: u32) -> String {
    let script = format!("script: \"#!/bin/sh\\nsleep {seconds}\"");
    let plugin = space.plugin(
        "sleeps",
        &format!("  runner: {{image: '{}'}}\n  preCreate: [{{name: sleep, {script}}}]", step_image()),
    );
    space.sandbox(name, &format!("  resources: [{{name: r, plugin: {plugin}}}]"))
}

#[test]
fn w13_a_request_that_has_less_time_left_is_answered_before_it_is_up() {
    let space = Space::new("hurried");
    let manifest = sleeper(&space, "x", 25);
    let proxy = Proxy::start();
    // As when another webhook has used the rest: the API server gives each what is left of the request's own limit.
    let given = Duration::from_secs(15);
    let answer = proxy.create(&space, &manifest, "?timeout=15s");
    assert!(answer.come_again().is_some(), "not the API server's own word that time is up: {answer:?}");
    assert!(answer.message().contains("still running"), "{answer:?}");
    assert!(answer.took < given, "{answer:?}");
    assert!(answer.took > given / 2, "the time that there was was used: {answer:?}");

    proxy.create_at_last(&space, &manifest);
    let run = space.settled_run("x", "PreCreate", "Committed");
    assert_eq!(run["spec"]["attempt"], 1);
    assert_eq!(space.count("x")["PreCreate"], 1);
}

/// How often Sluice has told somebody to come again.
fn told_to_come_again() -> u64 {
    let pods = list(&["-n", SLUICE, "pods", "-l", "sluice.dev/component=server"]);
    let of_pod = |pod: &Value| {
        let path = format!(
            "/api/v1/namespaces/{SLUICE}/pods/{}:8080/proxy/metrics",
            pod["metadata"]["name"].as_str().unwrap()
        );
        let metrics = kubectl(&["get", "--raw", &path]).ok().stdout;
        let told = |line: &&str| line.starts_with("sluice_admissions_total{") && line.contains("answer=\"come_again\"");
        metrics.lines().filter(told).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    pods.iter().map(of_pod).sum()
}

#[test]
fn w15_more_changes_than_can_be_worked_on_are_refused_at_once_and_nothing_of_them_runs() {
    const RUNNING: usize = 4;
    const HELD: usize = 8; // the chart's own value
    let space = Space::alone("crowd");
    let _values = Values::set(&[&format!("maxRunning={RUNNING}"), &format!("maxRunningInNamespace={RUNNING}")]);
    let proxy = Proxy::start();
    let names: Vec<String> = (0..100).map(|n| format!("x{n}")).collect();
    let manifest = sleeper(&space, "NAME", 20);
    let named = |name: &str| manifest.replace("NAME", name);
    let answers: Vec<(&String, Answer)> =
        names.iter().zip(all_at_once(&names, |name| proxy.create(&space, &named(name), ""))).collect();

    let refused: BTreeSet<&str> = answers
        .iter()
        .filter(|(_, answer)| answer.message().contains("every worker is busy"))
        .map(|(name, _)| name.as_str())
        .collect();
    assert!(refused.len() >= 100 - 2 * RUNNING - HELD, "{} were refused: {answers:#?}", refused.len());
    for (name, answer) in &answers {
        assert!(answer.code == 201 || answer.come_again().is_some(), "{name}: {answer:?}");
    }
    // Told at once, however late a busy machine tells it; but for those that were held in case there is room soon.
    let late = answers.iter().filter(|(name, answer)| refused.contains(name.as_str()) && answer.took >= GIVEN / 2);
    assert!(late.count() <= HELD, "{answers:#?}");
    let told = told_to_come_again();
    assert!(told >= refused.len() as u64, "the metric says {told}");
    let runs = list(&["phaseruns", "-l", &format!("sluice.dev/namespace={}", space.namespace)]);
    for run in &runs {
        let name = run["spec"]["target"]["name"].as_str().unwrap();
        assert!(!refused.contains(name), "{name} was refused, and runs");
    }

    // Whoever comes again has its turn.
    let later: Vec<&str> = refused.into_iter().take(2 * RUNNING).collect();
    all_at_once(&later, |name| proxy.create_at_last(&space, &named(name)));
    for name in later {
        eventually(Duration::from_secs(30), "its one run", || {
            let runs = space.runs(name);
            (runs.len() == 1 && runs[0]["status"]["state"] == "Committed").then_some(())
        });
    }
}

#[test]
fn one_namespace_s_many_changes_do_not_keep_another_s_one_waiting() {
    const MANY: usize = 24;
    let many = Space::alone("many");
    let _values = Values::set(&["maxRunning=3"]);
    let few = many.and("few");
    let proxy = Proxy::start();
    let manifest = sleeper(&many, "NAME", 4);
    let names: Vec<String> = (0..MANY).map(|n| format!("x{n}")).collect();
    let left = std::thread::scope(|threads| {
        for name in &names {
            threads.spawn(|| proxy.create_at_last(&many, &manifest.replace("NAME", name)));
        }
        eventually(Duration::from_secs(60), "one is done, and the others wait", || {
            (!list(&["-n", &many.namespace, "sandboxes"]).is_empty()).then_some(())
        });
        proxy.create_at_last(&few, &sleeper(&few, "one", 4));
        list(&["-n", &many.namespace, "sandboxes"]).len()
    });
    assert!(left <= MANY * 2 / 3, "{left} of {MANY} were before it");
}

#[test]
fn a_plugin_may_say_how_many_phases_work_with_it_at_once() {
    let space = Space::new("narrow");
    let plugin = space.plugin(
        "narrow",
        &format!(
            "  maxRunning: 1\n  runner: {{image: '{}'}}\n  preCreate: [{{name: sleep, script: \"#!/bin/sh\\nsleep 2\"}}]",
            step_image()
        ),
    );
    let names: Vec<String> = (0..4).map(|n| format!("x{n}")).collect();
    let proxy = Proxy::start();
    all_at_once(&names, |name| {
        proxy.create_at_last(&space, &space.sandbox(name, &format!("  resources: [{{name: r, plugin: {plugin}}}]")));
    });
    let mut times: Vec<(String, String)> = names
        .iter()
        .map(|name| {
            let run = space.settled_run(name, "PreCreate", "Committed");
            let time = |field: &str| run["status"][field].as_str().unwrap().to_owned();
            (time("startedAt"), time("finishedAt"))
        })
        .collect();
    times.sort();
    // For a moment there may be one more, but never do all work at once.
    let at_once = |(began, _): &(String, String)| times.iter().filter(|(from, to)| from <= began && began < to).count();
    let most = times.iter().map(at_once).max().unwrap();
    assert!(most <= 2, "{times:#?}");
    assert!(times[3].0 > times[0].1, "{times:#?}");
}
