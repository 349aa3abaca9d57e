//! Sluice: lifecycle phases for sandboxes.

pub mod api;
pub mod plan;
