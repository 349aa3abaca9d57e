//! Which Secrets and ConfigMaps the author of a sandbox names in what is customised of a fork, and which ones a fork uses.

use super::patch::{self, Read};
use crate::api::{Patch, labels};
use json_patch::PatchOperation;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// What may be referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    /// As it stands in `kind`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }

    /// As it stands in paths and in rules.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
        }
    }
}

/// An object of the sandbox's namespace.
pub type Reference = (Kind, String);

/// What the customizations of a fork (JSON, as it stands in the spec) name, each with the first field inside of the fork
/// that does.
pub fn named(fork: &Value) -> BTreeMap<Reference, String> {
    let mut named = BTreeMap::new();
    let customizations = &fork["customizations"];
    for (index, env) in customizations["env"].as_array().into_iter().flatten().enumerate() {
        for (field, kind) in [("configMap", Kind::ConfigMap), ("secret", Kind::Secret)] {
            if let Some(name) = env["valueFrom"][field]["name"].as_str() {
                let at = format!("customizations.env[{index}].valueFrom.{field}.name");
                named.entry((kind, name.to_owned())).or_insert(at);
            }
        }
    }
    let text: Option<Patch> = serde::Deserialize::deserialize(&customizations["patch"]).ok();
    // What cannot be read is applied nowhere.
    for reference in text.and_then(|text| patch::read(&text).ok()).iter().flat_map(of_patch) {
        named.entry(reference).or_insert_with(|| "customizations.patch.value".to_owned());
    }
    named
}

/// What a patch names by itself, whatever it is applied to.
fn of_patch(patch: &Read) -> BTreeSet<Reference> {
    match patch {
        Read::Merge(value) => used(value),
        Read::Json(operations) => operations.iter().flat_map(of_operation).collect(),
    }
}

fn of_operation(operation: &PatchOperation) -> BTreeSet<Reference> {
    match operation {
        PatchOperation::Add(add) => used(&below(add.path.as_str(), &add.value)),
        PatchOperation::Replace(replace) => used(&below(replace.path.as_str(), &replace.value)),
        PatchOperation::Remove(_) | PatchOperation::Test(_) | PatchOperation::Copy(_) | PatchOperation::Move(_) => {
            BTreeSet::new()
        }
    }
}

/// A value with the last names of the path that leads to it around it: what it means depends on them.
fn below(path: &str, value: &Value) -> Value {
    path.rsplit('/').filter(|name| !name.is_empty()).take(3).fold(value.clone(), |value, name| {
        Value::Object(Map::from_iter([(name.replace("~1", "/").replace("~0", "~"), value)]))
    })
}

/// The Secrets and ConfigMaps that a part of a pod refers to, wherever in it that is.
pub fn used(value: &Value) -> BTreeSet<Reference> {
    let mut found = BTreeSet::new();
    each(value, &mut |kind, name, _| {
        found.insert((kind, name.to_owned()));
    });
    found
}

/// The keys of a Secret that the variables of a part of a pod show; none among them stands for all of it, or for another
/// use.
pub fn keys(value: &Value, secret: &str) -> BTreeSet<Option<String>> {
    let mut found = BTreeSet::new();
    each(value, &mut |kind, name, key| {
        if (kind, name) == (Kind::Secret, secret) {
            found.insert(key.map(str::to_owned));
        }
    });
    found
}

/// Calls `see` for each reference, with the key where it is one of a Secret for a variable.
fn each<'a>(value: &'a Value, see: &mut impl FnMut(Kind, &'a str, Option<&'a str>)) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                if let Some((kind, name)) = reference(field, value) {
                    see(kind, name, (field == "secretKeyRef").then(|| value["key"].as_str()).flatten());
                }
                if field == "imagePullSecrets" {
                    names(value).for_each(|name| see(Kind::Secret, name, None));
                }
                each(value, see);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| each(item, see)),
        _ => {}
    }
}

