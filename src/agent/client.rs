//! The engine's end of a connection to an agent.
//!
//! Knows nothing of how the connection came to be. When it breaks, every waiting [`Session::run`] says so; the same call
//! over a new session joins the step that it began.

use super::{
    heard::{self, Asked, Patience},
    lines::{self, LineError, Lines},
    protocol::{Command, EVENT_LIMIT, Event, LINE_LIMIT, RunStep, SILENCE_SECONDS, StepId, StepResult},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, oneshot},
    task,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// How long an agent may take to say hello; its socket may take ten seconds to appear.
const HELLO_WITHIN: Duration = Duration::from_secs(20);
/// An agent says at least every few seconds that it is there.
const SILENCE: Duration = Duration::from_secs(SILENCE_SECONDS);
/// How long an agent may take to end its steps and itself.
const EXIT_WITHIN: Duration = Duration::from_secs(10);
const QUEUED_COMMANDS: usize = 16;

/// Why a session did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// Open another session and ask again: nothing runs twice.
    #[error("the connection to the step pod's agent is broken: {reason}")]
    Broken { reason: String },
    /// Asking again will not help.
    #[error("the step pod's agent did not understand a command: {message}")]
    Refused { message: String },
    /// Asking again will not help.
    #[error("the step pod's agent is not believed: {reason}; a script of the pod may speak in its place")]
    Unbelievable { reason: String },
    /// Asking again will not help.
    #[error(
        "the step {step} is too large for the agent, {size} bytes of at most {LINE_LIMIT}: make its inputs smaller"
    )]
    TooLarge { step: String, size: usize },
    #[error("the step pod's agent was told to exit, but is still there after {seconds} s", seconds = EXIT_WITHIN.as_secs())]
    StillThere,
}

/// A connection to an agent. Dropping it closes the connection and nothing else.
pub struct Session {
    version: String,
    commands: mpsc::Sender<Outgoing>,
    shared: Arc<Shared>,
    _reading: AbortOnDropHandle<()>,
    _writing: AbortOnDropHandle<()>,
}

struct Outgoing {
    line: Vec<u8>,
    written: oneshot::Sender<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    over: CancellationToken,
}

#[derive(Default)]
struct State {
    waiting: HashMap<StepId, Vec<oneshot::Sender<StepResult>>>,
    /// Every step that was asked for: results of others are no agent's.
    asked: HashSet<StepId>,
    /// Why the session is over, once it is.
    over: Option<SessionError>,
}

