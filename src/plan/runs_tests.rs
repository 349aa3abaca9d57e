//! Which phases a change runs, and what a deletion makes of plugins that are not known.

use super::*;
use crate::api::{Apply, ResourcePluginSpec, Step};
use rstest::rstest;
use serde_json::json;

fn script() -> Option<Vec<Step>> {
    Some(vec![Step { name: "s".into(), script: Some("#!/bin/sh\n".into()), ..Step::default() }])
}

fn apply() -> Option<Vec<Step>> {
    Some(vec![Step { name: "a".into(), apply: Some(Apply::default()), ..Step::default() }])
}

fn plugins() -> Plugins {
    let all = ResourcePluginSpec {
        pre_create: script(),
        post_create: script(),
        pre_update: script(),
        post_update: script(),
        pre_delete: script(),
        post_delete: script(),
        ..ResourcePluginSpec::default()
    };
    let older = ResourcePluginSpec { create: script(), delete: script(), ..ResourcePluginSpec::default() };
    let applies = ResourcePluginSpec { pre_create: apply(), ..ResourcePluginSpec::default() };
    Plugins::new([
        ("all".to_owned(), all.clone()),
        ("all.2.0.0".to_owned(), all),
        ("older".to_owned(), older),
        ("applies".to_owned(), applies),
    ])
}

fn object(resources: &[(&str, &str)]) -> Value {
    let resources: Vec<_> = resources.iter().map(|(name, plugin)| json!({"name": name, "plugin": plugin})).collect();
    json!({"metadata": {"name": "x", "namespace": "shop", "uid": "u"}, "spec": {"resources": resources}})
}

fn shown(runs: &[PlannedRun]) -> Vec<String> {
    let names = |r: &PlannedRun| r.resources.iter().map(|r| r.name.clone()).collect::<Vec<_>>().join("+");
    runs.iter().map(|r| format!("{} {}", r.phase, names(r))).collect()
}

type Resources = &'static [(&'static str, &'static str)];

#[test]
fn t07_a_deletion_runs_the_phases_of_every_resource_whose_plugin_is_known() {
    let mut old = object(&[("a", "all"), ("b", "gone"), ("c", "all"), ("d", "all@latest"), ("e", "gone@latest")]);
    old["spec"]["resources"].as_array_mut().unwrap().push(json!({"name": 7}));
    for side in [Side::Pre, Side::Post] {
        let (runs, failed) = plan_deletion(&old, side, &plugins());
        let phase = if side == Side::Pre { "pre-delete" } else { "post-delete" };
        assert_eq!(shown(&runs), [format!("{phase} a+c+d")]);
        let failed: Vec<String> = failed.iter().map(ToString::to_string).collect();
        assert_eq!(failed.len(), 3);
        assert!(failed[0].starts_with("spec.resources[1].plugin: there is no ResourcePlugin \"gone\""), "{failed:?}");
    }
    let known = object(&[("a", "all"), ("c", "all")]);
    let (runs, failed) = plan_deletion(&known, Side::Pre, &plugins());
    assert_eq!((runs, failed.len()), (plan(Change::Delete { old: &known }, Side::Pre, &plugins()).unwrap(), 0));
}

#[rstest]
#[case::create(None, Some(&[("a", "all"), ("b", "all")] as Resources), &["pre-create a+b"], &["post-create a+b"])]
#[case::delete(Some(&[("a", "all")] as Resources), None, &["pre-delete a"], &["post-delete a"])]
#[case::joins(Some(&[("a", "all")] as Resources), Some(&[("a", "all"), ("b", "all")] as Resources),
    &["pre-create b", "pre-update a"], &["post-create b", "post-update a"])]
#[case::leaves(Some(&[("a", "all"), ("b", "all")] as Resources), Some(&[("a", "all")] as Resources),
    &["pre-update a", "pre-delete b"], &["post-update a", "post-delete b"])]
#[case::other_version(Some(&[("a", "all")] as Resources), Some(&[("a", "all@2.0.0")] as Resources),
    &["pre-delete a", "pre-create a"], &["post-delete a", "post-create a"])]
