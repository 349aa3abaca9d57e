//! The certificates of whoever calls the webhooks, where the administrator has given the API server one: which
//! authorities must have signed it, and which names it may carry.
//!
//! [`Verifier`] asks for one in each handshake. The authorities are read from a file, and again when it changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::plan::message::with_causes;

/// How often the file is looked at. A mounted ConfigMap changes about a minute after the object.
pub const LOOK: Duration = Duration::from_secs(10);

/// Why no certificate can be asked for.
#[derive(Debug, thiserror::Error)]
pub enum ClientCaError {
    /// The file is not there.
    #[error("the client authorities' file {path} cannot be read: check `webhook.clientCA` of the chart's values")]
    Read {
        /// Where it is.
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Not PEM.
    #[error("the client authorities in {path} are not PEM: give CA certificates in PEM")]
    Pem {
        /// Where they are.
        path: PathBuf,
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// No certificate in it.
    #[error("{path} holds no certificate: give the CA that signs the API server's client certificate, in PEM")]
    Empty {
        /// Where it is.
        path: PathBuf,
    },
    /// One that is not X.509.
    #[error("certificate {number} of {path} cannot be a CA: give CA certificates in PEM")]
    Authority {
        /// Where it is.
        path: PathBuf,
        /// Which one, from 1.
        number: usize,
        #[source]
        source: rustls::Error,
    },
    /// They do not make a verifier.
    #[error("no certificate can be verified by the authorities in {path}")]
    Verifier {
        /// Where they are.
        path: PathBuf,
        #[source]
        source: VerifierBuilderError,
    },
}

/// Lets in whoever has a certificate that one of the authorities signed, for client authentication, and that carries one
/// of the names as its subject's common name or as a DNS name.
#[derive(Debug)]
pub struct Verifier {
    path: PathBuf,
    /// Any where empty.
    names: Vec<String>,
    algorithms: WebPkiSupportedAlgorithms,
    authorities: ArcSwap<Authorities>,
}

#[derive(Debug)]
struct Authorities {
    pem: Vec<u8>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Verifier {
    /// Reads the authorities from the PEM file at `path`.
    pub fn read(path: &Path, names: Vec<String>) -> Result<Arc<Self>, ClientCaError> {
        let authorities = ArcSwap::from_pointee(Authorities::read(path)?);
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        Ok(Arc::new(Self { path: path.to_owned(), names, algorithms, authorities }))
    }

    /// Takes over what the file says now; whether that is news.
    pub fn reload(&self) -> Result<bool, ClientCaError> {
        let read = Authorities::read(&self.path)?;
        if read.pem == self.authorities.load().pem {
            return Ok(false);
        }
        self.authorities.store(Arc::new(read));
        Ok(true)
    }

    fn allows(&self, certificate: &CertificateDer<'_>) -> bool {
        self.names.is_empty()
            || names(certificate).is_some_and(|given| given.iter().any(|name| self.names.contains(name)))
    }
}

impl Authorities {
    fn read(path: &Path) -> Result<Self, ClientCaError> {
        let path = || path.to_owned();
        let pem = std::fs::read(path()).map_err(|source| ClientCaError::Read { path: path(), source })?;
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&pem)
            .collect::<Result<_, _>>()
            .map_err(|source| ClientCaError::Pem { path: path(), source })?;
        if certificates.is_empty() {
            return Err(ClientCaError::Empty { path: path() });
        }
        let mut roots = RootCertStore::empty();
        for (index, certificate) in certificates.into_iter().enumerate() {
            roots.add(certificate).map_err(|source| ClientCaError::Authority {
                path: path(),
                number: index + 1,
                source,
            })?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|source| ClientCaError::Verifier { path: path(), source })?;
        Ok(Self { pem, verifier })
    }
}

/// The subject's common name and the DNS names of a certificate.
fn names(certificate: &CertificateDer<'_>) -> Option<Vec<String>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok().map(str::to_owned));
    let mut names: Vec<String> = common.collect();
    if let Ok(Some(extension)) = parsed.subject_alternative_name() {
        names.extend(extension.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        }));
    }
    Some(names)
}

impl ClientCertVerifier for Verifier {
    // None is hinted at: they change, and a client that is set up for us has one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.authorities.load().verifier.verify_client_cert(certificate, between, now)?;
        if self.allows(certificate) {
            Ok(verified)
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Follows the file for ever. What cannot be used leaves what was read before in force.
pub async fn keep_reloaded(verifier: Arc<Verifier>) {
    loop {
        tokio::time::sleep(LOOK).await;
        match verifier.reload() {
            Ok(false) => {}
            Ok(true) => tracing::info!("the client authorities have changed and are in force"),
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "the client authorities are left as they were");
            }
        }
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
