//! PID 1's two duties: it collects every process that ends, whoever began it, and hands signals on.
//!
//! The server is a child of it, so that what the server waits for is never collected by somebody else: orphans come to
//! this process, the server's own children to the server.

use super::AgentError;
use libc::{SIGCHLD, SIGINT, SIGKILL, SIGTERM, c_int, pid_t, sigset_t};
use std::{
    fs, io,
    mem::MaybeUninit,
    process, ptr, thread,
    time::{Duration, Instant},
};

/// Which of the two processes this is after [`split`].
pub enum Side {
    Server,
    Reaper(Reaper),
}

/// The parent of the server.
pub struct Reaper {
    server: pid_t,
    signals: sigset_t,
}

/// How long processes that were killed may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(2);

/// Makes this process a reaper and a new one, a copy of it, the server.
///
/// A process with threads is refused: only the calling thread would exist in the copy, with whatever locks the others
/// held.
pub fn split() -> Result<Side, AgentError> {
    let threads = fs::read_dir("/proc/self/task").map_err(fault("read /proc/self/task"))?.count();
    if threads != 1 {
        return Err(AgentError::Threads { count: threads });
    }
    // Orphans come to this process also where it is not PID 1, as in a pod with a shared process namespace.
    // SAFETY: no memory is involved.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map_err(fault("collect orphans"))?;
    // Ignored, as a runtime may have left it, it would keep ended children from being reported.
    // SAFETY: no handler of ours is involved.
    unsafe { libc::signal(SIGCHLD, libc::SIG_DFL) };
    let signals = signal_set(&[SIGCHLD, SIGTERM, SIGINT]);
    let before = block(&signals).map_err(fault("block signals"))?;

    // SAFETY: this is the only thread, so the child finds every lock and every allocation in order.
    match check(unsafe { libc::fork() }).map_err(fault("start the server's process"))? {
        0 => {
            // SAFETY: `before` was filled in by the kernel; no other memory is involved.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
                libc::sigprocmask(libc::SIG_SETMASK, &before, ptr::null_mut());
            }
            Ok(Side::Server)
        }
        server => Ok(Side::Reaper(Reaper { server, signals })),
    }
}

impl Reaper {
    /// Collects processes until the server has ended, then ends those that remain. Returns the server's exit code.
    pub fn watch(&self) -> u8 {
        loop {
            let mut signal: c_int = 0;
            // SAFETY: both point to what this function owns.
            if unsafe { libc::sigwait(&self.signals, &mut signal) } != 0 {
                continue;
            }
            if signal != SIGCHLD {
                // SAFETY: the server is a child that was not yet collected, so the id is still its own.
                unsafe { libc::kill(self.server, signal) };
            }
            while let Some((pid, status)) = collect() {
                if pid == self.server {
                    end_what_remains();
                    return exit_code(status);
                }
            }
        }
    }
}

/// One process that has ended.
fn collect() -> Option<(pid_t, c_int)> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// Kills the children, and those that become children by it. For a PID 1 the kernel does this too; it does not where
/// the process namespace is shared.
fn end_what_remains() {
    let began = Instant::now();
    while began.elapsed() < GONE_WITHIN {
        while collect().is_some() {}
        let children = children();
        if children.is_empty() {
            return;
        }
        for child in children {
            // SAFETY: it is a child that was not collected, so the id is still its own.
            unsafe { libc::kill(child, SIGKILL) };
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn children() -> Vec<pid_t> {
    let list = format!("/proc/self/task/{}/children", process::id());
    let list = fs::read_to_string(list).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn exit_code(status: c_int) -> u8 {
    let code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) };
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn signal_set(signals: &[c_int]) -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset fills the set in before anything reads it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Blocks `signals`, so that they wait for sigwait (also in a PID 1, for which the kernel drops what is not blocked and
/// has no handler). Returns what was blocked before.
fn block(signals: &sigset_t) -> io::Result<sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the kernel fills `before` in where the call succeeds.
    unsafe {
        check(libc::sigprocmask(libc::SIG_BLOCK, signals, before.as_mut_ptr()))?;
        Ok(before.assume_init())
    }
}

fn check(returned: c_int) -> io::Result<c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

fn fault(what: &'static str) -> impl FnOnce(io::Error) -> AgentError {
    move |source| AgentError::Process { what, source }
}
