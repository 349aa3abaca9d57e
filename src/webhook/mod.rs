//! The admission webhook: the TLS server, and AdmissionReview in and out.

pub mod serve;
