//! No namespace holds all the room for runs.
