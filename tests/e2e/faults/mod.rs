//! Malformed plugins and sandboxes: each refused by the API server, with the field and with what would be right.

mod plugin;
mod sandbox;

use crate::cluster::kubectl_file;
use std::fmt::Write;

/// What is wrong, the manifest, and what the message must say: the field, then the remedy.
type Fault<'a> = (&'a str, String, &'a [&'a str]);

/// Creates each of them, and fails with all that were not refused as they should be.
#[track_caller]
fn refused(faults: &[Fault<'_>]) {
    let mut wrong = String::new();
    for (what, manifest, words) in faults {
        let got = kubectl_file(&["create"], manifest);
        let missing: Vec<_> = words.iter().filter(|word| !got.stderr.contains(**word)).collect();
        if got.success || !missing.is_empty() {
            let _ = writeln!(wrong, "--- {what}: missing {missing:?} in\n{}{}", got.stdout, got.stderr);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
