//! The files that go into a step and those that come out of it.
//!
//! A path may be anything by the time that it is opened, because scripts make it what they like: nothing here waits for
//! a pipe or reads without an end.

use super::protocol::{InputFile, OUTPUT_LIMIT, OutputFile};
use base64::{Engine, prelude::BASE64_STANDARD};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// A file that is not as the step needs it.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("the content of the input file {path} is not Base64")]
    Content { path: String, source: base64::DecodeError },
    #[error(
        "the input file {path} cannot be written: give it a path in a folder that the container's user may write, like /tmp"
    )]
    Write { path: String, source: io::Error },
    #[error("the file {path} of an earlier step is in the way of the output {name} and cannot be removed")]
    Stale { name: String, path: String, source: io::Error },
    #[error("the output {name} is missing: the script ended with 0 but there is no file {path}")]
    Missing { name: String, path: String },
    #[error("the output {name} must be a regular file, but {path} is something else")]
    Irregular { name: String, path: String },
    #[error("the output {name} cannot be read from {path}")]
    Read { name: String, path: String, source: io::Error },
    #[error(
        "the outputs are too large: a step's outputs may have {OUTPUT_LIMIT} bytes together, and {path} of the output {name} goes over that"
    )]
    TooLarge { name: String, path: String },
}

/// Writes the input files; paths that are not absolute begin in `directory`.
pub fn write_inputs(directory: &Path, inputs: &[InputFile]) -> Result<(), FileError> {
    for InputFile { path, content } in inputs {
        let content =
            BASE64_STANDARD.decode(content).map_err(|source| FileError::Content { path: path.clone(), source })?;
        write(&directory.join(path), &content).map_err(|source| FileError::Write { path: path.clone(), source })?;
    }
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    make_parent(path)?;
    // Not to be kept waiting by a pipe that an earlier step left here.
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    file.write_all(content)
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Removes what an earlier step or attempt left where this one's outputs will be, and makes their folders where that
/// is possible.
pub fn clear_outputs(directory: &Path, outputs: &[OutputFile]) -> Result<(), FileError> {
    for OutputFile { name, path } in outputs {
        let full = directory.join(path);
        clear(&full).map_err(|source| FileError::Stale { name: name.clone(), path: path.clone(), source })?;
        // The script may make it itself, and says so where it cannot.
        let _ = make_parent(&full);
    }
    Ok(())
}

fn clear(path: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        Err(error) => return Err(error),
    };
    // A folder or a device is no step's output, and reading it will say so.
    if kind.is_dir() || kind.is_char_device() || kind.is_block_device() {
        return Ok(());
    }
    match fs::remove_file(path) {
        // A file that is a mount, or is in a folder that is not ours, can still be emptied.
        Err(_) if kind.is_file() => OpenOptions::new().write(true).truncate(true).open(path).map(drop),
        removed => removed,
    }
}

/// Reads the output files, as Base64 by name.
pub fn read_outputs(directory: &Path, outputs: &[OutputFile]) -> Result<BTreeMap<String, String>, FileError> {
    let mut left = OUTPUT_LIMIT;
    let mut read = BTreeMap::new();
    for output in outputs {
        let content = read_output(directory, output, left)?;
        left -= content.len();
        read.insert(output.name.clone(), BASE64_STANDARD.encode(content));
    }
    Ok(read)
}

fn read_output(directory: &Path, output: &OutputFile, limit: usize) -> Result<Vec<u8>, FileError> {
    let (name, path) = (output.name.clone(), output.path.clone());
    let file = match open(&directory.join(&path)) {
        Ok(Some(file)) => file,
        Ok(None) => return Err(FileError::Irregular { name, path }),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(FileError::Missing { name, path });
        }
        Err(source) => return Err(FileError::Read { name, path, source }),
    };
    let mut content = Vec::new();
    match file.take(limit as u64 + 1).read_to_end(&mut content) {
        Err(source) => Err(FileError::Read { name, path, source }),
        Ok(read) if read > limit => Err(FileError::TooLarge { name, path }),
        Ok(_) => Ok(content),
    }
}

/// Opens a regular file; `None` where it is another kind of thing.
fn open(path: &Path) -> io::Result<Option<File>> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = match opened {
        // What opening a socket says.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(None),
        opened => opened?,
    };
    Ok(file.metadata()?.is_file().then_some(file))
}
