//! What happened, in the order in which it was stored: every state of every sandbox and run, every object that a step
//! wrote, and what each client was told.
//!
//! One counter, etcd's revision, orders all of it. Knows nothing of where the states come from.

use serde_json::Value;
use sluice::api::{Phase, RunState};
use std::collections::BTreeMap;

/// Everything that the checker judges.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub sandboxes: Vec<Version>,
    pub runs: BTreeMap<String, Run>,
    /// How many runs were written down and never begun.
    pub taken_back: usize,
    pub effects: Vec<Effect>,
    pub calls: Vec<Call>,
    /// When everything had settled, before all sandboxes were deleted.
    pub rested: u64,
    /// What is there at the end and should not be.
    pub left: Vec<String>,
}

/// A state of a sandbox that was stored, or its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    pub revision: u64,
    /// `NAMESPACE/NAME`
    pub target: String,
    pub uid: String,
    pub generation: i64,
    /// The change that gave it this spec; every change is marked with a word of its own.
    pub change: String,
    pub deleted: bool,
}

/// A PhaseRun and all that became of it.
#[derive(Clone, Debug, Default)]
pub struct Run {
    pub name: String,
    pub target: String,
    /// Of the target; that of a pre-create is only known once it is stored.
    pub uid: Option<String>,
    pub phase: Option<Phase>,
    pub key: String,
    pub attempt: u64,
    pub change: String,
    /// The change that the target was of before.
    pub before: Option<String>,
    pub compensates: Option<String>,
    pub compensated_by: Option<String>,
    /// Each state, with the revision at which it was first written.
    pub states: Vec<(u64, RunState)>,
    /// Requests that were let through: when, with which UID and generation.
    pub admissions: Vec<(u64, String, i64)>,
    /// The one that was stored, as Sluice says.
    pub stored_as: Option<(String, i64)>,
    /// Whether a step has begun, so that there is something to undo.
    pub begun: bool,
    /// Whether it was meant to fail.
    pub doomed: bool,
    pub last_revision: u64,
    /// Whether it was deleted, which loses history.
    pub lost: bool,
}

impl Run {
    pub fn created(&self) -> u64 {
        self.states.first().map_or(0, |(revision, _)| *revision)
    }

    pub fn state(&self) -> RunState {
        self.states.last().map_or(RunState::Pending, |(_, state)| *state)
    }

    /// When a process took it up. One that is written down may still be taken back before that.
    pub fn taken_up(&self) -> u64 {
        self.states.iter().find(|(_, state)| *state != RunState::Pending).map_or(u64::MAX, |(revision, _)| *revision)
    }

    /// When its last step had ended.
    pub fn ended(&self) -> Option<u64> {
        self.states.iter().find(|(_, state)| !state.is_open()).map(|(revision, _)| *revision)
    }

    pub fn reached(&self, wanted: RunState) -> Option<u64> {
        self.states.iter().find(|(_, state)| *state == wanted).map(|(revision, _)| *revision)
    }

    /// Whether it is a pre-phase of a change, not what undoes one.
    pub fn is_pre(&self) -> bool {
        self.compensates.is_none() && self.phase.is_some_and(Phase::is_pre)
    }

    pub fn is(&self, phase: Phase) -> bool {
        self.compensates.is_none() && self.phase == Some(phase)
    }
}

/// An object that a step wrote or that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    pub revision: u64,
    pub target: String,
    pub phase: Phase,
    /// The change that is written in it; none where it was deleted.
    pub change: Option<String>,
}

/// A change as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub target: String,
    pub change: String,
    pub verb: Verb,
    pub told: Told,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Create,
    Update,
    Delete,
}

/// What a client was told of its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// It was made.
    Made,
    /// It was not made, by an answer of the API server.
    Refused,
    /// Told to come again eleven times; the change may have been stored by then only if the last answer got lost.
    Busy,
    /// The connection broke, or the API server did not say: it may have been made or not.
    Unknown,
    /// The client went away.
    GaveUp,
}

