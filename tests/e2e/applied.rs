//! `apply` steps keep objects: they make, prune and delete their own, and leave what is another's alone.

use crate::cluster::{
    EDITOR, Outcome, RUNNERS, Space, apply, eventually, keeps, kubectl, kubectl_file, plugin, witnesses,
};
use serde_json::Value;
use std::time::Duration;

/// A plugin's spec that acts as the tests' account.
fn applying(more: &str) -> String {
    format!("  runner: {{serviceAccountName: {EDITOR}}}\n{more}")
}

/// One ConfigMap for each of the names in the parameter `names`, with the parameter `value` in it.
fn each_name() -> String {
    applying(
        r#"  preCreate: &each
  - name: each
    apply:
      forEach: params.names.split(",")
      as: name
      manifests:
      - {apiVersion: v1, kind: ConfigMap, metadata: {name: "${name}"}, data: {value: "${params.?value.orValue('1')}"}}
  preUpdate: *each"#,
    )
}

/// A sandbox with these resources (YAML, the inside of a list).
fn with(space: &Space, name: &str, resources: &str) -> Outcome {
    apply(&space.sandbox(name, &format!("  resources: [{resources}]")))
}

fn resource(name: &str, plugin: &str, params: &str) -> String {
    format!("{{name: {name}, plugin: {plugin}, params: {{{params}}}}}")
}

/// The ConfigMaps of the space, without the one that every namespace has.
fn config_maps(space: &Space) -> Vec<String> {
    let listed = kubectl(&["-n", &space.namespace, "get", "configmaps", "-o", "name"]).ok();
    let name = |line: &str| line.trim_start_matches("configmap/").to_owned();
    listed.stdout.lines().map(name).filter(|name| name != "kube-root-ca.crt").collect()
}

fn value(space: &Space, config_map: &str) -> Value {
    space.get("configmap", config_map).unwrap()["data"]["value"].clone()
}

fn delete(space: &Space, name: &str) {
    kubectl(&["-n", &space.namespace, "delete", "sandbox", name]).ok();
    space.settled_run(name, "PostDelete", "Succeeded");
}

#[test]
fn objects_are_made_for_each_item_pruned_and_deleted_with_the_resource() {
    let space = Space::new("pruned");
    let each = space.plugin("each", &each_name());
    let names = |a: &str, b: &str| {
        let other = if b.is_empty() { String::new() } else { format!(", {}", resource("other", &each, b)) };
        with(&space, "x", &format!("{}{other}", resource("r", &each, a)))
    };
    names("names: 'a,b'", "names: 'd,e'").ok();
    assert_eq!(config_maps(&space), ["a", "b", "d", "e"]);
    space.settle("x");

    names("names: 'b,c', value: '2'", "names: 'd,e'").ok();
    assert_eq!(
        config_maps(&space),
        ["b", "c", "d", "e"],
        "what joins is there and what left is not, by the command's end"
    );
    assert_eq!((value(&space, "b"), value(&space, "d")), ("2".into(), "1".into()));
    space.settle("x");

    names("names: 'b,c', value: '2'", "").ok();
    space.settle("x");
    assert_eq!(config_maps(&space), ["b", "c"], "a resource that leaves takes its objects with it");
    let left = space.run("x", "PostDelete");
    assert_eq!(left["status"]["steps"][0]["message"], "2 deleted");

    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    eventually(Duration::from_secs(60), "the objects are gone with the sandbox", || {
        config_maps(&space).is_empty().then_some(())
    });
}

#[test]
fn an_object_that_is_another_s_is_refused_and_left_alone() {
    let space = Space::new("foreign");
    let each = space.plugin("each", &each_name());
    kubectl(&["-n", &space.namespace, "create", "configmap", "taken", "--from-literal=value=mine"]).ok();
    let before = space.get("configmap", "taken");
    let said = with(&space, "x", &resource("r", &each, "names: 'free,taken'")).refused().stderr;
    let message = format!("ConfigMap {}/taken exists already and does not belong to this resource", space.namespace);
    assert!(said.contains(&message), "{said}");
    assert!(said.contains("step each (number 1)"), "{said}");
    eventually(Duration::from_secs(30), "what the failed change had made is undone", || {
        (config_maps(&space) == ["taken"]).then_some(())
    });
    assert_eq!(space.get("configmap", "taken"), before);
}

