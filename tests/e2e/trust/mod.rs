//! Attacks: what somebody tries to gain through Sluice, and what they must not get. Each carries its number in
//! `docs/security.md`.

mod audit;
mod backup;
mod boundary;
mod forks;
mod reviews;
mod rights;
mod server;
mod steps;
pub mod token;
mod turns;
