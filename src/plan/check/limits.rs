//! Time limits of a plugin that do not hold what they seem to: no faults, but words of warning.

use crate::api::{Phase, ResourcePluginSpec};
use crate::plan::runs::DEFAULT_TIMEOUT_SECONDS;
use std::time::Duration;

/// What is to be said of a plugin's time limits. `covered` is how long one command of a client waits at most.
pub fn of_limits(spec: &ResourcePluginSpec, covered: Duration) -> Vec<String> {
    let limit = |phase| spec.settings(phase).timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
    let mut warnings = Vec::new();
    for phase in Phase::ALL {
        let steps = spec.workflow(phase);
        let field = format!("spec.phases.{}.timeoutSeconds", phase.field());
        let limit = limit(phase);
        if !steps.is_empty() && phase.is_pre() && u64::from(limit) > covered.as_secs() {
            warnings.push(format!(
                "{field}: {limit} s is more than the {} s that one command waits: a longer {phase} needs the command again",
                covered.as_secs()
            ));
        }
        for step in steps {
            let tries = 1 + step.retries.unwrap_or(0);
            let longest = step.timeout_seconds.map(|seconds| seconds.saturating_mul(tries));
            if let Some(longest) = longest.filter(|longest| *longest > limit) {
                warnings.push(format!(
                    "{field}: step {} may take {longest} s in all its tries, and the phase is ended after {limit} s",
                    step.name
                ));
            }
        }
    }
    let replaced = [Phase::PreDelete, Phase::PreCreate];
    let has = |phase: &Phase| !spec.workflow(*phase).is_empty();
    let sum: u32 = replaced.iter().filter(|phase| has(phase)).map(|phase| limit(*phase)).sum();
    if replaced.iter().all(has) && u64::from(sum) > covered.as_secs() {
        warnings.push(format!(
            "spec.phases: where a sandbox takes another version, preDelete and preCreate run one after the other: {sum} s, more than the {} s that one command waits",
            covered.as_secs()
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("{preCreate: [{name: a}]}", None)]
    #[case(
        "{phases: {preCreate: {timeoutSeconds: 700}}, preCreate: [{name: a}]}",
        Some("spec.phases.preCreate.timeoutSeconds: 700 s is more than the 600 s")
    )]
    #[case("{phases: {postCreate: {timeoutSeconds: 700}}, postCreate: [{name: a}]}", None)]
    #[case(
        "{preCreate: [{name: a, timeoutSeconds: 200, retries: 1}]}",
        Some(
            "spec.phases.preCreate.timeoutSeconds: step a may take 400 s in all its tries, and the phase is ended after 300 s"
        )
    )]
    #[case(
        "{phases: {preDelete: {timeoutSeconds: 400}}, preDelete: [{name: a}], preCreate: [{name: a}]}",
        Some("spec.phases: where a sandbox takes another version")
    )]
    fn a_limit_that_does_not_hold_is_told(#[case] yaml: &str, #[case] warning: Option<&str>) {
        let found = of_limits(&serde_saphyr::from_str(yaml).unwrap(), Duration::from_secs(600));
        match warning {
            Some(warning) => assert!(found.iter().any(|found| found.starts_with(warning)), "{found:?}"),
            None => assert_eq!(found, Vec::<String>::new()),
        }
    }
}
