//! Sluice: lifecycle phases for sandboxes.

pub mod api;
pub mod certs;
pub mod webhook;
