//! What the Secret says, read leniently: whatever is missing or garbled is absent, so that the rest can be kept.
//!
//! Pure: bytes in, certificates out, and back. It can tell which authority covers the leaf, but not what to do.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::{ByteString, jiff::Timestamp};
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::issue::{Names, since_epoch};

/// The Secret's key of the leaf and its chain.
pub const TLS_CRT: &str = "tls.crt";
/// The Secret's key of the leaf's private key.
pub const TLS_KEY: &str = "tls.key";
/// The Secret's key of all authorities that are trusted.
pub const CA_CRT: &str = "ca.crt";
/// The Secret's key of the private key of the newest authority.
pub const CA_KEY: &str = "ca.key";

/// Why a certificate or its key could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not PEM, or not the right kind of it.
    #[error("`{key}` is not PEM: give it in PEM")]
    Pem {
        /// The key of the Secret.
        key: &'static str,
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// No certificate there.
    #[error("`{key}` holds no certificate: give at least one, in PEM")]
    Empty {
        /// The key of the Secret.
        key: &'static str,
    },
    /// Not a certificate.
    #[error("not an X.509 certificate")]
    Certificate(#[source] x509_parser::nom::Err<x509_parser::error::X509Error>),
    /// A date outside of what we can count.
    #[error("the certificate's validity is out of range")]
    Validity(#[source] k8s_openapi::jiff::Error),
    /// Certificate and key are not a pair, or of a kind that rustls does not serve.
    #[error("`tls.crt` and `tls.key` cannot be served together: check that they belong to each other")]
    Pair(#[source] rustls::Error),
}

/// The certificate of one trusted authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Valid from.
    pub not_before: Timestamp,
    /// Valid until.
    pub not_after: Timestamp,
    public_key: Vec<u8>,
}

impl Authority {
    /// Reads the certificate.
    pub fn read(certificate: CertificateDer<'static>) -> Result<Self, ReadError> {
        let (not_before, not_after, public_key) = facts(&certificate)?;
        Ok(Self { certificate, not_before, not_after, public_key })
    }

    /// Whether `now` is within its validity.
    pub fn valid_at(&self, now: Timestamp) -> bool {
        self.not_before <= now && now <= self.not_after
    }
}

/// A serving certificate with its private key.
#[derive(Clone)]
pub struct Leaf {
    /// The certificate first, then what leads from it to an authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// Valid from.
    pub not_before: Timestamp,
    /// Valid until.
    pub not_after: Timestamp,
    /// As the TLS server wants it.
    pub certified: Arc<CertifiedKey>,
    key_pem: Arc<str>,
}

// Without the key: what can be printed ends in a log.
impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaf")
            .field("not_before", &self.not_before)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl PartialEq for Leaf {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain
    }
}

impl Leaf {
    /// Reads certificate and key, and checks that they are a pair.
    pub fn new(chain: Vec<CertificateDer<'static>>, key_pem: String) -> Result<Self, ReadError> {
        let first = chain.first().ok_or(ReadError::Empty { key: TLS_CRT })?;
        let (not_before, not_after, _) = facts(first)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
            .map_err(|source| ReadError::Pem { key: TLS_KEY, source })?;
        let provider = rustls::crypto::ring::default_provider();
        let certified = CertifiedKey::from_der(chain.clone(), key, &provider).map_err(ReadError::Pair)?;
        Ok(Self { chain, not_before, not_after, certified: Arc::new(certified), key_pem: key_pem.into() })
    }

    /// Whether a client that trusts only `authorities`, and asks for `server_name`, accepts this leaf at `now`.
    pub fn covered_by<'a>(
        &self,
        authorities: impl IntoIterator<Item = &'a CertificateDer<'static>>,
        server_name: &str,
        now: Timestamp,
    ) -> bool {
        let mut roots = RootCertStore::empty();
        // The library does not look at an authority's own dates, but the API server does.
        let valid =
            authorities.into_iter().filter(|der| facts(der).is_ok_and(|(from, until, _)| from <= now && now <= until));
        roots.add_parsable_certificates(valid.cloned());
        let Ok(name) = ServerName::try_from(server_name) else { return false };
        let Some((first, between)) = self.chain.split_first() else { return false };
        let Ok(parsed) = ParsedCertificate::try_from(first) else { return false };
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
        let time = UnixTime::since_unix_epoch(since_epoch(now));
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, between, time, algorithms).is_ok()
            && verify_server_name(&parsed, &name).is_ok()
    }
}

