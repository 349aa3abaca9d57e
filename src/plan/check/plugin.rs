//! The faults of a plugin: its name, its runner, the order of its steps and what they read.

use super::trial::{Trial, Warnings};
use super::{Fault, expressions, image, outputs};
use crate::api::{ResourcePluginSpec, Step, StepKind, Workflow};
use crate::plan::http;
use crate::plan::plugins::canonical;
use crate::plan::{order, overlay};
use serde_json::Value;

/// What is to be said of a plugin.
#[derive(Debug)]
pub struct Findings {
    pub faults: Vec<Fault>,
    /// What may be wrong in its expressions.
    pub warnings: Warnings,
}

/// The faults of a plugin.
pub fn plugin(name: &str, spec: &ResourcePluginSpec) -> Vec<Fault> {
    examine(name, spec).faults
}

/// The faults of a plugin, and what may be one.
pub fn examine(name: &str, spec: &ResourcePluginSpec) -> Findings {
    let mut faults = Vec::new();
    let mut trial = Trial::default();
    if let Some((base, version)) = name.split_once('.') {
        let right = canonical(version);
        if right.as_ref().is_none_or(|v| v.to_string() != version) {
            let example = right.map_or_else(|| format!("{base}.1.2.0"), |v| format!("{base}.{v}"));
            let message = format!("{name:?}: what follows the first dot is the version, a semantic one: {example}");
            faults.push(Fault::new("metadata.name", message));
        }
    }
    if let Err(found) = overlay::overlay(&spec.runner) {
        faults.extend(found.into_iter().map(|message| Fault::new("spec.runner.podTemplateOverlay", message)));
    }
    if let Some(message) = spec.runner.image.as_deref().and_then(image::fault) {
        faults.push(Fault::new("spec.runner.image", message));
    }
    for workflow in Workflow::ALL {
        let (field, steps) = spec.workflow_field(workflow);
        for (index, step) in steps.iter().enumerate() {
            let field = format!("spec.{field}[{index}]");
            self::step(spec, workflow, step, &field, &mut faults);
            expressions::step(spec, workflow, step, &field, &mut trial, &mut faults);
        }
        if let Some(cycle) = order::cycle(steps) {
            let message = format!(
                "the steps wait for each other: {}; take one of the needs or inputs away",
                cycle.join(" waits for ")
            );
            faults.push(Fault::new(format!("spec.{field}"), message));
        }
    }
    Findings { faults, warnings: trial.warnings() }
}

fn step(spec: &ResourcePluginSpec, workflow: Workflow, step: &Step, field: &str, faults: &mut Vec<Fault>) {
    if step.script.is_some() && spec.runner.image.is_none() {
        let message = format!("is missing: {field} is a script and needs an image to run in");
        faults.push(Fault::new("spec.runner.image", message));
    }
    let acts = matches!(step.kind(), StepKind::Apply | StepKind::Delete | StepKind::Wait);
    if acts && spec.runner.service_account_name.is_none() {
        let kind = step.kind();
        let message = format!("is missing: {field} is of kind {kind} and needs a service account to act as");
        faults.push(Fault::new("spec.runner.serviceAccountName", message));
    }
    // A field of any type cannot stand in a rule of the schema.
    for (index, header) in step.http.iter().flat_map(|http| &http.headers).enumerate() {
        if let Err(why) = http::header_name(&header.name) {
            faults.push(Fault::new(format!("{field}.http.headers[{index}].name"), why));
        }
    }
    if step.http.as_ref().is_some_and(|http| http.json.is_some() && http.body.is_some()) {
        faults.push(Fault::new(format!("{field}.http.body"), "a call has json or body, not both: take one away"));
    }
    for (index, output) in step.outputs.iter().enumerate() {
        let wrong = match step.kind() {
            StepKind::Script if output.value.is_some() => "value",
            StepKind::Wait | StepKind::Http if output.value_from_path.is_some() => "valueFromPath",
            _ => continue,
        };
        let right = if wrong == "value" {
            "a script leaves files: give valueFromPath"
        } else {
            "only a script leaves files: give value, an expression"
        };
        faults.push(Fault::new(format!("{field}.outputs[{index}].{wrong}"), right));
    }
    for (index, need) in step.needs.iter().enumerate() {
        if !spec.steps(workflow).iter().any(|s| s.name == *need) {
            let others = spec.steps(workflow).iter().map(|s| s.name.as_str()).filter(|name| *name != step.name);
            let known = match others.collect::<Vec<_>>().as_slice() {
                [] => "it has no other step".to_owned(),
                names => format!("there is {}", names.join(", ")),
            };
            let message = format!("there is no step {need:?} in this phase ({known})");
            faults.push(Fault::new(format!("{field}.needs[{index}]"), message));
        }
    }
    for (index, input) in step.inputs.iter().enumerate() {
        let Some(from) = &input.value_from_step else { continue };
        if let Err(message) = outputs::readable(spec, workflow, step, &from.name, Some(&from.output)) {
            faults.push(Fault::new(format!("{field}.inputs[{index}].valueFromStep"), message));
        }
    }
    for (index, manifest) in step.apply.iter().flat_map(|a| &a.manifests).enumerate() {
        let field = format!("{field}.apply.manifests[{index}]");
        for (path, pointer) in [("apiVersion", "/apiVersion"), ("kind", "/kind"), ("metadata.name", "/metadata/name")] {
            if manifest.pointer(pointer).and_then(Value::as_str).is_none_or(str::is_empty) {
                faults.push(Fault::new(format!("{field}.{path}"), "is missing: every object needs one"));
            }
        }
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
        "p",
        "preCreate: [{name: a, wait: {object: {apiVersion: v1, kind: X, name: n}, until: 'object != null'}}]",
        "spec.runner.serviceAccountName: is missing: spec.preCreate[0] is of kind wait"
    )]
    #[case(
        "p",
        "{runner: {image: i}, preCreate: [{name: a, script: '#!', outputs: [{name: o, value: '1'}]}]}",
        "spec.preCreate[0].outputs[0].value: a script leaves files"
    )]
    #[case(
        "p",
        "preCreate: [{name: a, http: {url: 'http://x'}, outputs: [{name: o, valueFromPath: /o/o}]}]",
        "spec.preCreate[0].outputs[0].valueFromPath: only a script leaves files"
    )]
    #[case(
        "p",
        "preCreate: [{name: a, http: {url: 'http://x', json: 1, body: '1'}}]",
        "spec.preCreate[0].http.body: a call has json or body, not both"
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
    #[case(
        "p",
        "{runner: {image: i, podTemplateOverlay: 'metadata: {name: x}'}, preCreate: [{name: a, script: '#!/bin/sh'}]}",
        "spec.runner.podTemplateOverlay: metadata.name: \"x\" cannot be"
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
}
