//! The servers around routers: who may wait how long, how much of them may be unread, and how the TLS server stops
//! without failing anybody.
//!
//! It knows nothing of what the router answers, nor where the certificate comes from.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum_server::accept::{TcpConfigAcceptor, TcpKeepaliveConfig, TcpSocketConfig};
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{Handle, Server};
use http::{HeaderValue, Version, header};
use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use tokio_util::sync::CancellationToken;

use super::guests::{Bounds, Gate, Guests};

/// What the webhooks' port bears of whoever has not shown that it knows the token.
///
/// A connection that says nothing costs no more than its place, and the API server may have made one that it has no
/// use for yet: it closes such a one after 90 s itself, and whoever closes first decides whether a request can be lost.
pub const WEBHOOK_BOUNDS: Bounds = Bounds {
    strangers: 256,
    known: 1024,
    // More than the 90 s for which the API server keeps a connection that it does not use.
    vouched: Duration::from_secs(120),
    handshake: Duration::from_secs(10),
    silent: Duration::from_secs(100),
    speaking: Duration::from_secs(10),
};
/// What the probes' port bears, where everybody is a stranger: a kubelet and a scraper or two need a connection each.
pub const PROBE_BOUNDS: Bounds = Bounds {
    strangers: 64,
    known: 0,
    vouched: Duration::ZERO,
    handshake: Duration::from_secs(10),
    silent: Duration::from_secs(10),
    speaking: Duration::from_secs(30),
};
/// Also bounds how long a connection may be idle, so it must be more than the API server's own 90 s: whoever closes
/// first decides whether a request can be lost in the crossing.
const HEADERS: Duration = Duration::from_secs(120);
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_ANSWER: Duration = Duration::from_secs(20);
/// How long the probes' port waits for a request's headers, and keeps an idle connection.
const PROBE_HEADERS: Duration = Duration::from_secs(10);
/// What is read ahead of a connection, and so the longest headers. The API server's are under 1 KiB.
const BUFFER: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
const STREAMS: u32 = 128;
/// What an HTTP/2 caller may send ahead of what is read, on all its streams.
const WINDOW: u32 = 128 * 1024;

/// How to stop.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    /// For how long new connections and requests are still answered after the word to stop: the API server keeps its
    /// connections to a terminating pod, and other nodes learn late that it is gone.
    pub accept: Duration,
    /// For how long after that requests in flight may finish.
    pub finish: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self { accept: Duration::from_secs(10), finish: Duration::from_secs(30) }
    }
}

/// Why the server ended, or never began.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is not free, or not ours.
    #[error("cannot listen on {address}: choose a free port of this host")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// The cryptography does not support the protocol versions.
    #[error("cannot set up TLS 1.2 and 1.3")]
    Tls(#[source] rustls::Error),
    /// The server broke.
    #[error("the server on {address} failed")]
    Serve {
        /// Where it listened.
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// A bound address, not yet served, so that whoever starts us can know the port first.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    /// The address, with the port that was given.
    pub address: SocketAddr,
}

/// Binds `address`.
pub fn listen(address: SocketAddr) -> Result<Listening, ServeError> {
    let failed = |source| ServeError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Listening { listener, address })
}

/// What is shown to whoever connects, and what is asked of them.
#[derive(Clone, Debug)]
pub struct Identities {
    /// Our own certificate.
    pub own: Arc<dyn ResolvesServerCert>,
    /// Who is let in by a certificate of theirs; everybody where there is none.
    pub clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl<R: ResolvesServerCert + 'static> From<Arc<R>> for Identities {
    fn from(own: Arc<R>) -> Self {
        Self { own, clients: None }
    }
}

