//! The kinds of target that Sluice serves, as far as expressions are concerned.

use super::scope::{Empty, TargetKind, TrackedList};

/// Our own `Sandbox`.
pub const SANDBOX: TargetKind = TargetKind {
    variable: "sandbox",
    defaults: &[
        ("metadata.labels", Empty::Map),
        ("metadata.annotations", Empty::Map),
        ("spec.labels", Empty::Map),
        ("spec.forks", Empty::List),
        ("spec.resources", Empty::List),
        ("spec.resources[].params", Empty::Map),
    ],
    lists: &[
        TrackedList { name: "forks", field: "forks", identity: &["/forkOf/kind", "/forkOf/name"] },
        TrackedList { name: "resources", field: "resources", identity: &["/name"] },
    ],
};
