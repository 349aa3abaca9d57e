//! Rights and requests, compared.

use crate::log::Request;
use crate::roles::Right;
use std::collections::BTreeSet;

/// Group, resource, verb and the reason.
type Reasons = [(&'static str, &'static str, &'static str, &'static str)];

/// What is wrong, a line for each: rights that nothing used but those that are `kept`, and requests that were denied for
/// want of a right. A reason to keep what is used, or gone, is a fault too.
///
/// A denied request that the rights allow was made while they were not there, as the last ones of replicas that
/// `helm uninstall` ends.
pub fn faults(rights: &[Right], requests: &BTreeSet<Request>, kept: &Reasons) -> Vec<String> {
    let allowed = requests.iter().filter(|request| !request.denied);
    let used: BTreeSet<&Right> = allowed.flat_map(|request| narrowest(rights, request)).collect();
    let unused = rights.iter().filter(|right| !used.contains(right));
    let (excused, unused): (Vec<_>, Vec<_>) =
        unused.partition(|right| has(kept, (&right.group, &right.resource, &right.verb)));
    let mut faults: Vec<String> = unused.into_iter().map(|right| format!("never used: {}", of_right(right))).collect();
    let missed = requests.iter().filter(|request| request.denied && narrowest(rights, request).is_empty());
    faults.extend(missed.map(|request| format!("denied: {}", of_request(request))));
    for (group, resource, verb, _) in kept {
        if !excused.iter().any(|right| (&*right.group, &*right.resource, &*right.verb) == (*group, *resource, *verb)) {
            faults
                .push(format!("kept though never used, and it is used, or gone: {verb} {resource} of group {group:?}"));
        }
    }
    faults
}

fn has(reasons: &Reasons, (group, resource, verb): (&str, &str, &str)) -> bool {
    reasons.iter().any(|reason| (reason.0, reason.1, reason.2) == (group, resource, verb))
}

/// The rights that let a request through, but of them only the narrowest: one for the whole cluster is not used by what
/// one for a namespace allows, nor one for every name by what one for this name allows.
fn narrowest<'a>(rights: &'a [Right], request: &Request) -> Vec<&'a Right> {
    let lets = |right: &&Right| {
        let here = right.namespaces.as_ref().is_none_or(|namespaces| {
            request.namespace.as_ref().is_some_and(|namespace| namespaces.contains(namespace))
        });
        here && (&right.group, &right.resource, &right.verb) == (&request.group, &request.resource, &request.verb)
            && right.name.as_ref().is_none_or(|name| request.name.as_ref() == Some(name))
    };
    let width = |right: &Right| (right.namespaces.is_none(), right.name.is_none());
    let letting: Vec<&Right> = rights.iter().filter(lets).collect();
    let least = letting.iter().map(|right| width(right)).min();
    letting.into_iter().filter(|right| Some(width(right)) == least).collect()
}

fn of_right(right: &Right) -> String {
    let Right { role, group, resource, verb, .. } = right;
    let name = right.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
    format!("{role}: {verb} {resource}{name} of group {group:?}")
}

fn of_request(request: &Request) -> String {
    let Request { group, resource, verb, .. } = request;
    let name = request.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
    let place = request.namespace.as_ref().map_or("the whole cluster".to_owned(), |it| format!("namespace {it}"));
    format!("{verb} {resource}{name} of group {group:?} in {place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(namespaces: Option<&[&str]>, verb: &str, name: Option<&str>) -> Right {
        Right {
            role: "Role sluice".into(),
            namespaces: namespaces.map(|them| them.iter().map(|it| (*it).to_owned()).collect()),
            group: String::new(),
            resource: "secrets".into(),
            verb: verb.into(),
            name: name.map(str::to_owned),
        }
    }

    fn request(namespace: Option<&str>, verb: &str, name: Option<&str>, denied: bool) -> Request {
        Request {
            namespace: namespace.map(str::to_owned),
            group: String::new(),
            resource: "secrets".into(),
            verb: verb.into(),
            name: name.map(str::to_owned),
            denied,
        }
    }

    #[test]
    fn t17_a_right_that_nothing_used_is_a_fault() {
        let rights = [right(None, "get", None), right(None, "list", None)];
        let used = [request(Some("n"), "get", Some("x"), false)].into();
        assert_eq!(faults(&rights, &used, &[]), ["never used: Role sluice: list secrets of group \"\""]);
        assert!(faults(&rights, &used, &[("", "secrets", "list", "why")]).is_empty());
    }

    #[test]
    fn t17_a_request_that_was_denied_for_want_of_a_right_is_a_fault() {
        let rights = [right(None, "get", None)];
        let asked = [request(Some("n"), "get", Some("x"), false), request(Some("n"), "list", None, true)].into();
        assert_eq!(faults(&rights, &asked, &[]), ["denied: list secrets of group \"\" in namespace n"]);
    }

    #[test]
    fn t17_a_request_that_was_denied_while_the_rights_were_not_there_is_none_and_uses_nothing() {
        let rights = [right(None, "get", None)];
        let asked = [request(Some("n"), "get", Some("x"), true)].into();
        assert_eq!(faults(&rights, &asked, &[]), ["never used: Role sluice: get secrets of group \"\""]);
    }

    #[test]
    fn t17_the_wider_of_two_rights_is_not_used_by_what_the_narrower_allows() {
        let rights = [
            right(None, "get", None),
            right(Some(&["s"]), "get", None),
            right(Some(&["s"]), "get", Some("tls")),
            right(Some(&["s"]), "get", Some("token")),
        ];
        let requests = [request(Some("s"), "get", Some("tls"), false)].into();
        assert_eq!(faults(&rights, &requests, &[]).len(), 3);
        let requests = [
            request(Some("s"), "get", Some("tls"), false),
            request(Some("s"), "get", Some("token"), false),
            request(Some("s"), "get", Some("other"), false),
            request(Some("t"), "get", Some("tls"), false),
        ]
        .into();
        assert_eq!(faults(&rights, &requests, &[]), Vec::<String>::new());
    }

    #[test]
    fn t17_what_is_asked_of_all_namespaces_uses_no_right_in_one() {
        let rights = [right(Some(&["s"]), "list", None)];
        assert_eq!(faults(&rights, &[request(None, "list", None, false)].into(), &[]).len(), 1);
    }

    #[test]
    fn t17_a_reason_that_has_become_needless_is_a_fault() {
        let rights = [right(None, "get", None)];
        let used = [request(Some("n"), "get", None, false)].into();
        assert_eq!(faults(&rights, &used, &[("", "secrets", "get", "why")]).len(), 1);
        assert_eq!(faults(&rights, &used, &[("", "secrets", "watch", "why")]).len(), 1);
    }
}
