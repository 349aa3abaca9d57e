//! Copies this very binary to where a container of another image can start it.

use super::{AgentError, BINARY};
use std::{fs, io, os::unix::fs::PermissionsExt, path::Path};

/// Copies the running binary to `dir/sluice`, executable for everybody.
///
/// The copy appears whole or not at all, and replaces an earlier one even while that runs.
pub fn install(dir: &Path) -> Result<(), AgentError> {
    let target = dir.join(BINARY);
    copy(dir, &target).map_err(|source| AgentError::Install { path: target, source })
}

fn copy(dir: &Path, target: &Path) -> io::Result<()> {
    let temporary = dir.join(format!(".{BINARY}-{}", std::process::id()));
    let copied = fs::copy("/proc/self/exe", &temporary)
        .and_then(|_| fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&temporary, target));
    if copied.is_err() {
        // The first fault is the one to tell; a leftover hurts nobody.
        let _ = fs::remove_file(&temporary);
    }
    copied
}
