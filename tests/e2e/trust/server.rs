//! What strangers and large requests cost the servers.

use crate::cluster::{SLUICE, Space, apply, get, kubectl_file};
use crate::raw::Proxy;
use crate::server::{self, resident};
use base64::Engine as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A sandbox of so many `<`, each of which the API server escapes to six bytes for its webhooks. It is asked about by both
/// of them since it has a fork.
fn escaped(space: &Space, name: &str, length: usize) -> String {
    json!({
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": name, "namespace": space.namespace},
        "spec": {"description": "<".repeat(length), "forks": [{"forkOf": {"kind": "Deployment", "name": "web"}}]},
    })
    .to_string()
}

/// That nothing of where Sluice's webhooks are, and so nothing of their token, was shown.
#[track_caller]
fn shows_no_url(said: &str) {
    for word in ["/validate/", "/mutate/", "https://", ".svc:"] {
        assert!(!said.contains(word), "{word} is shown: {said:.2000}");
    }
}

#[test]
fn t02_a_dry_run_of_the_largest_object_shows_no_url_to_its_author() {
    let space = Space::new("large");
    let proxy = Proxy::start();
    let path = format!("/apis/sluice.dev/v1alpha1/namespaces/{}/sandboxes?dryRun=All", space.namespace);
    for length in [500_000, 1_400_000, 2_000_000, 2_900_000, 3_100_000] {
        let body = escaped(&space, "x", length);
        let answer = proxy.send("POST", &path, "application/json", &body);
        shows_no_url(&answer.body.to_string());
        assert!([413, 422].contains(&answer.code), "{length}: {} {}", answer.code, answer.body);
    }
    let said = kubectl_file(&["create", "--dry-run=server"], &escaped(&space, "x", 400_000)).refused();
    shows_no_url(&said.stderr);
    assert!(said.stderr.contains("spec.description"), "{:.2000}", said.stderr);
}

#[test]
fn t05_many_large_dry_runs_are_all_answered_and_nobody_else_waits() {
    let space = Space::alone("large");
    let proxy = Proxy::start();
    let pods = server::names();
    let before: Vec<u64> = pods.iter().map(|pod| resident(pod)).collect();
    let path = format!("/apis/sluice.dev/v1alpha1/namespaces/{}/sandboxes?dryRun=All", space.namespace);
    let slowest = std::thread::scope(|scope| {
        let attackers: Vec<_> = (0..4)
            .map(|at| {
                let (proxy, path, body) = (&proxy, &path, escaped(&space, &format!("x-{at}"), 2_900_000));
                scope.spawn(move || proxy.send("POST", path, "application/json", &body))
            })
            .collect();
        let mut slowest = Duration::ZERO;
        for at in 0..10 {
            let small = apply(&space.sandbox(&format!("small-{at}"), "  description: small")).ok();
            slowest = slowest.max(small.took);
        }
        for attacker in attackers {
            let answer = attacker.join().unwrap();
            shows_no_url(&answer.body.to_string());
            assert!([413, 422, 429].contains(&answer.code), "{} {}", answer.code, answer.body);
        }
        slowest
    });
    assert!(slowest < Duration::from_secs(20), "a small sandbox took {slowest:?}");
    for (pod, before) in pods.iter().zip(before) {
        let grown = resident(pod).saturating_sub(before);
        assert!(grown < 120, "{pod} has {grown} MiB more than before");
    }
}

#[test]
fn t04_connections_with_unfinished_headers_cost_little_and_are_closed() {
    let space = Space::alone("strangers");
    let pod = server::leader();
    let address = get(&["-n", SLUICE, "pod", &pod]).unwrap()["status"]["podIP"].as_str().unwrap().to_owned();
    let of_port = |port: u16| -> SocketAddr { format!("{address}:{port}").parse().unwrap() };
    let before = resident(&pod);
    let headers = format!("GET / HTTP/1.1\r\nX-Long: {}", "x".repeat(100_000));
    let config = trusting_sluice();
    let mut waiting: Vec<TcpStream> = Vec::new();
    for _ in 0..300 {
        let stream = TcpStream::connect(of_port(8443)).unwrap();
        let name = ServerName::try_from(format!("sluice.{SLUICE}.svc")).unwrap();
        let mut tls = StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream);
        // Refused as too long, or closed since others came: either is well.
        let _ = tls.write_all(headers.as_bytes()).and_then(|()| tls.flush());
        waiting.push(tls.sock);
        let mut plain = TcpStream::connect(of_port(8080)).unwrap();
        let _ = plain.write_all(headers.as_bytes());
        waiting.push(plain);
    }
    let grown = resident(&pod).saturating_sub(before);
    assert!(grown < 40, "{pod} has {grown} MiB more than before");
    apply(&space.sandbox("x", "  description: small")).ok();

    let closed_by = Instant::now() + Duration::from_secs(40);
    for stream in &mut waiting {
        let left = closed_by.saturating_duration_since(Instant::now()).max(Duration::from_millis(10));
        stream.set_read_timeout(Some(left)).unwrap();
        let mut rest = [0; 4096];
        loop {
            match stream.read(&mut rest) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    let open = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
                    assert!(!open.contains(&error.kind()), "a connection is still open");
                    break;
                }
            }
        }
    }
}

fn trusting_sluice() -> Arc<ClientConfig> {
    let secret = get(&["-n", SLUICE, "secret", "sluice-tls"]).unwrap();
    let pem = base64::engine::general_purpose::STANDARD.decode(secret["data"]["ca.crt"].as_str().unwrap()).unwrap();
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&pem) {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}
