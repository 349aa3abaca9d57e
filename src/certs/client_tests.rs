//! Who is let in by a certificate, by handshakes in memory.

use super::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use rustls_pki_types::{PrivateKeyDer, ServerName};

struct Ca {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    Ca { certificate, issuer: Issuer::new(params, key) }
}

type Identity = (CertificateDer<'static>, PrivateKeyDer<'static>);

fn identity(ca: &Ca, common: &str, dns: &str, usage: ExtendedKeyUsagePurpose) -> Identity {
    let mut params = CertificateParams::new([dns.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, common);
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &ca.issuer).unwrap();
    (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
}

fn client(ca: &Ca, common: &str, dns: &str) -> Identity {
    identity(ca, common, dns, ExtendedKeyUsagePurpose::ClientAuth)
}

/// Whether a server with this verifier ends the handshake well with who presents that.
fn lets_in(verifier: &Arc<Verifier>, presented: Option<&Identity>) -> bool {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let own = ca("server");
    let (leaf, key) = identity(&own, "server", "sluice", ExtendedKeyUsagePurpose::ServerAuth);
    let server = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let server = server.with_client_cert_verifier(verifier.clone()).with_single_cert(vec![leaf], key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(own.certificate.der().clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let client = match presented {
        Some((leaf, key)) => builder.with_client_auth_cert(vec![leaf.clone()], key.clone_key()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), ServerName::try_from("sluice").unwrap()).unwrap();
    while server.is_handshaking() {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        client.write_tls(&mut there).unwrap();
        server.read_tls(&mut &there[..]).unwrap();
        if server.process_new_packets().is_err() {
            return false;
        }
        server.write_tls(&mut back).unwrap();
        client.read_tls(&mut &back[..]).unwrap();
        client.process_new_packets().unwrap();
    }
    true
}

fn file(content: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

#[test]
fn t02_only_a_certificate_of_the_authority_that_carries_an_allowed_name_is_let_in() {
    let (right, wrong) = (ca("right"), ca("wrong"));
    let file = file(&right.certificate.pem());
    let any = Verifier::read(file.path(), Vec::new()).unwrap();
    let apiserver = client(&right, "kube-apiserver", "api.example");
    assert!(lets_in(&any, Some(&apiserver)));
    assert!(!lets_in(&any, None), "without a certificate");
    assert!(!lets_in(&any, Some(&client(&wrong, "kube-apiserver", "api.example"))), "signed by another");
    let serving = identity(&right, "kube-apiserver", "api.example", ExtendedKeyUsagePurpose::ServerAuth);
    assert!(!lets_in(&any, Some(&serving)), "not for clients");

    for allowed in ["kube-apiserver", "api.example"] {
        let named = Verifier::read(file.path(), vec!["another".into(), allowed.into()]).unwrap();
        assert!(lets_in(&named, Some(&apiserver)), "{allowed}");
        assert!(!lets_in(&named, Some(&client(&right, "kubelet", "node.example"))), "{allowed}");
    }
}

#[test]
fn authorities_are_replaced_when_the_file_changes_and_kept_when_it_is_broken() {
    let (old, new) = (ca("old"), ca("new"));
    let file = file(&old.certificate.pem());
    let verifier = Verifier::read(file.path(), Vec::new()).unwrap();
    assert!(!verifier.reload().unwrap());
    std::fs::write(file.path(), "broken").unwrap();
    assert!(verifier.reload().is_err());
    assert!(lets_in(&verifier, Some(&client(&old, "a", "b"))));
    std::fs::write(file.path(), new.certificate.pem()).unwrap();
    assert!(verifier.reload().unwrap());
    assert!(lets_in(&verifier, Some(&client(&new, "a", "b"))));
    assert!(!lets_in(&verifier, Some(&client(&old, "a", "b"))));
}

#[test]
fn a_file_that_is_missing_empty_or_no_pem_is_named_with_what_would_be_right() {
    let missing = Verifier::read(Path::new("/none/ca.crt"), Vec::new()).unwrap_err();
    assert!(missing.to_string().contains("/none/ca.crt cannot be read"), "{missing}");
    let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    let no_authority = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let cases = [
        ("", "holds no certificate"),
        ("text", "holds no certificate"),
        (broken, "not PEM"),
        (no_authority, "certificate 1"),
    ];
    for (content, says) in cases {
        let error = Verifier::read(file(content).path(), Vec::new()).unwrap_err();
        assert!(error.to_string().contains(says), "{content:?}: {error}");
    }
}
