//! The steps that the agent knows: each attempt runs once, whoever and however many ask for it.

use super::{
    log::LogSink,
    protocol::{RunStep, StepId, StepResult},
    step, workspace,
};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{sync::watch, task, time::timeout};
use tokio_util::sync::CancellationToken;

/// How long cancelled steps may take when the agent ends.
const ALL_END_WITHIN: Duration = Duration::from_secs(5);

/// The steps of one agent.
pub struct Steps {
    agent: PathBuf,
    sink: LogSink,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<StepId, Known>,
    /// No step may begin any more.
    ending: bool,
}

enum Known {
    Begun {
        cancel: CancellationToken,
        result: Pending,
    },
    /// Kept, so that whoever asks late does not run it again.
    Forgotten,
}

/// The result of a step, when it is there.
#[derive(Clone)]
pub struct Pending {
    result: watch::Receiver<Option<Arc<StepResult>>>,
    /// What to say should the agent's own task fail.
    lost: Arc<StepResult>,
}

impl Pending {
    fn ready(result: StepResult) -> Self {
        let result = Arc::new(result);
        Self { result: watch::channel(Some(result.clone())).1, lost: result }
    }

    fn is_ready(&self) -> bool {
        self.result.borrow().is_some() || self.result.has_changed().is_err()
    }

    /// Waits for it.
    pub async fn wait(mut self) -> Arc<StepResult> {
        match self.result.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or(self.lost),
            Err(_) => self.lost,
        }
    }
}

impl Steps {
    pub fn new(agent: PathBuf, sink: LogSink) -> Arc<Self> {
        Arc::new(Self { agent, sink, state: Mutex::default() })
    }

    /// Begins a step, or joins it.
    pub fn run(self: &Arc<Self>, run: RunStep) -> Pending {
        let mut state = self.state();
        match state.known.get(&run.id) {
            Some(Known::Begun { result, .. }) => return result.clone(),
            Some(Known::Forgotten) => {
                let error = "this attempt has run and its result was collected: retry as another attempt";
                return Pending::ready(step::failed(&run, error.to_owned()));
            }
            None if state.ending => {
                let failed = step::failed(&run, "the agent is ending".to_owned());
                return Pending::ready(StepResult { interrupted: true, ..failed });
            }
            None => {}
        }
        let cancel = CancellationToken::new();
        let (told, result) = watch::channel(None);
        let lost = Arc::new(step::failed(&run, "the agent failed in this step".to_owned()));
        let pending = Pending { result, lost };
        state.known.insert(run.id.clone(), Known::Begun { cancel: cancel.clone(), result: pending.clone() });
        drop(state);
        let steps = self.clone();
        // A task of its own: no connection that asked for it matters to it.
        task::spawn(async move {
            let result = steps.follow(run, &cancel).await;
            told.send_replace(Some(Arc::new(result)));
        });
        pending
    }

    async fn follow(&self, run: RunStep, cancel: &CancellationToken) -> StepResult {
        let (id, began) = (run.id.clone(), Instant::now());
        self.sink.say(&format!("[{}] -- attempt {} begins", id.step, id.attempt)).await;
        let mut result = step::run(run, &self.agent, &self.sink, cancel).await;
        // What ended well before it could be cancelled has ended.
        result.interrupted = result.error.is_some() && self.state().ending;
        let outcome = match (&result.error, result.exit_code) {
            (Some(error), _) => format!("failed: {error}"),
            (None, Some(code)) => format!("ended with {code}"),
            (None, None) => "ended".to_owned(),
        };
        let seconds = began.elapsed().as_secs_f64();
        self.sink.say(&format!("[{}] -- attempt {} {outcome} ({seconds:.1} s)", id.step, id.attempt)).await;
        result
    }

    /// Ends a step that runs.
    pub fn cancel(&self, id: &StepId) {
        if let Some(Known::Begun { cancel, .. }) = self.state().known.get(id) {
            cancel.cancel();
        }
    }

    /// Drops the result of a step that has ended.
    pub fn forget(&self, id: &StepId) {
        let mut state = self.state();
        match state.known.get_mut(id) {
            Some(known @ Known::Begun { .. }) if known.is_over() => *known = Known::Forgotten,
            _ => return,
        }
        drop(state);
        let (agent, id) = (self.agent.clone(), id.clone());
        // Whatever remains goes with the pod.
        task::spawn_blocking(move || workspace::remove(&agent, &id));
    }

    /// Cancels all that runs and waits for it; nothing begins any more.
    pub async fn end_all(&self) {
        let results: Vec<Pending> = {
            let mut state = self.state();
            state.ending = true;
            let begun = state.known.values().filter_map(|known| match known {
                Known::Begun { cancel, result } => Some((cancel, result)),
                Known::Forgotten => None,
            });
            begun
                .map(|(cancel, result)| {
                    cancel.cancel();
                    result.clone()
                })
                .collect()
        };
        let all = futures::future::join_all(results.into_iter().map(Pending::wait));
        let _ = timeout(ALL_END_WITHIN, all).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn is_over(&self) -> bool {
        match self {
            Known::Begun { result, .. } => result.is_ready(),
            Known::Forgotten => true,
        }
    }
}
