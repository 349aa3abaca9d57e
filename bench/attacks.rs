//! What somebody does who wants others to wait or Sluice to end. Each goes on until its time is over.

use crate::pods::Replica;
use crate::server::NAMESPACE;
use anyhow::Context as _;
use futures::future::join_all;
use http::Request;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames,
};
use kube::{Api, Client, CustomResourceExt as _};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use sluice::api::{API_VERSION, Sandbox};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

pub const ATTACKER: &str = "bench-hostile";
pub const WAITS: &str = "bench-hostile-waits";
pub const SHOUTS: &str = "bench-hostile-shouts";
const CONNECTIONS: usize = 1000;
const DRY_RUNS: usize = 32;
const FORKS: usize = 8;
const SHOUTERS: usize = 4;
/// The group of a kind that is none of Sluice's.
const OTHERS_GROUP: &str = "bench.example.com";
/// As many runs as are worked on at once.
const WAITING: usize = 64;
const WEBHOOK_PORT: u16 = 8443;
const PROBE_PORT: u16 = 8080;
/// Before a connection that was lost is made again.
const PAUSE: Duration = Duration::from_secs(1);

/// How often each answer came.
pub type Answers = BTreeMap<String, usize>;

/// So many connections with unfinished headers on one port of each replica, made again where they are closed.
pub async fn unfinished_headers(
    replicas: &[Replica],
    tls: Option<(TlsConnector, ServerName<'static>)>,
    until: Instant,
) -> Answers {
    let port = if tls.is_some() { WEBHOOK_PORT } else { PROBE_PORT };
    let each = replicas.iter().flat_map(|replica| {
        (0..CONNECTIONS).map(|_| {
            let (address, tls) = (SocketAddr::from((replica.address, port)), tls.clone());
            tokio::spawn(async move {
                let mut closed = 0;
                while Instant::now() < until {
                    // That it is refused or closed is what is hoped for.
                    let _ = tokio::time::timeout_at(until.into(), unfinished(address, tls.as_ref())).await;
                    closed += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                closed
            })
        })
    });
    let closed: usize = join_all(each).await.into_iter().flatten().sum();
    Answers::from([("closed".to_owned(), closed)])
}

async fn unfinished(address: SocketAddr, tls: Option<&(TlsConnector, ServerName<'static>)>) -> std::io::Result<()> {
    let stream = TcpStream::connect(address).await?;
    match tls {
        Some((connector, name)) => hang(connector.connect(name.clone(), stream).await?).await,
        None => hang(stream).await,
    }
}

async fn hang(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
    let headers = format!("POST /validate/none HTTP/1.1\r\nX-Long: {}", "x".repeat(100_000));
    stream.write_all(headers.as_bytes()).await?;
    let mut answer = [0; 1024];
    while stream.read(&mut answer).await? > 0 {}
    Ok(())
}

/// What is needed to speak TLS with the webhooks.
pub async fn tls(client: &Client) -> anyhow::Result<(TlsConnector, ServerName<'static>)> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let data = secrets.get("sluice-tls").await?.data.unwrap_or_default();
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&data.get("ca.crt").context("sluice-tls has no ca.crt")?.0) {
        roots.add(authority?)?;
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok((TlsConnector::from(Arc::new(config)), ServerName::try_from(format!("sluice.{NAMESPACE}.svc"))?))
}

/// Dry runs of objects that the API server escapes to six times their size, with a fork, so that both webhooks are asked.
pub async fn dry_runs(client: &Client, until: Instant) -> Answers {
    let body = large(API_VERSION, "Sandbox");
    again_and_again(DRY_RUNS, until, |_| post(client, "?dryRun=All", body.clone())).await
}

/// The same of a kind that no webhook is asked about: what the API server alone makes others wait.
pub async fn dry_runs_of_others(client: &Client, until: Instant) -> Answers {
    let body = large(&format!("{OTHERS_GROUP}/v1alpha1"), "Other");
    let path = format!("/apis/{OTHERS_GROUP}/v1alpha1/namespaces/{ATTACKER}/others?dryRun=All");
    again_and_again(DRY_RUNS, until, |_| post_to(client, path.clone(), body.clone())).await
}

/// A definition as that of sandboxes, of a kind that is nobody's.
pub fn others() -> CustomResourceDefinition {
    let mut crd = Sandbox::crd();
    crd.metadata.name = Some(format!("others.{OTHERS_GROUP}"));
    crd.spec.group = OTHERS_GROUP.to_owned();
    crd.spec.names = CustomResourceDefinitionNames {
        kind: "Other".to_owned(),
        plural: "others".to_owned(),
        ..CustomResourceDefinitionNames::default()
    };
    crd
}

fn large(api_version: &str, kind: &str) -> Vec<u8> {
    let fork = json!({"forkOf": {"kind": "Deployment", "name": "web"}});
    let spec = json!({"description": "<".repeat(2_900_000), "forks": [fork]});
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "large"}, "spec": spec});
    object.to_string().into_bytes()
}

