//! The command that the engine executes in the container: its stdin and stdout become a connection to the agent.
//!
//! Knows nothing of what is said. Plain threads, no runtime: it has to end at once when either side does, also while
//! the other is being waited for.

use super::{AgentError, SOCKET};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// The pod may have been started only just now.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// Copies stdin to the agent and what the agent says to stdout, until either ends.
pub fn connect(dir: &Path) -> Result<(), AgentError> {
    let path = dir.join(SOCKET);
    let socket = open(&path, APPEARS_WITHIN)?;
    let fault = |source| AgentError::Connect { path: path.clone(), source };
    let to_agent = socket.try_clone().map_err(fault)?;

    let (ended, either) = mpsc::channel();
    let other = ended.clone();
    // A copy that breaks has ended, like one whose source ended: whoever is at the other side sees it.
    thread::spawn(move || {
        copy(io::stdin().lock(), to_agent);
        let _ = other.send(());
    });
    thread::spawn(move || {
        copy(socket, io::stdout().lock());
        let _ = ended.send(());
    });
    let _ = either.recv();
    Ok(())
}

/// Waits for the socket to appear and for somebody to listen on it.
pub(super) fn open(path: &Path, within: Duration) -> Result<UnixStream, AgentError> {
    let began = Instant::now();
    loop {
        let source = match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(source) => source,
        };
        if !matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) {
            return Err(AgentError::Connect { path: path.to_owned(), source });
        }
        if began.elapsed() >= within {
            return Err(AgentError::NoAgent { path: path.to_owned(), waited_seconds: within.as_secs(), source });
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Hands on each piece as it comes; nothing may wait in a buffer for more.
fn copy(mut from: impl Read, mut to: impl Write) {
    let mut piece = vec![0; 64 * 1024];
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        if to.write_all(&piece[..read]).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}
