//! A request as the world understands it: from a path, a query and headers to a verb on a kind.

use super::kinds::{Kind, Kinds};
use super::refusal::Refusal;
use bytes::Bytes;
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

/// Which part of an object a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Whole,
    Status,
    Scale,
    /// Of namespaces: `spec.finalizers`.
    Finalize,
}

impl Part {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Whole => "",
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Finalize => "finalize",
        }
    }
}

/// Who asks. The world trusts what it is told; it knows no RBAC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

impl User {
    /// A user who may do everything, as `kubectl` of a cluster's owner is.
    pub fn admin() -> Self {
        Self { name: "kubernetes-admin".to_owned(), groups: groups(&["system:masters", "system:authenticated"]) }
    }

    /// A controller of Kubernetes itself.
    pub fn controller(name: &str) -> Self {
        Self {
            name: format!("system:serviceaccount:kube-system:{name}"),
            groups: groups(&["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]),
        }
    }

    /// As AdmissionReviews and SubjectAccessReviews tell of it.
    pub fn info(&self) -> Value {
        json!({"username": self.name, "groups": self.groups})
    }
}

fn groups(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// One request.
#[derive(Debug, Clone)]
pub struct Ask {
    pub verb: Verb,
    pub kind: Arc<Kind>,
    pub version: String,
    pub namespace: String,
    pub name: String,
    pub part: Part,
    pub query: BTreeMap<String, String>,
    pub body: Bytes,
    pub content_type: String,
    pub agent: String,
    /// Only metadata is to be answered.
    pub metadata_only: bool,
    pub user: User,
}

impl Ask {
    pub fn option(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    pub fn dry_run(&self) -> bool {
        self.option("dryRun") == "All"
    }

    /// Who owns the fields that this request sets.
    pub fn manager(&self) -> &str {
        let named = self.option("fieldManager");
        let agent = self.agent.split('/').next().unwrap_or_default();
        if !named.is_empty() {
            named
        } else if agent.is_empty() {
            "unknown"
        } else {
            agent
        }
    }

    pub fn api_version(&self) -> String {
        self.kind.api_version(&self.version)
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.option("timeoutSeconds").parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }

    /// A request that a controller of the world itself makes.
    pub fn own(verb: Verb, kind: &Arc<Kind>, namespace: &str, name: &str, user: User) -> Self {
        Self {
            verb,
            kind: kind.clone(),
            version: kind.preferred().to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            part: Part::Whole,
            query: BTreeMap::new(),
            body: Bytes::new(),
            content_type: "application/json".to_owned(),
            agent: "kube-controller-manager".to_owned(),
            metadata_only: false,
            user,
        }
    }

    pub fn with_body(mut self, body: &Value) -> Self {
        self.body = Bytes::from(body.to_string());
        self
    }
}

/// What a path leads to.
#[derive(Debug)]
pub enum Route {
    Object(Box<Ask>),
    /// The discovery of everything, of a group, or of a version.
    Versions,
    Groups,
    Group(String),
    Resources {
        group: String,
        version: String,
    },
    Version,
    Health,
}

/// The words of a path and its query.
struct Place<'a> {
    group: &'a str,
    version: &'a str,
    rest: &'a [&'a str],
}

fn place<'a>(words: &'a [&'a str]) -> Option<Place<'a>> {
    match words {
        ["api", version, rest @ ..] => Some(Place { group: "", version, rest }),
        ["apis", group, version, rest @ ..] => Some(Place { group, version, rest }),
        _ => None,
    }
}

/// Reads a request. `body` goes along unread.
pub fn route(
    kinds: &Kinds,
    method: &Method,
    uri: &http::Uri,
    headers: &HeaderMap,
    user: &User,
    body: Bytes,
) -> Result<Route, Refusal> {
    let words: Vec<String> = uri
        .path()
        .split('/')
        .filter(|word| !word.is_empty())
        .map(|word| percent_encoding::percent_decode_str(word).decode_utf8_lossy().into_owned())
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["api"] => return Ok(Route::Versions),
        ["apis"] => return Ok(Route::Groups),
        ["apis", group] => return Ok(Route::Group((*group).to_owned())),
        ["version"] => return Ok(Route::Version),
        ["healthz" | "livez" | "readyz", ..] => return Ok(Route::Health),
        _ => {}
    }
    let Place { group, version, rest } = place(&words).ok_or_else(Refusal::no_such_path)?;
    if rest.is_empty() {
        return Ok(Route::Resources { group: group.to_owned(), version: version.to_owned() });
    }
    let (namespace, plural, name, part) = match rest {
        ["namespaces", namespace, plural, rest @ ..] if !matches!(*plural, "status" | "finalize") => {
            (*namespace, *plural, rest.first().copied(), rest.get(1).copied())
        }
        [plural, rest @ ..] => ("", *plural, rest.first().copied(), rest.get(1).copied()),
        [] => return Err(Refusal::no_such_path()),
    };
    let kind = kinds.served(group, version, plural).ok_or_else(Refusal::no_such_path)?;
    if !namespace.is_empty() && !kind.namespaced {
        return Err(Refusal::no_such_path());
    }
    let part = part_of(&kind, part)?;
    let query: BTreeMap<String, String> =
        url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let verb = verb(method, &kind, namespace, name, &query)?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let namespace = if plural == "namespaces" && group.is_empty() { "" } else { namespace };
    Ok(Route::Object(Box::new(Ask {
        verb,
        version: version.to_owned(),
        namespace: namespace.to_owned(),
        name: name.unwrap_or_default().to_owned(),
        part,
        query,
        body,
        content_type: header("content-type").split(';').next().unwrap_or_default().trim().to_owned(),
        agent: header("user-agent").to_owned(),
        metadata_only: header("accept").contains("as=PartialObjectMetadata"),
        user: impersonated(headers).unwrap_or_else(|| user.clone()),
        kind,
    })))
}

fn part_of(kind: &Kind, part: Option<&str>) -> Result<Part, Refusal> {
    match part {
        None => Ok(Part::Whole),
        Some("status") if kind.status => Ok(Part::Status),
        Some("scale") if kind.scale => Ok(Part::Scale),
        Some("finalize") if kind.plural == "namespaces" => Ok(Part::Finalize),
        Some(_) => Err(Refusal::no_such_path()),
    }
}

fn impersonated(headers: &HeaderMap) -> Option<User> {
    let name = headers.get("impersonate-user")?.to_str().ok()?.to_owned();
    let mut groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|group| group.to_str().ok())
        .map(ToOwned::to_owned)
        .collect();
    groups.push("system:authenticated".to_owned());
    Some(User { name, groups })
}

fn verb(
    method: &Method,
    kind: &Kind,
    namespace: &str,
    name: Option<&str>,
    query: &BTreeMap<String, String>,
) -> Result<Verb, Refusal> {
    let watch = query.get("watch").is_some_and(|value| value == "true" || value == "1");
    let verb = match (method.as_str(), name) {
        ("GET", None) if watch => Verb::Watch,
        ("GET", None) => Verb::List,
        ("GET", Some(_)) => Verb::Get,
        ("POST", None) => Verb::Create,
        ("PUT", Some(_)) => Verb::Update,
        ("PATCH", Some(_)) => Verb::Patch,
        ("DELETE", Some(_)) => Verb::Delete,
        ("DELETE", None) => Verb::DeleteCollection,
        _ => return Err(Refusal::unsupported_method()),
    };
    let everywhere = kind.namespaced && namespace.is_empty();
    let writes = !matches!(verb, Verb::List | Verb::Watch);
    let reviewed = kind.review && verb != Verb::Create;
    let all_namespaces = verb == Verb::DeleteCollection && kind.group.is_empty() && kind.plural == "namespaces";
    if (everywhere && writes) || reviewed || all_namespaces {
        return Err(if everywhere && name.is_some() { Refusal::no_such_path() } else { Refusal::unsupported_method() });
    }
    Ok(verb)
}
