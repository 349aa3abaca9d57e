//! The mutating webhook: pure, and the only fields that it writes are annotations of ours.
//!
//! It notes which version each `@latest` stands for, and seals the forks. The spec stays as the user wrote it, so that
//! nothing that compares it with a file (`kubectl diff`, Argo CD) sees a difference.

use super::review::{Answer, Operation, Request};
use crate::api::labels::{ADMITTED, LATEST};
use crate::plan::plugins::Plugins;
use crate::plan::references::{forks, seal};
use crate::plan::runs;
use crate::plan::seal::Sealer;
use json_patch::{AddOperation, PatchOperation, RemoveOperation, jsonptr::PointerBuf};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The answer to the mutating review of a sandbox.
pub fn sandbox(request: &Request, plugins: &Plugins, sealer: &Sealer) -> Answer {
    if !matches!(request.operation, Operation::Create | Operation::Update) {
        return Answer::allow();
    }
    let (old, new) = (&request.old_object, &request.object);
    let patch = patch(old, new, &latest(old, new, plugins), sealed(old, new, &request.namespace, sealer));
    Answer::Allow { warnings: Vec::new(), audit: Vec::new(), patch }
}

/// Brings our annotations to what they should be.
fn patch(old: &Value, new: &Value, latest: &BTreeMap<String, String>, seal: Option<String>) -> Vec<PatchOperation> {
    let annotations = new["metadata"]["annotations"].as_object();
    let given = |name: &str| annotations.and_then(|all| all.get(name));
    let mut wanted = Vec::new();
    if *latest != runs::latest(new) {
        wanted.push((LATEST, (!latest.is_empty()).then(|| json!(json!(latest).to_string()))));
    }
    let seal = seal.map(Value::String);
    if seal.as_ref() != given(ADMITTED) && !stays_unsealed(old, new) {
        wanted.push((ADMITTED, seal));
    }
    wanted.retain(|(name, value)| value.is_some() || given(name).is_some());
    if annotations.is_none() {
        let all: Map<_, _> = wanted.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        return if all.is_empty() { Vec::new() } else { vec![add(["metadata", "annotations"], all.into())] };
    }
    let of = |(name, value)| {
        let at = ["metadata", "annotations", name];
        match value {
            Some(value) => add(at, value),
            None => PatchOperation::Remove(RemoveOperation { path: PointerBuf::from_tokens(at) }),
        }
    };
    wanted.into_iter().map(of).collect()
}

fn add<'a>(at: impl IntoIterator<Item = &'a str>, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(at), value })
}

/// The seal that a sandbox should have: the one that it has, where that holds.
fn sealed(old: &Value, new: &Value, namespace: &str, sealer: &Sealer) -> Option<String> {
    let known = [seal(new), seal(old)].into_iter().flatten();
    let holds = |given: &&str| !forks(new).is_empty() && sealer.fits(namespace, new, given);
    known.into_iter().find(holds).map(str::to_owned).or_else(|| sealer.seal(namespace, new))
}

/// Whether nobody is asked for the right to the forks: what is being deleted makes none, and must be let go by whoever
/// takes a finalizer away.
fn stays_unsealed(old: &Value, new: &Value) -> bool {
    let deleting = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
    deleting(old) && forks(old) == forks(new)
}

