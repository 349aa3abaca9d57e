//! What steps do without a pod: `apply`, `delete`, `wait` and `http`.

use super::{KeyRef, schema};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Objects that a resource keeps in the cluster. Those that it made before and no longer makes are pruned, and all
/// are deleted with the resource.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.as) || has(self.forEach)")
        .message("as names the item of forEach: give forEach too").field_path(".as")
)]
pub struct Apply {
    /// An expression that gives a list; the manifests are written once for each of its items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub for_each: Option<String>,
    /// The name of the item in the manifests' expressions, `item` by default.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 30))]
    #[x_kube(validation = schema::matches("^[a-z_][A-Za-z0-9_]*$", "a variable of expressions: a small letter or _ first, then letters, digits and _"))]
    pub as_: Option<String>,
    /// Whole objects; `${…}` in their strings is an expression.
    #[schemars(schema_with = "schema::manifests")]
    pub manifests: Vec<Value>,
}

/// Objects that are deleted.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.as) || has(self.forEach)")
        .message("as names the item of forEach: give forEach too").field_path(".as")
)]
pub struct Delete {
    /// An expression that gives a list; the objects are deleted once for each of its items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub for_each: Option<String>,
    /// The name of the item in the objects' expressions, `item` by default.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 30))]
    #[x_kube(validation = schema::matches("^[a-z_][A-Za-z0-9_]*$", "a variable of expressions: a small letter or _ first, then letters, digits and _"))]
    pub as_: Option<String>,
    /// Which objects; `${…}` in their fields is an expression.
    #[schemars(length(min = 1, max = 32))]
    pub objects: Vec<ObjectTemplate>,
}

/// One object, named by fields in which `${…}` is an expression.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectTemplate {
    /// Its group and version.
    #[schemars(length(min = 1, max = 317))]
    pub api_version: String,
    /// Its kind.
    #[schemars(length(min = 1, max = 253))]
    pub kind: String,
    /// Its namespace; the sandbox's by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub namespace: Option<String>,
    /// Its name.
    #[schemars(length(min = 1, max = 1024))]
    pub name: String,
}

/// What is waited for. The step's `timeoutSeconds` says for how long at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The object, which need not be there yet. The runner's service account must be allowed to get, list and watch it.
    pub object: ObjectTemplate,
    /// An expression over `object`, which is null while there is none: `object != null && object.status.?phase.orValue("")
    /// == "Ready"`. One that fails counts as not true yet.
    #[schemars(length(min = 1, max = 4096))]
    pub until: String,
}

/// A call over HTTP. An answer of 429 or 5xx, and one that does not come, is tried again after a pause, up to four times
/// and for as long as the step's time lasts; `Retry-After` is obeyed. Every call has an `Idempotency-Key`, the same for
/// every try of the step. Redirects are not followed.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Http {
    /// `GET` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<HttpMethod>,
    /// Where to; `${…}` is an expression.
    #[schemars(length(min = 1, max = 8192))]
    pub url: String,
    /// Headers of the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub headers: Vec<HttpHeader>,
    /// What is sent as `application/json`; `${…}` in its strings is an expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any")]
    pub json: Option<Value>,
    /// What is sent as it is; `${…}` is an expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 131072))]
    pub body: Option<String>,
    /// Codes that are success beside 200 to 299: 404 for a deletion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(range(min = 300, max = 599)))]
    pub accept: Vec<u16>,
    /// A certificate authority, in PEM, that is trusted beside those that browsers trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_from_config_map: Option<KeyRef>,
}

/// The method of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpMethod {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

/// A header of a call.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.value) != has(self.valueFromSecret)")
        .message("a header has exactly one source: value or valueFromSecret")
)]
pub struct HttpHeader {
    /// Its name.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = schema::matches("^[A-Za-z0-9!#$%&*+.^_|~-]+$", "the name of a header: letters, digits and -"))]
    pub name: String,
    /// Its value; `${…}` is an expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub value: Option<String>,
    /// A key of a Secret in the runner's namespace, which the runner's service account must be allowed to get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from_secret: Option<KeyRef>,
}
