use super::*;
use rstest::rstest;
use serde_json::json;

#[test]
fn the_right_to_skip_is_asked_for_when_the_annotation_comes_or_changes_and_not_when_it_goes() {
    let with = |reason: Option<&str>| json!({"metadata": {"name": "x", "namespace": "shop", "annotations": {labels::SKIP_PRE_DELETE: reason}}});
    let needed = |old: Option<&str>, new: Option<&str>| needed_to_skip(&with(old), &with(new)).is_some();
    assert!(needed(None, Some("broken")));
    assert!(needed(Some("a"), Some("b")));
    assert!(!needed(Some("a"), Some("a")));
    assert!(!needed(Some("a"), None));
    assert!(needed_to_skip(&Value::Null, &with(Some("broken"))).is_some());
}
#[test]
fn only_what_is_new_or_changed_needs_a_right() {
    let old = json!({"spec": {"resources": [{"name": "a", "plugin": "p"}], "forks": [{"forkOf": {"name": "x"}}]}});
    let new = json!({"spec": {"resources": [{"name": "a", "plugin": "p"}, {"name": "b", "plugin": "q"}], "forks": [{"forkOf": {"name": "x"}}]}});
    let rights = needed("shop", &old, &new, true, |name| Some(format!("plugin-of-{name}")));
    assert_eq!(rights.len(), 1);
    assert_eq!(
        rights[0].refusal("alice"),
        "spec.resources[1].plugin: \"alice\" may not use resourceplugins.sluice.dev \"plugin-of-b\"; ask a cluster admin for a role with verb \"use\" on it"
    );
    assert_eq!(needed("shop", &Value::Null, &old, true, |_| None)[0].verb, "create");
}

fn fork(name: &str, patch: &str) -> Value {
    json!({"forkOf": {"kind": "Deployment", "name": name}, "customizations": {
        "env": [{"name": "A", "valueFrom": {"secret": {"name": "keys", "key": "k"}}},
            {"name": "B", "valueFrom": {"secret": {"name": "keys", "key": "other"}}},
            {"name": "C", "valueFrom": {"configMap": {"name": "flags", "key": "k"}}}],
        "patch": {"type": "merge", "value": patch}}})
}

fn shown(rights: &[Right]) -> Vec<String> {
    let show = |r: &Right| format!("{} {} {} @{}", r.verb, r.resource, r.name.as_deref().unwrap_or("*"), r.field);
    rights.iter().map(show).collect()
}

#[test]
fn t09_a_fork_needs_the_right_to_read_its_workload_and_all_that_it_names() {
    let forks = [fork("web", "spec: {volumes: [{secret: {secretName: tls}}]}"), fork("api", "{}")];
    let new = json!({"spec": {"forks": forks}});
    let all = [
        "create deployments * @spec.forks[0].forkOf",
        "create services * @spec.forks[0].forkOf",
        "get deployments web @spec.forks[0].forkOf.name",
        "get configmaps flags @spec.forks[0].customizations.env[2].valueFrom.configMap.name",
        "get secrets keys @spec.forks[0].customizations.env[0].valueFrom.secret.name",
        "get secrets tls @spec.forks[0].customizations.patch.value",
        "get deployments api @spec.forks[1].forkOf.name",
    ];
    assert_eq!(shown(&needed("shop", &Value::Null, &new, true, |_| None)), all);
    let refusal = needed("shop", &Value::Null, &new, true, |_| None)[5].refusal("alice");
    assert_eq!(
        refusal,
        "spec.forks[0].customizations.patch.value: \"alice\" may not get secrets \"tls\" in namespace \"shop\"; ask a cluster admin for a role with verb \"get\" on it"
    );
    // Of what is there already, only what changes.
    let old = json!({"spec": {"forks": [fork("web", "{}"), fork("api", "{}")]}});
    let of_web: Vec<_> = shown(&needed("shop", &old, &new, true, |_| None));
    assert_eq!(of_web, all[..6]);
    assert_eq!(needed("shop", &new, &new, true, |_| None), []);
    // Nobody was asked when it was stored.
    assert_eq!(shown(&needed("shop", &new, &new, false, |_| None)), all);
}

