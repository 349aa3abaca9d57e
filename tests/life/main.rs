//! A model of two replicas, one target and the API server between them, around the very rules that the engine runs by.
//!
//! Replicas know runs by a watch that may be late, write against the version that they saw, and die at any point.
//! Requests come twice for each change and to either replica, are let through and then stored, refused or lost. The
//! model checker visits every state that any order of all this can lead to. The names of the properties are those of
//! `docs/design.md`.

#![allow(clippy::unwrap_used)]

mod model;
mod replica;
mod world;

use stateright::{Checker, Model};
use world::{Change, Object, Operation, TargetModel};

/// Visits every state, and tells how many there are. `MODEL_RUNS=4 cargo test --test life` looks further, for minutes.
fn check(mut model: TargetModel) -> usize {
    if let Some(runs) = std::env::var("MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()) {
        model.most_runs = runs;
    }
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

fn existing() -> Option<Object> {
    Some(Object { uid: 1, generation: 1, spec: 0, by: None })
}

#[test]
fn two_different_creates_of_one_name_with_a_crash() {
    let changes = [1, 2].map(|spec| Change { operation: Operation::Create, spec }).to_vec();
    let states = check(TargetModel { changes, object: None, asks: vec![1, 1], crashes: 1, failures: 0, most_runs: 3 });
    println!("{states} states");
}

#[test]
fn one_create_asked_for_twice_that_may_fail_with_a_crash() {
    let changes = vec![Change { operation: Operation::Create, spec: 1 }];
    let states = check(TargetModel { changes, object: None, asks: vec![3], crashes: 1, failures: 1, most_runs: 4 });
    println!("{states} states");
}

#[test]
fn an_update_and_a_deletion_with_a_crash() {
    let changes =
        vec![Change { operation: Operation::Update, spec: 1 }, Change { operation: Operation::Delete, spec: 0 }];
    let states =
        check(TargetModel { changes, object: existing(), asks: vec![1, 1], crashes: 1, failures: 0, most_runs: 3 });
    println!("{states} states");
}

#[test]
fn two_different_updates_of_which_one_may_lose_its_turn() {
    let changes = [1, 2].map(|spec| Change { operation: Operation::Update, spec }).to_vec();
    let states =
        check(TargetModel { changes, object: existing(), asks: vec![2, 1], crashes: 0, failures: 0, most_runs: 3 });
    println!("{states} states");
}