/// What each `@latest` stands for: what it stood for when its resource joined, else the newest version.
fn latest(old: &Value, new: &Value, plugins: &Plugins) -> BTreeMap<String, String> {
    let before = runs::latest(old);
    let was = runs::declared(old).unwrap_or_default();
    let resources = runs::declared(new).unwrap_or_default();
    resources
        .into_iter()
        .filter(|resource| resource.plugin.ends_with("@latest"))
        .filter_map(|resource| {
            let kept = was.iter().any(|r| r.name == resource.name && r.plugin == resource.plugin);
            let pinned = before.get(&resource.name).filter(|_| kept).map(String::as_str);
            let found =
                plugins.resolve(&resource.plugin, pinned).or_else(|_| plugins.resolve(&resource.plugin, None)).ok()?;
            Some((resource.name, found.name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ResourcePluginSpec;

    fn plugins(names: &[&str]) -> Plugins {
        Plugins::new(names.iter().map(|n| ((*n).to_owned(), ResourcePluginSpec::default())))
    }

    fn sandbox(plugin: &str, latest: Option<&str>) -> Value {
        let mut sandbox = json!({"metadata": {"name": "x"}, "spec": {"resources": [{"name": "db", "plugin": plugin}]}});
        if let Some(latest) = latest {
            sandbox["metadata"]["annotations"] = json!({LATEST: latest});
        }
        sandbox
    }

    fn mutated(old: &Value, new: &Value, known: &[&str]) -> Value {
        let request = Request {
            operation: if old.is_null() { Operation::Create } else { Operation::Update },
            namespace: "shop".into(),
            object: new.clone(),
            old_object: old.clone(),
            ..Request::default()
        };
        let sealer = Sealer::new([7; 32]);
        let Answer::Allow { patch, .. } = super::sandbox(&request, &plugins(known), &sealer) else { panic!("denied") };
        let mut after = new.clone();
        json_patch::patch(&mut after, &patch).unwrap();
        if old == new {
            assert_eq!(patch, vec![], "nothing is new");
        }
        after
    }

    #[test]
    fn latest_is_pinned_when_the_resource_joins_and_stays() {
        let created = mutated(&Value::Null, &sandbox("db@latest", None), &["db.1.0.0", "db.2.0.0"]);
        assert_eq!(created["metadata"]["annotations"][LATEST], r#"{"db":"db.2.0.0"}"#);
        assert_eq!(created["spec"], sandbox("db@latest", None)["spec"]);

        let updated = mutated(&created, &sandbox("db@latest", None), &["db.1.0.0", "db.2.0.0", "db.3.0.0"]);
        assert_eq!(updated["metadata"]["annotations"][LATEST], r#"{"db":"db.2.0.0"}"#);
    }

    #[test]
    fn nobody_can_pin_by_hand_and_what_is_no_longer_latest_is_forgotten() {
        let forged =
            mutated(&Value::Null, &sandbox("db@latest", Some(r#"{"db":"db.1.0.0"}"#)), &["db.1.0.0", "db.2.0.0"]);
        assert_eq!(forged["metadata"]["annotations"][LATEST], r#"{"db":"db.2.0.0"}"#);
        let named = mutated(&Value::Null, &sandbox("db@1.0.0", Some(r#"{"db":"db.2.0.0"}"#)), &["db.1.0.0"]);
        assert_eq!(named["metadata"]["annotations"], json!({}));
    }

    #[test]
    fn a_sandbox_without_latest_is_left_alone() {
        let plain = sandbox("db@1.0.0", None);
        assert_eq!(mutated(&Value::Null, &plain, &["db.1.0.0"]), plain);
    }

    fn forked(name: &str, workloads: &[&str]) -> Value {
        let forks: Vec<Value> =
            workloads.iter().map(|name| json!({"forkOf": {"kind": "Deployment", "name": name}})).collect();
        json!({"metadata": {"name": name, "annotations": {"mine": "kept"}}, "spec": {"forks": forks}})
    }

    fn holds(sandbox: &Value) -> bool {
        Sealer::new([7; 32]).holds("shop", sandbox)
    }

    #[test]
    fn t08_forks_are_sealed_when_they_come_and_when_they_change() {
        let created = mutated(&Value::Null, &forked("x", &["web"]), &[]);
        assert!(holds(&created) && created["spec"] == forked("x", &["web"])["spec"], "{created}");
        assert_eq!(created["metadata"]["annotations"]["mine"], "kept");
        assert_eq!(mutated(&created, &created, &[]), created);

        let mut changed = forked("x", &["web", "api"]);
        changed["metadata"]["annotations"][ADMITTED] = created["metadata"]["annotations"][ADMITTED].clone();
        let changed = mutated(&created, &changed, &[]);
        assert!(holds(&changed));
        // What drops the annotation, as `kubectl replace` does, gets the same again.
        assert_eq!(mutated(&changed, &forked("x", &["web", "api"]), &[]), changed);

        let gone = mutated(&changed, &forked("x", &[]), &[]);
        assert_eq!(gone["metadata"]["annotations"], json!({"mine": "kept"}));
    }

    #[test]
    fn t08_a_forged_seal_is_replaced_and_one_without_forks_is_taken_away() {
        let mut forged = forked("x", &["web"]);
        forged["metadata"]["annotations"][ADMITTED] = json!("00".repeat(32));
        assert!(!holds(&forged) && holds(&mutated(&Value::Null, &forged, &[])));
        let mut bare = forked("x", &[]);
        bare["metadata"]["annotations"][ADMITTED] = json!("00".repeat(32));
        assert_eq!(mutated(&Value::Null, &bare, &[])["metadata"]["annotations"], json!({"mine": "kept"}));
    }

    #[test]
    fn t08_what_is_being_deleted_is_not_sealed_unless_its_forks_change() {
        let mut going = forked("x", &["web"]);
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let mut freed = going.clone();
        freed["metadata"]["finalizers"] = json!([]);
        assert_eq!(mutated(&going, &freed, &[]), freed);
        freed["spec"]["forks"][0]["forkOf"]["name"] = json!("api");
        assert!(holds(&mutated(&going, &freed, &[])));
    }

    #[test]
    fn t08_a_name_that_is_still_to_be_made_is_sealed_by_its_beginning() {
        let unnamed = json!({"metadata": {"generateName": "pr-"}, "spec": forked("x", &["web"])["spec"]});
        let mut created = mutated(&Value::Null, &unnamed, &[]);
        created["metadata"]["name"] = json!("pr-abcde");
        assert!(holds(&created));
        let mut labelled = created.clone();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(mutated(&created, &labelled, &[]), labelled, "it still holds");
    }
}
