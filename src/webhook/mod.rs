//! The admission webhook: the TLS server, AdmissionReview in and out, holding and joining.

pub mod admit;
pub mod exposure;
pub mod hold;
pub mod mutate;
mod names;
pub mod plugin;
pub mod review;
pub mod rights;
pub mod router;
pub mod serve;
pub mod waits;
