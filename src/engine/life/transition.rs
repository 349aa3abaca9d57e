//! What happens to one run: from what it is, and what happens, to what it is then and what must follow.

use crate::api::{Admitted, PhaseRunStatus, RunState};
use crate::engine::index::RunEntry;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

/// How often a run is taken over with no step ended in between before it is given up: whatever ends its executors so
/// often would go on to do so.
pub const MOST_TAKEOVERS: u32 = 10;
/// How many requests of one create are remembered that were let through before the last.
const ALSO_ADMITTED: usize = 16;

/// What a run is for; it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Runs before a change; its end depends on whether the change is stored.
    Pre,
    /// Runs before the target is deleted; its end depends on whether it is.
    Deletion,
    /// Runs after a change.
    Post,
    /// Undoes a pre-phase whose change was not stored.
    Undo,
}

impl Role {
    /// Whether the run is of a pre-phase.
    pub const fn precedes(self) -> bool {
        matches!(self, Role::Pre | Role::Deletion)
    }

    /// Whether a run of this role and state has done its work, and only what is stored tells what becomes of it.
    pub fn awaits_commit(self, state: RunState, ignorable: bool) -> bool {
        let passed = state == RunState::Succeeded || (state == RunState::Failed && ignorable);
        passed && self.precedes()
    }

    /// What a run is for.
    pub fn of(run: &RunEntry) -> Self {
        match (&run.compensates, run.phase) {
            (Some(_), _) => Role::Undo,
            (None, _) if run.removes_target => Role::Deletion,
            (None, Some(phase)) if phase.is_pre() => Role::Pre,
            _ => Role::Post,
        }
    }
}

/// A request that was let through on the strength of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Admission {
    /// The UID that the object has if it is stored.
    pub uid: String,
    /// The generation that it has then.
    pub generation: i64,
    pub at: Option<Timestamp>,
}

/// The part of a run that its life turns on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Life {
    pub role: Role,
    pub state: RunState,
    /// The process that executes it, or did last.
    pub executor: Option<String>,
    /// How often it was taken over since a step of it ended.
    pub takeovers: u32,
    /// It failed, and lets the change through all the same.
    pub ignorable: bool,
    /// Newest first.
    pub admitted: Vec<Admission>,
    pub reported_at: Option<Timestamp>,
    /// The run that undoes it.
    pub compensated_by: Option<String>,
}

/// What happens to a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A process takes it up. `orphaned`: the process that its status names is known to be gone.
    Claimed { by: String, orphaned: bool },
    /// Its last step has ended. `undo` is the run that would undo what it did, if it did anything.
    Ended { by: String, failed: bool, ignorable: bool, undo: Option<String> },
    /// A request is about to be let through on its strength.
    Admitted(Admission),
    /// A client is told of its failure.
    Reported { at: Timestamp },
    /// The object that is stored is its change's; `admission` is the request that it was stored by, where that is known.
    Stored { admission: Option<Admission> },
    /// Its change was not stored in time.
    NotStored { undo: Option<String> },
    /// Another change is to take its place, and it is thought that nobody was let through on its strength.
    Superseded { undo: Option<String> },
    /// The run that undoes it has succeeded.
    Undone,
    /// What it did is another object's own by now.
    NothingToUndo,
}

/// What must follow, after the new life is written down.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Run its steps.
    Execute,
    /// Run none of its steps any more: end it as failed.
    GiveUp,
    /// Begin the run that undoes it.
    Undo(String),
    /// Tell the world what has become of it.
    Announce(RunState),
}

/// Why an event cannot happen to a run as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("another process executes it")]
    Taken,
    #[error("it has ended")]
    Ended,
    #[error("it has not ended")]
    Open,
    #[error("it did not succeed, or was given up")]
    NotPassed,
    #[error("a request was let through on its strength")]
    Admitted,
    #[error("it runs before no change")]
    NoPrePhase,
}

