use super::*;
use crate::certs::reload::{Offer, Patience};
use crate::certs::rotate::{Action, Registration, perform};
use crate::certs::{Names, Serving, State as Certificates};
use axum::routing::get;
use k8s_openapi::jiff::Timestamp;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use std::time::Instant;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::{TlsConnector, client::TlsStream};

const NAME: &str = "sluice.sluice-system.svc";

fn names() -> Names {
    Names { service: "sluice".into(), namespace: "sluice-system".into() }
}

fn issue() -> Certificates {
    let nobody = Registration::Absent;
    perform(Action::IssueAnew, &Certificates::default(), &nobody, &names(), Timestamp::now()).unwrap()
}

struct Running {
    address: SocketAddr,
    serving: Arc<Serving>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

fn start(certificates: Certificates, drain: Drain) -> Running {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let serving = Serving::new(names());
    serving.offer(certificates, Timestamp::now(), Patience::Hold).unwrap();
    let router = Router::new().route("/now", get(|| async { "ok" })).route(
        "/slow",
        get(|| async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            "ok"
        }),
    );
    let listening = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (address, shutdown) = (listening.address, CancellationToken::new());
    let task = tokio::spawn(serve_tls(listening, router, serving.clone(), shutdown.clone(), drain));
    Running { address, serving, shutdown, task }
}

async fn connect(
    address: SocketAddr,
    trusted: &Certificates,
    name: &str,
    alpn: &[&str],
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.authorities.iter().map(|authority| authority.certificate.clone()));
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

async fn client(running: &Running, trusted: &Certificates) -> TlsStream<TcpStream> {
    connect(running.address, trusted, NAME, &["http/1.1"]).await.unwrap()
}

async fn ask(stream: &mut TlsStream<TcpStream>, path: &str) -> io::Result<String> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    let mut buffer = [0; 1024];
    while !answer.ends_with("\r\n\r\nok") {
        match stream.read(&mut buffer).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => answer.push_str(std::str::from_utf8(&buffer[..n]).unwrap()),
        }
    }
    Ok(answer)
}

fn peer(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

#[tokio::test]
async fn the_service_is_served_to_whoever_trusts_the_bundle_and_to_nobody_else() {
    let certificates = issue();
    let running = start(certificates.clone(), Drain::default());
    let mut stream = client(&running, &certificates).await;
    assert!(ask(&mut stream, "/now").await.unwrap().starts_with("HTTP/1.1 200"));

    assert!(connect(running.address, &certificates, "other.sluice-system.svc", &[]).await.is_err());
    assert!(connect(running.address, &issue(), NAME, &[]).await.is_err());
}

#[tokio::test]
async fn http_2_is_spoken_where_the_client_can_and_http_1_where_not() {
    let certificates = issue();
    let running = start(certificates.clone(), Drain::default());
    for (offered, chosen) in [(&["h2", "http/1.1"][..], "h2"), (&["http/1.1"][..], "http/1.1")] {
        let stream = connect(running.address, &certificates, NAME, offered).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(chosen.as_bytes()));
    }
}

#[tokio::test]
async fn after_a_swap_new_connections_get_the_new_certificate_and_open_ones_live_on() {
    let first = issue();
    let running = start(first.clone(), Drain::default());
    let mut open = client(&running, &first).await;

    let now = Timestamp::now();
    let second = perform(Action::IssueLeaf, &first, &Registration::Absent, &names(), now).unwrap();
    assert_eq!(running.serving.offer(second.clone(), now, Patience::Hold).unwrap(), Offer::Served);

    let new = client(&running, &first).await;
    assert_eq!(peer(&open), first.leaf.unwrap().chain[0]);
    assert_eq!(peer(&new), second.leaf.unwrap().chain[0]);
    assert!(ask(&mut open, "/now").await.is_ok());
}

#[tokio::test]
async fn a_certificate_that_nobody_trusts_yet_is_published_first_and_served_later() {
    let first = issue();
    let running = start(first.clone(), Drain::default());
    let mut bundle = running.serving.current_bundle();
    bundle.mark_unchanged();

    let anew = perform(Action::IssueAnew, &first, &Registration::Absent, &names(), Timestamp::now()).unwrap();
    assert_eq!(running.serving.offer(anew.clone(), Timestamp::now(), Patience::Hold).unwrap(), Offer::Held);
    assert!(bundle.has_changed().unwrap());
    assert_eq!(*bundle.borrow(), anew.bundle_pem());
    assert_eq!(peer(&client(&running, &first).await), first.leaf.as_ref().unwrap().chain[0]);

    assert_eq!(running.serving.offer(anew.clone(), Timestamp::now(), Patience::Serve).unwrap(), Offer::Served);
    assert_eq!(peer(&client(&running, &anew).await), anew.leaf.unwrap().chain[0]);
}

#[tokio::test]
async fn a_garbled_certificate_changes_nothing() {
    let first = issue();
    let running = start(first.clone(), Drain::default());
    assert!(running.serving.offer(Certificates::default(), Timestamp::now(), Patience::Hold).is_err());
    assert_eq!(*running.serving.current_bundle().borrow(), first.bundle_pem());
    client(&running, &first).await;
}

#[tokio::test]
async fn while_draining_all_are_answered_and_sent_away_and_then_the_port_is_closed() {
    let certificates = issue();
    let drain = Drain { accept: Duration::from_millis(500), finish: Duration::from_secs(5) };
    let running = start(certificates.clone(), drain);
    let (mut idle, mut busy) = (client(&running, &certificates).await, client(&running, &certificates).await);
    assert!(!ask(&mut idle, "/now").await.unwrap().contains("connection: close"));

    // It ends after the drain, within the time to finish.
    let in_flight = tokio::spawn(async move { ask(&mut busy, "/slow").await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    running.shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(50)).await;

    assert!(ask(&mut idle, "/now").await.unwrap().contains("connection: close"));
    assert!(ask(&mut idle, "/now").await.is_err(), "the connection was left open");
    let mut late = client(&running, &certificates).await;
    assert!(ask(&mut late, "/slow").await.unwrap().contains("connection: close"));
    assert!(in_flight.await.unwrap().unwrap().starts_with("HTTP/1.1 200"));

    running.task.await.unwrap().unwrap();
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_cut_off() {
    let certificates = issue();
    let drain = Drain { accept: Duration::ZERO, finish: Duration::from_millis(100) };
    let running = start(certificates.clone(), drain);
    let mut busy = client(&running, &certificates).await;
    let in_flight = tokio::spawn(async move { ask(&mut busy, "/slow").await });
    tokio::time::sleep(Duration::from_millis(50)).await;

    let told = Instant::now();
    running.shutdown.cancel();
    running.task.await.unwrap().unwrap();
    assert!(told.elapsed() < Duration::from_millis(400));
    assert!(in_flight.await.unwrap().is_err());
}

#[tokio::test]
async fn a_port_in_use_is_named_in_the_error() {
    let taken = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let error = listen(taken.address).unwrap_err().to_string();
    assert!(error.contains(&taken.address.to_string()) && error.contains("free port"), "{error}");
}

#[path = "strangers_tests.rs"]
mod strangers;
