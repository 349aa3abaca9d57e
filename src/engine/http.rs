//! The `http` step: a call of a target that the chart's values allow.

use super::error::StepError;
use super::objects::Objects;
use super::values::{self, rendered, template};
use crate::agent::protocol::OUTPUT_LIMIT;
use crate::api::{Http, HttpMethod};
use crate::plan::http::{self as rules, Allowed};
use crate::plan::message::{self, with_causes};
use crate::plan::scope::Scope;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use k8s_openapi::jiff::Timestamp;
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;
use url::Url;

/// The same for every try of a step
/// (<https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/>).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// As much of an answer is told, in bytes.
const TOLD: usize = 300;

/// The client of all calls that bring no authority of their own, so that they share connections.
static COMMON: LazyLock<Result<Client, String>> = LazyLock::new(|| client(None));

/// A call that is ready to be made, and made again.
pub struct Call {
    client: Client,
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
    accept: Vec<u16>,
}

/// What a target answered, as expressions see it, and in a few words.
pub struct Answer {
    pub response: Value,
    pub said: String,
}

impl Call {
    /// The call of a step, its expressions evaluated. `secrets` takes what must be masked.
    pub async fn new(
        http: &Http,
        (objects, scope): (&Objects<'_>, &Scope),
        allowed: &Allowed,
        idempotency_key: &str,
        secrets: &mut Vec<Vec<u8>>,
    ) -> Result<Self, StepError> {
        let parts = template("http.url", &json!(http.url))?.pieces_bounded(scope).await;
        let url = rules::address(&parts.map_err(|e| StepError::Failed(e.to_string()))?)
            .and_then(|url| allowed.check(&url).map(|()| url))
            .map_err(|why| StepError::Failed(format!("http.url: {why}")))?;
        let mut headers = HeaderMap::new();
        let key = HeaderValue::try_from(idempotency_key).map_err(|e| StepError::Failed(e.to_string()))?;
        headers.insert(IDEMPOTENCY_KEY, key);
        let body = match (&http.json, &http.body) {
            (Some(json), _) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                rendered(&template("http.json", json)?, scope).await?.to_string().into_bytes()
            }
            (None, Some(body)) => text("http.body", body, scope).await?.into_bytes(),
            (None, None) => Vec::new(),
        };
        for (index, header) in http.headers.iter().enumerate() {
            let field = format!("http.headers[{index}]");
            let value = match (&header.value, &header.value_from_secret) {
                (Some(value), _) => text(&format!("{field}.value"), value, scope).await?.into_bytes(),
                (None, Some(from)) => {
                    let value = values::secret(objects, from).await?;
                    secrets.push(value.clone());
                    value.trim_ascii_end().to_vec()
                }
                (None, None) => Vec::new(),
            };
            let failed = |why: String| StepError::Failed(format!("{field} ({}): {why}", header.name));
            let name = rules::header_name(&header.name).map_err(failed)?;
            let mut value = rules::header_value(value).map_err(failed)?;
            value.set_sensitive(header.value_from_secret.is_some());
            headers.insert(name, value);
        }
        let authority = match &http.ca_from_config_map {
            Some(from) => Some(values::config_map(objects, from).await?),
            None => None,
        };
        let client = match authority {
            Some(authority) => client(Some(&authority)),
            None => COMMON.clone(),
        };
        let client = client.map_err(|why| StepError::Failed(format!("http: {why}")))?;
        let method = match http.method.unwrap_or_default() {
            HttpMethod::Get => Method::GET,
            HttpMethod::Head => Method::HEAD,
            HttpMethod::Post => Method::POST,
            HttpMethod::Put => Method::PUT,
            HttpMethod::Patch => Method::PATCH,
            HttpMethod::Delete => Method::DELETE,
        };
        Ok(Self { client, method, url, headers, body, accept: http.accept.clone() })
    }