/// The life of a run after an event, and what must follow once that is written down.
///
/// # Errors
/// A [`Refusal`] where the event cannot happen to it. Whoever saw an older life looks again.
pub fn transition(life: &Life, event: &Event) -> Result<(Life, Vec<Effect>), Refusal> {
    let mut next = life.clone();
    let mut effects = Vec::new();
    match event {
        Event::Claimed { by, orphaned } => {
            if !life.state.is_open() {
                return Err(Refusal::Ended);
            }
            if life.executor.as_ref().is_some_and(|executor| executor != by) && !orphaned {
                return Err(Refusal::Taken);
            }
            next.takeovers += u32::from(life.executor.as_ref().is_some_and(|executor| executor != by));
            next.state = RunState::Running;
            next.executor = Some(by.clone());
            effects.push(if next.takeovers > MOST_TAKEOVERS { Effect::GiveUp } else { Effect::Execute });
        }
        Event::Ended { by, failed, ignorable, undo } => {
            if !life.state.is_open() {
                return Err(Refusal::Ended);
            }
            if life.executor.as_ref() != Some(by) {
                return Err(Refusal::Taken);
            }
            next.state = if *failed { RunState::Failed } else { RunState::Succeeded };
            next.ignorable = *failed && *ignorable;
            if *failed && !*ignorable && life.role.precedes() {
                next.compensated_by.clone_from(undo);
                effects.extend(undo.clone().map(Effect::Undo));
            }
        }
        Event::Admitted(admission) => {
            if !life.role.precedes() {
                return Err(Refusal::NoPrePhase);
            }
            // A deletion that is under way is let through again and again.
            if life.role == Role::Deletion && life.state == RunState::Committed {
                return Ok((next, effects));
            }
            if !awaits_commit(life) {
                return Err(if life.state.is_open() { Refusal::Open } else { Refusal::NotPassed });
            }
            next.admitted.retain(|earlier| earlier.uid != admission.uid);
            next.admitted.insert(0, admission.clone());
            next.admitted.truncate(1 + ALSO_ADMITTED);
        }
        Event::Reported { at } => {
            if life.state != RunState::Failed {
                return Err(if life.state.is_open() { Refusal::Open } else { Refusal::Ended });
            }
            next.reported_at.get_or_insert(*at);
        }
        Event::Stored { admission } => {
            if !awaits_commit(life) {
                return Err(Refusal::NotPassed);
            }
            next.state = RunState::Committed;
            next.admitted = admission.iter().cloned().collect();
            effects.push(Effect::Announce(RunState::Committed));
        }
        Event::NotStored { undo } | Event::Superseded { undo } => {
            if !awaits_commit(life) {
                return Err(Refusal::NotPassed);
            }
            if matches!(event, Event::Superseded { .. }) && !life.admitted.is_empty() {
                return Err(Refusal::Admitted);
            }
            next.state = RunState::Abandoned;
            next.compensated_by.clone_from(undo);
            effects.push(Effect::Announce(RunState::Abandoned));
            effects.extend(undo.clone().map(Effect::Undo));
        }
        Event::Undone => {
            // A failure stays one; what it did is undone all the same.
            if life.state == RunState::Abandoned {
                next.state = RunState::Compensated;
                effects.push(Effect::Announce(RunState::Compensated));
            }
        }
        Event::NothingToUndo => next.compensated_by = None,
    }
    Ok((next, effects))
}

/// Whether a run has done its work, and only what is stored tells what becomes of it.
fn awaits_commit(life: &Life) -> bool {
    life.role.awaits_commit(life.state, life.ignorable)
}

impl Life {
    /// That of a run which was written down and to which nothing has happened.
    pub const fn new(role: Role) -> Self {
        Self {
            role,
            state: RunState::Pending,
            executor: None,
            takeovers: 0,
            ignorable: false,
            admitted: Vec::new(),
            reported_at: None,
            compensated_by: None,
        }
    }

    /// The fields of the status that differ from `before`, as a merge patch.
    pub fn patch(&self, before: &Self) -> Value {
        let mut patch = Map::new();
        let mut differs = |differs: bool, field: &str, value: Value| {
            if differs {
                patch.insert(field.to_owned(), value);
            }
        };
        differs(self.state != before.state, "state", json!(self.state));
        differs(self.executor != before.executor, "executor", json!(self.executor));
        differs(self.takeovers != before.takeovers, "takeovers", json!(self.takeovers));
        let (admitted, also) = (self.admitted.first().map(Admitted::from), self.also_admitted());
        differs(self.admitted != before.admitted, "admitted", json!(admitted));
        let also = if also.is_empty() { Value::Null } else { json!(also) };
        differs(self.admitted != before.admitted, "alsoAdmitted", also);
        differs(self.reported_at != before.reported_at, "reportedAt", json!(self.reported_at.map(MicroTime)));
        differs(self.compensated_by != before.compensated_by, "compensatedBy", json!(self.compensated_by));
        Value::Object(patch)
    }

    /// Writes the whole life into a status.
    pub fn write_into(&self, status: &mut PhaseRunStatus) {
        status.state = self.state;
        status.executor.clone_from(&self.executor);
        status.takeovers = self.takeovers;
        status.admitted = self.admitted.first().map(Admitted::from);
        status.also_admitted = self.also_admitted();
        status.reported_at = self.reported_at.map(MicroTime);
        status.compensated_by.clone_from(&self.compensated_by);
    }

