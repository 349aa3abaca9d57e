//! Two and three replicas: they share the work, and one that dies, stops or goes harms nobody.

use crate::cluster::{
    Event, Outcome, RUNNERS, SLUICE, Space, Watch, apply, condition, eventually, get, kubectl, kubectl_file, list,
    step_image, witnesses,
};
use crate::server::{Paused, SOON, Scaled, crash_of, executor, leader, names, rolled_out, signal};
use crate::sleepers::{THREE, begin, begun, once, running, running_of, sandbox_of, sandbox_with};
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a run may be nobody's, and how much later than it happened a test may see that on a busy machine.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(10 + 2);
/// How much later a post-phase may begin because the leader has died.
const LED_AGAIN_WITHIN: Duration = Duration::from_secs(15);

/// A workflow that says that it began.
const QUICK: &str = "[{name: quick, script: \"#!/bin/sh\\necho begin\"}]";

/// The seconds from `from` to a moment of a status.
fn after(from: Timestamp, moment: &serde_json::Value) -> f64 {
    let moment: Timestamp = moment.as_str().unwrap().parse().unwrap();
    moment.duration_since(from).as_secs_f64()
}

#[test]
fn w11_attempts_that_land_elsewhere_join_and_one_replica_or_all_of_them_may_die() {
    let space = Space::alone("taken");
    let _three = Scaled::to(3);
    let manifest = sandbox_with(&space, &[("preCreate", THREE)]);
    // Each of them is a connection of its own to any of the three.
    let applying: Vec<_> = (0..6)
        .map(|_| {
            let manifest = manifest.clone();
            begin(move || kubectl_file(&["apply", "--server-side"], &manifest))
        })
        .collect();
    let before = running(&space, "PreCreate", 1);
    crash_of(&executor(&before));
    let died = Instant::now();
    eventually(TAKEN_OVER_WITHIN, "another process goes on with the run", || {
        let now = space.run("x", "PreCreate");
        (now["status"]["executor"] != before["status"]["executor"]).then_some(())
    });
    assert!(died.elapsed() <= TAKEN_OVER_WITHIN, "{:?}", died.elapsed());
    let applied: Vec<_> = applying.into_iter().map(|applying| applying.join().unwrap()).collect();
    // Of those that the dead replica held, the API server itself says that it could not be reached.
    for lost in applied.iter().filter(|one| !one.success) {
        assert!(lost.stderr.contains("InternalError"), "{lost:?}");
    }
    assert!(applied.iter().any(|one| one.success && one.stderr.is_empty()), "nobody was elsewhere: {applied:#?}");
    space.settle("x");
    let after = space.run("x", "PreCreate");
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!((begun(&after, 0), begun(&after, 1)), (begun(&before, 0), begun(&before, 1)));
    once(&after);

    // All of them at once: their pods are matched by no webhook of theirs, so nothing keeps them from coming back.
    rolled_out();
    let pods = names();
    for pod in &pods {
        signal(pod, "-STOP");
    }
    let crashed: Vec<_> = pods.iter().map(|pod| crash_of(pod)).collect();
    kubectl(&["-n", SLUICE, "delete", "pod", &pods[0], "--force", "--grace-period=0"]).ok();
    crashed.into_iter().next_back().unwrap().wait_for_successor();
    rolled_out();
    apply(&manifest.replace("{name: x,", "{name: last,")).ok();
    once(&space.settled_run("last", "PreCreate", "Committed"));
}

/// Begins to create sandboxes whose pre-create takes long, until one of them is executed by another replica than this;
/// returns its name, its run and the command that made it.
fn executed_beside(space: &Space, leader: &str, manifest: &str) -> (String, serde_json::Value, JoinHandle<Outcome>) {
    for n in 0..20 {
        let name = format!("y{n}");
        let manifest = manifest.replace("{name: x,", &format!("{{name: {name},"));
        let creating = begin(move || apply(&manifest));
        let run = running_of(space, &name, "PreCreate", 1);
        if executor(&run) != leader {
            return (name, run, creating);
        }
    }
    panic!("the leader executes everything");
}

