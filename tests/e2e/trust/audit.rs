//! What Sluice's own account does, and what the audit log keeps of a change.
