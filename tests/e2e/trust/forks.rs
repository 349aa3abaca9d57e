//! What a fork must not give to its author.