/// Serves `router` until `shutdown` and the drain after it.
///
/// While draining, each HTTP/1.1 answer tells the client to leave its connection, so that its next request goes to
/// another replica; HTTP/2 clients are told at the end of it.
pub async fn serve_tls(
    listening: Listening,
    router: Router,
    identities: impl Into<Identities>,
    shutdown: CancellationToken,
    drain: Drain,
) -> Result<(), ServeError> {
    let guests = Guests::new(WEBHOOK_BOUNDS);
    serve_guests(listening, router, tls(identities.into())?, guests, shutdown, drain).await
}

async fn serve_guests(
    listening: Listening,
    router: Router,
    config: ServerConfig,
    guests: Arc<Guests>,
    shutdown: CancellationToken,
    drain: Drain,
) -> Result<(), ServeError> {
    let Listening { listener, address } = listening;
    let failed = |source| ServeError::Serve { address, source };
    let handle = Handle::new();
    let mut server = axum_server::from_tcp(listener)
        .map_err(failed)?
        .acceptor(Gate::new(acceptor(config), guests))
        .handle(handle.clone())
        .accept_error_handler(|peer, error| tracing::debug!(?peer, %error, "connection refused"));
    limit(&mut server);
    let router = router.layer(middleware::from_fn_with_state(shutdown.clone(), send_away));
    let stop = async {
        shutdown.cancelled().await;
        tracing::info!(accept = ?drain.accept, finish = ?drain.finish, "draining");
        tokio::time::sleep(drain.accept).await;
        handle.graceful_shutdown(Some(drain.finish));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = server.serve(router.into_make_service()) => served.map_err(failed),
        () = stop => Ok(()),
    }
}

/// Answers everybody over plain HTTP/1.1, until the future is dropped.
pub async fn serve_probes(listening: Listening, router: Router, guests: Arc<Guests>) -> Result<(), ServeError> {
    let Listening { listener, address } = listening;
    let failed = |source| ServeError::Serve { address, source };
    let socket = TcpConfigAcceptor::new(TcpSocketConfig::new().nodelay(true));
    let server = axum_server::from_tcp(listener).map_err(failed)?.acceptor(Gate::new(socket, guests));
    let mut server = server.http1_only();
    let mut http = server.http_builder().http1();
    http.header_read_timeout(PROBE_HEADERS).max_headers(MOST_HEADERS).max_buf_size(BUFFER);
    server.serve(router.into_make_service()).await.map_err(failed)
}

type TlsAcceptor = RustlsAcceptor<TcpConfigAcceptor>;

fn acceptor(config: ServerConfig) -> TlsAcceptor {
    let keepalive = TcpKeepaliveConfig::new().time(PROBE_AFTER).interval(PROBE_ANSWER).retries(3);
    let socket = TcpSocketConfig::new().nodelay(true).keepalive(keepalive);
    RustlsAcceptor::new(RustlsConfig::from_config(Arc::new(config)))
        .handshake_timeout(WEBHOOK_BOUNDS.handshake)
        .acceptor(TcpConfigAcceptor::new(socket))
}

fn tls(identities: Identities) -> Result<ServerConfig, ServeError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(ServeError::Tls)?;
    let mut config = match identities.clients {
        Some(clients) => {
            let mut config = builder.with_client_cert_verifier(clients).with_cert_resolver(identities.own);
            // A session that is gone on with would not be asked again, also when the authorities have changed.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            config
        }
        None => builder.with_no_client_auth().with_cert_resolver(identities.own),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn limit<A>(server: &mut Server<SocketAddr, A>) {
    let builder = server.http_builder();
    builder.http1().header_read_timeout(HEADERS).max_headers(MOST_HEADERS).max_buf_size(BUFFER);
    builder
        .http2()
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(BUFFER as u32)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(BUFFER)
        .keep_alive_interval(PROBE_AFTER)
        .keep_alive_timeout(PROBE_ANSWER);
}

async fn send_away(State(shutdown): State<CancellationToken>, request: Request, next: Next) -> Response {
    let version = request.version();
    let mut response = next.run(request).await;
    if shutdown.is_cancelled() && version <= Version::HTTP_11 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
