//! A patch that the author of a sandbox wrote for a workload: applied within bounds on its text, on what it makes of the
//! workload, and on the work that it takes.
//!
//! A few operations that copy can double a document each, so nothing is applied before what it would leave is known to
//! be small enough.

use super::bounds::{self, DEEPEST, MOST_BYTES, Size};
use super::{message, yaml};
use crate::api::{Patch, PatchType};
use json_patch::PatchOperation;
use serde_json::{Value, json};
use std::slice;

/// Operations that a JSON patch may have.
pub const MOST_OPERATIONS: usize = 1_000;
/// Nodes and bytes, taken together, that operations of JSON patches may look at, copy, compare or move.
const MOST_WORK: usize = 16 * 1024 * 1024;
/// Longer paths are cut where they are told.
const SHOWN: usize = 120;

/// Why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    #[error("is no YAML or JSON that can be read: {0}")]
    Text(String),
    #[error("is no JSON patch: {0}: write a list of operations, as RFC 6902 has them")]
    Operations(String),
    #[error("has {count} operations, and at most {MOST_OPERATIONS} are applied: write fewer, or type: merge")]
    TooMany { count: usize },
    #[error("operation {index} ({operation}) would make a workload of more than {} KiB, or of more than {} values, or one that nests deeper than {DEEPEST}: copy less", MOST_BYTES / 1024, bounds::MOST_NODES)]
    Grows { index: usize, operation: String },
    #[error("would make a workload of more than {} KiB, or of more than {} values, or one that nests deeper than {DEEPEST}: write a smaller one", MOST_BYTES / 1024, bounds::MOST_NODES)]
    TooLarge,
    #[error(
        "operation {index} ({operation}) goes beyond the work that one patch may take: copy, move and compare less"
    )]
    Work { index: usize, operation: String },
    #[error("operation {index} ({operation}) does not fit: {why}")]
    Fits { index: usize, operation: String, why: String },
}

impl PatchError {
    /// Whether another workload could be patched all the same.
    pub const fn depends_on_the_workload(&self) -> bool {
        matches!(self, Self::Fits { .. })
    }
}

/// A patch that has been read.
#[derive(Clone, Debug)]
pub enum Read {
    Merge(Value),
    Json(Vec<PatchOperation>),
}

/// The work that may still be done for patches: for one of them, or for all of a sandbox together.
#[derive(Clone, Debug)]
pub struct Work {
    left: usize,
}

impl Default for Work {
    fn default() -> Self {
        Self { left: MOST_WORK }
    }
}

impl Work {
    /// Takes some of it; false where less is left.
    fn take(&mut self, parts: impl IntoIterator<Item = usize>) -> bool {
        let wanted = parts.into_iter().fold(0_usize, usize::saturating_add);
        match self.left.checked_sub(wanted) {
            Some(left) => self.left = left,
            None => return false,
        }
        true
    }
}

/// Reads the text of a patch.
pub fn read(patch: &Patch) -> Result<Read, PatchError> {
    let value = yaml::read(&patch.value).map_err(PatchError::Text)?;
    match patch.type_ {
        PatchType::Merge => Ok(Read::Merge(value)),
        PatchType::Json => {
            let count = value.as_array().map_or(0, Vec::len);
            if count > MOST_OPERATIONS {
                return Err(PatchError::TooMany { count });
            }
            let read = serde_json::from_value::<json_patch::Patch>(value);
            Ok(Read::Json(read.map_err(|error| PatchError::Operations(error.to_string()))?.0))
        }
    }
}

/// What is wrong with a patch whatever it is applied to. It is tried on a workload as they mostly are; what does not fit
/// there may fit another.
pub fn examine(patch: &Patch, work: &mut Work) -> Result<(), PatchError> {
    let read = read(patch)?;
    let mut workload = specimen();
    let Read::Json(operations) = &read else { return apply(&mut workload, &read, work) };
    let size = bounds::measure(&workload, 0).ok_or(PatchError::TooLarge)?;
    let mut bounded = Bounded { workload: &mut workload, size, work };
    let tried = operations.iter().enumerate().map(|(index, operation)| bounded.perform(index, operation));
    tried.filter(|tried| !matches!(tried, Err(PatchError::Fits { .. }))).collect()
}

/// A workload as they mostly are.
fn specimen() -> Value {
    let container = |name: &str| {
        json!({"name": name, "image": "image", "command": [], "args": [], "env": [{"name": "A", "value": "a"}],
            "envFrom": [], "ports": [{"containerPort": 80}], "resources": {"limits": {}, "requests": {}}, "volumeMounts": []})
    };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"annotations": {}, "labels": {}},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "strategy": {},
            "template": {
                "metadata": {"annotations": {}, "labels": {"app": "web"}},
                "spec": {"containers": [container("main"), container("side")], "initContainers": [], "volumes": []},
            },
        },
    })
}

