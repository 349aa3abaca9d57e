//! What an account asked the API server for, from the audit log: a line of JSON for each request.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

/// So many lines may be cut short: the suite kills the API server, which may be in the middle of one.
const CUT_SHORT: usize = 50;

/// What an account asked for, and whether RBAC let it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// None where it was asked across all namespaces, or of what has none.
    pub namespace: Option<String>,
    pub group: String,
    /// `RESOURCE` or `RESOURCE/SUBRESOURCE`.
    pub resource: String,
    pub verb: String,
    pub name: Option<String>,
    pub denied: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    user: User,
    impersonated_user: Option<User>,
    object_ref: Option<ObjectRef>,
    response_status: Option<Status>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default, rename = "requestURI")]
    request_uri: String,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    resource: String,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    api_group: Option<String>,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

/// What the account asked for, each once.
pub fn requests(log: impl BufRead, account: (&str, &str)) -> Result<BTreeSet<Request>, String> {
    let user = format!("system:serviceaccount:{}:{}", account.0, account.1);
    let mut found = BTreeSet::new();
    let mut cut_short = 0;
    for line in log.split(b'\n') {
        let line = line.map_err(|error| format!("the audit log cannot be read: {error}"))?;
        if line.is_empty() {
            continue;
        }
        match serde_json::from_slice::<Event>(&line) {
            Ok(event) if event.user.username == user => found.extend(of_event(event)),
            Ok(_) => {}
            Err(error) => {
                cut_short += 1;
                if cut_short > CUT_SHORT {
                    return Err(format!(
                        "more than {CUT_SHORT} lines of the audit log are no events, the last: {error}"
                    ));
                }
            }
        }
    }
    Ok(found)
}

/// What one event tells that was asked for.
fn of_event(event: Event) -> Vec<Request> {
    if let Some(other) = event.impersonated_user {
        // It was let. What the other user then may is not this account's matter.
        return vec![impersonation(&other.username)];
    }
    let code = event.response_status.map(|status| status.code).unwrap_or_default();
    let denied = match event.annotations.get("authorization.k8s.io/decision").map(String::as_str) {
        Some(decision) => decision != "allow",
        // It never came to a decision, as with an impersonation that is denied.
        None => code == 403,
    };
    let Some(object) = event.object_ref else {
        let path = |denied| Request {
            namespace: None,
            group: String::new(),
            resource: event.request_uri.clone(),
            verb: event.verb.clone(),
            name: None,
            denied,
        };
        // What anybody may ask for, such as which kinds there are, is no right of the account's own.
        return if denied { vec![path(true)] } else { Vec::new() };
    };
    let resource = match object.subresource {
        Some(subresource) => format!("{}/{subresource}", object.resource),
        None => object.resource,
    };
    let request = |verb: &str| Request {
        namespace: object.namespace.clone().filter(|namespace| !namespace.is_empty()),
        group: object.api_group.clone().unwrap_or_default(),
        resource: resource.clone(),
        verb: verb.to_owned(),
        name: object.name.clone().filter(|name| !name.is_empty()),
        denied,
    };
    let mut requests = vec![request(&event.verb)];
    let makes = code == 201 && matches!(event.verb.as_str(), "patch" | "update");
    // A stream over a WebSocket begins with a GET, for which newer API servers ask for `create` as well.
    let streams = event.verb == "get" && matches!(resource.as_str(), "pods/exec" | "pods/attach" | "pods/portforward");
    if !denied && (makes || streams) {
        requests.push(request("create"));
    }
    requests
}

