//! Reviews sent the way that the API server sends them: HTTP/1.1 over TLS on connections that stay, one at a time on
//! each.
//!
//! The client shares the machine with the server, so it does as little as it can: the request is written as it was
//! prepared, and of the answer only what tells whether it allows.

use crate::sample::Sample;
use anyhow::{Context as _, bail, ensure};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, rustls};

const WARM_UP: Duration = Duration::from_secs(1);
const LASTING: Duration = Duration::from_secs(4);
const ALLOWED: &[u8] = b"\"allowed\":true";

/// A server of reviews.
#[derive(Clone)]
pub struct Target {
    pub address: SocketAddr,
    /// Where reviews go, the token included.
    pub path: String,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
}

/// What a load came to.
pub struct Load {
    pub per_second: f64,
    pub sample: Sample,
}

impl Target {
    /// The server at `address`, which is trusted through `authorities` (PEM) to be `name`.
    pub fn new(address: SocketAddr, path: String, name: &str, authorities: &[u8]) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(authorities) {
            roots.add(authority?)?;
        }
        let mut tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { address, path, name: ServerName::try_from(name.to_owned())?, tls: Arc::new(tls) })
    }

    /// Sends `review` over and over on each of so many connections.
    pub async fn load(&self, review: &[u8], connections: usize) -> anyhow::Result<Load> {
        let request = Arc::new(self.request(review));
        let mut open = Vec::new();
        for _ in 0..connections {
            open.push(self.connect().await?);
        }
        let from = Instant::now() + WARM_UP;
        let until = from + LASTING;
        let mut tasks = JoinSet::new();
        for mut connection in open {
            let request = request.clone();
            tasks.spawn(async move {
                let mut times = Vec::new();
                loop {
                    let began = Instant::now();
                    if began >= until {
                        return anyhow::Ok(times);
                    }
                    connection.ask(&request).await?;
                    if began >= from {
                        times.push(began.elapsed());
                    }
                }
            });
        }
        let mut times = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            times.append(&mut ended??);
        }
        Ok(Load { per_second: times.len() as f64 / LASTING.as_secs_f64(), sample: Sample::new(times) })
    }

    fn request(&self, review: &[u8]) -> Vec<u8> {
        let head = format!(
            "POST {}?timeout=30s HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: application/json\r\nContent-Length: {}\r\n\r\n",
            self.path,
            self.address,
            review.len()
        );
        [head.as_bytes(), review].concat()
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(self.address).await.with_context(|| self.address.to_string())?;
        stream.set_nodelay(true)?;
        let stream = TlsConnector::from(self.tls.clone()).connect(self.name.clone(), stream).await?;
        Ok(Connection { stream, answer: Vec::with_capacity(4096) })
    }
}

struct Connection {
    stream: TlsStream<TcpStream>,
    answer: Vec<u8>,
}

impl Connection {
    /// Sends a request and takes in its answer, which must allow.
    async fn ask(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        self.answer.clear();
        while !is_whole(&self.answer)? {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                bail!("the server closed the connection after {:?}", String::from_utf8_lossy(&self.answer));
            }
        }
        let allows = self.answer.windows(ALLOWED.len()).any(|part| part == ALLOWED);
        ensure!(allows, "the review was not allowed: {}", String::from_utf8_lossy(&self.answer));
        Ok(())
    }
}

/// Whether an answer's head and as much of its body as that says are there.
fn is_whole(answer: &[u8]) -> anyhow::Result<bool> {
    let Some(head) = answer.windows(4).position(|part| part == b"\r\n\r\n") else { return Ok(false) };
    let head_text = std::str::from_utf8(&answer[..head])?.to_ascii_lowercase();
    let length = head_text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.with_context(|| format!("an answer without a length: {head_text}"))?.trim().parse()?;
    Ok(answer.len() >= head + 4 + length)
}