    /// What the call is of, without what may be secret in its URL.
    fn what(&self) -> String {
        let port = self.url.port().map_or_else(String::new, |port| format!(":{port}"));
        let host = self.url.host_str().unwrap_or_default();
        format!("{} {}://{host}{port}{}", self.method, self.url.scheme(), self.url.path())
    }

    /// Makes the call, again where another try may bring another answer, for `seconds` at most.
    pub async fn make(&self, seconds: u32) -> Result<Answer, StepError> {
        let mut last = "it has not answered".to_owned();
        let calls = async {
            for tried in 1.. {
                let (why, retry_after) = match self.once().await {
                    Ok(response) => {
                        let code = response.status().as_u16();
                        let wish = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()).map(str::to_owned);
                        let status = response.status();
                        let answer = read(response).await;
                        if rules::succeeded(code, &self.accept) {
                            let response = answer.map_err(|why| self.failed(&why))?;
                            return Ok(Answer { response, said: format!("{}: {status}", self.what()) });
                        }
                        let body = answer.unwrap_or_default()["body"].as_str().unwrap_or_default().trim().to_owned();
                        let body =
                            if body.is_empty() { String::new() } else { format!(": {}", message::cut(&body, TOLD)) };
                        let why = format!("it answered {status}{body}");
                        if !rules::is_transient(code) {
                            return Err(self.failed(&why));
                        }
                        (why, wish)
                    }
                    Err(error) => (with_causes(&error.without_url()), None),
                };
                if tried > rules::RETRIES {
                    return Err(self.failed(&format!("{why} ({tried} tries)")));
                }
                last = why;
                tokio::time::sleep(rules::pause(tried, retry_after.as_deref(), Timestamp::now())).await;
            }
            Err(self.failed("no try is left"))
        };
        match tokio::time::timeout(Duration::from_secs(seconds.into()), calls).await {
            Ok(ended) => ended,
            Err(_) => Err(self.failed(&format!("the time limit of {seconds} s was reached; {last}"))),
        }
    }

    async fn once(&self) -> Result<Response, reqwest::Error> {
        let request = self.client.request(self.method.clone(), self.url.clone()).headers(self.headers.clone());
        request.body(self.body.clone()).send().await
    }

    fn failed(&self, why: &str) -> StepError {
        StepError::Failed(format!("{} failed: {why}", self.what()))
    }
}

/// An answer as `response` of expressions.
async fn read(mut response: Response) -> Result<Value, String> {
    let code = response.status().as_u16();
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let headers: BTreeMap<String, String> = response.headers().iter().map(header).collect();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|e| with_causes(&e.without_url()))? {
        if body.len() + chunk.len() > OUTPUT_LIMIT {
            return Err(format!("its answer has more than {OUTPUT_LIMIT} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    let parsed: Option<Value> = serde_json::from_slice(&body).ok();
    Ok(json!({"status": code, "headers": headers, "body": String::from_utf8_lossy(&body), "json": parsed}))
}

/// A client that trusts what browsers trust and, where there is one, this authority.
fn client(authority: Option<&[u8]>) -> Result<Client, String> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(pem) = authority {
        let mut found = 0;
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let added = certificate.map_err(|e| e.to_string()).and_then(|c| roots.add(c).map_err(|e| e.to_string()));
            added.map_err(|why| format!("caFromConfigMap holds what is no certificate: {why}"))?;
            found += 1;
        }
        if found == 0 {
            return Err("caFromConfigMap holds no certificate in PEM".to_owned());
        }
    }
    let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Client::builder()
        .tls_backend_preconfigured(tls)
        // A redirect would lead around the list of what may be called.
        .redirect(Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT_WITHIN)
        .user_agent(concat!("sluice/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|e| with_causes(&e))
}

async fn text(field: &str, value: &str, scope: &Scope) -> Result<String, StepError> {
    Ok(match rendered(&template(field, &json!(value))?, scope).await? {
        Value::String(text) => text,
        Value::Null => return Err(StepError::Failed(format!("{field}: is null"))),
        other => other.to_string(),
    })
}
