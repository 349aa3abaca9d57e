//! What is wrong with a plugin or a sandbox that its schema cannot say.

use super::order;
use super::plugins::{Plugins, Resolved, canonical};
use super::runs::{declared, latest};
use crate::api::{ForkCustomizations, Phase, ResourcePluginSpec, Step};
use serde_json::Value;
use std::fmt;

/// One fault: where it is, what it is and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub field: String,
    pub message: String,
}

impl Fault {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// The faults of a plugin.
pub fn plugin(name: &str, spec: &ResourcePluginSpec) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Some((base, version)) = name.split_once('.') {
        let right = canonical(version);
        if right.as_ref().is_none_or(|v| v.to_string() != version) {
            let example = right.map_or_else(|| format!("{base}.1.2.0"), |v| format!("{base}.{v}"));
            let message = format!("{name:?}: what follows the first dot is the version, a semantic one: {example}");
            faults.push(Fault::new("metadata.name", message));
        }
    }
    for phase in Phase::ALL {
        let (field, steps) = spec.workflow_field(phase);
        for (index, step) in steps.iter().enumerate() {
            self::step(spec, phase, step, &format!("spec.{field}[{index}]"), &mut faults);
        }
        if let Some(cycle) = order::cycle(steps) {
            let message = format!("the steps wait for each other: {}", cycle.join(" waits for "));
            faults.push(Fault::new(format!("spec.{field}"), message));
        }
    }
    faults
}

fn step(spec: &ResourcePluginSpec, phase: Phase, step: &Step, field: &str, faults: &mut Vec<Fault>) {
    if step.script.is_some() && spec.runner.image.is_none() {
        let message = format!("is missing: {field} is a script and needs an image to run in");
        faults.push(Fault::new("spec.runner.image", message));
    }
    if step.apply.is_some() && spec.runner.service_account_name.is_none() {
        let message = format!("is missing: {field} is an apply and needs a service account to act as");
        faults.push(Fault::new("spec.runner.serviceAccountName", message));
    }
    for (index, need) in step.needs.iter().enumerate() {
        if !spec.workflow(phase).iter().any(|s| s.name == *need) {
            let message = format!("there is no step {need:?} in this phase");
            faults.push(Fault::new(format!("{field}.needs[{index}]"), message));
        }
    }
    for (index, input) in step.inputs.iter().enumerate() {
        let Some(from) = &input.value_from_step else { continue };
        let field = format!("{field}.inputs[{index}].valueFromStep");
        if !outputs(spec, |p| p <= phase).any(|(s, output)| s == from.name && output == from.output) {
            let later = outputs(spec, |p| p > phase).any(|(s, output)| s == from.name && output == from.output);
            let message = if later {
                format!(
                    "{}.{} is an output of a later phase; only this phase's and earlier ones' can be read",
                    from.name, from.output
                )
            } else {
                format!(
                    "no step {:?} has an output {:?}{}",
                    from.name,
                    from.output,
                    listed(outputs(spec, |p| p <= phase))
                )
            };
            faults.push(Fault::new(field, message));
        } else if from.name == step.name
            && !outputs(spec, |p| p < phase).any(|(s, o)| s == from.name && o == from.output)
        {
            faults.push(Fault::new(field, "a step cannot read its own output"));
        }
    }
    for (index, manifest) in step.apply.iter().flat_map(|a| &a.manifests).enumerate() {
        let field = format!("{field}.apply.manifests[{index}]");
        for (path, pointer) in [("apiVersion", "/apiVersion"), ("kind", "/kind"), ("metadata.name", "/metadata/name")] {
            if !manifest.pointer(pointer).is_some_and(|value| value.as_str().is_some_and(|s| !s.is_empty())) {
                faults.push(Fault::new(format!("{field}.{path}"), "is missing: every object needs one"));
            }
        }
    }
}

