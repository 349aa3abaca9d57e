//! Sluice's processes and the pods of its steps are taken away in the middle of the work.

use crate::cluster::{RUNNERS, Space, apply, eventually, get, kubectl};
use crate::server::{SOON, crash};
use crate::sleepers::{THREE, begin, begun, of_run, once, running, sandbox_with};

#[test]
fn w16_after_a_crash_in_a_step_the_same_apply_joins_the_run_and_the_pod_that_is_there() {
    let space = Space::alone("crash");
    let manifest = sandbox_with(&space, &[("preCreate", THREE)]);
    let interrupted = begin({
        let manifest = manifest.clone();
        move || apply(&manifest)
    });
    let before = running(&space, "PreCreate", 1);
    let crashed = crash();
    // The API server has no answer to give; nothing of ours can save this one call.
    let interrupted = interrupted.join().unwrap().refused();
    assert!(interrupted.stderr.contains("InternalError"), "{}", interrupted.stderr);
    crashed.wait_for_successor();
    apply(&manifest).ok();
    space.settle("x");
    let after = space.run("x", "PreCreate");
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(begun(&after, 0), begun(&before, 0));
    assert_eq!(begun(&after, 1), begun(&before, 1));
    assert_eq!(after["status"]["steps"][0], before["status"]["steps"][0]);
    once(&after);
}

#[test]
fn after_a_crash_in_a_post_phase_it_goes_on_and_runs_once() {
    let space = Space::alone("crashes");
    let steps: &[_] = &[("first", 1, ""), ("second", 6, "first")];
    let manifest = sandbox_with(&space, &[("postCreate", steps), ("postDelete", steps)]);
    apply(&manifest).ok();
    running(&space, "PostCreate", 1);
    crash().wait_for_successor();
    space.settle("x");
    once(&space.run("x", "PostCreate"));

    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    running(&space, "PostDelete", 1);
    crash().wait_for_successor();
    space.settled_run("x", "PostDelete", "Succeeded");
    once(&space.run("x", "PostDelete"));
    let uid = space.run("x", "PostDelete")["spec"]["target"]["uid"].as_str().unwrap().to_owned();
    eventually(SOON, "nothing is owed any more", || get(&["sandboxrecord", &uid]).is_none().then_some(()));
    let count: Vec<_> = space.count("x").into_iter().collect();
    assert_eq!(count, [("PostCreate".to_owned(), 1), ("PostDelete".to_owned(), 1)]);
}

#[test]
fn w27_a_step_whose_pod_is_lost_is_done_again_under_the_same_key_and_counts_once() {
    let space = Space::new("lost");
    let manifest = sandbox_with(&space, &[("preCreate", THREE)]);
    let applying = begin(move || apply(&manifest));
    let before = running(&space, "PreCreate", 1);
    let key = format!("begin {}/r/second", before["metadata"]["name"].as_str().unwrap());
    let log = kubectl(&["-n", RUNNERS, "logs", "-l", &of_run(&before), "--tail=-1"]).stdout;
    assert!(log.contains(&key), "{log}");
    kubectl(&["-n", RUNNERS, "delete", "pod", "-l", &of_run(&before), "--force", "--grace-period=0"]).ok();
    applying.join().unwrap().ok();
    let after = space.run("x", "PreCreate");
    let again = after["status"]["steps"][1]["log"].as_str().unwrap();
    assert!(again.contains(&key), "the second pod was given another key: {again}");
    assert_eq!(after["status"]["steps"][0], before["status"]["steps"][0], "a step that had ended runs no second time");
    once(&after);
}

#[test]
fn a_step_whose_pod_is_deleted_before_it_began_runs_in_another() {
    let space = Space::new("early");
    let manifest = sandbox_with(&space, &[("preCreate", THREE)]);
    let applying = begin(move || apply(&manifest));
    let pod = eventually(SOON, "the step's pod is there", || {
        let run = space.runs("x").pop()?;
        get(&["-n", RUNNERS, "pods", "-l", &of_run(&run)])?["items"].as_array()?.first().cloned()
    });
    let name = pod["metadata"]["name"].as_str().unwrap();
    kubectl(&["-n", RUNNERS, "delete", "pod", name, "--wait=false"]).ok();
    applying.join().unwrap().ok();
    once(&space.run("x", "PreCreate"));
}
