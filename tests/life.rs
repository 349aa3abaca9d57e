//! A model of two replicas, one target and the API server between them, around the very rules that the engine runs by.
//!
//! Replicas know runs by a watch that may be late, write against the version that they saw, and die at any point.
//! Requests come twice for each change and to either replica, are let through and then stored, refused or lost. The
//! model checker visits every state that any order of all this can lead to. The names of the properties are those of
//! `docs/design.md`.

#![allow(clippy::unwrap_used)]

use k8s_openapi::jiff::Timestamp;
use sluice::api::{Admitted, Phase, RunState};
use sluice::engine::index::RunEntry;
use sluice::engine::life::{
    Admission, Asker, Asking, Event, Fate, Life, Next, Obstacle, Role, Stored, fate, is_blocked, next, obstacle,
    transition,
};
use stateright::{Checker, Model, Property};
use std::sync::Arc;
use std::time::Duration;

const REPLICAS: usize = 2;
const GRACE: Duration = Duration::from_secs(40);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operation {
    Create,
    Update,
    Delete,
}

/// A change that clients make: the operation and the spec that the target has after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Change {
    operation: Operation,
    spec: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Object {
    uid: u8,
    generation: i64,
    spec: u8,
    /// The run on whose strength it was stored like this.
    by: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    change: u8,
    attempt: u8,
    undoes: Option<u8>,
    writer: u8,
    /// Of the target, where it was there when the change was asked for.
    uid: Option<u8>,
    life: Life,
    /// How often it was written.
    version: u8,
    /// Whether the grace has passed with no request on its way that could still be stored.
    late: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Replica {
    dead: bool,
    /// Every run as it is known here.
    cache: Vec<Option<Run>>,
    /// How many runs the watch has shown, in the order in which they were written.
    shown: usize,
    /// Runs that were written down here, with the target as their request showed it.
    guarding: Vec<(u8, Option<Object>)>,
    executing: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Asked,
    LetThrough(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Request {
    change: u8,
    replica: usize,
    /// The target as the API server had it when it asked the webhook.
    old: Option<Object>,
    uid: u8,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    object: Option<Object>,
    runs: Vec<Option<Run>>,
    replicas: Vec<Replica>,
    requests: Vec<Request>,
    asks_left: Vec<u8>,
    crashes_left: u8,
    failures_left: u8,
    next_uid: u8,
    /// What must never happen and did.
    broken: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
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

struct TargetModel {
    changes: Vec<Change>,
    object: Option<Object>,
    /// How often each change is asked for, by its client or by the API server itself.
    asks: Vec<u8>,
    crashes: u8,
    failures: u8,
    /// Worlds with more runs are not looked at.
    most_runs: usize,
}

fn moment(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn name(run: u8) -> String {
    format!("run-{run}")
}

fn number(name: &str) -> u8 {
    name.trim_start_matches("run-").parse().unwrap()
}

fn process(replica: usize) -> String {
    format!("replica-{replica}")
}

fn stored(object: Option<&Object>) -> Option<Stored> {
    object.map(|object| Stored {
        uid: object.uid.to_string(),
        generation: object.generation,
        spec_hash: object.spec.to_string(),
        ..Stored::default()
    })
}

impl TargetModel {
    fn entry(&self, index: usize, run: &Run) -> RunEntry {
        let change = self.changes[run.change as usize];
        let phase = match (run.undoes, change.operation) {
            (Some(_), Operation::Create) => Phase::PostDelete,
            (None, Operation::Create) => Phase::PreCreate,
            (_, Operation::Update) => Phase::PreUpdate,
            (_, Operation::Delete) => Phase::PreDelete,
        };
        let admitted: Vec<Admitted> = run.life.admitted.iter().map(Admitted::from).collect();
        RunEntry {
            name: name(index as u8),
            version: index as u64 + 1,
            phase: Some(phase),
            key: run.undoes.map_or_else(|| format!("key-{}", run.change), |of| format!("undo-{of}")).into(),
            attempt: run.attempt.into(),
            timeout_seconds: 1,
            compensates: run.undoes.map(name),
            removes_target: change.operation == Operation::Delete && run.undoes.is_none(),
            spec_hash: change.spec.to_string().into(),
            generation: 1,
            created_at: Some(moment(0)),
            state: run.life.state,
            executor: run.life.executor.as_deref().map(Into::into),
            begun_by: Some(process(run.writer.into()).into()),
            started_at: Some(moment(0)),
            finished_at: (!run.life.state.is_open()).then(|| moment(0)),
            admitted: admitted.first().cloned(),
            also_admitted: admitted.into_iter().skip(1).collect(),
            reported_at: run.life.reported_at,
            compensated_by: run.life.compensated_by.clone(),
            ignorable: run.life.ignorable,
            ..RunEntry::default()
        }
    }

    fn known(&self, replica: &Replica) -> Vec<Arc<RunEntry>> {
        let known = replica.cache.iter().enumerate();
        known.filter_map(|(index, run)| run.as_ref().map(|run| Arc::new(self.entry(index, run)))).collect()
    }

    /// Writes an event against what a replica knows; what it knows is what is stored afterwards, either way.
    fn write(&self, world: &mut World, replica: usize, run: u8, event: &Event) -> bool {
        let index = run as usize;
        let seen = world.replicas[replica].cache.get(index).cloned().flatten();
        let current = world.runs[index].clone();
        let (Some(seen), Some(mut current)) = (seen, current) else {
            world.learn(replica, index);
            return false;
        };
        let written = match transition(&seen.life, event) {
            Ok((life, _)) if seen.version == current.version => {
                // Every request that is let through is another, as its time is.
                if life != current.life || matches!(event, Event::Admitted(_)) {
                    current.life = life;
                    current.version += 1;
                    // The grace begins with the last request that was let through.
                    current.late &= !matches!(event, Event::Admitted(_));
                    world.runs[index] = Some(current);
                }
                true
            }
            _ => false,
        };
        world.learn(replica, index);
        written
    }

    fn create(&self, world: &mut World, replica: usize, run: Run) -> u8 {
        let same = |other: &Option<Run>| {
            other.as_ref().is_some_and(|other| {
                (other.change, other.attempt, other.undoes) == (run.change, run.attempt, run.undoes)
            })
        };
        let index = world.runs.iter().position(same).unwrap_or_else(|| {
            world.runs.push(Some(run));
            world.runs.len() - 1
        });
        world.learn(replica, index);
        index as u8
    }

    /// What would undo a run as things are: nothing where what it made is a living object's own.
    fn undo(&self, world: &World, run: &Run) -> bool {
        match self.changes[run.change as usize].operation {
            Operation::Create => world.object.is_none(),
            Operation::Update => world.object.as_ref().is_some_and(|object| Some(object.uid) == run.uid),
            Operation::Delete => false,
        }
    }

    fn serve(&self, world: &mut World, index: usize) {
        let request = world.requests[index].clone();
        let change = self.changes[request.change as usize];
        let known = self.known(&world.replicas[request.replica]);
        let stored = stored(request.old.as_ref());
        let key = format!("key-{}", request.change);
        match obstacle(&known, &[&key], stored.as_ref(), moment(2)) {
            Some(Obstacle::Superseded(run)) => {
                let run = number(&run);
                let seen = world.runs[run as usize].clone();
                let undo = seen.is_some_and(|seen| self.undo(world, &seen)).then(|| format!("undo-of-{run}"));
                self.write(world, request.replica, run, &Event::Superseded { undo });
                return;
            }
            Some(_) => return,
            None => {}
        }
        // A create of what is there is refused before anything is begun.
        if change.operation == Operation::Create && world.object.is_some() {
            world.requests.remove(index);
            return;
        }
        let latest = known.iter().filter(|run| *run.key == *key).max_by_key(|run| run.attempt);
        let undo = latest.and_then(|latest| {
            known.iter().filter(|run| run.compensates.as_ref() == Some(&latest.name)).max_by_key(|run| run.attempt)
        });
        let asking = Asking { by: Asker::Person, stored: stored.as_ref(), now: moment(2) };
        match next(latest.map(Arc::as_ref), undo.map(Arc::as_ref), asking) {
            Next::Start { attempt } => {
                let role = if change.operation == Operation::Delete { Role::Deletion } else { Role::Pre };
                let run = Run {
                    change: request.change,
                    attempt: attempt as u8,
                    undoes: None,
                    writer: request.replica as u8,
                    uid: request.old.as_ref().map(|old| old.uid),
                    life: Life::new(role),
                    version: 0,
                    late: false,
                };
                let before = world.runs.len();
                let run = self.create(world, request.replica, run);
                if world.runs.len() > before {
                    world.replicas[request.replica].guarding.push((run, request.old.clone()));
                }
            }
            Next::Reuse { run } => {
                let run = number(&run);
                let (uid, generation) = match (&request.old, change.operation) {
                    (Some(old), Operation::Update) => (old.uid, old.generation + 1),
                    (Some(old), _) => (old.uid, old.generation),
                    (None, _) => (request.uid, 1),
                };
                let admission = Admission { uid: uid.to_string(), generation, at: Some(moment(0)) };
                if self.write(world, request.replica, run, &Event::Admitted(admission)) {
                    world.requests[index].stage = Stage::LetThrough(run);
                }
            }
            Next::Report { run } => {
                self.write(world, request.replica, number(&run), &Event::Reported { at: moment(0) });
                world.requests.remove(index);
            }
            Next::Join { .. } | Next::AwaitDecision { .. } | Next::AwaitUndo { .. } | Next::LetGo { .. } => {}
        }
    }

    /// What the leader makes of a run that has ended.
    fn decide(&self, world: &mut World, replica: usize, run: u8) {
        let Some(seen) = world.replicas[replica].cache[run as usize].clone() else { return };
        let entry = self.entry(run as usize, &seen);
        let owes_undo = matches!(seen.life.state, RunState::Failed | RunState::Abandoned);
        if seen.life.compensated_by.is_some() && owes_undo {
            let of = |other: &&Run| other.undoes == Some(run);
            let undo =
                world.replicas[replica].cache.iter().flatten().filter(of).max_by_key(|undo| undo.attempt).cloned();
            match undo {
                Some(undo) if undo.life.state == RunState::Succeeded => {
                    self.write(world, replica, run, &Event::Undone);
                }
                Some(_) => {}
                None if self.undo(world, &seen) => {
                    if world.object.as_ref().is_some_and(|object| object.by == Some(run)) {
                        world.broken = Some("what is stored is never undone");
                    }
                    let life = Life::new(Role::Undo);
                    let undo = Run {
                        attempt: 1,
                        undoes: Some(run),
                        writer: replica as u8,
                        life,
                        version: 0,
                        late: false,
                        ..seen
                    };
                    let undo = self.create(world, replica, undo);
                    self.claim(world, replica, undo);
                }
                None => {
                    self.write(world, replica, run, &Event::NothingToUndo);
                }
            }
            return;
        }
        let now = if seen.late { moment(100_000) } else { moment(0) };
        match fate(&entry, stored(world.object.as_ref()).as_ref(), now, GRACE) {
            Fate::Committed => {
                self.write(world, replica, run, &Event::Stored { admission: None });
            }
            Fate::Abandoned => {
                let undo = self.undo(world, &seen).then(|| format!("undo-of-{run}"));
                self.write(world, replica, run, &Event::NotStored { undo });
            }
            Fate::Undecided(_) => {}
        }
    }

    fn claim(&self, world: &mut World, replica: usize, run: u8) {
        let executor = world.runs[run as usize].as_ref().and_then(|run| run.life.executor.clone());
        let orphaned = executor.is_some_and(|executor| world.is_dead(&executor));
        let claimed = Event::Claimed { by: process(replica), orphaned };
        if self.write(world, replica, run, &claimed) {
            world.replicas[replica].executing.push(run);
        }
    }

    fn begin(&self, world: &mut World, replica: usize, run: u8) {
        let guarding = &mut world.replicas[replica].guarding;
        let Some(at) = guarding.iter().position(|(guarded, _)| *guarded == run) else { return };
        let (_, old) = guarding.remove(at);
        let Some(own) = world.replicas[replica].cache[run as usize].clone() else { return };
        let known = self.known(&world.replicas[replica]);
        let key = format!("key-{}", own.change);
        let entry = self.entry(run as usize, &own);
        let uid = |object: &Option<Object>| object.as_ref().map(|object| object.uid);
        if uid(&old) != uid(&world.object)
            || is_blocked(&entry, &known, &[&key], stored(old.as_ref()).as_ref(), moment(2))
        {
            world.withdraw(replica, run);
        } else {
            self.claim(world, replica, run);
        }
    }

    fn adopt(&self, world: &mut World, replica: usize, run: u8) {
        world.learn(replica, run as usize);
        let Some(current) = world.runs[run as usize].clone() else { return };
        if !world.is_orphan(&current) {
            return;
        }
        if current.life.executor.is_none() && current.undoes.is_none() {
            world.withdraw(replica, run);
        } else {
            self.claim(world, replica, run);
        }
    }

    fn store(&self, world: &mut World, index: usize) {
        let request = world.requests[index].clone();
        let Stage::LetThrough(run) = request.stage else { return };
        let change = self.changes[request.change as usize];
        let passed = world.runs[run as usize].as_ref().is_some_and(|run| {
            matches!(run.life.state, RunState::Succeeded | RunState::Committed) && !run.life.admitted.is_empty()
        });
        let fits = match (&world.object, &request.old, change.operation) {
            (None, _, Operation::Create) => true,
            (Some(now), Some(old), Operation::Update) => (now.uid, now.generation) == (old.uid, old.generation),
            (Some(now), Some(old), Operation::Delete) => now.uid == old.uid,
            _ => false,
        };
        if !fits {
            // The API server asks the webhook once more, with the object as it is now; of what is gone it does not.
            match (&world.object, change.operation) {
                (Some(now), Operation::Update) if world.asks_left[request.change as usize] > 0 => {
                    let old = Some(now.clone());
                    world.asks_left[request.change as usize] -= 1;
                    world.requests[index] = Request { old, stage: Stage::Asked, ..request };
                }
                _ => drop(world.requests.remove(index)),
            }
            return;
        }
        if !passed {
            world.broken = Some("what is stored has had its phases");
        }
        world.object = match (change.operation, request.old) {
            (Operation::Create, _) => {
                Some(Object { uid: request.uid, generation: 1, spec: change.spec, by: Some(run) })
            }
            (Operation::Update, Some(old)) => {
                Some(Object { generation: old.generation + 1, spec: change.spec, by: Some(run), ..old })
            }
            _ => None,
        };
        world.requests.remove(index);
    }

    fn is_settled(&self, world: &World) -> bool {
        let settled = |(index, run): (usize, &Run)| {
            let undos = world.runs.iter().flatten().filter(|other| other.undoes == Some(index as u8));
            let undone = undos.filter(|undo| undo.life.state == RunState::Succeeded).count();
            match run.life.state {
                RunState::Pending | RunState::Running => false,
                RunState::Succeeded => run.undoes.is_some(),
                RunState::Committed => undone == 0,
                RunState::Failed | RunState::Abandoned => run.life.compensated_by.is_none() || undone == 1,
                RunState::Compensated => undone == 1,
            }
        };
        let runs = world.runs.iter().enumerate().filter_map(|(index, run)| run.as_ref().map(|run| (index, run)));
        world.requests.is_empty() && runs.into_iter().all(settled)
    }
}

impl World {
    fn learn(&mut self, replica: usize, run: usize) {
        let current = self.runs[run].clone();
        let cache = &mut self.replicas[replica].cache;
        if cache.len() <= run {
            cache.resize(run + 1, None);
        }
        cache[run] = current;
    }

    fn withdraw(&mut self, replica: usize, run: u8) {
        let seen = self.replicas[replica].cache[run as usize].as_ref().map(|run| run.version);
        if self.runs[run as usize].as_ref().map(|run| run.version) == seen {
            self.runs[run as usize] = None;
        }
        self.learn(replica, run as usize);
    }

    fn is_dead(&self, executor: &str) -> bool {
        (0..REPLICAS).any(|replica| process(replica) == executor && self.replicas[replica].dead)
    }

    fn is_orphan(&self, run: &Run) -> bool {
        let process = run.life.executor.clone().unwrap_or_else(|| process(run.writer.into()));
        run.life.state.is_open() && self.is_dead(&process)
    }

    /// The leader: one of those that live.
    fn leader(&self) -> usize {
        self.replicas.iter().position(|replica| !replica.dead).unwrap_or_default()
    }
}

impl Model for TargetModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            object: self.object.clone(),
            runs: Vec::new(),
            replicas: vec![Replica::default(); REPLICAS],
            requests: Vec::new(),
            asks_left: self.asks.clone(),
            crashes_left: self.crashes,
            failures_left: self.failures,
            next_uid: 10,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        for change in 0..self.changes.len() {
            let is_asked = world.requests.iter().any(|request| request.change as usize == change);
            let exists = world.object.is_some();
            let makes_sense = exists == (self.changes[change].operation != Operation::Create);
            for replica in (0..REPLICAS).filter(|replica| !world.replicas[*replica].dead) {
                if world.asks_left[change] > 0 && !is_asked && makes_sense {
                    actions.push(Action::Ask { change, replica });
                }
            }
        }
        for (index, request) in world.requests.iter().enumerate() {
            match request.stage {
                Stage::Asked => actions.extend([Action::Serve(index), Action::TurnAway(index)]),
                Stage::LetThrough(_) => actions.extend([Action::Store(index), Action::Refuse(index)]),
            }
        }
        let leader = world.leader();
        for replica in (0..REPLICAS).filter(|replica| !world.replicas[*replica].dead) {
            let known = &world.replicas[replica];
            if known.shown < world.runs.len() || known.cache != world.runs {
                actions.push(Action::Show(replica));
            }
            for (run, _) in &known.guarding {
                if known.shown > *run as usize {
                    actions.push(Action::Begin { replica, run: *run });
                }
            }
            for run in &known.executing {
                actions.push(Action::End { replica, run: *run, failed: false });
                let undoes = world.runs[*run as usize].as_ref().is_some_and(|run| run.undoes.is_some());
                if world.failures_left > 0 && !undoes {
                    actions.push(Action::End { replica, run: *run, failed: true });
                }
            }
            for (index, run) in known.cache.iter().enumerate() {
                let Some(run) = run else { continue };
                if world.is_orphan(run) {
                    actions.push(Action::Adopt { replica, run: index as u8 });
                }
                let decides = match run.life.state {
                    RunState::Succeeded => run.life.role.precedes(),
                    RunState::Failed | RunState::Abandoned => run.life.compensated_by.is_some(),
                    _ => false,
                };
                if replica == leader && decides {
                    actions.push(Action::Decide { replica, run: index as u8 });
                }
            }
            if world.crashes_left > 0 {
                actions.push(Action::Crash(replica));
            }
        }
        for (index, run) in world.runs.iter().enumerate() {
            let Some(run) = run else { continue };
            let on_its_way = |request: &Request| match request.stage {
                Stage::LetThrough(by) => by as usize == index,
                // The client of a run that nobody was let through on may be on its way back.
                Stage::Asked => request.change == run.change,
            };
            let waits = run.life.state == RunState::Succeeded && run.life.role.precedes() && !run.late;
            if waits && !world.requests.iter().any(on_its_way) {
                actions.push(Action::GraceEnds(index as u8));
            }
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Ask { change, replica } => {
                world.asks_left[change] -= 1;
                let old = world.object.clone();
                let uid = world.next_uid;
                world.next_uid += 1;
                world.requests.push(Request { change: change as u8, replica, old, uid, stage: Stage::Asked });
            }
            Action::Serve(index) => self.serve(&mut world, index),
            Action::TurnAway(index) | Action::Refuse(index) => drop(world.requests.remove(index)),
            Action::Store(index) => self.store(&mut world, index),
            Action::Show(replica) => {
                world.replicas[replica].shown = world.runs.len();
                world.replicas[replica].cache = world.runs.clone();
            }
            Action::Begin { replica, run } => self.begin(&mut world, replica, run),
            Action::End { replica, run, failed } => {
                world.replicas[replica].executing.retain(|executing| *executing != run);
                world.failures_left -= u8::from(failed);
                let current = world.runs[run as usize].clone();
                let undo = current.is_some_and(|current| self.undo(&world, &current)).then(|| format!("undo-of-{run}"));
                self.write(
                    &mut world,
                    replica,
                    run,
                    &Event::Ended { by: process(replica), failed, ignorable: false, undo },
                );
            }
            Action::Adopt { replica, run } => self.adopt(&mut world, replica, run),
            Action::Decide { replica, run } => self.decide(&mut world, replica, run),
            Action::GraceEnds(run) => {
                if let Some(run) = &mut world.runs[run as usize] {
                    run.late = true;
                }
                for replica in 0..REPLICAS {
                    if world.replicas[replica].cache.len() > run as usize {
                        let late = |known: &mut Option<Run>| known.iter_mut().for_each(|known| known.late = true);
                        late(&mut world.replicas[replica].cache[run as usize]);
                    }
                }
            }
            Action::Crash(replica) => {
                world.crashes_left -= 1;
                world.replicas[replica] = Replica { dead: true, ..Replica::default() };
                // What was let through is with the API server already.
                world.requests.retain(|request| request.replica != replica || request.stage != Stage::Asked);
            }
        }
        (world != *last).then_some(world)
    }

    /// Two changes can take their runs back for each other again and again; a few times are as good as many.
    fn within_boundary(&self, world: &World) -> bool {
        world.runs.len() <= self.most_runs
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("P6: one process executes a run", |_, world: &World| {
                let mut at_work: Vec<u8> =
                    world.replicas.iter().flat_map(|replica| replica.executing.clone()).collect();
                let all = at_work.len();
                at_work.sort_unstable();
                at_work.dedup();
                at_work.len() == all
            }),
            Property::always("P7: the pre-phases of one change at a time", |_, world: &World| {
                let at_work = world.replicas.iter().flat_map(|replica| replica.executing.iter());
                let mut changes: Vec<u8> = at_work
                    .filter_map(|run| world.runs[*run as usize].as_ref())
                    .filter(|run| run.undoes.is_none())
                    .map(|run| run.change)
                    .collect();
                changes.dedup();
                changes.len() <= 1
            }),
            Property::always("P8: what is stored has had its phases, and is never undone", |_, world: &World| {
                world.broken.is_none()
            }),
            Property::always("P9: what was not stored is undone, once", |_, world: &World| {
                (0..world.runs.len()).all(|index| {
                    let undoes = |run: &&Run| run.undoes == Some(index as u8) && run.life.state == RunState::Succeeded;
                    world.runs.iter().flatten().filter(undoes).count() <= 1
                })
            }),
            Property::always("P10: nothing is ever stuck", |model: &Self, world: &World| {
                let mut actions = Vec::new();
                model.actions(world, &mut actions);
                let moves = actions.into_iter().any(|action| model.next_state(world, action).is_some());
                moves || world.broken.is_some() || model.is_settled(world)
            }),
            Property::sometimes("a change is stored and committed", |_, world: &World| {
                world.runs.iter().flatten().any(|run| run.life.state == RunState::Committed)
            }),
            Property::sometimes("a change is undone", |_, world: &World| {
                world.runs.iter().flatten().any(|run| run.undoes.is_some() && run.life.state == RunState::Succeeded)
            }),
        ]
    }
}

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