fn outputs(spec: &ResourcePluginSpec, of: impl Fn(Phase) -> bool) -> impl Iterator<Item = (&str, &str)> {
    Phase::ALL
        .into_iter()
        .filter(move |p| of(*p))
        .flat_map(|p| spec.workflow(p))
        .flat_map(|step| step.outputs.iter().map(|output| (step.name.as_str(), output.name.as_str())))
}

fn listed<'a>(outputs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let known: Vec<String> = outputs.map(|(step, output)| format!("{step}.{output}")).collect();
    if known.is_empty() { String::new() } else { format!(" (there is {})", known.join(", ")) }
}

/// The faults of a sandbox whose plugins are known: outputs that its forks ask for and no resource has.
pub fn sandbox(object: &Value, plugins: &Plugins) -> Vec<Fault> {
    let mut faults = Vec::new();
    let latest = latest(object);
    let resources = declared(object).unwrap_or_default();
    let find = |name: &str| -> Option<Resolved> {
        let resource = resources.iter().find(|r| r.name == name)?;
        plugins.resolve(&resource.plugin, latest.get(name).map(String::as_str)).ok()
    };
    for (at, fork) in object["spec"]["forks"].as_array().into_iter().flatten().enumerate() {
        let custom: ForkCustomizations = serde::Deserialize::deserialize(&fork["customizations"]).unwrap_or_default();
        for (index, env) in custom.env.iter().enumerate() {
            let Some(wanted) = env.value_from.as_ref().and_then(|from| from.resource.as_ref()) else { continue };
            let field = format!("spec.forks[{at}].customizations.env[{index}].valueFrom.resource");
            match find(&wanted.name) {
                None => faults.push(Fault::new(
                    format!("{field}.name"),
                    format!(
                        "the sandbox has no resource {:?}{}",
                        wanted.name,
                        names(resources.iter().map(|r| &r.name))
                    ),
                )),
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

fn names<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<_> = names.map(String::as_str).collect();
    if names.is_empty() { String::new() } else { format!(" (it has {})", names.join(", ")) }
}

/// The step and output that an `outputKey` means: `STEP.OUTPUT`, or `OUTPUT` where one step alone has it.
pub fn output_key(spec: &ResourcePluginSpec, key: &str) -> Result<(String, String), String> {
    let all = || outputs(spec, |_| true);
    let mut found: Vec<(&str, &str)> = match key.split_once('.') {
        Some((step, output)) => all().filter(|(s, o)| *s == step && *o == output).collect(),
        None => all().filter(|(_, o)| *o == key).collect(),
    };
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [(step, output)] => Ok(((*step).to_owned(), (*output).to_owned())),
        [] => Err(format!("no step of the plugin has an output {key:?}{}", listed(all()))),
        several => Err(format!("{key:?} is an output of several steps: write {}.{key}", several[0].0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn spec(yaml: &str) -> ResourcePluginSpec {
        serde_saphyr::from_str(yaml).unwrap()
    }

    #[rstest]
    #[case(
        "p",
        "preCreate: [{name: a, script: '#!/bin/sh'}]",
        "spec.runner.image: is missing: spec.preCreate[0] is a script"
    )]
    #[case(
        "p",
        "create: [{name: a, script: '#!/bin/sh'}]",
        "spec.runner.image: is missing: spec.create[0] is a script"
    )]
    #[case(
        "p",
        "preCreate: [{name: a, apply: {manifests: [{apiVersion: v1, kind: X, metadata: {name: n}}]}}]",
        "spec.runner.serviceAccountName: is missing"
    )]
    #[case(
        "p",
        "{runner: {image: i}, preCreate: [{name: a, script: '#!', needs: [b]}]}",
        "spec.preCreate[0].needs[0]: there is no step \"b\""
    )]
    #[case(
        "p",
        "{runner: {image: i}, preCreate: [{name: a, script: '#!', needs: [b]}, {name: b, script: '#!', needs: [a]}]}",
        "spec.preCreate: the steps wait for each other: a waits for b waits for a"
    )]
    #[case(
        "p",
        "{runner: {image: i}, preCreate: [{name: a, script: '#!', inputs: [{name: x, valueFromStep: {name: b, output: o}}]}]}",
        "spec.preCreate[0].inputs[0].valueFromStep: no step \"b\" has an output \"o\""
    )]
    #[case(
        "p",
        "{runner: {image: i}, preCreate: [{name: a, script: '#!', inputs: [{name: x, valueFromStep: {name: b, output: o}}]}], postDelete: [{name: b, script: '#!', outputs: [{name: o, valueFromPath: /o/o}]}]}",
        "spec.preCreate[0].inputs[0].valueFromStep: b.o is an output of a later phase"
    )]
    #[case(
        "p",
        "{runner: {image: i}, preCreate: [{name: a, script: '#!', outputs: [{name: o, valueFromPath: /o/o}], inputs: [{name: x, valueFromStep: {name: a, output: o}}]}]}",
        "spec.preCreate[0].inputs[0].valueFromStep: a step cannot read its own output"
    )]
    #[case(
        "p",
        "{runner: {serviceAccountName: i}, preCreate: [{name: a, apply: {manifests: [{kind: X, metadata: {name: n}}]}}]}",
        "spec.preCreate[0].apply.manifests[0].apiVersion: is missing"
    )]
    #[case(
        "p",
        "{runner: {serviceAccountName: i}, preCreate: [{name: a, apply: {manifests: [{apiVersion: v1, kind: X}]}}]}",
        "spec.preCreate[0].apply.manifests[0].metadata.name: is missing"
    )]
    #[case(
        "p.1.0",
        "{runner: {image: i}, preCreate: [{name: a, script: '#!'}]}",
        "metadata.name: \"p.1.0\": what follows the first dot is the version, a semantic one: p.1.0.0"
    )]
    #[case(
        "p.new",
        "{runner: {image: i}, preCreate: [{name: a, script: '#!'}]}",
        "metadata.name: \"p.new\": what follows the first dot is the version, a semantic one: p.1.2.0"
    )]
    fn a_fault_names_its_field_and_the_remedy(#[case] name: &str, #[case] yaml: &str, #[case] fault: &str) {
        let found = plugin(name, &spec(yaml));
        assert!(found.iter().any(|f| f.to_string().starts_with(fault)), "{found:?}");
    }

    #[test]
    fn a_later_phase_reads_an_earlier_ones_output() {
        let spec = spec(
            "{runner: {image: i}, create: [{name: a, script: '#!', outputs: [{name: o, valueFromPath: /o/o}]}], delete: [{name: b, script: '#!', inputs: [{name: x, valueFromStep: {name: a, output: o}}]}]}",
        );
        assert_eq!(plugin("p.1.0.0", &spec), []);
    }

    #[test]
    fn a_fork_asks_for_an_output_that_there_is() {
        let plugins = Plugins::new([(
            "p".to_owned(),
            spec(
                "{runner: {image: i}, create: [{name: a, script: '#!', outputs: [{name: host, valueFromPath: /o/o}]}]}",
            ),
        )]);
        let object = |resource: &str, key: &str| {
            serde_json::json!({"spec": {"resources": [{"name": "db", "plugin": "p"}], "forks": [{"forkOf": {}, "customizations":
                {"env": [{"name": "H", "valueFrom": {"resource": {"name": resource, "outputKey": key}}}]}}]}})
        };
        assert_eq!(sandbox(&object("db", "host"), &plugins), []);
        assert_eq!(sandbox(&object("db", "a.host"), &plugins), []);
        let faults = sandbox(&object("db", "a.port"), &plugins);
        assert_eq!(
            faults[0].to_string(),
            "spec.forks[0].customizations.env[0].valueFrom.resource.outputKey: no step of the plugin has an output \"a.port\" (there is a.host)"
        );
        let faults = sandbox(&object("cache", "host"), &plugins);
        assert_eq!(faults[0].message, "the sandbox has no resource \"cache\" (it has db)");
    }
}
