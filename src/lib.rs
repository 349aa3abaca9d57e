//! Sluice: lifecycle phases for sandboxes.

pub mod agent;
pub mod api;
