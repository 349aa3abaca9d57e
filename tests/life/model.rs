//! What may happen in a world, and what must hold in each.

use crate::world::{Action, Operation, REPLICAS, Replica, Request, Run, Stage, TargetModel, World, process};
use sluice::api::RunState;
use sluice::engine::life::Event;
use stateright::{Model, Property};

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
