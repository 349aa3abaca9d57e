use super::*;
use crate::api::Sandbox;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions};

fn names() -> Names {
    Names { service: "sluice".into(), namespace: "sluice-system".into() }
}

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-11-30T12:00:00Z")
}

fn token() -> Token {
    Token::read(&"0f".repeat(32)).unwrap()
}

fn path(base: &str) -> String {
    format!("{base}/{}", "0f".repeat(32))
}

fn empty() -> Value {
    json!({"metadata": {"name": "sluice", "uid": "u-1", "resourceVersion": "7"}})
}

/// As the API server gives it back after our apply, with what it and others add.
fn stored(kind: Kind, bundle: &str) -> Value {
    let mut object = apply_over(&empty(), kind, &kind.desired(&names(), bundle, &token()), now());
    object["metadata"]["generation"] = json!(2);
    object["metadata"]["annotations"]["meta.helm.sh/release-name"] = json!("sluice");
    let conditions = object["webhooks"][0]["matchConditions"].as_array_mut().unwrap();
    conditions.push(json!({"name": "another", "expression": "true"}));
    object
}

#[test]
fn the_validating_webhook_says_what_the_design_says() {
    let webhook = Kind::Validating.desired(&names(), "PEM", &token());
    assert_eq!(
        webhook,
        json!({
            "name": "validate.sluice.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "caBundle": "UEVN",
                "service": {"name": "sluice", "namespace": "sluice-system", "path": path(VALIDATE_PATH), "port": 443},
            },
            "failurePolicy": "Fail",
            "matchConditions": [{"name": "may-run-a-phase", "expression": asks()}],
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["sluice-system"]},
            ]},
            "objectSelector": {},
            "rules": [
                {"apiGroups": ["sluice.dev"], "apiVersions": ["v1alpha1"], "resources": ["sandboxes"],
                 "scope": "Namespaced", "operations": ["CREATE", "UPDATE", "DELETE"]},
                {"apiGroups": ["sluice.dev"], "apiVersions": ["v1alpha1"], "resources": ["resourceplugins"],
                 "scope": "Cluster", "operations": ["CREATE", "UPDATE", "DELETE"]},
            ],
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": 30,
        })
    );
}

#[test]
fn the_mutating_webhook_is_pure_quick_and_never_asked_on_delete() {
    let webhook = Kind::Mutating.desired(&names(), "PEM", &token());
    assert_eq!(webhook["name"], "default.sluice.dev");
    assert_eq!(webhook["sideEffects"], "None");
    assert_eq!(webhook["timeoutSeconds"], 10);
    assert_eq!(webhook["reinvocationPolicy"], "IfNeeded");
    assert_eq!(webhook["clientConfig"]["service"]["path"], path(MUTATE_PATH));
    assert_eq!(
        webhook["rules"],
        json!([{"apiGroups": ["sluice.dev"], "apiVersions": ["v1alpha1"], "resources": ["sandboxes"],
                "scope": "Namespaced", "operations": ["CREATE", "UPDATE"]}])
    );
}

#[test]
fn both_are_what_the_api_server_knows_as_such() {
    use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, ValidatingWebhook};
    // Typed and back: a field that is misspelt or of another type would be lost.
    let validating = Kind::Validating.desired(&names(), "PEM", &token());
    let typed: ValidatingWebhook = serde_json::from_value(validating.clone()).unwrap();
    assert_eq!(serde_json::to_value(typed).unwrap(), validating);
    let mutating = Kind::Mutating.desired(&names(), "PEM", &token());
    let typed: MutatingWebhook = serde_json::from_value(mutating.clone()).unwrap();
    assert_eq!(serde_json::to_value(typed).unwrap(), mutating);
}

#[test]
fn what_is_asked_about_is_the_same_for_both_and_loops_over_nothing_that_a_user_writes() {
    let of = |kind: Kind| kind.desired(&names(), "PEM", &token())["matchConditions"].clone();
    assert_eq!(of(Kind::Validating)[0], of(Kind::Mutating)[0]);
    let asked = asks();
    for annotation in ["sluice.dev/latest", "sluice.dev/skip-pre-delete", "sluice.dev/admitted"] {
        assert!(asked.contains(&format!("[?'{annotation}']")), "{asked}");
    }
    for costly in ["all(", "exists", "filter(", "map(", "matches(", "split(", "startsWith("] {
        assert!(!asked.contains(costly), "{costly} in {asked}");
    }
}