fn impersonation(user: &str) -> Request {
    let mut parts = user.strip_prefix("system:serviceaccount:").unwrap_or_default().splitn(2, ':');
    let account = (parts.next().filter(|namespace| !namespace.is_empty()), parts.next());
    let (resource, namespace, name) = match account {
        (Some(namespace), Some(name)) => ("serviceaccounts", Some(namespace.to_owned()), name),
        _ => ("users", None, user),
    };
    Request {
        namespace,
        group: String::new(),
        resource: resource.to_owned(),
        verb: "impersonate".to_owned(),
        name: Some(name.to_owned()),
        denied: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn asked(event: &Value) -> Vec<(String, String, bool)> {
        let mut event = event.clone();
        event["user"] = json!({"username": "system:serviceaccount:s:sluice"});
        let requests = requests(event.to_string().as_bytes(), ("s", "sluice")).unwrap();
        requests.into_iter().map(|it| (it.verb, it.resource, it.denied)).collect()
    }

    fn allowed(verb: &str, resource: &str, subresource: Option<&str>, code: u16) -> Value {
        json!({"verb": verb, "objectRef": {"resource": resource, "subresource": subresource, "namespace": "n"},
            "responseStatus": {"code": code}, "annotations": {"authorization.k8s.io/decision": "allow"}})
    }

    fn plain(verb: &str, resource: &str) -> (String, String, bool) {
        (verb.to_owned(), resource.to_owned(), false)
    }

    #[test]
    fn a_patch_that_makes_the_object_takes_create_as_well() {
        assert_eq!(asked(&allowed("patch", "leases", None, 200)), [plain("patch", "leases")]);
        assert_eq!(
            asked(&allowed("patch", "leases", None, 201)),
            [plain("create", "leases"), plain("patch", "leases")]
        );
        let exec = asked(&allowed("get", "pods", Some("exec"), 101));
        assert_eq!(exec, [plain("create", "pods/exec"), plain("get", "pods/exec")]);
    }

    #[test]
    fn what_rbac_denied_is_told_from_what_admission_denied() {
        assert_eq!(asked(&allowed("create", "secrets", None, 403)), [plain("create", "secrets")]);
        let mut denied = allowed("create", "secrets", None, 403);
        denied["annotations"]["authorization.k8s.io/decision"] = json!("forbid");
        assert_eq!(asked(&denied), [("create".to_owned(), "secrets".to_owned(), true)]);
        denied["annotations"] = json!({});
        assert_eq!(asked(&denied), [("create".to_owned(), "secrets".to_owned(), true)]);
    }

    #[test]
    fn a_request_as_another_account_is_an_impersonation_of_it() {
        let mut event = allowed("delete", "configmaps", None, 403);
        event["annotations"]["authorization.k8s.io/decision"] = json!("forbid");
        event["impersonatedUser"] = json!({"username": "system:serviceaccount:runners:editor"});
        event["user"] = json!({"username": "system:serviceaccount:s:sluice"});
        let found = requests(event.to_string().as_bytes(), ("s", "sluice")).unwrap();
        let expected = Request {
            namespace: Some("runners".into()),
            group: String::new(),
            resource: "serviceaccounts".into(),
            verb: "impersonate".into(),
            name: Some("editor".into()),
            denied: false,
        };
        assert_eq!(found, [expected].into());
    }

    #[test]
    fn others_requests_and_what_anybody_may_ask_are_left_out() {
        let mut event = allowed("get", "pods", None, 200);
        event["user"] = json!({"username": "alice"});
        assert!(requests(event.to_string().as_bytes(), ("s", "sluice")).unwrap().is_empty());
        let allowed = json!({"authorization.k8s.io/decision": "allow"});
        assert!(asked(&json!({"verb": "get", "requestURI": "/apis", "annotations": allowed})).is_empty());
        let denied = json!({"verb": "get", "requestURI": "/metrics", "responseStatus": {"code": 403}});
        assert_eq!(asked(&denied), [("get".to_owned(), "/metrics".to_owned(), true)]);
    }

    #[test]
    fn a_log_that_is_none_is_an_error_and_a_line_cut_short_is_not() {
        assert!(requests("{\"verb\":".as_bytes(), ("s", "sluice")).unwrap().is_empty());
        assert!(requests("no\n".repeat(CUT_SHORT + 1).as_bytes(), ("s", "sluice")).is_err());
    }
}
