//! Sluice against a real cluster: see `tests/cluster` for how to have one.