/// Applies a patch to a workload. What is left of `workload` after an error is of no use.
pub fn apply(workload: &mut Value, patch: &Read, work: &mut Work) -> Result<(), PatchError> {
    match patch {
        Read::Merge(value) => {
            json_patch::merge(workload, value);
            match bounds::measure(workload, 0) {
                Some(size) if !size.is_too_large() => Ok(()),
                _ => Err(PatchError::TooLarge),
            }
        }
        Read::Json(operations) => {
            let size = bounds::measure(workload, 0).ok_or(PatchError::TooLarge)?;
            let mut bounded = Bounded { workload, size, work };
            operations.iter().enumerate().try_for_each(|(index, operation)| bounded.perform(index, operation))
        }
    }
}

/// A workload that is being patched.
struct Bounded<'a> {
    workload: &'a mut Value,
    size: Size,
    work: &'a mut Work,
}

impl Bounded<'_> {
    fn perform(&mut self, index: usize, operation: &PatchOperation) -> Result<(), PatchError> {
        let shown = || message::cut(&shown(operation), SHOWN);
        let path = operation.path().as_str();
        let (brought, taken) = match operation {
            PatchOperation::Add(add) => (self.size_of(&add.value, path), self.replaced(path)),
            PatchOperation::Replace(replace) => (self.size_of(&replace.value, path), self.found(path)),
            PatchOperation::Test(test) => (self.size_of(&test.value, path), Some(Size::default())),
            PatchOperation::Remove(_) => (Some(Size::default()), self.found(path)),
            PatchOperation::Copy(copy) => (self.moved(copy.from.as_str(), path), self.replaced(path)),
            PatchOperation::Move(from) => {
                let from = from.from.as_str();
                // What is moved onto itself is taken away once.
                let replaced = if from == path { Some(Size::default()) } else { self.replaced(path) };
                let (moved, gone) = (self.moved(from, path), self.found(from));
                (moved, gone.zip(replaced).map(|(gone, replaced)| gone + replaced))
            }
        };
        let too_large = || PatchError::Grows { index, operation: shown() };
        let (brought, taken) = (brought.ok_or_else(too_large)?, taken.ok_or_else(too_large)?);
        let beside = self.beside(path) + from(operation).map_or(0, |from| self.beside(from));
        if !self.work.take([brought.nodes, brought.bytes, taken.nodes, taken.bytes, path.len(), beside]) {
            return Err(PatchError::Work { index, operation: shown() });
        }
        if !matches!(operation, PatchOperation::Test(_)) {
            let name = Size { nodes: 0, bytes: path.len() };
            let after = self.size.without(taken) + brought + name;
            if after.is_too_large() && (after.bytes > self.size.bytes || after.nodes > self.size.nodes) {
                return Err(too_large());
            }
            self.size = after;
        }
        // One at a time, on a document that is given up after an error: the library takes back what a patch has done so
        // far, and panics where it cannot.
        json_patch::patch_unsafe(self.workload, slice::from_ref(operation)).map_err(|error| PatchError::Fits {
            index,
            operation: shown(),
            why: error.kind.to_string(),
        })
    }

    /// The size of a value where `path` leads.
    fn size_of(&self, value: &Value, path: &str) -> Option<Size> {
        bounds::measure(value, depth(path))
    }

    /// What is at `from`, at the depth that it has at `path`.
    fn moved(&self, from: &str, path: &str) -> Option<Size> {
        self.workload.pointer(from).map_or(Some(Size::default()), |value| self.size_of(value, path))
    }

    /// What is at `path`; nothing where there is nothing.
    fn found(&self, path: &str) -> Option<Size> {
        self.moved(path, path)
    }

    /// What gives way to what is put at `path`: in a list nothing does.
    fn replaced(&self, path: &str) -> Option<Size> {
        if self.list(path).is_some() { Some(Size::default()) } else { self.found(path) }
    }

    fn list(&self, path: &str) -> Option<&Vec<Value>> {
        self.workload.pointer(path.rsplit_once('/')?.0)?.as_array()
    }

    /// What has to make room, or moves up, in the list that `path` leads into.
    fn beside(&self, path: &str) -> usize {
        self.list(path).map_or(0, |list| list.len() * size_of::<Value>())
    }
}

fn from(operation: &PatchOperation) -> Option<&str> {
    match operation {
        PatchOperation::Move(from) => Some(from.from.as_str()),
        _ => None,
    }
}

/// How many levels below the root a path leads.
fn depth(path: &str) -> usize {
    path.matches('/').count()
}

/// An operation, without its value.
fn shown(operation: &PatchOperation) -> String {
    let path = operation.path();
    match operation {
        PatchOperation::Add(_) => format!("add {path}"),
        PatchOperation::Remove(_) => format!("remove {path}"),
        PatchOperation::Replace(_) => format!("replace {path}"),
        PatchOperation::Test(_) => format!("test {path}"),
        PatchOperation::Copy(copy) => format!("copy {} to {path}", copy.from),
        PatchOperation::Move(from) => format!("move {} to {path}", from.from),
    }
}

#[cfg(test)]
#[path = "patch_tests.rs"]
mod tests;
