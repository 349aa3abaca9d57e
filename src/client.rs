//! The client of the API server: kube's own, on connections that send small messages at once.
//!
//! A step's command leaves as several small writes. Nagle's algorithm keeps the second until the first is acknowledged,
//! which the other side puts off for up to 40 ms (RFC 1122, 4.2.3.2): as long again as the step takes.
//!
//! Lists come in [pages] of bounded size.

pub mod lists;
pub mod pages;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Builder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use pages::Pages;
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

/// A client for the API server that `config` names. Through a proxy its connections are kube's own.
///
/// # Errors
/// What of the configuration cannot be used: a certificate, a token, a proxy.
pub fn connect(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        return Ok(ClientBuilder::try_from(config)?.with_layer(&Pages::default()).build());
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Builder::new(TokioExecutor::new()).build::<_, Body>(connector));
    Ok(ClientBuilder::new(service, config.default_namespace).with_layer(&Pages::default()).build())
}
