//! Holding a request while its phase runs, and joining it to the run that another request began.

use crate::api::{RunState, TargetRef};
use crate::engine::index::RunEntry;
use crate::engine::life::{self, Asker, Asking, Next, Obstacle, Stored};
use crate::engine::waiting::Place;
use crate::engine::{self, Engine, EngineError, Guard};
use crate::plan::message::with_causes;
use crate::plan::runs::PlannedRun;
use k8s_openapi::jiff::Timestamp;
use rand::Rng;
use rand::distr::Alphanumeric;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// How long the denial of a failed change waits for what undoes it, so that it can say that it is done.
const AWAIT_UNDO: Duration = Duration::from_secs(10);
/// How long after news of runs a request looks for room to begin one.
const ROOM_AGAIN: Duration = Duration::from_millis(50);
const ROUTING_KEY_LENGTH: usize = 13;

/// What a request finds when it stops waiting.
#[derive(Debug)]
pub enum Outcome {
    /// The phase has succeeded, or failed under `failurePolicy: Ignore`.
    Passed {
        entry: Arc<RunEntry>,
        /// That the request is let through was written down with its end.
        admitted: bool,
    },
    Failed(Arc<RunEntry>),
    /// The phase has failed, and so often that the target is let go all the same.
    LetGo(Arc<RunEntry>),
    /// Another change of the target was quicker: look for what is in the way.
    Overtaken,
    /// It still runs. `held` tells whether there was room to wait for it.
    Running {
        entry: Arc<RunEntry>,
        held: bool,
    },
    /// Whether the change was stored already is not known yet; this run was before it.
    Undecided(String),
    /// An earlier attempt is still being undone by this run.
    Undoing(String),
    /// Nothing was begun: there is too much to do.
    Busy,
    /// Nothing was begun: too much is stored of what was refused in the namespace.
    Behind,
}

impl Outcome {
    /// The run that was found, and a word for what came of it.
    pub fn told(&self) -> Option<(&str, &'static str)> {
        match self {
            Self::Passed { entry, .. } if entry.ignorable => Some((&entry.name, "failed and ignored")),
            Self::Passed { entry, .. } => Some((&entry.name, "succeeded")),
            Self::Failed(entry) => Some((&entry.name, "failed")),
            Self::LetGo(entry) => Some((&entry.name, "failed and let go")),
            Self::Running { entry, .. } => Some((&entry.name, "running")),
            Self::Undecided(run) => Some((run, "undecided")),
            Self::Undoing(run) => Some((run, "undoing")),
            Self::Overtaken | Self::Busy | Self::Behind => None,
        }
    }
}

/// Who asks for a change, and what the request says of the target.
#[derive(Clone, Debug, Default)]
pub struct Requester {
    pub user: Option<String>,
    /// That of a target that is there already.
    pub routing_key: Option<String>,
    /// The target as it is stored before the change.
    pub stored: Option<Stored>,
    pub by: Asker,
}

/// A phase that a request asks for.
pub struct Wish<'a> {
    pub planned: PlannedRun,
    pub request: &'a Requester,
    /// The keys of every run of the change.
    pub keys: &'a [String],
    /// UID and generation of the object that is let through when this phase has passed, where no other must.
    pub admits: Option<(&'a str, i64)>,
    /// The request's place to wait in, if it has one.
    pub seat: Option<&'a OwnedSemaphorePermit>,
    pub deadline: Instant,
}

/// Bounds how many requests wait at once: a held one keeps a seat of API Priority and Fairness.
pub struct Holder {
    seats: Arc<Semaphore>,
    limits: Limits,
    stop: CancellationToken,
}

/// How much is done at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests that wait, in this replica.
    pub held: usize,
    /// Requests that wait, in all replicas together.
    pub held_in_all: usize,
}

impl Holder {
    pub fn new(limits: Limits, stop: CancellationToken) -> Self {
        Self { seats: Arc::new(Semaphore::new(limits.held)), limits, stop }
    }

