//! The serving certificate and the token in our paths: issuing, rotation, reload, and the webhook configurations
//! that trust the one and name the other.
//!
//! [`issue`], [`state`], [`rotate`] and [`webhook_spec`] are pure: they are given the time and know no client.
//! [`store`], [`reload`], [`keep`] and [`webhook_config`] are the edge and decide nothing. How they fit:
//!
//! ```text
//! every replica    store::ensure -> reload::Serving -> the TLS server
//!                  reload::keep_reloaded             (Secret changed -> Serving)
//! the leader       webhook_config::keep_registered   (Serving's bundle -> webhook configurations)
//!                  keep::keep_rotated                (what those carry -> the next step, into the Secret)
//! ```
//!
//! For the token see [`token`], for the key of the forks' seals [`seal`], for certificates of whoever calls us [`client`].

pub mod client;
pub mod issue;
pub mod keep;
pub mod reload;
pub mod rotate;
pub mod seal;
pub mod state;
pub mod store;
pub mod token;
pub mod webhook_config;
pub mod webhook_spec;

#[cfg(test)]
mod edge_tests;
#[cfg(test)]
mod fake_api;
#[cfg(test)]
mod simulation;

pub use issue::Names;
pub use reload::Serving;
pub use rotate::Registration;
pub use state::State;