impl Session {
    /// Waits for the agent's hello on `reader`, its stdout; commands go to `writer`, its stdin.
    pub async fn start<R, W>(reader: R, writer: W) -> Result<Self, SessionError>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let mut lines = Lines::new(reader, EVENT_LIMIT);
        let version = match next_event(&mut lines, HELLO_WITHIN).await? {
            Event::Hello { version } => version,
            _ => return Err(broken("it did not begin with a hello")),
        };
        let shared = Arc::new(Shared::default());
        let (commands, outgoing) = mpsc::channel(QUEUED_COMMANDS);
        let reading = task::spawn(read(lines, shared.clone()));
        let writing = task::spawn(write(writer, outgoing, shared.clone()));
        Ok(Self {
            version,
            commands,
            shared,
            _reading: AbortOnDropHandle::new(reading),
            _writing: AbortOnDropHandle::new(writing),
        })
    }

    /// The version of the agent.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Runs a step, or joins it, and waits for its end. Several may be waited for at once; to stop waiting does not
    /// stop the step.
    pub async fn run(&self, run: RunStep) -> Result<StepResult, SessionError> {
        let (id, asked) = (run.id.clone(), Asked::from(&run));
        let line = encode(&Command::Run(Box::new(run)))?;
        if line.len() > LINE_LIMIT {
            return Err(SessionError::TooLarge { step: id.step, size: line.len() });
        }
        let result = self.shared.expect(id)?;
        self.send(line).await?;
        asked.believed(result.await.map_err(|_| self.shared.why())?).map_err(unbelievable)
    }

    /// Ends a step's processes; whoever waits for the step gets its result. Returns once the command was sent.
    pub async fn cancel(&self, id: StepId) -> Result<(), SessionError> {
        self.send(encode(&Command::Cancel(id))?).await
    }

    /// Tells the agent that a step's result is kept elsewhere. Returns once the command was sent.
    pub async fn forget(&self, id: StepId) -> Result<(), SessionError> {
        self.send(encode(&Command::Forget(id))?).await
    }

    /// Tells the agent that no step follows, and waits until it is gone.
    pub async fn exit(&self) -> Result<(), SessionError> {
        self.send(encode(&Command::Exit)?).await?;
        timeout(EXIT_WITHIN, self.shared.over.cancelled()).await.map_err(|_| SessionError::StillThere)
    }

    /// Waits until the session is over, and says why.
    pub async fn over(&self) -> SessionError {
        self.shared.over.cancelled().await;
        self.shared.why()
    }

    async fn send(&self, line: Vec<u8>) -> Result<(), SessionError> {
        let (written, done) = oneshot::channel();
        self.commands.send(Outgoing { line, written }).await.map_err(|_| self.shared.why())?;
        tokio::select! {
            done = done => done.map_err(|_| self.shared.why()),
            () = self.shared.over.cancelled() => Err(self.shared.why()),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers somebody who waits for a step.
    fn expect(&self, id: StepId) -> Result<oneshot::Receiver<StepResult>, SessionError> {
        let mut state = self.state();
        if let Some(why) = &state.over {
            return Err(why.clone());
        }
        let (told, result) = oneshot::channel();
        state.asked.insert(id.clone());
        let waiting = state.waiting.entry(id).or_default();
        waiting.retain(|other| !other.is_closed());
        waiting.push(told);
        Ok(result)
    }

    /// Hands a result to those who wait for it; tells whether anybody did.
    fn ended(&self, result: &StepResult) -> Result<bool, SessionError> {
        let mut state = self.state();
        if !state.asked.contains(&result.id) {
            return Err(unbelievable("it tells of a step that it was not asked for".to_owned()));
        }
        let waiting = state.waiting.remove(&result.id);
        let is_awaited = waiting.is_some();
        for told in waiting.into_iter().flatten() {
            // Who stopped waiting may ask again.
            let _ = told.send(result.clone());
        }
        Ok(is_awaited)
    }

    /// Ends the session; the first reason stays.
    fn end(&self, why: SessionError) {
        let mut state = self.state();
        state.over.get_or_insert(why);
        state.waiting.clear();
        drop(state);
        self.over.cancel();
    }

    fn why(&self) -> SessionError {
        self.state().over.clone().unwrap_or_else(|| broken("it was closed"))
    }
}

async fn read<R: AsyncRead + Unpin>(mut lines: Lines<R>, shared: Arc<Shared>) {
    let mut patience = Patience::new(Instant::now());
    loop {
        let is_awaited = match next_event(&mut lines, SILENCE).await {
            Ok(Event::Ended(result)) => shared.ended(&result),
            Ok(Event::Alive | Event::Hello { .. }) => Ok(false),
            // It cannot say which command it was: nobody may be left waiting.
            Ok(Event::Error { message }) => Err(SessionError::Refused { message }),
            Err(why) => Err(why),
        };
        match is_awaited {
            Ok(true) => {}
            Ok(false) if patience.bears(Instant::now()) => {}
            Ok(false) => return shared.end(unbelievable("it talks without end".to_owned())),
            Err(why) => return shared.end(why),
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(mut writer: W, mut outgoing: mpsc::Receiver<Outgoing>, shared: Arc<Shared>) {
    while let Some(Outgoing { line, written }) = outgoing.recv().await {
        if let Err(error) = lines::write(&mut writer, &line).await {
            return shared.end(broken(format!("a command cannot be sent: {error}")));
        }
        let _ = written.send(());
    }
}

async fn next_event<R: AsyncRead + Unpin>(lines: &mut Lines<R>, within: Duration) -> Result<Event, SessionError> {
    let line = match timeout(within, lines.next()).await {
        Err(_) => return Err(broken(format!("nothing was heard for {} s", within.as_secs()))),
        Ok(Err(error @ LineError::TooLong { .. })) => return Err(unbelievable(error.to_string())),
        Ok(Err(error)) => return Err(broken(error.to_string())),
        Ok(Ok(None)) => return Err(broken("it was closed by the other side")),
        Ok(Ok(Some(line))) => line,
    };
    heard::event(&line).map_err(|why| unbelievable(format!("this is no event of the agent's: {why}")))
}

fn encode(command: &Command) -> Result<Vec<u8>, SessionError> {
    lines::encode(command).map_err(|error| SessionError::Refused { message: error.to_string() })
}

fn unbelievable(reason: String) -> SessionError {
    SessionError::Unbelievable { reason }
}

fn broken(reason: impl Into<String>) -> SessionError {
    SessionError::Broken { reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_says_nothing_is_broken() {
        let (near, _far) = tokio::io::duplex(64);
        let event = next_event(&mut Lines::new(near, LINE_LIMIT), Duration::from_millis(20)).await;
        assert!(matches!(event, Err(SessionError::Broken { reason }) if reason.contains("nothing was heard")));
    }
}