#[test]
fn the_mutating_webhook_is_asked_only_where_it_may_note_something() {
    let conditions = Kind::Mutating.desired(&names(), "PEM", &token())["matchConditions"].clone();
    assert_eq!(conditions[1], json!({"name": "has-something-to-note", "expression": mutates()}));
    for noted in ["sluice.dev/latest", "sluice.dev/admitted", "forks", "@latest"] {
        assert!(mutates().contains(noted), "{noted}");
    }
    // As many as the schema allows: more are refused whoever is asked.
    let sandbox = serde_json::to_value(<Sandbox as kube::CustomResourceExt>::crd()).unwrap();
    let schema = &sandbox["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    assert_eq!(schema["resources"]["maxItems"], json!(MOST_RESOURCES));
}

#[test]
fn no_subresource_and_no_wildcard_is_ever_matched() {
    for kind in Kind::ALL {
        let text = kind.desired(&names(), "PEM", &token())["rules"].to_string();
        assert!(!text.contains('*') && !text.contains('/'), "{text}");
    }
}

#[test]
fn what_was_applied_does_not_differ_whatever_others_add() {
    for kind in Kind::ALL {
        let desired = kind.desired(&names(), "PEM", &token());
        let mut live = stored(kind, "PEM");
        assert!(!differs(&live, kind, &desired));
        live["webhooks"].as_array_mut().unwrap().insert(0, json!({"name": "another.example.com"}));
        assert!(!differs(&live, kind, &desired));
    }
}

#[test]
fn every_change_of_a_field_of_ours_differs() {
    for kind in Kind::ALL {
        let desired = kind.desired(&names(), "PEM", &token());
        assert!(differs(&empty(), kind, &desired));
        assert!(differs(&stored(kind, "PEM"), kind, &kind.desired(&names(), "NEW", &token())));
        for field in desired.as_object().unwrap().keys() {
            let mut live = stored(kind, "PEM");
            live["webhooks"][0].as_object_mut().unwrap().remove(field);
            assert!(differs(&live, kind, &desired), "{field}");
        }
        let mut narrowed = stored(kind, "PEM");
        let more = json!({"key": "control-plane", "operator": "DoesNotExist"});
        narrowed["webhooks"][0]["namespaceSelector"]["matchExpressions"].as_array_mut().unwrap().push(more);
        assert!(differs(&narrowed, kind, &desired));
        assert!(differs(&stored(kind, "PEM"), kind, &kind.desired(&names(), "PEM", &Token::random())));
        let mut weakened = stored(kind, "PEM");
        weakened["webhooks"][0]["matchConditions"][0]["expression"] = json!("false");
        assert!(differs(&weakened, kind, &desired));
        let mut unstamped = stored(kind, "PEM");
        unstamped["metadata"].as_object_mut().unwrap().remove("annotations");
        assert!(differs(&unstamped, kind, &desired));
    }
}

#[test]
fn an_apply_names_the_object_that_was_read_and_nothing_of_others() {
    let body = apply_over(&empty(), Kind::Validating, &json!({"name": "x"}), now());
    assert_eq!(
        body,
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "sluice", "uid": "u-1", "resourceVersion": "7",
                         "annotations": {"sluice.dev/registered-at": "2026-11-30T12:00:00Z"}},
            "webhooks": [{"name": "x"}],
        })
    );
}

#[test]
fn the_time_of_registration_stays_for_as_long_as_the_webhook_does() {
    let kind = Kind::Validating;
    let later = at("2027-01-01T00:00:00.5Z");
    let live = stored(kind, "PEM");
    let again = apply_over(&live, kind, &kind.desired(&names(), "NEW", &token()), later);
    assert_eq!(registered_at(&again), Some(now()));

    let mut emptied = live;
    emptied["webhooks"] = json!([]);
    let again = apply_over(&emptied, kind, &kind.desired(&names(), "NEW", &token()), later);
    assert_eq!(again["metadata"]["annotations"][REGISTERED_AT], "2027-01-01T00:00:00Z");
}

