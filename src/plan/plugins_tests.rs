//! What a reference means, and how many plugins are known at all.

use super::*;
use rstest::rstest;

fn plugins() -> Plugins {
    Plugins::new(["db", "db.1.2.0", "db.1.10.0", "queue"].map(|n| (n.to_owned(), ResourcePluginSpec::default())))
}

const MIB: usize = 1024 * 1024;

/// A plugin that was made at some second and takes a little more than so many MiB.
fn large(name: &str, created: i64, mib: usize) -> ResourcePlugin {
    let spec = ResourcePluginSpec { description: Some("x".repeat(mib * MIB)), ..ResourcePluginSpec::default() };
    let mut plugin = ResourcePlugin::new(name, spec);
    plugin.metadata.creation_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::from_second(created).unwrap()));
    plugin
}

fn held(plugins: &Plugins) -> Vec<&str> {
    plugins.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn t05_all_plugins_together_take_so_much_and_the_oldest_stay_whichever_comes_first() {
    let all = || [large("c", 1, 10), large("a", 2, 10), large("b", 3, 10), large("d", 4, 10), large("e", 5, 1)];
    let (mut forwards, mut backwards) = (Plugins::default(), Plugins::default());
    let out: Vec<String> = all().into_iter().flat_map(|plugin| forwards.insert(plugin)).collect();
    assert_eq!(out, ["d", "e"]);
    all().into_iter().rev().for_each(|plugin| drop(backwards.insert(plugin)));
    for plugins in [&mut forwards, &mut backwards] {
        assert_eq!(held(plugins), ["a", "b", "c"]);
        assert!(plugins.bytes <= MOST_BYTES && !plugins.has_room_again());
        assert_eq!(plugins.insert(large("e", 5, 2)), [] as [&str; 0], "it was told already");
        let refused = plugins.resolve("d", None).unwrap_err().to_string();
        assert!(refused.starts_with("ResourcePlugin \"d\" is left out, because all plugins together"), "{refused}");
        plugins.remove("c");
        assert!(plugins.has_room_again());
        plugins.insert(large("d", 4, 10));
        assert_eq!(held(plugins), ["a", "b", "d"]);
        plugins.remove("e");
        assert!(!plugins.has_room_again());
    }
}

#[test]
fn t05_a_plugin_that_would_be_too_much_with_the_others_is_refused_and_a_smaller_one_never() {
    let mut plugins = Plugins::default();
    (0..31).for_each(|n| drop(plugins.insert(large(&format!("p-{n}"), n, 1))));
    let spec = |mib| large("p", 0, mib).spec;
    assert_eq!(plugins.too_much("p-3", &spec(1)), None);
    assert_eq!(
        plugins.too_much("new", &spec(1)).unwrap(),
        "spec: with this plugin, which takes 1.1 MiB, all plugins together would take 32.1 MiB of memory, and 32.0 MiB is the most: delete plugins, and versions of them, that no sandbox uses, or make this one smaller"
    );
    assert!(plugins.too_much("p-3", &spec(2)).is_some());
    plugins.insert(large("young", 99, 40));
    assert!(plugins.too_much("new", &spec(0)).is_some(), "those that are left out count");
    assert_eq!(plugins.too_much("young", &spec(39)), None);
}

#[test]
fn t05_the_newest_version_is_the_newest_also_where_it_is_left_out() {
    let mut plugins = Plugins::default();
    plugins.insert(large("db.1.0.0", 1, 20));
    plugins.insert(large("db.2.0.0", 2, 20));
    assert_eq!(plugins.resolve("db@latest", None), Err(ResolveError::LeftOut { name: "db.2.0.0".into() }));
    assert_eq!(plugins.resolve("db@latest", Some("db.1.0.0")).unwrap().name, "db.1.0.0");
    assert_eq!(plugins.sought("db@2", None), [] as [&str; 0], "to read it again helps nobody");
}

#[test]
fn t05_many_tiny_steps_weigh_more_than_their_text() {
    let tiny = |steps| ResourcePluginSpec { pre_create: Some(vec![Step::default(); steps]), ..Default::default() };
    assert!(weight(&tiny(32)) >= weight(&tiny(0)) + 32 * size_of::<Step>());
}

#[test]
fn what_is_older_than_what_is_known_is_passed_over() {
    let at = |version: &str, description: &str| {
        let spec = ResourcePluginSpec { description: Some(description.into()), ..Default::default() };
        let mut plugin = ResourcePlugin::new("p", spec);
        plugin.metadata.resource_version = Some(version.into());
        plugin
    };
    let mut plugins = Plugins::default();
    for (version, description) in [("9", "old"), ("10", "new"), ("9", "old")] {
        plugins.insert(at(version, description));
    }
    assert_eq!(plugins.resolve("p", None).unwrap().spec.description.as_deref(), Some("new"));
}

#[rstest]
#[case("db", None, &["db"])]
#[case("db@v1.2", None, &["db.1.2.0"])]
#[case("db@0.0.0", None, &["db.0.0.0", "db"])]
#[case("db@latest", None, &["db"])]
#[case("db@latest", Some("db.1.2.0"), &["db.1.2.0"])]
#[case("db@latest", Some("queue"), &["db"])]
#[case("db@one", None, &[])]
fn what_a_reference_may_mean_is_looked_for(#[case] of: &str, #[case] latest: Option<&str>, #[case] names: &[&str]) {
    assert_eq!(plugins().sought(of, latest), names);
}

#[rstest]
#[case("db", None, "db")]
#[case("db@1.2.0", None, "db.1.2.0")]
#[case("db@v1.2", None, "db.1.2.0")]
#[case("db@0.0.0", None, "db")]
#[case("db@latest", None, "db.1.10.0")]
#[case("db@latest", Some("db.1.2.0"), "db.1.2.0")]
#[case("db@latest", Some("queue"), "db.1.10.0")]
#[case("queue@latest", None, "queue")]
fn a_reference_means_a_plugin(#[case] reference: &str, #[case] latest: Option<&str>, #[case] name: &str) {
    assert_eq!(plugins().resolve(reference, latest).unwrap().name, name);
}

#[rstest]
#[case(
    "db@2.0.0",
    "there is no ResourcePlugin \"db.2.0.0\" (there is db, db.1.10.0, db.1.2.0): apply the plugin first, or name one that exists"
)]
#[case("cache", "there is no ResourcePlugin \"cache\": apply the plugin first, or name one that exists")]
#[case("db@one", "\"one\" is not a semantic version: write for example 1.2.0, or latest")]
fn a_reference_to_nothing_says_what_there_is(#[case] reference: &str, #[case] message: &str) {
    assert_eq!(plugins().resolve(reference, None).unwrap_err().to_string(), message);
}
