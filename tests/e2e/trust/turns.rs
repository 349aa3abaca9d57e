//! No namespace holds all the room for runs.

use crate::chart::Values;
use crate::cluster::{EDITOR, SLUICE, Space, apply, eventually, keeps, list, step_image};
use std::time::Duration;

#[test]
fn t10_a_namespace_whose_post_phases_wait_for_long_leaves_room_for_the_others() {
    const RUNNING: usize = 4;
    let many = Space::alone("greedy");
    let _values = Values::set(&[&format!("maxRunning={RUNNING}")]);
    // The replica of before leads, with its own limits, until it is gone.
    eventually(Duration::from_secs(60), "one replica is left", || {
        (list(&["-n", SLUICE, "pods", "-l", "sluice.dev/component=server"]).len() == 1).then_some(())
    });
    let few = many.and("modest");
    let sleeps = "{name: s, timeoutSeconds: 600, script: \"#!/bin/sh\\nsleep 120\"}";
    let runner = format!("  runner: {{serviceAccountName: {EDITOR}, image: '{}'}}\n", step_image());
    let slow = many.plugin("slow", &format!("{runner}  postCreate: [{sleeps}]"));
    for n in 0..2 * RUNNING {
        apply(&many.sandbox(&format!("x{n}"), &format!("  resources: [{{name: r, plugin: {slow}}}]"))).ok();
    }
    let at_work = || {
        let runs = list(&["phaseruns", "-l", &format!("sluice.dev/namespace={}", many.namespace)]);
        runs.iter().filter(|run| !run["status"]["startedAt"].is_null() && run["status"]["state"] == "Running").count()
    };
    eventually(Duration::from_secs(60), "it has its share of the room", || (at_work() >= RUNNING / 2).then_some(()));
    assert_eq!(at_work(), RUNNING / 2, "it has no more than its share");

    let quick =
        few.plugin("quick", &format!("{runner}  preCreate: [{}]", keeps("note", "n-${sandbox.metadata.name}", "a: b")));
    let made = apply(&few.sandbox("one", &format!("  resources: [{{name: r, plugin: {quick}}}]"))).ok();
    assert!(made.took < Duration::from_secs(30), "it waited for {:?}", made.took);
    assert_eq!(at_work(), RUNNING / 2, "and no more of the other namespace's are at work");
}