#[test]
fn two_sandboxes_that_want_the_same_object_do_not_overwrite_each_other() {
    let space = Space::new("shared");
    let each = space.plugin("each", &each_name());
    with(&space, "first", &resource("r", &each, "names: same, value: first")).ok();
    space.settle("first");
    let said = with(&space, "second", &resource("r", &each, "names: same, value: second")).refused().stderr;
    assert!(said.contains("same exists already and does not belong to this resource"), "{said}");
    // What undoes the refused one must not take the other's.
    space.settled_run("second", "PostDelete", "Succeeded");
    assert_eq!(value(&space, "same"), "first");

    delete(&space, "first");
    // What it applied goes in its post-delete, after the command.
    space.settled_run("first", "PostDelete", "Succeeded");
    with(&space, "second", &resource("r", &each, "names: same, value: second")).ok();
    assert_eq!(value(&space, "same"), "second");
}

#[test]
fn a_conflict_names_the_other_manager() {
    let space = Space::new("conflict");
    let each = space.plugin("each", &each_name());
    with(&space, "x", &resource("r", &each, "names: a")).ok();
    space.settle("x");
    let theirs = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {value: theirs}\n";
    let stranger = ["-n", &space.namespace, "apply", "--server-side", "--force-conflicts", "--field-manager=stranger"];
    kubectl_file(&stranger, theirs).ok();
    let said = with(&space, "x", &resource("r", &each, "names: a, value: '2'")).refused().stderr;
    assert!(said.contains("ConfigMap") && said.contains("could not be applied"), "{said}");
    assert!(said.contains("conflict with \"stranger\"") && said.contains(".data.value"), "{said}");
    assert_eq!(value(&space, "a"), "theirs");
    assert_eq!(space.get("sandbox", "x").unwrap()["metadata"]["generation"], 1, "nothing was stored");
}

#[test]
fn what_the_service_account_may_not_do_is_denied_in_its_name() {
    let space = Space::new("forbidden");
    let secret = "{name: secret, apply: {manifests: [{apiVersion: v1, kind: Secret, metadata: {name: s}}]}}";
    let plugin = space.plugin("secret", &applying(&format!("  preCreate: [{secret}]")));
    let said = with(&space, "x", &resource("r", &plugin, "")).refused().stderr;
    assert!(said.contains(&format!("system:serviceaccount:{RUNNERS}:{EDITOR}")), "{said}");
    assert!(said.contains("cannot") && said.contains("secrets"), "{said}");
    assert!(!said.contains("FAILED"), "nothing was written, so there is nothing whose undoing could fail: {said}");
}

#[test]
fn a_kind_that_the_cluster_does_not_serve_is_named() {
    let space = Space::new("unserved");
    let route = "{name: route, apply: {manifests: [{apiVersion: example.org/v1, kind: Route, metadata: {name: r}}]}}";
    let plugin = space.plugin("route", &applying(&format!("  preCreate: [{route}]")));
    let said = with(&space, "x", &resource("r", &plugin, "")).refused().stderr;
    assert!(said.contains("Route (example.org/v1) is not a kind that this cluster serves"), "{said}");
}

#[test]
fn a_field_that_the_kind_does_not_have_is_named() {
    let space = Space::new("strict");
    let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, dat: {k: v}}";
    let plugin =
        space.plugin("typo", &applying(&format!("  preCreate: [{{name: typo, apply: {{manifests: [{map}]}}}}]")));
    let said = with(&space, "x", &resource("r", &plugin, "")).refused().stderr;
    assert!(said.contains("dat"), "{said}");
    assert!(config_maps(&space).is_empty());
}

#[test]
fn a_plugin_of_create_and_delete_alone_runs_nothing_on_an_update() {
    let space = Space::new("aliases");
    let step = |slug: &str| keeps(slug, &format!("{slug}-x"), "phase: \"${phase}\"");
    let workflows = format!("  create: [{}]\n  delete: [{}]", step("made"), step("unmade"));
    let old = space.plugin("old", &applying(&workflows));
    with(&space, "x", &resource("r", &old, "")).ok();
    assert_eq!(space.get("configmap", "made-x").unwrap()["data"]["phase"], "PreCreate");
    space.settle("x");
    with(&space, "x", &resource("r", &old, "a: b")).ok();
    assert_eq!(space.settle("x")["metadata"]["generation"], 2);
    assert_eq!(space.count("x").into_iter().collect::<Vec<_>>(), [("PreCreate".to_owned(), 1)]);
    delete(&space, "x");
    assert_eq!(space.count("x").into_keys().collect::<Vec<_>>(), ["PostDelete", "PreCreate"]);
    assert_eq!(space.run("x", "PostDelete")["status"]["steps"][0]["step"], "unmade");
}

