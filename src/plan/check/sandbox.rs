//! The faults of a sandbox.

use super::{Fault, output_key};
use crate::api::{Patch, ResourceOutputRef};
use crate::plan::patch::{self, Work};
use crate::plan::plugins::{Plugins, Resolved};
use crate::plan::runs::{declared, latest};
use serde::Deserialize as _;
use serde_json::Value;

/// The faults of a sandbox whose plugins are known: outputs that its forks ask for and no resource has, and patches that
/// no workload can be patched with.
pub fn sandbox(object: &Value, plugins: &Plugins) -> Vec<Fault> {
    let mut faults = patches(object);
    let latest = latest(object);
    let resources = declared(object).unwrap_or_default();
    let find = |name: &str| -> Option<Resolved> {
        let resource = resources.iter().find(|r| r.name == name)?;
        plugins.resolve(&resource.plugin, latest.get(name).map(String::as_str)).ok()
    };
    for (at, fork) in object["spec"]["forks"].as_array().into_iter().flatten().enumerate() {
        for (index, env) in fork["customizations"]["env"].as_array().into_iter().flatten().enumerate() {
            let Ok(wanted) = ResourceOutputRef::deserialize(&env["valueFrom"]["resource"]) else { continue };
            let field = format!("spec.forks[{at}].customizations.env[{index}].valueFrom.resource");
            match find(&wanted.name) {
                None => {
                    let known = names(resources.iter().map(|r| &r.name));
                    let message = format!("the sandbox has no resource {:?} ({known})", wanted.name);
                    faults.push(Fault::new(format!("{field}.name"), message));
                }
                Some(plugin) => {
                    if let Err(message) = output_key(&plugin.spec, &wanted.output_key) {
                        faults.push(Fault::new(format!("{field}.outputKey"), message));
                    }
                }
            }
        }
    }
    faults
}

fn patches(object: &Value) -> Vec<Fault> {
    let mut work = Work::default();
    let forks = object["spec"]["forks"].as_array().into_iter().flatten().enumerate();
    let patches = forks.filter_map(|(at, fork)| Some((at, Patch::deserialize(&fork["customizations"]["patch"]).ok()?)));
    let examined = patches.filter_map(|(at, patch)| Some((at, patch::examine(&patch, &mut work).err()?)));
    let fault = |(at, why)| Fault::new(format!("spec.forks[{at}].customizations.patch.value"), format!("{why}"));
    examined.map(fault).collect()
}

fn names<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<_> = names.map(String::as_str).collect();
    if names.is_empty() {
        "it has none: add it to spec.resources".to_owned()
    } else {
        format!("it has {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_fork_asks_for_an_output_that_there_is() {
        let spec =
            "{runner: {image: i}, create: [{name: a, script: '#!', outputs: [{name: host, valueFromPath: /o/o}]}]}";
        let plugins = Plugins::new([("p".to_owned(), serde_saphyr::from_str(spec).unwrap())]);
        let object = |resource: &str, key: &str| {
            json!({"spec": {"resources": [{"name": "db", "plugin": "p"}], "forks": [{"forkOf": {}, "customizations":
                {"env": [{"name": "H", "valueFrom": {"resource": {"name": resource, "outputKey": key}}}]}}]}})
        };
        assert_eq!(sandbox(&object("db", "host"), &plugins), []);
        assert_eq!(sandbox(&object("db", "a.host"), &plugins), []);
        let faults = sandbox(&object("db", "a.port"), &plugins);
        assert_eq!(
            faults[0].to_string(),
            "spec.forks[0].customizations.env[0].valueFrom.resource.outputKey: no step of the plugin has an output \"a.port\" (there is a.host)"
        );
        let mut copies = "{op: add, path: /x, value: {}}".to_owned();
        (0..30).for_each(|n| copies += &format!(", {{op: copy, from: /x, path: /x/c{n}}}"));
        let patched = json!({"spec": {"forks": [{}, {"customizations": {"patch": {"type": "json", "value": format!("[{copies}]")}}}]}});
        let faults = sandbox(&patched, &plugins);
        assert!(
            faults[0].to_string().starts_with("spec.forks[1].customizations.patch.value: operation "),
            "{faults:?}"
        );
        let faults = sandbox(&object("cache", "host"), &plugins);
        assert_eq!(faults[0].message, "the sandbox has no resource \"cache\" (it has db)");
    }
}