#[test]
fn t09_so_many_rights_are_asked_for_and_no_more() {
    let env = |n: usize| json!({"name": "A", "valueFrom": {"secret": {"name": format!("s{n}"), "key": "k"}}});
    let with = |count: usize| {
        let env: Vec<Value> = (0..count).map(env).collect();
        let new = json!({"spec": {"forks": [{"forkOf": {"name": "web"}, "customizations": {"env": env}}]}});
        too_many(&needed("shop", &Value::Null, &new, true, |_| None))
    };
    assert_eq!(with(MOST_RIGHTS - 3), None);
    assert!(with(MOST_RIGHTS - 2).unwrap().contains("needs 257 rights"));
}

#[test]
fn t09_a_fork_needs_the_right_to_use_each_plugin_whose_outputs_it_shows() {
    let sandbox = |image: &str, resources: Value| {
        let of = |name: &str| json!({"name": "A", "valueFrom": {"resource": {"name": name, "outputKey": "host"}}});
        let fork = json!({"forkOf": {"name": "web"}, "customizations": {
            "images": [{"image": image}], "env": [{"name": "X", "value": "x"}, of("db"), of("db"), of("mail")]}});
        json!({"spec": {"resources": resources, "forks": [fork]}})
    };
    let resources = json!([{"name": "db", "plugin": "db@1.2.0"}, {"name": "mail", "plugin": "mail@latest"}]);
    let plugin_of = |name: &str| Some(format!("{name}.1.2.0"));
    let asked = |old: &Value, new: &Value, seen: bool| {
        let rights = needed("shop", old, new, seen, plugin_of);
        shown(&rights).into_iter().filter(|right| right.starts_with("use")).collect::<Vec<_>>()
    };
    let (old, new) = (sandbox("web:1", resources.clone()), sandbox("web:2", resources));
    let without = json!({"spec": {"resources": new["spec"]["resources"]}});
    let of_fork = [
        "use resourceplugins db.1.2.0 @spec.forks[0].customizations.env[1].valueFrom.resource",
        "use resourceplugins mail.1.2.0 @spec.forks[0].customizations.env[3].valueFrom.resource",
    ];
    assert_eq!(asked(&without, &new, true), of_fork, "it is new");
    assert_eq!(asked(&old, &new, true), of_fork, "whoever chooses its image can have it print them");
    assert_eq!(asked(&new, &new, true), Vec::<String>::new());
    assert_eq!(asked(&new, &new, false), of_fork, "nobody was asked when it was stored");
    // Once is enough, and the resource tells more.
    let of_resources = ["db", "mail"].into_iter().enumerate();
    let of_resources =
        of_resources.map(|(at, name)| format!("use resourceplugins {name}.1.2.0 @spec.resources[{at}].plugin"));
    assert_eq!(asked(&Value::Null, &new, true), of_resources.collect::<Vec<_>>());
    let other = sandbox("web:2", json!([{"name": "db", "plugin": "db@2"}, {"name": "mail", "plugin": "mail@latest"}]));
    assert_eq!(asked(&new, &other, true), ["use resourceplugins db.1.2.0 @spec.resources[0].plugin"]);
}

#[rstest]
#[case::comes(Some(json!(null)), json!({"duration": "1m"}), true)]
#[case::is_shorter(Some(json!({"duration": "8h"})), json!({"duration": "1m"}), true)]
#[case::runs_from_elsewhere(Some(json!({"duration": "8h", "offsetFrom": "updatedAt"})), json!({"duration": "8h"}), true)]
#[case::stays(Some(json!({"duration": "8h"})), json!({"duration": "8h"}), false)]
#[case::goes(Some(json!({"duration": "8h"})), json!(null), false)]
#[case::is_there_from_the_beginning(None, json!({"duration": "1m"}), false)]
fn t07_a_ttl_that_comes_or_changes_needs_the_right_to_delete(
    #[case] before: Option<Value>,
    #[case] after: Value,
    #[case] needs: bool,
) {
    let with = |ttl: Value| json!({"metadata": {"name": "x", "namespace": "shop"}, "spec": {"ttl": ttl}});
    let refusals: Vec<String> = needed("shop", &before.map_or(Value::Null, with), &with(after), true, |_| None)
        .iter()
        .map(|right| right.refusal("alice"))
        .collect();
    let refusal = "spec.ttl: \"alice\" may not delete sandboxes.sluice.dev \"x\" in namespace \"shop\"; ask a cluster admin for a role with verb \"delete\" on it; or leave spec.ttl as it was";
    assert_eq!(refusals, if needs { vec![refusal] } else { Vec::new() });
}

