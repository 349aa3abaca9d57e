//! Inputs that stand in the way of what a script is started with: no faults, but words of warning.

use crate::api::{ResourcePluginSpec, Workflow};

/// Variables that programs find themselves and their files by.
const STARTED_WITH: [&str; 6] = ["PATH", "HOME", "TMPDIR", "PWD", "LD_PRELOAD", "LD_LIBRARY_PATH"];

/// What is to be said of the environment that a plugin gives its scripts.
pub fn of_environment(spec: &ResourcePluginSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    for workflow in Workflow::ALL {
        let (field, steps) = spec.workflow_field(workflow);
        for (step, given) in steps.iter().enumerate() {
            for (input, given) in given.inputs.iter().enumerate() {
                let variable = given.variable().filter(|variable| STARTED_WITH.contains(&variable.as_str()));
                if let Some(variable) = variable {
                    warnings.push(format!(
                        "spec.{field}[{step}].inputs[{input}]: it replaces the variable {variable} that the script and the programs that it calls are started with: give another name as as.env, unless it is meant to"
                    ));
                }
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("{name: a, as: {env: PATH}}", Some("PATH"))]
    #[case("{name: home}", Some("HOME"))]
    #[case("{name: path, as: {path: /in/path}}", None)]
    #[case("{name: database}", None)]
    fn an_input_that_takes_the_name_of_what_a_script_is_started_with_is_told(
        #[case] input: &str,
        #[case] variable: Option<&str>,
    ) {
        let yaml = format!("{{preCreate: [{{name: a, script: x, inputs: [{input}]}}]}}");
        let found = of_environment(&serde_saphyr::from_str(&yaml).unwrap());
        match variable {
            Some(variable) => {
                let beginning = format!("spec.preCreate[0].inputs[0]: it replaces the variable {variable} ");
                assert!(matches!(found.as_slice(), [one] if one.starts_with(&beginning)), "{found:?}");
            }
            None => assert_eq!(found, Vec::<String>::new()),
        }
    }
}
