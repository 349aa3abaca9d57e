//! What a replica does, by the engine's own rules, and what the API server makes of it.

use crate::world::{
    GRACE, Object, Operation, Replica, Request, Run, Stage, TargetModel, World, moment, name, number, process, stored,
};
use sluice::api::{Admitted, Phase, RunState};
use sluice::engine::index::RunEntry;
use sluice::engine::life::{
    Admission, Asker, Asking, Event, Fate, Life, Next, Obstacle, Role, fate, is_blocked, next, obstacle, transition,
};
use std::sync::Arc;

impl TargetModel {
    pub fn entry(&self, index: usize, run: &Run) -> RunEntry {
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

    pub fn known(&self, replica: &Replica) -> Vec<Arc<RunEntry>> {
        let known = replica.cache.iter().enumerate();
        known.filter_map(|(index, run)| run.as_ref().map(|run| Arc::new(self.entry(index, run)))).collect()
    }

    /// Writes an event against what a replica knows; what it knows is what is stored afterwards, either way.
    pub fn write(&self, world: &mut World, replica: usize, run: u8, event: &Event) -> bool {
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

    pub fn create(&self, world: &mut World, replica: usize, run: Run) -> u8 {
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
    pub fn undo(&self, world: &World, run: &Run) -> bool {
        match self.changes[run.change as usize].operation {
            Operation::Create => world.object.is_none(),
            Operation::Update => world.object.as_ref().is_some_and(|object| Some(object.uid) == run.uid),
            Operation::Delete => false,
        }
    }

    pub fn serve(&self, world: &mut World, index: usize) {
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
    pub fn decide(&self, world: &mut World, replica: usize, run: u8) {
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

    pub fn claim(&self, world: &mut World, replica: usize, run: u8) {
        let executor = world.runs[run as usize].as_ref().and_then(|run| run.life.executor.clone());
        let orphaned = executor.is_some_and(|executor| world.is_dead(&executor));
        let claimed = Event::Claimed { by: process(replica), orphaned };
        if self.write(world, replica, run, &claimed) {
            world.replicas[replica].executing.push(run);
        }
    }

    pub fn begin(&self, world: &mut World, replica: usize, run: u8) {
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

    pub fn adopt(&self, world: &mut World, replica: usize, run: u8) {
        world.learn(replica, run as usize);
        let Some(current) = world.runs[run as usize].clone() else { return };
        if !world.is_orphan(&current) {
            return;
        }
        if current.life.executor.is_none() {
            world.withdraw(replica, run);
        } else {
            self.claim(world, replica, run);
        }
    }

    pub fn store(&self, world: &mut World, index: usize) {
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

    pub fn is_settled(&self, world: &World) -> bool {
        let settled = |(index, run): (usize, &Run)| {
            let undos = world.runs.iter().flatten().filter(|other| other.undoes == Some(index as u8));
            let undone = undos.filter(|undo| undo.life.state == RunState::Succeeded).count();
            match run.life.state {
                RunState::Pending | RunState::Running => false,
                RunState::Succeeded => run.undoes.is_some(),
                RunState::Committed => undone == 0,
                RunState::Failed | RunState::Abandoned => run.life.compensated_by.is_none() || undone == 1,
                RunState::Compensated => undone == 1,
                RunState::Inert => false,
            }
        };
        let runs = world.runs.iter().enumerate().filter_map(|(index, run)| run.as_ref().map(|run| (index, run)));
        world.requests.is_empty() && runs.into_iter().all(settled)
    }
}