/// What the Secret holds, as far as it can be read.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// All trusted authorities, the newest last.
    pub authorities: Vec<Authority>,
    /// The serving certificate.
    pub leaf: Option<Leaf>,
    /// The private key of the authority that signs from now on. Absent where the certificate is not our own.
    pub signing_key: Option<Arc<KeyPair>>,
}

impl State {
    /// Reads a Secret's data.
    pub fn read(data: &BTreeMap<String, ByteString>) -> Self {
        Self {
            authorities: read_authorities(data).unwrap_or_default(),
            leaf: read_leaf(data).ok(),
            signing_key: text(data, CA_KEY).and_then(|pem| KeyPair::from_pem(&pem).ok()).map(Arc::new),
        }
    }

    /// The Secret's data for this.
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        let leaf = self.leaf.as_ref();
        let entries = [
            (TLS_CRT, leaf.map_or_else(String::new, |leaf| certificates_pem(&leaf.chain))),
            (TLS_KEY, leaf.map_or_else(String::new, |leaf| leaf.key_pem.to_string())),
            (CA_CRT, self.bundle_pem()),
            (CA_KEY, self.signing_key.as_ref().map_or_else(String::new, |key| key.serialize_pem())),
        ];
        entries.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))).collect()
    }

    /// All trusted authorities in PEM: what webhook configurations must carry.
    pub fn bundle_pem(&self) -> String {
        certificates_pem(self.authorities.iter().map(|authority| &authority.certificate))
    }

    /// The authority whose private key we hold.
    pub fn signer(&self) -> Option<(&Authority, &KeyPair)> {
        let key = self.signing_key.as_deref()?;
        let authority = self.authorities.iter().find(|authority| authority.public_key == key.der_bytes())?;
        Some((authority, key))
    }

    /// The authority that the leaf stands on at `now`; none if the API server would refuse the leaf.
    pub fn leaf_issuer(&self, names: &Names, now: Timestamp) -> Option<&Authority> {
        let leaf = self.leaf.as_ref()?;
        let name = names.server_name();
        self.authorities.iter().rev().find(|authority| leaf.covered_by([&authority.certificate], &name, now))
    }

    /// Whether `certificate` is one of the trusted authorities.
    pub fn trusts(&self, certificate: &CertificateDer<'_>) -> bool {
        self.authorities.iter().any(|authority| authority.certificate == *certificate)
    }
}

/// The certificates of a bundle in PEM; none if any of it is garbled.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ReadError> {
    certificates_of(CA_CRT, pem)
}

fn certificates_of(key: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ReadError> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|source| ReadError::Pem { key, source })
}

fn read_authorities(data: &BTreeMap<String, ByteString>) -> Result<Vec<Authority>, ReadError> {
    let bundle = data.get(CA_CRT).map_or(&[][..], |value| &value.0);
    certificates(bundle)?.into_iter().map(Authority::read).collect()
}

fn read_leaf(data: &BTreeMap<String, ByteString>) -> Result<Leaf, ReadError> {
    let chain = certificates_of(TLS_CRT, data.get(TLS_CRT).map_or(&[][..], |value| &value.0))?;
    Leaf::new(chain, text(data, TLS_KEY).unwrap_or_default())
}

fn text(data: &BTreeMap<String, ByteString>, key: &str) -> Option<String> {
    String::from_utf8(data.get(key)?.0.clone()).ok()
}

/// Validity and public key of a certificate.
fn facts(certificate: &CertificateDer<'_>) -> Result<(Timestamp, Timestamp, Vec<u8>), ReadError> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(ReadError::Certificate)?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).map_err(ReadError::Validity);
    let validity = parsed.validity();
    let key = parsed.public_key().subject_public_key.data.to_vec();
    Ok((at(validity.not_before)?, at(validity.not_after)?, key))
}

fn certificates_pem<'a>(certificates: impl IntoIterator<Item = &'a CertificateDer<'static>>) -> String {
    certificates.into_iter().map(|der| pem("CERTIFICATE", der)).collect()
}

fn pem(label: &str, der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let mut lines = String::new();
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        lines.push_str(line);
        lines.push('\n');
        rest = after;
    }
    format!("-----BEGIN {label}-----\n{lines}-----END {label}-----\n")
}