    /// Begins a planned phase or joins it, and waits for its end until the deadline, while there is room to wait.
    pub async fn settle(&self, engine: &Arc<Engine>, wish: Wish<'_>) -> Result<Outcome, EngineError> {
        let Wish { planned, request, keys, admits, seat, deadline } = wish;
        // Past the bound a request is answered at once, when it has begun what it asks for.
        let until = if seat.is_some() { deadline } else { Instant::now() };
        let held = seat.is_some();
        let mut joined = None;
        let mut place: Option<Place<'_>> = None;
        let enter = |run: &str| {
            let (uid, generation) = admits.filter(|_| held)?;
            Some(engine.waiting.enter(run, uid, generation, deadline))
        };
        let mut changes = engine.index.changes();
        loop {
            changes.mark_unchanged();
            let latest = engine.index.latest(&planned.key);
            if let Some(latest) = latest.as_ref().filter(|latest| !latest.is_of(&planned)) {
                return Err(EngineError::OtherChange { run: latest.name.clone() });
            }
            let undo = latest.as_ref().and_then(|latest| engine.index.undo_of(&latest.name));
            let asking = Asking { by: request.by, stored: request.stored.as_ref(), now: Timestamp::now() };
            let mut next = life::next(latest.as_deref(), undo.as_deref(), asking);
            // Whoever waited for a run is told of its failure, also where somebody else was told before.
            if let Some(latest) = latest.filter(|l| joined.as_ref() == Some(&l.name) && l.state == RunState::Failed)
                && !latest.ignorable
            {
                next = Next::Report { run: latest.name.clone() };
            }
            match next {
                Next::Start { attempt } => {
                    if self.stop.is_cancelled() {
                        return Ok(Outcome::Busy);
                    }
                    if engine.is_behind(&planned) {
                        return Ok(Outcome::Behind);
                    }
                    let Some(_grant) = engine.room_for(&planned) else {
                        if !self.news(&mut changes, until).await {
                            return Ok(Outcome::Busy);
                        }
                        // The end of any run may make room; the news of it comes a moment before.
                        tokio::time::sleep(ROOM_AGAIN).await;
                        continue;
                    };
                    let routing_key = request.routing_key.clone().unwrap_or_else(new_routing_key);
                    let spec = Engine::spec(planned.clone(), attempt, request.user.clone(), routing_key);
                    place = enter(&engine::name_of(&spec));
                    let guard = Guard::Change { keys: keys.to_vec(), stored: request.stored.clone() };
                    match timeout_at(deadline, engine.begin(spec, Some(guard))).await {
                        Ok(Ok(begun)) => joined = Some(begun.name.clone()),
                        // Another process has it, or it was taken back: look again.
                        Ok(Err(EngineError::Lost { .. })) => {
                            if Instant::now() + ROOM_AGAIN >= until {
                                return Ok(Outcome::Busy);
                            }
                            tokio::time::sleep(ROOM_AGAIN).await;
                            continue;
                        }
                        Ok(Err(error)) => return Err(error),
                        Err(_) => return Ok(Outcome::Busy),
                    }
                    if let Some(begun) = &joined
                        && !self.wait_until_begun(engine, begun, deadline).await
                    {
                        return Ok(Outcome::Overtaken);
                    }
                }
                Next::Join { run } => {
                    if joined.as_ref() != Some(&run) {
                        place = enter(&run);
                    }
                    joined = Some(run.clone());
                    if let Some(entry) = engine.index.get(&run) {
                        match timeout_at(deadline, engine.adopt(&entry)).await {
                            Ok(adopted) => adopted?,
                            Err(_) => return Ok(Outcome::Running { entry, held }),
                        }
                    }
                    if !self.wait_for_end(engine, &run, until).await {
                        return Ok(match engine.index.get(&run) {
                            Some(entry) if entry.state.is_open() => Outcome::Running { entry, held },
                            Some(_) => continue,
                            None => Outcome::Overtaken,
                        });
                    }
                    if engine.index.get(&run).is_none() {
                        return Ok(Outcome::Overtaken);
                    }
                }
                Next::Reuse { run } => {
                    if let Some(entry) = engine.index.get(&run) {
                        let admitted = place.is_some_and(|place| place.is_let_through(&entry));
                        return Ok(Outcome::Passed { entry, admitted });
                    }
                }
                Next::LetGo { run } => {
                    if let Some(entry) = engine.index.get(&run) {
                        return Ok(Outcome::LetGo(entry));
                    }
                }
                Next::Report { run } => {
                    if let Some(entry) = engine.index.get(&run) {
                        return Ok(Outcome::Failed(self.report(engine, entry, until).await));
                    }
                }
                Next::AwaitDecision { run } => {
                    if !self.news(&mut changes, until).await {
                        return Ok(Outcome::Undecided(run));
                    }
                }
                Next::AwaitUndo { undo } => {
                    if let Some(entry) = engine.index.get(&undo) {
                        match timeout_at(deadline, engine.adopt(&entry)).await {
                            Ok(adopted) => adopted?,
                            Err(_) => return Ok(Outcome::Undoing(undo)),
                        }
                    }
                    // It may not be written yet, or be tried again after a while.
                    if !self.news(&mut changes, until).await {
                        return Ok(Outcome::Undoing(undo));
                    }
                }
            }
        }
    }

