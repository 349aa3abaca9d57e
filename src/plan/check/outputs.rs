//! Which outputs a plugin's steps have, and who may read them.

use crate::api::{ResourcePluginSpec, Step, Workflow};

/// Whether `reader`, a step of `workflow`, may read this output of `step` (any of its outputs where none is named); if
/// not, why.
pub(super) fn readable(
    spec: &ResourcePluginSpec,
    workflow: Workflow,
    reader: &Step,
    step: &str,
    output: Option<&str>,
) -> Result<(), String> {
    let is = |(s, o): (&str, &str)| s == step && output.is_none_or(|wanted| wanted == o);
    let in_this_phase = outputs(spec, |w| w == workflow).any(is);
    if outputs(spec, |w| w < workflow).any(is) || in_this_phase && step != reader.name {
        return Ok(());
    }
    if in_this_phase {
        return Err("a step cannot read its own output: read one of another step".to_owned());
    }
    let wanted = output.map_or_else(|| step.to_owned(), |output| format!("{step}.{output}"));
    if outputs(spec, |w| w > workflow).any(is) {
        return Err(format!("{wanted} is an output of a later phase; only this phase's and earlier ones' can be read"));
    }
    let has = output.map_or_else(|| "outputs".to_owned(), |output| format!("an output {output:?}"));
    Err(format!("no step {step:?} has {has} ({})", listed(outputs(spec, |w| w <= workflow))))
}

/// The step and output that an `outputKey` means: `STEP.OUTPUT`, or `OUTPUT` where one step alone has it.
pub fn output_key(spec: &ResourcePluginSpec, key: &str) -> Result<(String, String), String> {
    let all = || outputs(spec, |workflow| workflow != Workflow::Abandoned);
    let mut found: Vec<(&str, &str)> = match key.split_once('.') {
        Some((step, output)) => all().filter(|(s, o)| *s == step && *o == output).collect(),
        None => all().filter(|(_, o)| *o == key).collect(),
    };
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [(step, output)] => Ok(((*step).to_owned(), (*output).to_owned())),
        [] => Err(format!("no step of the plugin has an output {key:?} ({})", listed(all()))),
        several => Err(format!("{key:?} is an output of several steps: write {}.{key}", several[0].0)),
    }
}

/// Step and output of every output of these workflows.
fn outputs(spec: &ResourcePluginSpec, of: impl Fn(Workflow) -> bool) -> impl Iterator<Item = (&str, &str)> {
    Workflow::ALL
        .into_iter()
        .filter(move |w| of(*w))
        .flat_map(|w| spec.steps(w))
        .flat_map(|step| step.outputs.iter().map(|output| (step.name.as_str(), output.name.as_str())))
}

fn listed<'a>(outputs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut known: Vec<String> = outputs.map(|(step, output)| format!("{step}.{output}")).collect();
    known.sort_unstable();
    known.dedup();
    if known.is_empty() { "there are none to read".to_owned() } else { format!("there is {}", known.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_key_may_leave_out_the_step_where_one_alone_has_it() {
        let spec: ResourcePluginSpec = serde_saphyr::from_str(
            "preCreate:
- {name: a, outputs: [{name: host, valueFromPath: /o/h}, {name: port, valueFromPath: /o/p}]}
- {name: b, outputs: [{name: host, valueFromPath: /o/b}]}",
        )
        .unwrap();
        assert_eq!(output_key(&spec, "port"), Ok(("a".into(), "port".into())));
        assert_eq!(output_key(&spec, "b.host"), Ok(("b".into(), "host".into())));
        assert_eq!(output_key(&spec, "host"), Err("\"host\" is an output of several steps: write a.host".into()));
        assert_eq!(
            output_key(&spec, "user"),
            Err("no step of the plugin has an output \"user\" (there is a.host, a.port, b.host)".into())
        );
        let none = output_key(&ResourcePluginSpec::default(), "user").unwrap_err();
        assert_eq!(none, "no step of the plugin has an output \"user\" (there are none to read)");
    }
}
