//! One connection of the engine: commands in, events out. It may break at any point; no step notices.

use super::{
    lines::{self, LineError, Lines},
    protocol::{ALIVE_SECONDS, Command, EVENT_LIMIT, Event, LINE_LIMIT, StepResult},
    steps::Steps,
};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    net::{UnixStream, unix::OwnedWriteHalf},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};
use tokio_util::sync::CancellationToken;

/// The two signals between connections and the server.
#[derive(Clone, Default)]
pub struct Shutdown {
    /// A connection was told that no step follows.
    pub exit: CancellationToken,
    /// All steps have ended: connections hand over what they have and close.
    pub close: CancellationToken,
}

/// Serves a connection to its end.
pub async fn serve(stream: UnixStream, steps: Arc<Steps>, shutdown: Shutdown) {
    // A connection that breaks is the other side's to open again.
    let _ = talk(stream, &steps, &shutdown).await;
}

async fn talk(stream: UnixStream, steps: &Arc<Steps>, shutdown: &Shutdown) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut commands = Lines::new(reader, LINE_LIMIT);
    let mut results: JoinSet<Arc<StepResult>> = JoinSet::new();
    let period = Duration::from_secs(ALIVE_SECONDS);
    let mut alive = interval_at(Instant::now() + period, period);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);

    send(&mut writer, &Event::Hello { version: env!("CARGO_PKG_VERSION").to_owned() }).await?;
    loop {
        tokio::select! {
            line = commands.next() => match line {
                Ok(None) => return Ok(()),
                Ok(Some(line)) => match serde_json::from_slice(&line) {
                    Ok(Command::Run(run)) => {
                        results.spawn(steps.run(*run).wait());
                    }
                    Ok(Command::Cancel(id)) => steps.cancel(&id),
                    Ok(Command::Forget(id)) => steps.forget(&id),
                    Ok(Command::Exit) => shutdown.exit.cancel(),
                    Err(error) => {
                        let message = format!("this is no command of the agent's protocol: {error}");
                        send(&mut writer, &Event::Error { message }).await?;
                    }
                },
                Err(error @ LineError::TooLong { .. }) => {
                    return send(&mut writer, &Event::Error { message: error.to_string() }).await;
                }
                Err(LineError::Read(error)) => return Err(error),
            },
            Some(ended) = results.join_next() => tell(&mut writer, ended).await?,
            _ = alive.tick() => send(&mut writer, &Event::Alive).await?,
            () = shutdown.close.cancelled() => break,
        }
    }
    while let Some(ended) = results.join_next().await {
        tell(&mut writer, ended).await?;
    }
    Ok(())
}

async fn tell(writer: &mut OwnedWriteHalf, ended: Result<Arc<StepResult>, tokio::task::JoinError>) -> io::Result<()> {
    match ended {
        Ok(result) => send(writer, &Event::Ended(Box::new(Arc::unwrap_or_clone(result)))).await,
        Err(error) => send(writer, &Event::Error { message: format!("a step's result is lost: {error}") }).await,
    }
}

async fn send(writer: &mut OwnedWriteHalf, event: &Event) -> io::Result<()> {
    let line = lines::encode(event)?;
    match event {
        Event::Ended(result) if line.len() > EVENT_LIMIT => {
            let error = format!("the step's result has {} bytes, of at most {EVENT_LIMIT}", line.len());
            let (outputs, log) = Default::default();
            let short = StepResult { error: Some(error), outputs, log, ..StepResult::clone(result) };
            lines::write(writer, &lines::encode(&Event::Ended(Box::new(short)))?).await
        }
        _ => lines::write(writer, &line).await,
    }
}