#[test]
fn w28_replicas_that_are_paused_past_their_leases_are_replaced_and_do_no_harm_when_they_wake() {
    let space = Space::alone("paused");
    let namespace = space.namespace.as_str();
    let _three = Scaled::to(3);
    let steps: &[_] = &[("first", 1, ""), ("second", 25, "first"), ("third", 3, "second")];
    let late = space.plugin("quick", &format!("  runner: {{image: '{}'}}\n  postCreate: {QUICK}", step_image()));
    let late = space.sandbox("late", &format!("  resources: [{{name: r, plugin: {late}}}]"));
    let pods = Watch::new(&[&["pods", "-n", RUNNERS, "-l", "sluice.dev/run"]]);
    let slow_before = sandbox_of(&space, "before", &[("preCreate", steps)]);
    let leading = leader();
    let (held, before, creating) = executed_beside(&space, &leading, &slow_before);
    apply(&sandbox_with(&space, &[("postCreate", steps)])).ok();
    let owed = running(&space, "PostCreate", 1);
    assert_eq!(executor(&owed), leading, "post-phases are the leader's");

    let at = Timestamp::now();
    let paused = [Paused::pod(&leading), Paused::pod(&executor(&before))];
    // Until it is found out, the API server still asks those that do not answer.
    let applying =
        begin(move || eventually(SOON, "another answers", || Some(apply(&late)).filter(|late| late.success)));
    let runs = || (space.run(&held, "PreCreate"), space.run("x", "PostCreate"));
    let taken = eventually(SOON, "the third replica goes on with both runs", || {
        let (first, second) = runs();
        let taken = |run: &serde_json::Value| ![&before, &owed].iter().any(|old| executor(old) == executor(run));
        (taken(&first) && taken(&second)).then_some((first, second))
    });
    let nobodys = Timestamp::now().duration_since(at).as_secs_f64();
    assert!(nobodys <= LED_AGAIN_WITHIN.as_secs_f64() + 2.0, "they were nobody's for {nobodys} s");
    applying.join().unwrap();
    let made: Timestamp =
        space.get("sandbox", "late").unwrap()["metadata"]["creationTimestamp"].as_str().unwrap().parse().unwrap();
    let followed = space.settled_run("late", "PostCreate", "Succeeded");
    // A creationTimestamp has no fractions of a second.
    let late_by = after(made.max(at), &followed["status"]["startedAt"]);
    assert!(late_by <= LED_AGAIN_WITHIN.as_secs_f64() + 1.0, "post-create began {late_by} s late");

    // They wake while another is at their runs, and believe themselves to be leader and executor still.
    for paused in paused {
        paused.wake();
    }
    // Two commands at once would race for the create, and the second be told that it exists already. What the first was
    // told matters to nobody: its replica may have stood still.
    creating.join().unwrap();
    apply(&slow_before.replace("{name: x,", &format!("{{name: {held},"))).ok();
    for name in ["x", "late", &held] {
        space.settle(name);
    }
    let (first, second) = runs();
    for (run, taken, before) in [(&first, &taken.0, &before), (&second, &taken.1, &owed)] {
        assert_eq!(run["status"]["executor"], taken["status"]["executor"], "the run was taken back");
        assert_eq!((begun(run, 0), begun(run, 1)), (begun(before, 0), begun(before, 1)));
        once(run);
    }
    once(&space.run("late", "PostCreate"));
    let ours = |event: &Event| event.object["metadata"]["labels"]["sluice.dev/namespace"] == namespace;
    let made = pods.seen(|event| event.kind == "ADDED" && ours(event));
    for run in [&first, &second, &followed] {
        let of_run =
            made.iter().filter(|pod| pod.object["metadata"]["labels"]["sluice.dev/run"] == run["metadata"]["name"]);
        assert_eq!(of_run.count(), 1, "one pod for each run");
    }
    rolled_out();
}

/// Makes one sandbox after the other until it is told to stop; returns how many, with what went wrong.
fn creator(space: &Space, plugin: &str, name: &str, stop: &Arc<AtomicBool>) -> JoinHandle<(usize, Vec<String>)> {
    let manifest = space.sandbox("NAME", &format!("  resources: [{{name: r, plugin: {plugin}}}]"));
    let (name, stop) = (name.to_owned(), stop.clone());
    std::thread::spawn(move || {
        let (mut made, mut failed) = (0, Vec::new());
        while !stop.load(Ordering::Relaxed) {
            let created = kubectl_file(&["create"], &manifest.replace("NAME", &format!("{name}-{made}")));
            made += 1;
            if !created.success || !created.stderr.is_empty() {
                failed.push(created.stderr);
            }
        }
        (made, failed)
    })
}

#[test]
fn w12_a_rolling_restart_fails_no_change() {
    let space = Space::of_three("rolling");
    let held = space.plugin(
        "held",
        &format!(
            "  runner: {{image: '{}'}}\n  preCreate: [{{name: work, script: \"#!/bin/sh\\necho begin\\nsleep 3\"}}]",
            step_image()
        ),
    );
    let quick = space.plugin("quick", &witnesses());
    let stop = Arc::new(AtomicBool::new(false));
    let creators = [("a", &held), ("b", &held), ("c", &held), ("d", &held), ("q", &quick)]
        .map(|(name, plugin)| creator(&space, plugin, name, &stop));
    eventually(SOON, "steps run", || {
        let runs = ["a-0", "b-0", "c-0", "d-0"].map(|name| space.runs(name));
        let working = runs.iter().flatten().filter(|run| run["status"]["steps"][0]["state"] == "Running").count();
        (working >= 2).then_some(())
    });
    let before = names();
    kubectl(&["-n", SLUICE, "rollout", "restart", "deployment/sluice"]).ok();
    rolled_out();
    eventually(SOON, "the old replicas are gone", || {
        let left = before.iter().any(|pod| get(&["-n", SLUICE, "pod", pod]).is_some());
        (!left).then_some(())
    });
    stop.store(true, Ordering::Relaxed);
    let made = creators.map(|creator| creator.join().unwrap());
    let (all, failed): (usize, Vec<_>) =
        (made.iter().map(|(n, _)| n).sum(), made.iter().flat_map(|(_, f)| f).collect());
    assert!(failed.is_empty(), "{} of {all} failed: {failed:#?}", failed.len());
    assert!(all > 2 * made.len() && made.iter().all(|(n, _)| *n > 0), "they went on over the restart: {made:?}");
    for (name, (count, _)) in ["a", "b", "c", "d"].iter().zip(&made) {
        for n in 0..*count {
            let name = format!("{name}-{n}");
            once(&space.settled_run(&name, "PreCreate", "Committed"));
            assert_eq!(space.count(&name)["PreCreate"], 1);
        }
    }
    // What the old leader owed, the new one sees to.
    eventually(SOON, "every post-phase has run", || {
        let sandboxes = list(&["-n", &space.namespace, "sandboxes"]);
        let complete = |sandbox| condition(sandbox, "PhasesComplete").is_some_and(|c| c["status"] == "True");
        (sandboxes.len() == all && sandboxes.iter().all(complete)).then_some(())
    });
}