fn owned(owners: &Value, resources: &Value) -> Value {
    json!({"metadata": {"name": "x", "namespace": "shop", "ownerReferences": owners}, "spec": {"resources": resources}})
}

fn owner(uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "mine", "uid": uid})
}

/// The field that needs the right to skip. Resources of the plugin `plain` alone have no pre-delete.
fn skips(old: &Value, new: &Value) -> Option<String> {
    needed_to_own(old, new, |resource| resource["plugin"] != "plain").map(|right| {
        assert_eq!((right.verb, right.resource, right.name.as_deref()), ("skip", "sandboxes", Some("x")));
        assert!(right.refusal("alice").contains("leave metadata.ownerReferences away"));
        right.field
    })
}

#[rstest]
#[case::none(&[], &[], None)]
#[case::comes(&[], &["1"], Some("metadata.ownerReferences[0]"))]
#[case::another_comes(&["1"], &["1", "2"], Some("metadata.ownerReferences[1]"))]
#[case::is_another(&["1"], &["2"], Some("metadata.ownerReferences[0]"))]
#[case::stays(&["1", "2"], &["2", "1"], None)]
#[case::goes(&["1", "2"], &["2"], None)]
fn t07_an_owner_that_comes_needs_the_right_to_skip(
    #[case] before: &[&str],
    #[case] after: &[&str],
    #[case] field: Option<&str>,
) {
    let with = |uids: &[&str], plugin: &str| {
        let owners: Vec<Value> = uids.iter().map(|uid| owner(uid)).collect();
        owned(&json!(owners), &json!([{"name": "r", "plugin": plugin}]))
    };
    assert_eq!(skips(&with(before, "db"), &with(after, "db")).as_deref(), field);
    assert_eq!(skips(&with(before, "plain"), &with(after, "plain")), None, "there is nothing to skip");
    let created = (!after.is_empty()).then_some("metadata.ownerReferences[0]");
    assert_eq!(skips(&Value::Null, &with(after, "db")).as_deref(), created);
}

#[test]
fn t07_a_resource_with_a_pre_delete_that_joins_what_has_an_owner_needs_it_too() {
    let owners = json!([owner("1")]);
    let plain = owned(&owners, &json!([{"name": "a", "plugin": "plain"}]));
    let joined = owned(&owners, &json!([{"name": "a", "plugin": "plain"}, {"name": "b", "plugin": "db"}]));
    assert_eq!(skips(&plain, &joined).as_deref(), Some("spec.resources[1]"));
    assert_eq!(skips(&joined, &joined), None);
    assert_eq!(skips(&joined, &plain), None);
    let replaced = owned(&owners, &json!([{"name": "a", "plugin": "db"}]));
    assert_eq!(skips(&plain, &replaced).as_deref(), Some("spec.resources[0]"));
    assert_eq!(skips(&owned(&json!([]), &json!([])), &joined).as_deref(), Some("metadata.ownerReferences[0]"));
}

#[rstest]
#[case::name("name", json!("other"), true)]
#[case::kind("kind", json!("Secret"), true)]
#[case::version("apiVersion", json!("v9"), true)]
#[case::uid("uid", json!("2"), true)]
// The cluster's own cleaning up writes these while it deletes an owner.
#[case::in_charge("controller", json!(true), false)]
#[case::waits("blockOwnerDeletion", json!(false), false)]
fn t07_an_owner_is_another_where_another_could_be_gone(
    #[case] field: &str,
    #[case] value: Value,
    #[case] is_another: bool,
) {
    let resources = json!([{"name": "r", "plugin": "db"}]);
    let mut changed = owner("1");
    changed[field] = value;
    let (old, new) = (owned(&json!([owner("1")]), &resources), owned(&json!([changed]), &resources));
    assert_eq!(skips(&old, &new).is_some(), is_another);
}