    fn also_admitted(&self) -> Vec<Admitted> {
        self.admitted.iter().skip(1).map(Admitted::from).collect()
    }
}

impl From<&RunEntry> for Life {
    fn from(run: &RunEntry) -> Self {
        Self {
            role: Role::of(run),
            state: run.state,
            executor: run.executor.as_deref().map(str::to_owned),
            takeovers: run.takeovers,
            ignorable: run.ignorable,
            admitted: run.admissions().map(Admission::from).collect(),
            reported_at: run.reported_at,
            compensated_by: run.compensated_by.clone(),
        }
    }
}

impl From<&Admitted> for Admission {
    fn from(admitted: &Admitted) -> Self {
        Self { uid: admitted.uid.clone(), generation: admitted.generation, at: admitted.at.as_ref().map(|time| time.0) }
    }
}

impl From<&Admission> for Admitted {
    fn from(admission: &Admission) -> Self {
        Self { uid: admission.uid.clone(), generation: admission.generation, at: admission.at.map(MicroTime) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn life(role: Role, state: RunState) -> Life {
        Life { state, ..Life::new(role) }
    }

    fn pre(state: RunState) -> Life {
        life(Role::Pre, state)
    }

    fn admission(uid: &str) -> Admission {
        Admission { uid: uid.into(), generation: 1, at: None }
    }

    fn claimed(by: &str, orphaned: bool) -> Event {
        Event::Claimed { by: by.into(), orphaned }
    }

    #[test]
    fn a_run_is_taken_over_only_from_who_is_gone() {
        let (running, effects) = transition(&pre(RunState::Pending), &claimed("a", false)).unwrap();
        assert_eq!((running.executor.as_deref(), effects), (Some("a"), vec![Effect::Execute]));
        assert_eq!(transition(&running, &claimed("b", false)), Err(Refusal::Taken));
        let (taken, _) = transition(&running, &claimed("b", true)).unwrap();
        assert_eq!((taken.executor.as_deref(), taken.takeovers), (Some("b"), 1));
    }

    #[test]
    fn a_run_that_ends_every_executor_is_given_up() {
        let mut life = transition(&pre(RunState::Pending), &claimed("a", false)).unwrap().0;
        for takeover in 0..MOST_TAKEOVERS {
            let (next, effects) = transition(&life, &claimed(&format!("b{takeover}"), true)).unwrap();
            assert_eq!(effects, [Effect::Execute]);
            life = next;
        }
        assert_eq!(transition(&life, &claimed("c", true)).unwrap().1, [Effect::GiveUp]);
    }

    #[test]
    fn who_lost_a_run_cannot_end_it() {
        let running = transition(&pre(RunState::Pending), &claimed("a", false)).unwrap().0;
        let taken = transition(&running, &claimed("b", true)).unwrap().0;
        let ended = Event::Ended { by: "a".into(), failed: false, ignorable: false, undo: None };
        assert_eq!(transition(&taken, &ended), Err(Refusal::Taken));
    }

    #[test]
    fn a_failed_pre_phase_is_undone_but_no_post_phase_and_no_undoing() {
        let ended = Event::Ended { by: "a".into(), failed: true, ignorable: false, undo: Some("u".into()) };
        let end = |role| {
            let running = transition(&life(role, RunState::Pending), &claimed("a", false)).unwrap().0;
            transition(&running, &ended).unwrap().1
        };
        assert_eq!(end(Role::Pre), [Effect::Undo("u".into())]);
        assert_eq!(end(Role::Post), []);
        assert_eq!(end(Role::Undo), []);
    }

    #[test]
    fn a_change_that_somebody_was_let_through_for_is_never_superseded() {
        let passed = pre(RunState::Succeeded);
        let superseded = Event::Superseded { undo: None };
        assert_eq!(transition(&passed, &superseded).unwrap().0.state, RunState::Abandoned);
        let admitted = transition(&passed, &Event::Admitted(admission("a"))).unwrap().0;
        assert_eq!(transition(&admitted, &superseded), Err(Refusal::Admitted));
        assert_eq!(
            transition(&admitted, &Event::NotStored { undo: None }).unwrap().1,
            [Effect::Announce(RunState::Abandoned)]
        );
    }

    #[test]
    fn nobody_is_let_through_on_what_was_given_up() {
        for state in [RunState::Abandoned, RunState::Compensated, RunState::Failed, RunState::Committed] {
            assert_eq!(transition(&pre(state), &Event::Admitted(admission("a"))), Err(Refusal::NotPassed));
        }
        let deletion = life(Role::Deletion, RunState::Committed);
        assert_eq!(transition(&deletion, &Event::Admitted(admission("a"))).unwrap().0, deletion);
    }

    #[test]
    fn only_what_changed_is_written() {
        let passed = pre(RunState::Succeeded);
        let (admitted, _) = transition(&passed, &Event::Admitted(admission("a"))).unwrap();
        let patch = json!({"admitted": {"uid": "a", "generation": 1, "at": null}, "alsoAdmitted": null});
        assert_eq!(admitted.patch(&passed), patch);
        let mut status = PhaseRunStatus::default();
        admitted.write_into(&mut status);
        assert_eq!((status.state, status.admitted.unwrap().uid.as_str()), (RunState::Succeeded, "a"));
    }

    fn event() -> impl Strategy<Value = Event> {
        let by = prop_oneof![Just("a".to_owned()), Just("b".to_owned())];
        let undo = proptest::option::of(Just("u".to_owned()));
        let at = (0..100_i64).prop_map(|second| Timestamp::from_second(second).unwrap());
        prop_oneof![
            (by.clone(), any::<bool>()).prop_map(|(by, orphaned)| Event::Claimed { by, orphaned }),
            (by.clone(), any::<bool>(), any::<bool>(), undo.clone())
                .prop_map(|(by, failed, ignorable, undo)| Event::Ended { by, failed, ignorable, undo }),
            by.prop_map(|uid| Event::Admitted(admission(&uid))),
            at.prop_map(|at| Event::Reported { at }),
            Just(Event::Stored { admission: None }),
            undo.clone().prop_map(|undo| Event::NotStored { undo }),
            undo.prop_map(|undo| Event::Superseded { undo }),
            Just(Event::Undone),
            Just(Event::NothingToUndo),
        ]
    }

    fn role() -> impl Strategy<Value = Role> {
        prop_oneof![Just(Role::Pre), Just(Role::Deletion), Just(Role::Post), Just(Role::Undo),]
    }

    /// How far along a life is; nothing ever goes back.
    fn age(state: RunState) -> u8 {
        match state {
            RunState::Pending => 0,
            RunState::Running => 1,
            RunState::Succeeded | RunState::Failed => 2,
            RunState::Committed | RunState::Abandoned => 3,
            RunState::Compensated | RunState::Inert => 4,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Properties P1 (one executor), P2 (no way back), P3 (admitted is never superseded) and P4 (undone once) of
        /// docs/design.md, over any order of events at all.
        #[test]
        fn whatever_happens_a_life_keeps_its_promises(role in role(), events in proptest::collection::vec(event(), 0..30)) {
            let mut now = life(role, RunState::Pending);
            let mut undone = 0;
            for event in events {
                let Ok((next, effects)) = transition(&now, &event) else { continue };
                prop_assert!(age(next.state) >= age(now.state), "P2: {:?} after {:?}", next.state, now.state);
                if next.executor != now.executor && now.executor.is_some() {
                    let orphaned = matches!(event, Event::Claimed { orphaned: true, .. });
                    prop_assert!(orphaned, "P1: {event:?}");
                }
                if matches!(event, Event::Superseded { .. }) {
                    prop_assert!(now.admitted.is_empty(), "P3");
                }
                undone += effects.iter().filter(|effect| matches!(effect, Effect::Undo(_))).count();
                prop_assert!(undone <= 1, "P4");
                prop_assert!(!effects.contains(&Effect::Execute) || next.state == RunState::Running);
                now = next;
            }
        }

        /// Property P5: whoever looks at an older life than the one that is stored writes nothing that the newer one
        /// would not have allowed, because a patch is written against the version that was seen. What a replay of the
        /// same event does to the life that it made is nothing, or is refused.
        #[test]
        fn the_same_event_twice_is_the_event_once(role in role(), events in proptest::collection::vec(event(), 0..12), last in event()) {
            let mut now = life(role, RunState::Pending);
            for event in events {
                if let Ok((next, _)) = transition(&now, &event) {
                    now = next;
                }
            }
            if let Ok((once, _)) = transition(&now, &last)
                && let Ok((twice, effects)) = transition(&once, &last)
            {
                let takeover = matches!(last, Event::Claimed { .. });
                prop_assert!(takeover || once == twice, "{last:?}");
                prop_assert!(takeover || effects.is_empty(), "{last:?} has {effects:?} again");
            }
        }
    }
}
