use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One of the six moments in the life of a target at which workflows run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    PreCreate,
    PostCreate,
    PreUpdate,
    PostUpdate,
    PreDelete,
    PostDelete,
}

impl Phase {
    /// All six, in the order of a target's life.
    pub const ALL: [Phase; 6] =
        [Phase::PreCreate, Phase::PostCreate, Phase::PreUpdate, Phase::PostUpdate, Phase::PreDelete, Phase::PostDelete];

    /// Whether the phase runs inside the admission of a change, before it is stored.
    pub const fn is_pre(self) -> bool {
        matches!(self, Phase::PreCreate | Phase::PreUpdate | Phase::PreDelete)
    }

    /// The phase as it stands in names, labels and messages: `pre-create`.
    pub const fn slug(self) -> &'static str {
        match self {
            Phase::PreCreate => "pre-create",
            Phase::PostCreate => "post-create",
            Phase::PreUpdate => "pre-update",
            Phase::PostUpdate => "post-update",
            Phase::PreDelete => "pre-delete",
            Phase::PostDelete => "post-delete",
        }
    }

    /// The phase as a field of a plugin's spec: `preCreate`.
    pub const fn field(self) -> &'static str {
        match self {
            Phase::PreCreate => "preCreate",
            Phase::PostCreate => "postCreate",
            Phase::PreUpdate => "preUpdate",
            Phase::PostUpdate => "postUpdate",
            Phase::PreDelete => "preDelete",
            Phase::PostDelete => "postDelete",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.slug())
    }
}

/// A list of steps of a plugin: that of a phase, or the one that undoes a pre-phase whose change was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workflow {
    Of(Phase),
    Abandoned,
}

impl Workflow {
    /// All seven, in the order in which one may read what another left.
    pub const ALL: [Workflow; 7] = [
        Workflow::Of(Phase::PreCreate),
        Workflow::Of(Phase::PostCreate),
        Workflow::Of(Phase::PreUpdate),
        Workflow::Of(Phase::PostUpdate),
        Workflow::Of(Phase::PreDelete),
        Workflow::Of(Phase::PostDelete),
        Workflow::Abandoned,
    ];
}