/// What a field of a pod refers to by its name: variables, all variables of an object, volumes and their sources, and the
/// credentials of drivers of volumes.
fn reference<'a>(field: &str, value: &'a Value) -> Option<(Kind, &'a str)> {
    let name = || value["name"].as_str();
    let lower = field.to_ascii_lowercase();
    let (kind, name) = match field {
        "secretName" => (Kind::Secret, value.as_str()),
        "secret" | "secretKeyRef" => (Kind::Secret, name()),
        "configMap" | "configMapKeyRef" | "configMapRef" => (Kind::ConfigMap, name()),
        _ if lower.ends_with("secretref") => (Kind::Secret, name()),
        _ => return None,
    };
    name.filter(|name| !name.is_empty()).map(|name| (kind, name))
}

/// The names in a list of references, or in what a patch puts at places of one.
fn names(list: &Value) -> impl Iterator<Item = &str> {
    let items = list.as_array().into_iter().flatten().chain(list.as_object().into_iter().flat_map(Map::values));
    items.filter_map(|item| item["name"].as_str()).filter(|name| !name.is_empty())
}

/// What a fork uses that neither its baseline nor its customizations name: a patch that copies and moves can make a name
/// of any text, and nobody has been asked whether the author may read that. Of the Secret `outputs`, which is of all forks
/// of the sandbox, it may use `shown`, what its own variables name.
pub fn unnamed(
    template: &Value,
    baseline: &Value,
    named: &BTreeMap<Reference, String>,
    outputs: &str,
    shown: &BTreeSet<Option<String>>,
) -> Option<Reference> {
    let known = used(baseline);
    let has_own_outputs = keys(template, outputs).is_subset(shown);
    used(template).into_iter().find(|reference| {
        let of_outputs = has_own_outputs && reference.0 == Kind::Secret && reference.1 == outputs;
        !known.contains(reference) && !named.contains_key(reference) && !of_outputs
    })
}

/// The forks of an object, as they stand in its spec.
pub fn forks(object: &Value) -> &[Value] {
    object["spec"]["forks"].as_array().map_or(&[], Vec::as_slice)
}

