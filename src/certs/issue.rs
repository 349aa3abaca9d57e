//! Makes certificates: an authority that signs only, and leaves for the webhook's Service.
//!
//! Pure but for the random keys and serial numbers: the time is given. It knows nothing of where certificates are
//! kept or when they are due; that is [`super::rotate`]'s.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SerialNumber, date_time_ymd,
};
use rustls_pki_types::CertificateDer;

use super::state::{Authority, Leaf, ReadError};

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long an authority is valid.
pub const AUTHORITY_LIFETIME: Duration = Duration::from_secs(365 * DAY.as_secs());
/// How long a leaf is valid; never longer than the authority that signed it.
pub const LEAF_LIFETIME: Duration = Duration::from_secs(90 * DAY.as_secs());
/// Certificates are valid from this long before they are issued, for API servers whose clock is behind.
pub const BACKDATED: Duration = HOUR;

/// Why a certificate could not be issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The library refused the parameters or could not sign.
    #[error("cannot issue a certificate for {subject}: check that service and namespace are valid DNS labels")]
    Sign {
        /// Whom the certificate was for.
        subject: String,
        #[source]
        source: rcgen::Error,
    },
    /// What was issued cannot be read back.
    #[error("the certificate just issued for {subject} cannot be read back")]
    ReadBack {
        /// Whom the certificate was for.
        subject: String,
        #[source]
        source: ReadError,
    },
    /// There is no authority whose private key we hold.
    #[error("`ca.key` belongs to none of the certificates in `ca.crt`: delete both keys to have them issued anew")]
    NoSigner,
}

/// The Service that the certificate is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The Service's name.
    pub service: String,
    /// Its namespace, which is ours.
    pub namespace: String,
}

impl Names {
    /// The names that a leaf is valid for.
    pub fn dns(&self) -> [String; 4] {
        let Self { service, namespace } = self;
        [
            service.clone(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
        ]
    }

    /// The one name that the API server asks for.
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }
}

/// A new authority and its private key.
pub fn authority(now: Timestamp) -> Result<(Authority, KeyPair), IssueError> {
    let serial = serial();
    // A name of its own, so that a verifier that holds old and new authority never tries the wrong one.
    let subject = format!("sluice webhook CA {}", hex(&serial[..4]));
    let sign = |source| IssueError::Sign { subject: subject.clone(), source };
    let mut params = params(&subject, &serial, now, now + AUTHORITY_LIFETIME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(sign)?;
    let certificate = params.self_signed(&key).map_err(sign)?;
    let authority = Authority::read(certificate.der().clone())
        .map_err(|source| IssueError::ReadBack { subject: subject.clone(), source })?;
    Ok((authority, key))
}

/// A new leaf for `names`, signed by `authority`.
pub fn leaf(names: &Names, authority: &Authority, key: &KeyPair, now: Timestamp) -> Result<Leaf, IssueError> {
    let subject = names.server_name();
    let sign = |source| IssueError::Sign { subject: subject.clone(), source };
    let until = (now + LEAF_LIFETIME).min(authority.not_after);
    let mut params = params("sluice webhook", &serial(), now, until);
    params.subject_alt_names = CertificateParams::new(names.dns().to_vec()).map_err(sign)?.subject_alt_names;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let issuer = Issuer::from_ca_cert_der(&authority.certificate, key).map_err(sign)?;
    let leaf_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(sign)?;
    let certificate = params.signed_by(&leaf_key, &issuer).map_err(sign)?;
    let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
    Leaf::new(chain, leaf_key.serialize_pem())
        .map_err(|source| IssueError::ReadBack { subject: subject.clone(), source })
}

fn params(common_name: &str, serial: &[u8; 16], now: Timestamp, until: Timestamp) -> CertificateParams {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.serial_number = Some(SerialNumber::from_slice(serial));
    params.not_before = date_time_ymd(1970, 1, 1) + since_epoch(now - BACKDATED);
    params.not_after = date_time_ymd(1970, 1, 1) + since_epoch(until);
    params
}

/// Positive, not zero, and of at most 20 bytes, as RFC 5280 has it.
fn serial() -> [u8; 16] {
    let mut serial: [u8; 16] = rand::random();
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}

/// The time since 1970, which is where every clock of ours begins.
pub(super) fn since_epoch(time: Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

    fn names() -> Names {
        Names { service: "sluice".into(), namespace: "sluice-system".into() }
    }

    fn now() -> Timestamp {
        "2026-11-30T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn an_authority_signs_certificates_and_nothing_else() {
        let (authority, _) = authority(now()).unwrap();
        let (_, cert) = X509Certificate::from_der(&authority.certificate).unwrap();
        assert!(cert.is_ca());
        let usage = cert.key_usage().unwrap().unwrap();
        assert!(usage.critical && usage.value.key_cert_sign() && !usage.value.digital_signature());
        assert_eq!(cert.basic_constraints().unwrap().unwrap().value.path_len_constraint, Some(0));
        assert_eq!(authority.not_after, now() + AUTHORITY_LIFETIME);
        assert_eq!(authority.not_before, now() - BACKDATED);
    }

    #[test]
    fn a_leaf_is_for_the_four_names_of_the_service_and_for_servers_only() {
        let (authority, key) = authority(now()).unwrap();
        let leaf = leaf(&names(), &authority, &key, now()).unwrap();
        let (_, cert) = X509Certificate::from_der(&leaf.chain[0]).unwrap();
        let alt = cert.subject_alternative_name().unwrap().unwrap();
        let dns: Vec<&str> = alt
            .value
            .general_names
            .iter()
            .map(|name| match name {
                GeneralName::DNSName(dns) => *dns,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            dns,
            ["sluice", "sluice.sluice-system", "sluice.sluice-system.svc", "sluice.sluice-system.svc.cluster.local"]
        );
        assert!(!cert.is_ca());
        let usage = cert.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && !usage.client_auth);
        assert_eq!(leaf.not_after, now() + LEAF_LIFETIME);
        assert_eq!(leaf.not_before, now() - BACKDATED);
    }

    #[test]
    fn a_leaf_ends_no_later_than_its_authority() {
        let (authority, key) = authority(now()).unwrap();
        let late = authority.not_after - DAY;
        assert_eq!(leaf(&names(), &authority, &key, late).unwrap().not_after, authority.not_after);
    }

    #[test]
    fn serial_numbers_and_authority_names_are_never_the_same() {
        let (a, _) = authority(now()).unwrap();
        let (b, _) = authority(now()).unwrap();
        let (_, a) = X509Certificate::from_der(&a.certificate).unwrap();
        let (_, b) = X509Certificate::from_der(&b.certificate).unwrap();
        assert_ne!(a.raw_serial(), b.raw_serial());
        assert_ne!(a.subject().to_string(), b.subject().to_string());
    }
}
