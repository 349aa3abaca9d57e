//! The working directory of one attempt of a step, and the environment that goes with it.

use super::{
    WORK,
    process::{Launch, may},
    protocol::StepId,
};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Why a step has no working directory.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("this attempt was begun before the container's last restart, so it is not begun again: retry the step")]
    BegunBefore,
    #[error("cannot prepare {}: the agent's volume must have room and be writable for the container's user", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// A step's own directory: the script runs in it, and it goes when the result was collected.
pub struct Workspace {
    directory: PathBuf,
}

impl Workspace {
    /// Makes the directory. One that exists belongs to an agent that ended in the middle of the same attempt.
    pub fn create(agent: &Path, id: &StepId) -> Result<Self, WorkspaceError> {
        let directory = directory(agent, id);
        let fault = |source| WorkspaceError::Io { path: directory.clone(), source };
        fs::create_dir_all(agent.join(WORK)).map_err(fault)?;
        match fs::create_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(WorkspaceError::BegunBefore),
            made => made.map_err(fault)?,
        }
        fs::create_dir(directory.join("tmp")).map_err(fault)?;
        Ok(Self { directory })
    }

    /// Where the script runs; paths of files that are not absolute begin here.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes the script, and says how to start it.
    pub fn prepare(&self, script: &str, env: &BTreeMap<String, String>) -> Result<Launch, WorkspaceError> {
        let path = self.directory.join(".script");
        write_script(&self.directory, &path, script)
            .map_err(|source| WorkspaceError::Io { path: path.clone(), source })?;
        Ok(Launch { script: path, directory: self.directory.clone(), env: self.environment(env) })
    }

    fn environment(&self, given: &BTreeMap<String, String>) -> BTreeMap<OsString, OsString> {
        let mut all = BTreeMap::from([("TMPDIR".into(), self.directory.join("tmp").into())]);
        // An arbitrary user of an arbitrary image has often no home, or `/`.
        if !env::var_os("HOME")
            .map(PathBuf::from)
            .is_some_and(|home| home.is_dir() && may(&home, libc::W_OK | libc::X_OK))
        {
            all.insert("HOME".into(), self.directory.clone().into());
        }
        all.extend(given.iter().map(|(name, value)| (name.into(), value.into())));
        all
    }
}

/// Removes what [`Workspace::create`] made.
pub fn remove(agent: &Path, id: &StepId) -> io::Result<()> {
    fs::remove_dir_all(directory(agent, id))
}

/// A rename puts the script in its place, so no file of that name was ever open for writing in this process.
fn write_script(directory: &Path, path: &Path, script: &str) -> io::Result<()> {
    let temporary = directory.join(".script.new");
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(&temporary)?;
    file.write_all(script.as_bytes())?;
    drop(file);
    fs::rename(&temporary, path)
}

/// Where an attempt of a step has its directory.
pub fn directory(agent: &Path, id: &StepId) -> PathBuf {
    agent.join(WORK).join(format!("{}-{}", file_name(&id.step), id.attempt))
}

/// A step's name as the name of a file: what could mean something in a path is written as its code.
fn file_name(step: &str) -> String {
    let mut name = String::new();
    for (at, byte) in step.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte.into()),
            b'.' if at > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_step_name_leaves_the_work_folder() {
        for (step, expected) in [("branch", "branch"), ("db/branch", "db%2fbranch"), ("..", "%2e."), ("a b", "a%20b")] {
            assert_eq!(file_name(step), expected);
        }
    }
}
