//! The world in memory against its tables, and through the clients that Sluice uses.
//!
//! `tables/*.yaml` hold API calls and their answers. Nothing in them or in `table` knows what answers: the same tables
//! can be played to a real API server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod clients;
mod controllers;
mod definitions;
mod determinism;
mod table;

use sluice::world::{HandClock, SeededIds, World};
use std::sync::Arc;
use std::time::Duration;

/// A world at a fixed time, and its clock.
pub fn world_at(seed: u64) -> (World, Arc<HandClock>) {
    let clock = Arc::new(HandClock::at(Duration::from_secs(1_800_000_000)));
    (World::new(clock.clone(), Arc::new(SeededIds::new(seed))), clock)
}

pub fn world() -> World {
    world_at(1).0
}

#[tokio::test]
async fn every_call_of_the_tables_is_answered_as_written() {
    let (mut calls, mut wrong) = (0, Vec::new());
    for (file, text) in [
        ("create", include_str!("tables/create.yaml")),
        ("update", include_str!("tables/update.yaml")),
        ("patch", include_str!("tables/patch.yaml")),
        ("apply", include_str!("tables/apply.yaml")),
        ("delete", include_str!("tables/delete.yaml")),
        ("read", include_str!("tables/read.yaml")),
        ("custom", include_str!("tables/custom.yaml")),
        ("more", include_str!("tables/more.yaml")),
    ] {
        for (at, case) in table::read(text).into_iter().enumerate() {
            let world = world();
            let client = world.client();
            let settle = async || assert!(world.rest(20).await, "the world never came to rest");
            match table::play(&client, &case, &format!("t-{file}-{at}"), settle).await {
                Ok(played) => calls += played,
                Err(why) => wrong.push(format!("{file}: {}: {why}", case.case)),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(calls >= 200, "only {calls} calls");
}