#[case::older_names_create(None, Some(&[("a", "older")] as Resources), &["pre-create a"], &[])]
#[case::older_names_delete(Some(&[("a", "older")] as Resources), None, &[], &["post-delete a"])]
#[case::applied_objects_are_deleted(Some(&[("a", "applies")] as Resources), None, &[], &["post-delete a"])]
#[case::nothing(Some(&[("a", "all")] as Resources), Some(&[("a", "all")] as Resources), &[], &[])]
fn a_change_runs_its_phases(
    #[case] old: Option<Resources>,
    #[case] new: Option<Resources>,
    #[case] pre: &[&str],
    #[case] post: &[&str],
) {
    let (old, new) = (old.map(object), new.map(object));
    let change = match (&old, &new) {
        (None, Some(new)) => Change::Create { new },
        (Some(old), Some(new)) => Change::Update { old, new },
        (Some(old), None) => Change::Delete { old },
        (None, None) => unreachable!(),
    };
    assert_eq!(shown(&plan(change, Side::Pre, &plugins()).unwrap()), pre);
    assert_eq!(shown(&plan(change, Side::Post, &plugins()).unwrap()), post);
}

#[test]
fn an_update_with_only_create_and_delete_runs_nothing() {
    let (old, mut new) = (object(&[("a", "older")]), object(&[("a", "older")]));
    new["spec"]["description"] = json!("changed");
    assert!(plan(Change::Update { old: &old, new: &new }, Side::Pre, &plugins()).unwrap().is_empty());
}

#[test]
fn metadata_status_and_objects_being_deleted_run_nothing() {
    let old = object(&[("a", "all")]);
    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    labelled["status"] = json!({"observedGeneration": 1});
    assert!(plan(Change::Update { old: &old, new: &labelled }, Side::Pre, &plugins()).unwrap().is_empty());

    let mut going = object(&[]);
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(plan(Change::Update { old: &old, new: &going }, Side::Pre, &plugins()).unwrap().is_empty());
}

#[test]
fn an_object_that_a_finalizer_kept_runs_its_post_delete_and_no_second_pre_delete() {
    let mut going = object(&[("a", "all")]);
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(plan(Change::Delete { old: &going }, Side::Pre, &plugins()).unwrap().is_empty());
    assert_eq!(plan(Change::Delete { old: &going }, Side::Post, &plugins()).unwrap()[0].phase, Phase::PostDelete);
}

#[test]
fn an_unknown_plugin_is_named_with_its_field() {
    let new = object(&[("a", "all"), ("b", "none")]);
    let error = plan(Change::Create { new: &new }, Side::Pre, &plugins()).unwrap_err();
    assert!(error.to_string().starts_with("spec.resources[1].plugin: there is no ResourcePlugin \"none\""), "{error}");
}

#[test]
fn latest_stays_what_it_was() {
    let mut new = object(&[("a", "all@latest")]);
    new["metadata"]["annotations"] = json!({labels::LATEST: "{\"a\": \"all\"}"});
    let runs = plan(Change::Create { new: &new }, Side::Pre, &plugins()).unwrap();
    assert_eq!(runs[0].resources[0].plugin, "all");
}

#[rstest]
#[case::other_version(Some(&[("a", "all")] as Resources), Some(&[("a", "all@2.0.0")] as Resources), true)]
#[case::left(Some(&[("a", "all"), ("b", "all")] as Resources), Some(&[("b", "all")] as Resources), false)]
#[case::deleted(Some(&[("a", "all")] as Resources), None, false)]
fn only_a_resource_whose_plugin_changes_lives_on(
    #[case] old: Option<Resources>,
    #[case] new: Option<Resources>,
    #[case] lives: bool,
) {
    let (old, new) = (old.map(object), new.map(object));
    let change = match (&old, &new) {
        (Some(old), Some(new)) => Change::Update { old, new },
        (Some(old), None) => Change::Delete { old },
        _ => unreachable!(),
    };
    let planned = plan(change, Side::Post, &plugins()).unwrap();
    let leave = planned.into_iter().find(|run| run.phase == Phase::PostDelete).unwrap();
    let run = PhaseRunSpec {
        phase: leave.phase,
        target: leave.target,
        key: leave.key,
        attempt: 1,
        requested_by: None,
        routing_key: None,
        compensates: None,
        timeout_seconds: leave.timeout_seconds,
        resources: leave.resources,
        object: leave.object,
        old_object: leave.old_object,
    };
    assert_eq!(lives_on(&run, "a"), lives);
}
