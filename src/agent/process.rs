//! A script as a process group of its own: begun, waited for, ended.
//!
//! Knows nothing of steps, only of a script's file and what surrounds it.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsString},
    fs,
    io::{self, PipeReader},
    os::unix::{
        ffi::OsStrExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

/// What a script is started with.
pub struct Launch {
    pub script: PathBuf,
    pub directory: PathBuf,
    /// Added to the agent's own environment.
    pub env: BTreeMap<OsString, OsString>,
}

/// Why a script did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(
        "the first line of the script ends with a carriage return, so the kernel looks for an interpreter of that name: save the script with Unix line ends"
    )]
    CarriageReturn,
    #[error("the interpreter {} is not in the image: use one that is, or another runner.image", path.display())]
    NoInterpreter { path: PathBuf },
    #[error("the interpreter {} is in the image, but the loader or interpreter that it needs itself is not", path.display())]
    NoLoader { path: PathBuf },
    #[error("the interpreter {} may not be executed by user {user}", path.display())]
    Forbidden { path: PathBuf, user: u32 },
    #[error("the script {} may not be executed: the agent's volume must not be mounted with noexec", path.display())]
    NoExec { path: PathBuf },
    #[error("the script's first line must begin with #! and the path of an interpreter")]
    NoShebang,
    #[error("the step's environment is too large for the kernel: give large inputs as files, with as.path")]
    TooLarge,
    #[error("the environment variable {name} contains a zero byte: give such an input as a file, with as.path")]
    ZeroByte { name: String },
    #[error("the script cannot be started")]
    Other(#[source] io::Error),
}

/// Another step's new process may hold the script's file open for writing, until that process executes its own.
const BUSY_ATTEMPTS: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// The processes of one script.
pub struct Group {
    leader: Child,
    id: libc::pid_t,
}

/// Starts a script. What it writes to stdout and stderr comes out of the one pipe.
pub fn launch(launch: &Launch) -> Result<(Group, PipeReader), LaunchError> {
    let zero = launch.env.iter().find(|(name, value)| has_zero(name) || has_zero(value));
    if let Some((name, _)) = zero {
        return Err(LaunchError::ZeroByte { name: name.to_string_lossy().replace('\0', "\\0") });
    }
    let mut attempt = 1;
    loop {
        match spawn(launch) {
            Ok(started) => return Ok(started),
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && attempt < BUSY_ATTEMPTS => {
                attempt += 1;
                thread::sleep(BUSY_PAUSE);
            }
            Err(error) => return Err(explain(&launch.script, error)),
        }
    }
}

fn has_zero(text: &OsString) -> bool {
    text.as_encoded_bytes().contains(&0)
}

fn spawn(launch: &Launch) -> io::Result<(Group, PipeReader)> {
    let (output, written) = io::pipe()?;
    let mut command = Command::new(&launch.script);
    command
        .current_dir(&launch.directory)
        .envs(&launch.env)
        .stdin(Stdio::null())
        .stdout(written.try_clone()?)
        .stderr(written);
    // SAFETY: setsid may be called between fork and exec, and allocates nothing.
    unsafe {
        command.pre_exec(|| if libc::setsid() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) });
    }
    // Dropping the command at the end closes this side's copies of the pipe's writing end.
    let leader = command.spawn()?;
    let id = leader.id().cast_signed();
    Ok((Group { leader, id }, output))
}

impl Group {
    /// Waits until the script's own process has ended. It is not collected yet, so the group's id stays its own.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        let id = self.id.cast_unsigned();
        let waiting = tokio::task::spawn_blocking(move || {
            loop {
                // SAFETY: the kernel fills in `info`, for which all zero bytes are a value.
                let returned = unsafe {
                    let mut info: libc::siginfo_t = std::mem::zeroed();
                    libc::waitid(libc::P_PID, id, &mut info, libc::WEXITED | libc::WNOWAIT)
                };
                if returned == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                    return;
                }
            }
        });
        async move {
            let _ = waiting.await;
        }
    }

    /// Asks all processes of the group to end.
    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    /// Ends all processes of the group, and collects the script's own.
    pub fn end(mut self) -> io::Result<ExitStatus> {
        self.signal(libc::SIGKILL);
        self.leader.wait()
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the leader was not collected, so no other group can have this id.
        unsafe { libc::kill(-self.id, signal) };
    }
}

/// The signal that ended a process, with its name where one is often seen.
pub fn ending_signal(status: ExitStatus) -> Option<String> {
    let signal = status.signal()?;
    Some(match signal {
        libc::SIGKILL => "SIGKILL (out of memory, if nobody else sent it)".to_owned(),
        libc::SIGTERM => "SIGTERM".to_owned(),
        libc::SIGINT => "SIGINT".to_owned(),
        libc::SIGABRT => "SIGABRT".to_owned(),
        libc::SIGSEGV => "SIGSEGV".to_owned(),
        libc::SIGPIPE => "SIGPIPE".to_owned(),
        other => format!("signal {other}"),
    })
}

/// What the kernel's answer to an exec means for a script that exists.
fn explain(script: &Path, error: io::Error) -> LaunchError {
    let first_line = fs::read(script).unwrap_or_default();
    let first_line = first_line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    match error.kind() {
        io::ErrorKind::ArgumentListTooLong => return LaunchError::TooLarge,
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => return LaunchError::NoShebang,
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory => {}
        _ => return LaunchError::Other(error),
    }
    let Some(interpreter) = interpreter(first_line) else {
        return LaunchError::NoShebang;
    };
    match error.kind() {
        io::ErrorKind::PermissionDenied if may(&interpreter, libc::X_OK) => {
            LaunchError::NoExec { path: script.to_owned() }
        }
        // SAFETY: no memory is involved.
        io::ErrorKind::PermissionDenied => {
            LaunchError::Forbidden { path: interpreter, user: unsafe { libc::getuid() } }
        }
        _ if interpreter.exists() => LaunchError::NoLoader { path: interpreter },
        _ if first_line.ends_with(b"\r") => LaunchError::CarriageReturn,
        _ => LaunchError::NoInterpreter { path: interpreter },
    }
}

/// The path after `#!`.
fn interpreter(first_line: &[u8]) -> Option<PathBuf> {
    let line = String::from_utf8_lossy(first_line.strip_prefix(b"#!")?).into_owned();
    line.split([' ', '\t']).find(|word| !word.is_empty()).map(PathBuf::from)
}

/// Whether this user may do what `mode` says, as `access(2)` has it.
pub fn may(path: &Path, mode: libc::c_int) -> bool {
    // SAFETY: the string ends with a zero byte and outlives the call.
    CString::new(path.as_os_str().as_bytes()).is_ok_and(|path| unsafe { libc::access(path.as_ptr(), mode) == 0 })
}
