//! What there is: the target, its runs, the replicas with what they know, and the requests on their way.

use k8s_openapi::jiff::Timestamp;
use sluice::engine::life::{Life, Stored};
use std::time::Duration;

pub const REPLICAS: usize = 2;
pub const GRACE: Duration = Duration::from_secs(40);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// A change that clients make: the operation and the spec that the target has after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    pub operation: Operation,
    pub spec: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    pub uid: u8,
    pub generation: i64,
    pub spec: u8,
    /// The run on whose strength it was stored like this.
    pub by: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    pub change: u8,
    pub attempt: u8,
    pub undoes: Option<u8>,
    pub writer: u8,
    /// Of the target, where it was there when the change was asked for.
    pub uid: Option<u8>,
    pub life: Life,
    /// How often it was written.
    pub version: u8,
    /// Whether the grace has passed with no request on its way that could still be stored.
    pub late: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Replica {
    pub dead: bool,
    /// Every run as it is known here.
    pub cache: Vec<Option<Run>>,
    /// How many runs the watch has shown, in the order in which they were written.
    pub shown: usize,
    /// Runs that were written down here, with the target as their request showed it.
    pub guarding: Vec<(u8, Option<Object>)>,
    pub executing: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    Asked,
    LetThrough(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub change: u8,
    pub replica: usize,
    /// The target as the API server had it when it asked the webhook.
    pub old: Option<Object>,
    pub uid: u8,
    pub stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub object: Option<Object>,
    pub runs: Vec<Option<Run>>,
    pub replicas: Vec<Replica>,
    pub requests: Vec<Request>,
    pub asks_left: Vec<u8>,
    pub crashes_left: u8,
    pub failures_left: u8,
    pub next_uid: u8,
    /// What must never happen and did.
    pub broken: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Ask {
        change: usize,
        replica: usize,
    },
    Serve(usize),
    TurnAway(usize),
    /// The API server stores an admitted change, where nothing else forbids it.
    Store(usize),
    /// It does not: quota, another webhook, a client that is gone.
    Refuse(usize),
    /// The watch of a replica brings it up to what is stored.
    Show(usize),
    Begin {
        replica: usize,
        run: u8,
    },
    End {
        replica: usize,
        run: u8,
        failed: bool,
    },
    Adopt {
        replica: usize,
        run: u8,
    },
    Decide {
        replica: usize,
        run: u8,
    },
    GraceEnds(u8),
    Crash(usize),
}

pub struct TargetModel {
    pub changes: Vec<Change>,
    pub object: Option<Object>,
    /// How often each change is asked for, by its client or by the API server itself.
    pub asks: Vec<u8>,
    pub crashes: u8,
    pub failures: u8,
    /// Worlds with more runs are not looked at.
    pub most_runs: usize,
}

pub fn moment(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub fn name(run: u8) -> String {
    format!("run-{run}")
}

pub fn number(name: &str) -> u8 {
    name.trim_start_matches("run-").parse().unwrap()
}

pub fn process(replica: usize) -> String {
    format!("replica-{replica}")
}

pub fn stored(object: Option<&Object>) -> Option<Stored> {
    object.map(|object| Stored {
        uid: object.uid.to_string(),
        generation: object.generation,
        spec_hash: object.spec.to_string(),
        ..Stored::default()
    })
}

impl World {
    pub fn learn(&mut self, replica: usize, run: usize) {
        let current = self.runs[run].clone();
        let cache = &mut self.replicas[replica].cache;
        if cache.len() <= run {
            cache.resize(run + 1, None);
        }
        cache[run] = current;
    }

    pub fn withdraw(&mut self, replica: usize, run: u8) {
        let seen = self.replicas[replica].cache[run as usize].as_ref().map(|run| run.version);
        if self.runs[run as usize].as_ref().map(|run| run.version) == seen {
            self.runs[run as usize] = None;
        }
        self.learn(replica, run as usize);
    }

    pub fn is_dead(&self, executor: &str) -> bool {
        (0..REPLICAS).any(|replica| process(replica) == executor && self.replicas[replica].dead)
    }

    pub fn is_orphan(&self, run: &Run) -> bool {
        let process = run.life.executor.clone().unwrap_or_else(|| process(run.writer.into()));
        run.life.state.is_open() && self.is_dead(&process)
    }

    /// The leader: one of those that live.
    pub fn leader(&self) -> usize {
        self.replicas.iter().position(|replica| !replica.dead).unwrap_or_default()
    }
}