/// What an object says of an admission that has seen its forks; see [`super::seal`].
pub fn seal(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][labels::ADMITTED].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn fork(patch: &str) -> Value {
        let (type_, value) = patch.split_once(' ').unwrap();
        json!({"forkOf": {"kind": "Deployment", "name": "web"}, "customizations": {
            "env": [
                {"name": "A", "value": "literal"},
                {"name": "B", "valueFrom": {"configMap": {"name": "flags", "key": "k"}}},
                {"name": "C", "valueFrom": {"secret": {"name": "keys", "key": "k"}}},
                {"name": "D", "valueFrom": {"resource": {"name": "db", "outputKey": "host"}}},
            ],
            "patch": {"type": type_, "value": value},
        }})
    }

    #[rstest]
    #[case::variable("merge spec: {env: [{name: A, valueFrom: {secretKeyRef: {name: mine, key: k}}}]}", Kind::Secret)]
    #[case::variable_of_a_map(
        "merge spec: {env: [{valueFrom: {configMapKeyRef: {name: mine, key: k}}}]}",
        Kind::ConfigMap
    )]
    #[case::all_of_a_secret("merge spec: {envFrom: [{secretRef: {name: mine}}]}", Kind::Secret)]
    #[case::all_of_a_map("merge spec: {envFrom: [{configMapRef: {name: mine}}]}", Kind::ConfigMap)]
    #[case::volume("merge spec: {volumes: [{name: v, secret: {secretName: mine}}]}", Kind::Secret)]
    #[case::volume_of_a_map("merge spec: {volumes: [{name: v, configMap: {name: mine}}]}", Kind::ConfigMap)]
    #[case::projected("merge spec: {volumes: [{projected: {sources: [{secret: {name: mine}}]}}]}", Kind::Secret)]
    #[case::driver("merge spec: {volumes: [{csi: {nodePublishSecretRef: {name: mine}}}]}", Kind::Secret)]
    #[case::added("json [{op: add, path: /spec/envFrom/-, value: {secretRef: {name: mine}}}]", Kind::Secret)]
    #[case::a_name_alone(
        "json [{op: replace, path: /spec/template/spec/volumes/0/secret/secretName, value: mine}]",
        Kind::Secret
    )]
    #[case::a_name_of_a_reference(
        "json [{op: add, path: /spec/envFrom/0/configMapRef/name, value: mine}]",
        Kind::ConfigMap
    )]
    #[case::a_reference(
        "json [{op: add, path: /spec/env/0/valueFrom/secretKeyRef, value: {name: mine}}]",
        Kind::Secret
    )]
    #[case::credentials("merge spec: {template: {spec: {imagePullSecrets: [{name: mine}]}}}", Kind::Secret)]
    #[case::credentials_added(
        "json [{op: add, path: /spec/template/spec/imagePullSecrets/-, value: {name: mine}}]",
        Kind::Secret
    )]
    #[case::all_credentials(
        "json [{op: add, path: /spec/template/spec/imagePullSecrets, value: [{name: mine}]}]",
        Kind::Secret
    )]
    #[case::a_name_of_credentials(
        "json [{op: replace, path: /spec/template/spec/imagePullSecrets/0/name, value: mine}]",
        Kind::Secret
    )]
    fn t09_each_secret_and_config_map_that_a_fork_names_is_found(#[case] patch: &str, #[case] kind: Kind) {
        let named = named(&fork(patch));
        let field = |kind: Kind, name: &str| named.get(&(kind, name.to_owned())).map(String::as_str);
        assert_eq!(field(Kind::ConfigMap, "flags"), Some("customizations.env[1].valueFrom.configMap.name"));
        assert_eq!(field(Kind::Secret, "keys"), Some("customizations.env[2].valueFrom.secret.name"));
        assert_eq!(field(kind, "mine"), Some("customizations.patch.value"));
        assert_eq!(named.len(), 3, "{named:?}");
    }

    #[test]
    fn t09_a_name_that_a_patch_puts_together_is_found_in_what_it_leaves() {
        let baseline = json!({"volumes": [{"secret": {"secretName": "own"}}]});
        let copied = json!({"volumes": [{"secret": {"secretName": "own"}}, {"secret": {"secretName": "stolen"}}]});
        let (none, nothing) = (BTreeMap::new(), BTreeSet::new());
        assert_eq!(unnamed(&baseline, &baseline, &none, "outputs", &nothing), None);
        let stolen = Some((Kind::Secret, "stolen".into()));
        assert_eq!(unnamed(&copied, &baseline, &none, "outputs", &nothing), stolen);
        let asked = BTreeMap::from([((Kind::Secret, "stolen".to_owned()), String::new())]);
        assert_eq!(unnamed(&copied, &baseline, &asked, "outputs", &nothing), None);
    }

    #[rstest]
    #[case::its_own(json!({"env": [{"valueFrom": {"secretKeyRef": {"name": "outputs", "key": "own"}}}]}), true)]
    #[case::of_another_fork(json!({"env": [{"valueFrom": {"secretKeyRef": {"name": "outputs", "key": "other"}}}]}), false)]
    #[case::all_variables(json!({"envFrom": [{"secretRef": {"name": "outputs"}}]}), false)]
    #[case::all_files(json!({"volumes": [{"secret": {"secretName": "outputs"}}]}), false)]
    #[case::some_files(json!({"volumes": [{"projected": {"sources": [{"secret": {"name": "outputs"}}]}}]}), false)]
    fn t09_of_the_outputs_of_a_sandbox_a_fork_uses_those_that_its_variables_name(
        #[case] left: Value,
        #[case] may: bool,
    ) {
        let own = BTreeSet::from([Some("own".to_owned())]);
        let unnamed = unnamed(&left, &json!({}), &BTreeMap::new(), "outputs", &own);
        assert_eq!(unnamed, (!may).then(|| (Kind::Secret, "outputs".into())));
    }

    #[test]
    fn t09_credentials_for_images_are_a_baselines_own_or_named() {
        let with = |names: &[&str]| {
            let credentials: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
            json!({"spec": {"imagePullSecrets": credentials}})
        };
        let (none, nothing) = (BTreeMap::new(), BTreeSet::new());
        assert_eq!(unnamed(&with(&["own"]), &with(&["own"]), &none, "", &nothing), None);
        let stolen = Some((Kind::Secret, "stolen".into()));
        assert_eq!(unnamed(&with(&["own", "stolen"]), &with(&["own"]), &none, "", &nothing), stolen);
    }
}
