//! What a restore from a backup brings back is not acted on.
