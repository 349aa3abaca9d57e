//! The token in the webhooks' path: replaced when it may have been seen.

use crate::cluster::{SLUICE, Space, apply, eventually, get, kubectl, kubectl_file};
use crate::server::{Scaled, install, pods, values};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is promised.
const WITHIN: Duration = Duration::from_secs(60);
/// A pod that comes up, before the promise begins to count.
const START: Duration = Duration::from_secs(60);

/// The token that the webhook configurations name.
fn named() -> String {
    let of = |kind: &str, base: &str| {
        let configuration = get(&[kind, "sluice"]).unwrap();
        let path = configuration["webhooks"][0]["clientConfig"]["service"]["path"].as_str().unwrap().to_owned();
        path.strip_prefix(base).unwrap().to_owned()
    };
    eventually(WITHIN, "both configurations name one token", || {
        let token = of("validatingwebhookconfiguration", "/validate/");
        (token == of("mutatingwebhookconfiguration", "/mutate/")).then_some(token)
    })
}

/// What a caller with this token is told, as any pod could be one; its body is no review.
fn ask(token: &str, body: &str) -> String {
    let path = format!("/api/v1/namespaces/{SLUICE}/services/https:sluice:webhook/proxy/mutate/{token}?timeout=5s");
    kubectl_file(&["create", "--raw", &path], body).refused().stderr
}

/// A review that is answered well, so that asking exposes nothing: of a kind that no rule of Sluice's names.
const HARMLESS: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","name":"x",
"namespace":"default","kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},
"userInfo":{"username":"nobody"},"object":null,"oldObject":null}}"#;

fn is_refused(token: &str) -> bool {
    let path = format!("/api/v1/namespaces/{SLUICE}/services/https:sluice:webhook/proxy/mutate/{token}?timeout=5s");
    let asked = kubectl_file(&["create", "--raw", &path], HARMLESS);
    !asked.success && asked.stderr.contains("NotFound")
}

/// Whoever asks twelve times has asked each of three replicas, but for one time in forty.
fn is_refused_everywhere(token: &str) -> bool {
    (0..12).all(|_| is_refused(token))
}

/// Waits until no token is being replaced, and none will be because of a start of one of these pods.
pub fn at_rest() {
    eventually(Duration::from_secs(200), "the token of the last start is in force alone", || {
        let secret = get(&["-n", SLUICE, "secret", "sluice-token"])?;
        let field = |key: &str| {
            let value = secret["data"][key].as_str().unwrap_or_default();
            String::from_utf8(STANDARD.decode(value).unwrap()).unwrap()
        };
        let changed: k8s_openapi::jiff::Timestamp = field("changed").parse().ok()?;
        let started = pods().into_iter().filter_map(|pod| {
            pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"].as_str()?.parse().ok()
        });
        let last: k8s_openapi::jiff::Timestamp = started.max()?;
        // A start replaces the token within half a minute, unless a successor waits already that nobody has seen.
        let quiet = k8s_openapi::jiff::Timestamp::now() - Duration::from_secs(40);
        (field("accepted").lines().count() == 1 && last.max(changed) < quiet).then_some(())
    });
}

/// Dry creates, one after the other, until it is asked for those that failed.
struct Creates {
    stop: Arc<AtomicBool>,
    creator: JoinHandle<(usize, Vec<String>)>,
}

impl Creates {
    fn begin(space: &Space) -> Self {
        let manifest = vec![space.sandbox("x", "  {}").replace("name: x,", "generateName: x-,"); 5].join("---\n");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let creator = std::thread::spawn(move || {
            let (mut made, mut failed) = (0, Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let created = kubectl_file(&["create", "--dry-run=server"], &manifest);
                made += 5;
                if !created.success || !created.stderr.is_empty() {
                    failed.push(created.stderr);
                }
                std::thread::sleep(Duration::from_millis(300));
            }
            (made, failed)
        });
        Self { stop, creator }
    }

    #[track_caller]
    fn none_failed(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (made, failed) = self.creator.join().unwrap();
        assert!(failed.is_empty(), "of {made} creates these failed: {failed:#?}");
        assert!(made >= 50, "{made} creates are no load");
    }
}

#[test]
fn t02_a_token_that_kubectl_showed_while_sluice_was_down_is_refused_within_a_minute_of_its_return() {
    let space = Space::alone("shown");
    at_rest();
    let down = Scaled::to(0);
    let shown = apply(&space.sandbox("x", "  {}")).refused().stderr;
    let (_, shown) = shown.split_once("/validate/").unwrap_or_else(|| panic!("no URL in it: {shown}"));
    let token = shown.split_once('?').unwrap().0.to_owned();
    assert_eq!(token, named(), "whoever may write a sandbox has it now");

    let back = Instant::now();
    drop(down);
    eventually(START, "changes work", || apply(&space.sandbox("x", "  {}")).success.then_some(()));
    let creates = Creates::begin(&space);
    eventually(WITHIN, "the token that was shown is refused", || is_refused(&token).then_some(()));
    assert!(back.elapsed() < WITHIN, "{:?}", back.elapsed());
    assert_ne!(named(), token);
    std::thread::sleep(Duration::from_secs(10));
    creates.none_failed();
}

#[test]
fn t02_an_answer_that_is_none_has_the_token_replaced_within_a_minute_and_no_change_fails_meanwhile() {
    let space = Space::of_three("broken");
    at_rest();
    let creates = Creates::begin(&space);
    let token = named();
    let refused = ask(&token, "{\"no\": \"review\"");
    assert!(!refused.contains("NotFound"), "the token is right: {refused}");
    let seen = Instant::now();
    eventually(WITHIN, "all refuse it", || is_refused_everywhere(&token).then_some(()));
    assert!(seen.elapsed() > Duration::from_secs(20), "the API server had no time to hear of another");
    assert_ne!(named(), token);
    std::thread::sleep(Duration::from_secs(10));
    creates.none_failed();
}

#[test]
fn t02_where_client_certificates_are_asked_for_the_token_alone_opens_nothing() {
    let space = Space::alone("client-ca");
    let before = values();
    let view = kubectl(&["config", "view", "--raw", "--minify", "-o", "json"]).ok().stdout;
    let view: serde_json::Value = serde_json::from_str(&view).unwrap();
    // The test cluster's CA also signs what its API server shows to webhooks: see tests/cluster/components.sh.
    let ca = view["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap();
    let ca = String::from_utf8(STANDARD.decode(ca).unwrap()).unwrap().replace('\n', "\n      ");
    let names = "  clientNames: [kube-apiserver-webhooks]\n";
    install(&format!("{before}\nwebhook:\n{names}  clientCA:\n    pem: |\n      {ca}\n"));
    apply(&space.sandbox("x", "  {}")).ok();
    // With TLS 1.3 whoever connects hears of the missing certificate only when it reads, so that its write may fail first.
    eventually(START, "a certificate is asked for", || {
        let refused = ask(&named(), HARMLESS).to_lowercase();
        assert!(
            ["certificate", "broken pipe", "connection reset"].iter().any(|end| refused.contains(end)),
            "{refused}"
        );
        refused.contains("certificate").then_some(())
    });

    install(&before);
    apply(&space.sandbox("again", "  {}")).ok();
    let path = format!("/api/v1/namespaces/{SLUICE}/services/https:sluice:webhook/proxy/mutate/{}", named());
    kubectl_file(&["create", "--raw", &path], HARMLESS).ok();
}
