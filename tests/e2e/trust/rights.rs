//! What the requester of a change must be allowed to do.
