//! Requests made as a runner's service account, so that a plugin can do no more than that account may.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation>

use http::{HeaderValue, Request};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tower::service_fn;

const HEADER: &str = "Impersonate-User";

/// A service account that requests are made as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccount {
    pub namespace: String,
    pub name: String,
}

impl ServiceAccount {
    /// The user name that the API server knows it by.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// Sends `request` as this account; the API server adds the account's groups.
    pub async fn send(&self, client: &Client, mut request: Request<Vec<u8>>) -> Result<Value, kube::Error> {
        request.headers_mut().insert(HEADER, self.header()?);
        client.request(request).await
    }

    /// A client whose every request is made as this account, for what takes a client: watches.
    pub fn client(&self, client: &Client) -> Result<Client, kube::Error> {
        let user = self.header()?;
        let client = client.clone();
        let service = service_fn(move |mut request: Request<Body>| {
            let client = client.clone();
            request.headers_mut().insert(HEADER, user.clone());
            async move { client.send(request).await }
        });
        Ok(Client::new(service, self.namespace.clone()))
    }

    fn header(&self) -> Result<HeaderValue, kube::Error> {
        HeaderValue::try_from(self.user()).map_err(|e| kube::Error::HttpError(e.into()))
    }
}