/// Forks whose patch doubles what it makes with every operation.
pub async fn doubling_forks(client: &Client, until: Instant) -> Answers {
    let mut operations = vec![json!({"op": "add", "path": "/metadata/annotations", "value": {"a": "0123456789"}})];
    operations.extend((0..22).map(
        |at| json!({"op": "copy", "from": "/metadata/annotations", "path": format!("/metadata/annotations/x{at}")}),
    ));
    let patch = json!({"type": "json", "value": json!(operations).to_string()});
    let fork = json!({"forkOf": {"kind": "Deployment", "name": "web"}, "customizations": {"patch": patch}});
    let body = |name: String| sandbox(&name, &json!({"forks": [fork]}));
    again_and_again(FORKS, until, |name| post(client, "", body(name))).await
}

/// Steps that write 16 MiB in one line.
pub async fn shouting(client: &Client, until: Instant) -> Answers {
    again_and_again(SHOUTERS, until, |name| post(client, "", sandbox(&name, &with(SHOUTS)))).await
}

/// As many sandboxes as runs are worked on at once, each with a post-create that waits.
pub async fn share(client: &Client, until: Instant) -> Answers {
    let one = |at| post(client, "", sandbox(&format!("share-{at}-{}", stamp()), &with(WAITS)));
    let mut answers = Answers::new();
    for answer in join_all((0..WAITING).map(one)).await {
        *answers.entry(answer).or_default() += 1;
    }
    tokio::time::sleep_until(until.into()).await;
    answers
}

async fn again_and_again<F: Future<Output = String>>(
    at_once: usize,
    until: Instant,
    attack: impl Fn(String) -> F,
) -> Answers {
    let attack = &attack;
    let one = |at: usize| async move {
        let mut answers = Answers::new();
        while Instant::now() < until {
            *answers.entry(attack(format!("h-{at}-{}", stamp())).await).or_default() += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        answers
    };
    let mut all = Answers::new();
    for (answer, count) in join_all((0..at_once).map(one)).await.into_iter().flatten() {
        *all.entry(answer).or_default() += count;
    }
    all
}

/// How the API server answers the creation of a sandbox: its status alone.
async fn post(client: &Client, query: &str, body: Vec<u8>) -> String {
    post_to(client, format!("/apis/{API_VERSION}/namespaces/{ATTACKER}/sandboxes{query}"), body).await
}

async fn post_to(client: &Client, path: String, body: Vec<u8>) -> String {
    let Ok(request) = Request::post(path).header("Content-Type", "application/json").body(body) else {
        return "no request".to_owned();
    };
    match client.request::<Value>(request).await {
        Ok(_) => "made".to_owned(),
        // A token that is shown is no use to anybody who reads this, but it must not be.
        Err(error) if error.to_string().contains("/validate/") || error.to_string().contains("/mutate/") => {
            "the answer shows the URL".to_owned()
        }
        Err(kube::Error::Api(status)) => status.code.to_string(),
        Err(_) => "no answer".to_owned(),
    }
}

fn sandbox(name: &str, spec: &Value) -> Vec<u8> {
    let object = json!({
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": name, "namespace": ATTACKER},
        "spec": spec,
    });
    object.to_string().into_bytes()
}

fn with(plugin: &str) -> Value {
    json!({"resources": [{"name": "r", "plugin": plugin}]})
}

/// For names that were not there before.
fn stamp() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}", now.as_micros())
}