#[test]
fn what_is_trusted_is_what_both_trust_and_since_when() {
    let (one, two) =
        (super::super::issue::authority(now()).unwrap().0, super::super::issue::authority(now()).unwrap().0);
    let pem = |authorities: &[&super::super::state::Authority]| {
        let authorities = authorities.iter().map(|a| (*a).clone()).collect();
        super::super::State { authorities, ..Default::default() }.bundle_pem()
    };
    let live = |validating: &str, mutating: &str| {
        vec![
            (Kind::Validating, Some(stored(Kind::Validating, validating))),
            (Kind::Mutating, Some(stored(Kind::Mutating, mutating))),
        ]
    };
    let both = pem(&[&one, &two]);
    let first = observe(&live(&both, &pem(&[&one])), &Registration::Unknown, now());
    let expected = Registration::Trusting {
        authorities: vec![one.certificate.clone()],
        named: vec![token()],
        since: now(),
        named_since: now(),
        complete: true,
    };
    assert_eq!(first, expected);

    let later = at("2026-11-30T13:00:00Z");
    assert_eq!(observe(&live(&both, &pem(&[&one])), &first, later), first, "the same, so since the same time");
    let more = observe(&live(&both, &both), &first, later);
    let Registration::Trusting { since, named_since, .. } = &more else { panic!("{more:?}") };
    assert_eq!((*since, *named_since), (later, now()), "no authority waits for a token, and no token for an authority");

    let half = [(Kind::Validating, Some(stored(Kind::Validating, &both))), (Kind::Mutating, None)];
    assert!(!observe(&half, &first, later).in_force());
    assert!(more.in_force());
    let none = [(Kind::Validating, Some(empty())), (Kind::Mutating, None)];
    assert_eq!(observe(&none, &first, later), Registration::Absent);
}

#[test]
fn the_tokens_that_are_named_are_those_of_either_and_another_one_is_news() {
    let live = |validating: &Token, mutating: &Token| {
        [(Kind::Validating, validating), (Kind::Mutating, mutating)].map(|(kind, token)| {
            let webhook = kind.desired(&names(), "PEM", token);
            (kind, Some(apply_over(&empty(), kind, &webhook, now())))
        })
    };
    let (old, new) = (token(), Token::random());
    let first = observe(&live(&old, &old), &Registration::Unknown, now());
    assert_eq!(first.named(), std::slice::from_ref(&old));

    let later = now() + Duration::from_secs(3600);
    assert!(first.names(&old, later) && !first.names(&old, now()), "the API servers are given a while");
    let half = observe(&live(&new, &old), &first, later);
    assert_eq!(half.named(), [new.clone(), old.clone()]);
    assert!(!half.names(&new, later + Duration::from_secs(3600)));
    let whole = observe(&live(&new, &new), &half, later);
    assert!(!whole.names(&new, later) && whole.names(&new, later + Duration::from_secs(60)));
}

#[test]
fn a_service_is_reachable_once_one_endpoint_is_ready() {
    let slice = |ready: Option<bool>| EndpointSlice {
        endpoints: vec![Endpoint {
            addresses: vec!["10.0.0.1".into()],
            conditions: Some(EndpointConditions { ready, ..Default::default() }),
            ..Default::default()
        }],
        ..Default::default()
    };
    assert!(!has_ready_endpoint(&[]));
    assert!(!has_ready_endpoint(&[EndpointSlice::default(), slice(Some(false))]));
    assert!(has_ready_endpoint(&[slice(Some(false)), slice(Some(true))]));
    assert!(has_ready_endpoint(&[slice(None)]));
}

#[test]
fn a_quarrel_slows_down_and_peace_forgets_it() {
    let mut pace = Pace::default();
    let mut clock = now();
    assert_eq!(pace.wait(clock), Duration::ZERO);
    let mut writes = 0;
    while clock < now() + Duration::from_secs(3600) {
        if pace.wait(clock).is_zero() {
            pace.wrote(clock);
            writes += 1;
        }
        clock += Duration::from_secs(1);
    }
    assert!((10..25).contains(&writes), "{writes}");
    clock += Duration::from_secs(3600);
    pace.wrote(clock);
    assert_eq!(pace.wait(clock), Duration::from_secs(1));
}