/// The plugin that the one run of a phase ran.
fn ran(space: &Space, name: &str, phase: &str) -> Value {
    space.run(name, phase)["spec"]["resources"][0]["plugin"].clone()
}

#[test]
fn latest_is_pinned_when_its_resource_joins_and_stays() {
    let space = Space::new("latest");
    let base = space.name("db");
    let version = |version: &str| apply(&plugin(&format!("{base}.{version}"), &witnesses())).ok();
    version("1.9.0");
    let latest = format!("{base}@latest");
    with(&space, "x", &resource("r", &latest, "")).ok();
    version("1.10.0");
    space.settle("x");
    with(&space, "x", &resource("r", &latest, "a: b")).ok();
    let sandbox = space.settle("x");
    for phase in ["PreCreate", "PostCreate", "PreUpdate", "PostUpdate"] {
        assert_eq!(ran(&space, "x", phase), format!("{base}.1.9.0"), "{phase}");
    }
    assert_eq!(sandbox["spec"]["resources"][0]["plugin"], latest, "the spec stays as its author wrote it");

    with(&space, "later", &resource("r", &latest, "")).ok();
    assert_eq!(
        ran(&space, "later", "PreCreate"),
        format!("{base}.1.10.0"),
        "what joins later takes what is newest then"
    );
}

#[test]
fn another_version_is_a_pre_delete_of_the_old_and_then_a_pre_create_of_the_new() {
    let space = Space::new("versions");
    let base = space.name("db");
    for version in ["1.0.0", "2.0.0"] {
        apply(&plugin(&format!("{base}.{version}"), &witnesses())).ok();
    }
    let at = |version: &str| with(&space, "x", &resource("r", &format!("{base}@{version}"), ""));
    at("1.0.0").ok();
    space.settle("x");
    let before: Vec<_> = space.runs("x").iter().map(|run| run["metadata"]["uid"].clone()).collect();
    at("2.0.0").ok();
    space.settle("x");
    let mut runs = space.runs("x");
    runs.retain(|run| !before.contains(&run["metadata"]["uid"]));
    let ran: Vec<_> = runs
        .iter()
        .map(|run| {
            let plugin = run["spec"]["resources"][0]["plugin"].as_str().unwrap();
            (run["spec"]["phase"].as_str().unwrap(), plugin.strip_prefix(&format!("{base}.")).unwrap())
        })
        .collect();
    let expected = [("PreDelete", "1.0.0"), ("PreCreate", "2.0.0"), ("PostDelete", "1.0.0"), ("PostCreate", "2.0.0")];
    assert_eq!(ran, expected);
    for pair in runs.windows(2) {
        assert!(pair[0]["status"]["finishedAt"].as_str() <= pair[1]["status"]["startedAt"].as_str());
    }
    let kept = config_maps(&space);
    assert!(kept.contains(&"pre-create-x".to_owned()), "what the new version made outlives the old one: {kept:?}");
}

#[test]
fn more_than_can_be_written_down_is_refused_and_nothing_waits_for_it() {
    let space = Space::new("large");
    let name = format!("{}-${{i}}", "n".repeat(200));
    let many = format!(
        "  preCreate: [{{name: many, apply: {{forEach: 'lists.range(4000)', as: i, manifests: [{{apiVersion: v1, kind: ConfigMap, metadata: {{name: '{name}'}}}}]}}}}]"
    );
    let plugin = space.plugin("many", &applying(&many));
    let said = with(&space, "x", &resource("r", &plugin, "")).refused().stderr;
    assert!(said.contains("4000 objects") && said.contains("make fewer objects"), "{said}");
    assert!(config_maps(&space).is_empty());

    let plugin = space.plugin("quiet", &applying(&format!("  postDelete: [{}]", keeps("note", "last", "a: b"))));
    let params: Vec<String> = (0..20).map(|n| format!("p{n}: {}", "x".repeat(16_000))).collect();
    let params = format!("params: {{{}}}", params.join(", "));
    let large = space.sandbox("z", &format!("  resources: [{{name: r, plugin: {plugin}, {params}}}]"));
    let said = kubectl_file(&["create"], &large).refused().stderr;
    assert!(said.contains("the sandbox has 31") && said.contains("can be stored"), "{said}");
}
