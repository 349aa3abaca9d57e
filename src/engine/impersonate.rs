//! Requests made as a runner's service account, so that a plugin can do no more than that account may.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation>

use http::{HeaderValue, Request};
use kube::Client;
use serde_json::Value;

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
        let user = HeaderValue::try_from(self.user()).map_err(|e| kube::Error::HttpError(e.into()))?;
        request.headers_mut().insert("Impersonate-User", user);
        client.request(request).await
    }
}
