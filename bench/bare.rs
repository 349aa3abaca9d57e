//! A server that does as little as one of reviews can: it parses the review and allows it. What is lost against it is
//! Sluice's own.

use crate::load::Target;
use anyhow::Context as _;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Json, Response};
use axum::routing::post;
use axum_server::accept::{TcpConfigAcceptor, TcpSocketConfig};
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// The argument that makes this program be the server.
pub const ARGUMENT: &str = "bare-server";
const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 18_444);
const NAME: &str = "bare.test";

/// The server, for as long as it is not dropped.
pub struct Bare {
    _process: Child,
    pub target: Target,
}

impl Bare {
    /// Starts it as a process of its own, as Sluice's is.
    pub async fn start() -> anyhow::Result<Self> {
        let issued = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
        let certificate = issued.cert.pem();
        let address = SocketAddr::from(ADDRESS);
        let mut process = Command::new(std::env::current_exe()?)
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("the bare server")?;
        let mut input = process.stdin.take().context("the bare server's input")?;
        input.write_all(format!("{certificate}{}", issued.signing_key.serialize_pem()).as_bytes()).await?;
        drop(input);
        for _ in 0..100 {
            if TcpStream::connect(address).await.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let target = Target::new(address, "/validate".to_owned(), NAME, certificate.as_bytes())?;
        Ok(Self { _process: process, target })
    }
}

/// Is the server, with the certificate and key of standard input.
pub async fn serve() -> anyhow::Result<()> {
    let given = std::io::read_to_string(std::io::stdin())?;
    let certificates = CertificateDer::pem_slice_iter(given.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(given.as_bytes())?;
    let mut tls = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let socket = TcpConfigAcceptor::new(TcpSocketConfig::new().nodelay(true));
    let acceptor = RustlsAcceptor::new(RustlsConfig::from_config(Arc::new(tls))).acceptor(socket);
    let router = axum::Router::new().route("/validate", post(validate)).layer(DefaultBodyLimit::max(8 * 1024 * 1024));
    axum_server::bind(SocketAddr::from(ADDRESS)).acceptor(acceptor).serve(router.into_make_service()).await?;
    Ok(())
}

async fn validate(body: Bytes) -> Response {
    match serde_json::from_slice::<Value>(&body) {
        Ok(review) => Json(json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], "allowed": true},
        }))
        .into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}
