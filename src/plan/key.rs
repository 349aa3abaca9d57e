//! The key of a run: what makes two requests the same change.

use crate::api::{Phase, RunResource, TargetRef};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// How many bytes of a SHA-256 digest identify something. Whoever writes specs must not be able to find two with one
/// key: with 64 bits that took five minutes on one core, with 128 bits it takes 2^64 tries.
const BYTES: usize = 16;

/// 32 hexadecimal digits that are the same for every attempt at the same change and for no other.
///
/// Of the object only the spec counts: neither the UID of a create nor anything that the API server or a client may
/// fill in differently on the next attempt. An update and a delete are of one object, so its UID counts there.
pub fn key(phase: Phase, target: &TargetRef, object: &Value, deletes: bool, resources: &[RunResource]) -> String {
    let uid = if phase == Phase::PreCreate { None } else { target.uid.as_deref() };
    // The deletion of the target is one, whatever its spec is when it is asked for.
    let spec = if deletes { &Value::Null } else { &object["spec"] };
    let names: Vec<_> = resources
        .iter()
        .map(|r| json!({"name": r.name, "plugin": r.plugin, "runner": r.runner, "steps": r.steps}))
        .collect();
    let identity = json!({
        "phase": phase, "apiVersion": target.api_version, "kind": target.kind,
        "namespace": target.namespace, "name": target.name, "uid": uid, "spec": spec, "resources": names,
    });
    hash(&identity)
}

/// What tells runs apart that do other work, whatever their target and its spec.
pub fn work(phase: Phase, resources: &[RunResource]) -> u64 {
    let workflows: Vec<_> = resources.iter().map(|r| json!({"plugin": r.plugin, "steps": r.steps})).collect();
    // Nobody gains from two kinds of work with one number: it tells how long they usually take.
    u64::from_str_radix(&hash(&json!({"phase": phase, "resources": workflows}))[..16], 16).unwrap_or_default()
}

/// The key of the run that undoes `run`.
pub fn of_undo(run: &str) -> String {
    hash(&json!({"undo": run}))
}

/// The name of a run: `pre-create-5f0c1a9be2d47c305f0c1a9be2d47c30-1`.
pub fn run_name(phase: Phase, key: &str, attempt: u32) -> String {
    format!("{phase}-{key}-{attempt}")
}

/// 32 digits over a JSON value; the order of an object's fields does not count.
pub fn hash(value: &Value) -> String {
    let mut digest = Sha256::new();
    feed(&mut digest, value);
    digest.finalize()[..BYTES].iter().map(|b| format!("{b:02x}")).collect()
}

fn feed(digest: &mut Sha256, value: &Value) {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            digest.update(b"{");
            for (name, field) in sorted {
                digest.update(name.len().to_le_bytes());
                digest.update(name.as_bytes());
                feed(digest, field);
            }
            digest.update(b"}");
        }
        Value::Array(items) => {
            digest.update(b"[");
            items.iter().for_each(|item| feed(digest, item));
            digest.update(b"]");
        }
        Value::String(text) => {
            digest.update(b"s");
            digest.update(text.len().to_le_bytes());
            digest.update(text.as_bytes());
        }
        Value::Number(number) => digest.update(format!("n{number};")),
        Value::Bool(bool) => digest.update(if *bool { b"t" } else { b"f" }),
        Value::Null => digest.update(b"0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Runner;

    fn target(uid: &str) -> TargetRef {
        TargetRef { namespace: "shop".into(), name: "x".into(), uid: Some(uid.into()), ..TargetRef::default() }
    }

    #[test]
    fn every_attempt_of_a_create_has_one_key_though_its_uid_changes() {
        let object = json!({"spec": {"a": 1, "b": 2}});
        let again = json!({"spec": {"b": 2, "a": 1}, "metadata": {"resourceVersion": "7"}});
        assert_eq!(
            key(Phase::PreCreate, &target("1"), &object, false, &[]),
            key(Phase::PreCreate, &target("2"), &again, false, &[])
        );
    }

    #[test]
    fn another_spec_object_phase_or_workflow_is_another_key() {
        let object = json!({"spec": {"a": 1}});
        let base = key(Phase::PreUpdate, &target("1"), &object, false, &[]);
        let resource = RunResource { name: "db".into(), ..RunResource::default() };
        let runner = Runner { image: Some("other".into()), ..Runner::default() };
        let mended = RunResource { runner, ..resource.clone() };
        let with = |resource: &RunResource| {
            key(Phase::PreUpdate, &target("1"), &object, false, std::slice::from_ref(resource))
        };
        assert_ne!(with(&resource), with(&mended));
        assert_ne!(base, key(Phase::PreUpdate, &target("1"), &json!({"spec": {"a": 2}}), false, &[]));
        assert_ne!(base, key(Phase::PreUpdate, &target("2"), &object, false, &[]));
        assert_ne!(base, key(Phase::PostUpdate, &target("1"), &object, false, &[]));
        assert_ne!(base, key(Phase::PreUpdate, &target("1"), &object, false, &[resource]));
    }

    #[test]
    fn a_deletion_has_one_key_whatever_the_spec() {
        let (a, b) = (json!({"spec": {"a": 1}}), json!({"spec": {"a": 2}}));
        let of = |object, deletes| key(Phase::PreDelete, &target("1"), object, deletes, &[]);
        assert_eq!(of(&a, true), of(&b, true));
        assert_ne!(of(&a, false), of(&b, false), "a resource may leave, join and leave again");
    }

    #[test]
    fn t06_a_key_has_128_bits_and_so_has_the_hash_of_a_spec() {
        let key = key(Phase::PreCreate, &target("1"), &json!({"spec": {}}), false, &[]);
        assert!(key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit()), "{key}");
        assert_eq!(hash(&json!({"a": 1})).len(), 32);
        assert!(run_name(Phase::PreCreate, &key, 10).len() <= 63, "a label's value");
    }

    #[test]
    fn neighbouring_strings_do_not_run_together() {
        assert_ne!(hash(&json!(["ab", "c"])), hash(&json!(["a", "bc"])));
    }
}
