//! The admission webhook: the TLS server, AdmissionReview in and out, holding and joining.

pub mod admit;
mod ask;
pub mod body;
pub mod exposure;
pub mod find;
pub mod granted;
pub mod guests;
pub mod hold;
pub mod mutate;
mod names;
mod pages;
mod pass;
pub mod plugin;
pub mod review;
pub mod rights;
pub mod router;
pub mod serve;
pub mod trail;
pub mod waits;
