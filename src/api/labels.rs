//! Every label, annotation, finalizer-like marker and field manager of ours, in one place.

use super::TargetRef;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The phase of a run, as its slug.
pub const PHASE: &str = "sluice.dev/phase";
/// The namespace of the target that a run, pod or Secret belongs to.
pub const NAMESPACE: &str = "sluice.dev/namespace";
/// The name of that target; see [`value`].
pub const NAME: &str = "sluice.dev/name";
/// The UID of that target. On a pre-create run it is that of the attempt that was admitted last.
pub const UID: &str = "sluice.dev/uid";
/// The run that a pod or Secret belongs to.
pub const RUN: &str = "sluice.dev/run";
/// On a pod of a run, which of them it is: the place of its resource; where each try of a script has a pod of its own, the
/// place of the step and the number of the try; and the number of pods that were lost before it: `0-0`, or `0-2-1-0`.
pub const PART: &str = "sluice.dev/part";
/// The resource of the target that an applied object or a pod belongs to.
pub const RESOURCE: &str = "sluice.dev/resource";
/// On what a fork consists of: the name of its sandbox.
pub const SANDBOX: &str = "sluice.dev/sandbox";
/// On what a fork consists of: the UID of its sandbox.
pub const SANDBOX_UID: &str = "sluice.dev/sandbox-uid";
/// On what a fork consists of: the workload that it was forked of.
pub const FORK_OF: &str = "sluice.dev/fork-of";
/// On objects that an `apply` step wrote: a hash of target and resource, so that nothing else is ever pruned.
pub const APPLIED_BY: &str = "sluice.dev/applied-by";
/// On objects that an `apply` step wrote: the plugin, its version included, whose workflow wrote it last; see [`value`].
pub const PLUGIN: &str = "sluice.dev/plugin";

/// On a pod that waits for a run: the plugin, its version included, that keeps it ready; see [`value`].
pub const WARM_OF: &str = "sluice.dev/warm-of";
/// On a pod that waits for a run: a hash of the template that it was made of.
pub const WARM_TEMPLATE: &str = "sluice.dev/warm-template";

/// On Sluice's own pods, and on no pod of a plugin's: `server`. The chart's Service, Deployment and the like select by it.
pub const COMPONENT: &str = "sluice.dev/component";

/// Annotation of a target, written by the mutating webhook: which version each `@latest` stands for, as JSON.
pub const LATEST: &str = "sluice.dev/latest";
/// Annotation of a run: the process that wrote it, and begins it unless it is gone.
pub const BEGUN_BY: &str = "sluice.dev/begun-by";
/// Annotation of a run and of a record: when it was written, by the API server's clock (RFC 3339).
pub const WRITTEN_AT: &str = "sluice.dev/written-at";
/// Annotation of a record: its own UID, which a copy of it does not have.
pub const OWN_UID: &str = "sluice.dev/own-uid";
/// Annotation of a record that Sluice did not write in this cluster: what that means.
pub const INERT: &str = "sluice.dev/inert";
/// Label of what Sluice makes anew from what it is for, so that no backup has it.
pub const NO_BACKUP: &str = "velero.io/exclude-from-backup";
/// Annotation of a sandbox: why its pre-delete is not to be run. Asks for the right to `skip` it.
pub const SKIP_PRE_DELETE: &str = "sluice.dev/skip-pre-delete";
/// Annotation of our webhook configurations: since when they have been in force (RFC 3339).
pub const REGISTERED_AT: &str = "sluice.dev/registered-at";

/// The field manager of Sluice's own writes.
pub const MANAGER: &str = "sluice";

/// The labels that tell which target a run or a record is of.
pub fn of_target(target: &TargetRef) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<_, _> =
        [(NAMESPACE.to_owned(), value(&target.namespace)), (NAME.to_owned(), value(&target.name))].into();
    labels.extend(target.uid.iter().map(|uid| (UID.to_owned(), uid.clone())));
    labels
}

/// The selector of everything that is labelled with a target's name.
pub fn selector(namespace: &str, name: &str) -> String {
    format!("{NAMESPACE}={},{NAME}={}", value(namespace), value(name))
}

/// A label value for `raw`: itself where it is a valid one, else cut and followed by a hash of the whole.
///
/// The limit is 63 bytes of `[A-Za-z0-9._-]`, beginning and ending with a letter or digit
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set>).
pub fn value(raw: &str) -> String {
    let valid = raw.len() <= 63
        && raw.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && raw.starts_with(|c: char| c.is_ascii_alphanumeric())
        && raw.ends_with(|c: char| c.is_ascii_alphanumeric());
    if valid {
        return raw.to_owned();
    }
    let head: String = raw
        .chars()
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' })
        .take(46)
        .collect();
    let dash = if head.is_empty() { "" } else { "-" };
    format!("{head}{dash}{}", short_hash(raw))
}

/// A name of at most `limit` bytes (at least 18) for `raw`: itself where it fits, else cut and followed by a hash.
pub fn name(raw: &str, limit: usize) -> String {
    if raw.len() <= limit {
        return raw.to_owned();
    }
    let mut end = limit - 17;
    while !raw.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{}", raw[..end].trim_end_matches(['-', '.']), short_hash(raw))
}

/// The first 64 bits of the SHA-256 of `raw`, as 16 hexadecimal digits.
pub fn short_hash(raw: &str) -> String {
    Sha256::digest(raw.as_bytes())[..8].iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_value_stays_as_it_is() {
        assert_eq!(value("feature-x"), "feature-x");
    }

    #[test]
    fn a_long_value_is_cut_and_stays_distinct() {
        let (a, b) = (value(&format!("{}a", "x".repeat(80))), value(&format!("{}b", "x".repeat(80))));
        assert!(a.len() <= 63 && b.len() <= 63);
        assert_ne!(a, b);
    }

    #[test]
    fn a_value_of_no_valid_character_is_a_hash() {
        assert_eq!(value("::").len(), 16);
        assert!(value("::").ends_with(&short_hash("::")));
    }

    #[test]
    fn a_long_name_fits_its_limit() {
        assert!(name(&"graphql-".repeat(20), 63).len() <= 63);
        assert_eq!(name("cart-x", 63), "cart-x");
    }
}