impl History {
    /// Takes in what is stored of a sandbox.
    pub fn sandbox(&mut self, revision: u64, target: &str, object: Option<&Value>) {
        let Some(object) = object else {
            let last = self.sandboxes.iter().rev().find(|v| v.target == target).cloned();
            self.sandboxes.extend(last.map(|last| Version { revision, deleted: true, ..last }));
            return;
        };
        let version = Version {
            revision,
            target: target.to_owned(),
            uid: text(&object["metadata"]["uid"]),
            generation: object["metadata"]["generation"].as_i64().unwrap_or_default(),
            change: change(object),
            deleted: false,
        };
        // A status is no change.
        let same =
            |v: &Version| v.uid == version.uid && v.generation == version.generation && v.change == version.change;
        if !self.sandboxes.iter().rev().find(|v| v.target == target).is_some_and(|v| !v.deleted && same(v)) {
            self.sandboxes.push(version);
        }
    }

    /// Takes in what is stored of a run.
    pub fn run(&mut self, revision: u64, name: &str, object: Option<&Value>) {
        let run = self.runs.entry(name.to_owned()).or_default();
        run.last_revision = revision;
        let Some(object) = object else {
            run.lost = true;
            if run.taken_up() == u64::MAX {
                // Taken back: another change of the target was quicker. Its name may be used again.
                self.runs.remove(name);
                self.taken_back += 1;
            }
            return;
        };
        let (spec, status) = (&object["spec"], &object["status"]);
        if run.states.is_empty() {
            let target = &spec["target"];
            run.name = name.to_owned();
            run.target = format!("{}/{}", text(&target["namespace"]), text(&target["name"]));
            run.phase = serde_json::from_value(spec["phase"].clone()).ok();
            // A pre-create carries the UID of whichever attempt began it.
            run.uid = target["uid"].as_str().filter(|_| run.phase != Some(Phase::PreCreate)).map(str::to_owned);
            run.key = text(&spec["key"]);
            run.attempt = spec["attempt"].as_u64().unwrap_or_default();
            run.change = change(&spec["object"]);
            run.before = spec["oldObject"].is_object().then(|| change(&spec["oldObject"]));
            run.compensates = spec["compensates"].as_str().map(str::to_owned);
            run.doomed = run.phase.is_some_and(|phase| {
                let resources = spec["resources"].as_array().into_iter().flatten();
                resources.into_iter().any(|r| r["params"]["fail"] == format!("{phase:?}").as_str())
            });
        }
        let state = serde_json::from_value(status["state"].clone()).unwrap_or_default();
        if run.states.last().is_none_or(|(_, last)| *last != state) {
            run.states.push((revision, state));
        }
        run.compensated_by = status["compensatedBy"].as_str().map(str::to_owned);
        let admitted = |value: &Value| (text(&value["uid"]), value["generation"].as_i64().unwrap_or_default());
        let all = status["alsoAdmitted"].as_array().into_iter().flatten();
        for (uid, generation) in all.chain(Some(&status["admitted"]).filter(|a| a.is_object())).map(admitted) {
            if !run.admissions.iter().any(|(_, u, g)| (u, *g) == (&uid, generation)) {
                run.admissions.push((revision, uid, generation));
            }
        }
        if state == RunState::Committed {
            run.stored_as = status["admitted"].is_object().then(|| admitted(&status["admitted"]));
        }
        let steps = status["steps"].as_array().into_iter().flatten();
        run.begun |=
            steps.into_iter().any(|step| !matches!(step["state"].as_str(), None | Some("Pending" | "Skipped")));
    }

    /// The versions of one sandbox, by UID, each in order.
    pub fn lives(&self) -> BTreeMap<&str, Vec<&Version>> {
        let mut lives: BTreeMap<&str, Vec<&Version>> = BTreeMap::new();
        for version in &self.sandboxes {
            lives.entry(&version.uid).or_default().push(version);
        }
        lives
    }

    /// What was stored under a name at a revision.
    pub fn at(&self, target: &str, revision: u64) -> Option<&Version> {
        let last = self.sandboxes.iter().rfind(|v| v.target == target && v.revision <= revision);
        last.filter(|v| !v.deleted)
    }

    /// The runs of a phase of one sandbox, in the order in which they were begun.
    pub fn of(&self, uid: &str, phase: Phase) -> Vec<&Run> {
        let mut runs: Vec<&Run> =
            self.runs.values().filter(|run| run.is(phase) && run.uid.as_deref() == Some(uid)).collect();
        runs.sort_by_key(|run| run.created());
        runs
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn change(object: &Value) -> String {
    text(&object["spec"]["description"])
}
