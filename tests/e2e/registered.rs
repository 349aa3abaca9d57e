//! What stands in the webhook configurations: the certificates change under load, and others may write there too.

use crate::cluster::{SLUICE, Space, Watch, eventually, get, kubectl, kubectl_file};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const CONFIGURATIONS: [&str; 2] = ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"];
/// Whoever writes to the configurations while others count what is written there.
static QUIET: Mutex<()> = Mutex::new(());
/// The API servers have a minute to see a new CA before anything is signed by it.
const ROTATED_WITHIN: Duration = Duration::from_secs(150);

/// A field of the Secret, decoded.
fn secret(field: &str) -> Option<String> {
    let secret = get(&["-n", SLUICE, "secret", "sluice-tls"])?;
    String::from_utf8(STANDARD.decode(secret["data"][field].as_str()?).unwrap()).ok()
}

/// The certificates that a configuration trusts.
fn bundle(kind: &str) -> String {
    let live = get(&[kind, "sluice"]).unwrap();
    let encoded = live["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap().to_owned();
    String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap()
}

fn certificates(pem: &str) -> Vec<String> {
    pem.split("-----BEGIN CERTIFICATE-----").skip(1).map(|part| part.trim().to_owned()).collect()
}

#[test]
fn w10_certificates_rotate_under_continuous_creates_and_nobody_meets_an_unknown_one() {
    let space = Space::of_three("rotate");
    let (old_leaf, old_bundle) = (secret("tls.crt").unwrap(), certificates(&bundle(CONFIGURATIONS[0])));
    let stop = Arc::new(AtomicBool::new(false));
    // Five creates with each command, most of them dry: they pass the webhooks just the same and leave nothing.
    let batch = vec![space.sandbox("x", "  {}").replace("name: x,", "generateName: x-,"); 5].join("---\n");
    let creators = [&["create"][..], &["create", "--dry-run=server"]].map(|arguments| {
        let (stop, batch) = (stop.clone(), batch.clone());
        std::thread::spawn(move || {
            let (mut made, mut failed) = (0, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let created = kubectl_file(arguments, &batch);
                made += 5;
                if !created.success || !created.stderr.is_empty() {
                    failed.push(created.stderr);
                }
                // A handful a second is asked for, not all that the machine has.
                std::thread::sleep(Duration::from_millis(if arguments.len() > 1 { 500 } else { 2000 }));
            }
            (made, failed)
        })
    });

    let quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    kubectl(&["-n", SLUICE, "delete", "secret", "sluice-tls"]).ok();
    // The CA's key is lost with it, so another CA joins the old one, beside the leaf that is served still.
    let both = eventually(ROTATED_WITHIN, "both configurations trust the old CA and a new one", || {
        let trusted = CONFIGURATIONS.map(|kind| certificates(&bundle(kind)));
        let joined =
            trusted.iter().all(|now| now.len() > old_bundle.len() && old_bundle.iter().all(|old| now.contains(old)));
        (joined && trusted[0] == trusted[1]).then(|| trusted[0].clone())
    });
    drop(quiet);
    assert_eq!(secret("tls.crt").as_ref(), Some(&old_leaf), "the leaf changed before its CA could be known");
    // What another CA signed comes later.
    eventually(ROTATED_WITHIN, "the leaf is another", || secret("tls.crt").filter(|leaf| *leaf != old_leaf));
    // All three serve it, to new connections too: each restart of the API server's connections is one.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(certificates(&bundle(CONFIGURATIONS[0])), both, "the old CA is trusted as long as it may be served");
    stop.store(true, Ordering::Relaxed);
    let made = creators.map(|creator| creator.join().unwrap());
    let all: usize = made.iter().map(|(n, _)| n).sum();
    let failed: Vec<_> = made.iter().flat_map(|(_, failed)| failed).collect();
    assert!(failed.is_empty(), "of {all} creates these failed: {failed:#?}");
    assert!(all >= 100, "{all} creates are no load");
}

#[test]
fn w32_of_three_replicas_one_writes_once_for_each_change_by_another_and_none_writes_when_idle() {
    let space = Space::of_three("quarrel");
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    // A start has the token replaced, which is a write too.
    crate::trust::token::at_rest();
    let version = || CONFIGURATIONS.map(|kind| get(&[kind, "sluice"]).unwrap()["metadata"]["resourceVersion"].clone());
    let selector = |kind: &str| get(&[kind, "sluice"]).unwrap()["webhooks"][0]["namespaceSelector"].clone();
    let ours = selector(CONFIGURATIONS[0]);
    let watch = Watch::new(&[&[CONFIGURATIONS[0]], &[CONFIGURATIONS[1]]]);
    // The API server counts each write; a write that changes nothing is none.
    let changes = |kind: &str| {
        watch
            .seen(|e| e.kind == "MODIFIED" && e.object["kind"].as_str().is_some_and(|k| k.eq_ignore_ascii_case(kind)))
            .len()
    };
    let outsider = r#"[{"op": "add", "path": "/webhooks/0/namespaceSelector/matchExpressions/-",
        "value": {"key": "control-plane", "operator": "DoesNotExist"}}]"#;
    for round in 1..=2 {
        kubectl(&["patch", CONFIGURATIONS[0], "sluice", "--type=json", "--field-manager=enforcer", "-p", outsider])
            .ok();
        eventually(Duration::from_secs(60), "what is ours is put back", || {
            (selector(CONFIGURATIONS[0]) == ours).then_some(())
        });
        assert!(changes(CONFIGURATIONS[0]) <= 2 * round, "one write of the outsider's, one of Sluice's");
    }
    // What is not Sluice's is left alone.
    kubectl(&["label", CONFIGURATIONS[0], "sluice", "enforced=yes"]).ok();
    let before = version();
    std::thread::sleep(Duration::from_secs(15));
    assert_eq!(version(), before, "somebody wrote although nothing was to be done");
    assert_eq!((changes(CONFIGURATIONS[0]), changes(CONFIGURATIONS[1])), (5, 0));
    kubectl(&["label", CONFIGURATIONS[0], "sluice", "enforced-"]).ok();
    drop(space);
}