    /// Waits until nothing of another change is open or undecided for the target, as far as time and room allow;
    /// else tells what is in the way.
    pub async fn clear_way(
        &self,
        engine: &Arc<Engine>,
        target: &TargetRef,
        keys: &[&str],
        stored: Option<&Stored>,
        until: Instant,
    ) -> Result<Option<Obstacle>, EngineError> {
        let mut changes = engine.index.changes();
        loop {
            let runs = engine.index.of_name(&target.namespace, &target.name);
            let Some(obstacle) = life::obstacle(&runs, keys, stored, Timestamp::now()) else { return Ok(None) };
            match &obstacle {
                Obstacle::Superseded(run) => {
                    if let Some(entry) = engine.index.get(run) {
                        match engine.supersede(&entry).await {
                            // Another wrote to it first: look again at what it has become.
                            Err(error) if error.is_outdated() || matches!(error, EngineError::Lost { .. }) => {
                                if let Some(run) = engine.read(run).await? {
                                    engine.index.observe(&run);
                                }
                            }
                            superseded => superseded?,
                        }
                    }
                    continue;
                }
                Obstacle::Open(run) => {
                    if let Some(entry) = engine.index.get(run) {
                        engine.adopt(&entry).await?;
                    }
                }
                Obstacle::Undecided(_) => {}
            }
            if !self.news(&mut changes, until).await {
                return Ok(Some(obstacle));
            }
        }
    }

    /// Whether this replica is told to stop, so that nobody is to be held any longer.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// A place to wait in, where there is one: this replica's share of those of all `replicas`.
    pub fn seat(&self, replicas: usize) -> Option<OwnedSemaphorePermit> {
        let seat = self.seats.clone().try_acquire_owned().ok()?;
        let taken = self.limits.held - self.seats.available_permits();
        (taken <= share(self.limits, replicas)).then_some(seat)
    }

    /// Waits for news of any run; false where time was up first, or this replica is told to stop.
    async fn news(&self, changes: &mut watch::Receiver<u64>, until: Instant) -> bool {
        tokio::select! {
            biased;
            _ = changes.changed() => true,
            () = tokio::time::sleep_until(until) => false,
            () = self.stop.cancelled() => false,
        }
    }

    /// Waits until a run that was written down is begun; false where it was taken back instead.
    async fn wait_until_begun(&self, engine: &Engine, run: &str, until: Instant) -> bool {
        let decided = engine.index.wait_for(run, |entry| match entry {
            None => Some(false),
            Some(entry) => (entry.executor.is_some() || !entry.state.is_open()).then_some(true),
        });
        tokio::select! {
            biased;
            begun = decided => begun,
            // What is known of it then is told by whoever asks next.
            () = tokio::time::sleep_until(until) => true,
            () = self.stop.cancelled() => true,
        }
    }

    /// Waits until a run has ended or is gone; false where time was up first, or this replica is told to stop.
    async fn wait_for_end(&self, engine: &Engine, run: &str, until: Instant) -> bool {
        let ended = engine.index.wait_for(run, |entry| entry.is_none_or(|e| !e.state.is_open()).then_some(()));
        tokio::select! {
            biased;
            () = ended => true,
            () = tokio::time::sleep_until(until) => false,
            () = self.stop.cancelled() => false,
        }
    }

    /// A failure is told once; before that, what it did is undone as far as time allows.
    async fn report(&self, engine: &Arc<Engine>, entry: Arc<RunEntry>, until: Instant) -> Arc<RunEntry> {
        if let Some(undo) = &entry.compensated_by {
            let ended = |undo: Option<&RunEntry>| undo.is_some_and(|undo| !undo.state.is_open()).then_some(());
            let within = until.min(Instant::now() + AWAIT_UNDO);
            let _ = timeout_at(within, engine.index.wait_for(undo, ended)).await;
        }
        if entry.reported_at.is_some() {
            return entry;
        }
        match engine.reported(&entry).await {
            Ok(entry) => entry,
            Err(error) => {
                tracing::debug!(run = entry.name, error = with_causes(&error), "a failure may be told again");
                entry
            }
        }
    }
}

/// How many requests may wait in one of so many replicas; always one at least.
fn share(limits: Limits, replicas: usize) -> usize {
    limits.held.min(limits.held_in_all / replicas.max(1)).max(1)
}

/// What marks the requests to a sandbox: letters and digits that can stand in a header or a host name.
pub fn new_routing_key() -> String {
    let letters = rand::rng().sample_iter(Alphanumeric).map(char::from).filter(|c| !c.is_ascii_uppercase());
    letters.take(ROUTING_KEY_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_share_what_may_be_held_in_all() {
        let limits = Limits { held: 8, held_in_all: 16 };
        assert_eq!([1, 2, 3, 8, 100].map(|replicas| share(limits, replicas)), [8, 8, 5, 2, 1]);
    }
}
