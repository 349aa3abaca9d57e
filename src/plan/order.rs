//! In which order the steps of one workflow run: what their inputs, expressions and `needs` imply, and no more.

use crate::api::{Step, StepState};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// For each step the indices of those that must end before it begins.
pub fn dependencies(steps: &[Step]) -> Vec<BTreeSet<usize>> {
    steps
        .iter()
        .enumerate()
        .map(|(index, step)| {
            let texts = expressions(step);
            (0..steps.len()).filter(|other| *other != index && depends(step, &texts, &steps[*other].name)).collect()
        })
        .collect()
}

fn depends(step: &Step, expressions: &[String], other: &str) -> bool {
    let by_input = step.inputs.iter().any(|i| i.value_from_step.as_ref().is_some_and(|from| from.name == other));
    by_input || step.needs.iter().any(|need| need == other) || expressions.iter().any(|text| mentions(text, other))
}

/// Every text of a step that may hold an expression.
fn expressions(step: &Step) -> Vec<String> {
    let mut texts: Vec<String> = step.when.iter().cloned().collect();
    texts.extend(step.inputs.iter().filter_map(|input| input.value.clone()));
    texts.extend(step.outputs.iter().filter_map(|output| output.value.clone()));
    let mut add = |action: Option<Value>| texts.extend(action.map(|it| it.to_string().replace("\\\"", "\"")));
    add(step.apply.as_ref().map(|action| json!(action)));
    add(step.delete.as_ref().map(|action| json!(action)));
    add(step.wait.as_ref().map(|action| json!(action)));
    add(step.http.as_ref().map(|action| json!(action)));
    texts
}

/// Which of these steps the expressions of `step` may read: those that they name, or all where they name none.
pub fn reads<'a>(step: &Step, known: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let mut read = BTreeSet::new();
    for text in expressions(step).iter().filter(|text| text.contains("steps")) {
        let named: Vec<&str> = known.iter().copied().filter(|name| mentions(text, name)).collect();
        let names_none = named.is_empty();
        read.extend(if names_none { known.iter().copied().collect() } else { named });
    }
    read
}

/// Whether an expression reads `steps.NAME` or `steps["NAME"]`. A mention inside a string counts too: it costs no
/// more than some time side by side.
fn mentions(text: &str, name: &str) -> bool {
    text.match_indices("steps").any(|(at, found)| {
        let rest = &text[at + found.len()..];
        let indexed =
            ['"', '\''].into_iter().find_map(|quote| Some((rest.strip_prefix('[')?.strip_prefix(quote)?, quote)));
        if let Some((rest, quote)) = indexed {
            return rest.strip_prefix(name).is_some_and(|r| r.starts_with(quote));
        }
        rest.strip_prefix('.')
            .and_then(|r| r.strip_prefix(name))
            .is_some_and(|r| !r.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
    })
}

/// The names of steps that wait for each other, in the order in which they do; none where the order is sound.
pub fn cycle(steps: &[Step]) -> Option<Vec<String>> {
    let dependencies = dependencies(steps);
    let mut ended = BTreeSet::new();
    loop {
        let before = ended.len();
        ended.extend((0..steps.len()).filter(|i| dependencies[*i].is_subset(&ended)).collect::<Vec<_>>());
        if ended.len() == steps.len() {
            return None;
        }
        if ended.len() == before {
            break;
        }
    }
    // Every step that is left waits for another that is left, so following them must come round.
    let mut path: Vec<usize> = Vec::new();
    let mut at = (0..steps.len()).find(|i| !ended.contains(i))?;
    while !path.contains(&at) {
        path.push(at);
        at = *dependencies[at].iter().find(|i| !ended.contains(i))?;
    }
    let start = path.iter().position(|i| *i == at)?;
    path.push(at);
    Some(path[start..].iter().map(|i| steps[*i].name.clone()).collect())
}

/// The steps that can begin now: pending, everything that they wait for succeeded or was skipped, and no running
/// step of the same pod uses one of their files.
pub fn ready(steps: &[Step], states: &[StepState]) -> Vec<usize> {
    let dependencies = dependencies(steps);
    let mut taken: BTreeSet<&str> =
        (0..steps.len()).filter(|i| states[*i] == StepState::Running).flat_map(|i| paths(&steps[i])).collect();
    let mut ready = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let waits =
            dependencies[index].iter().any(|d| !matches!(states[*d], StepState::Succeeded | StepState::Skipped));
        if states[index] != StepState::Pending || waits || paths(step).any(|path| taken.contains(path)) {
            continue;
        }
        taken.extend(paths(step));
        ready.push(index);
    }
    ready
}

/// The files that a step reads or leaves.
pub fn paths(step: &Step) -> impl Iterator<Item = &str> {
    let inputs = step.inputs.iter().filter_map(|i| i.as_.as_ref().and_then(|a| a.path.as_deref()));
    inputs.chain(step.outputs.iter().filter_map(|o| o.value_from_path.as_deref()))
}

/// The folders of the files that scripts read and leave.
pub fn folders<'a>(steps: impl IntoIterator<Item = &'a Step>) -> BTreeSet<String> {
    let parents = steps.into_iter().flat_map(paths).filter_map(|path| path.rsplit_once('/').map(|(folder, _)| folder));
    parents.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Input, Output, StepOutputRef};

    fn step(name: &str, needs: &[&str]) -> Step {
        Step { name: name.into(), needs: needs.iter().map(|n| (*n).to_owned()).collect(), ..Step::default() }
    }

    #[test]
    fn steps_begin_when_what_they_read_is_there() {
        let from = StepOutputRef { name: "a".into(), output: "o".into() };
        let by_input = Step {
            name: "b".into(),
            inputs: vec![Input { value_from_step: Some(from), ..Input::default() }],
            ..Step::default()
        };
        let by_expression = Step { name: "c".into(), when: Some("steps[\"b\"].o == \"1\"".into()), ..Step::default() };
        let steps = [step("a", &[]), by_input, by_expression, step("d", &[])];
        use StepState::{Pending, Running, Succeeded};
        assert_eq!(ready(&steps, &[Pending; 4]), [0, 3]);
        assert_eq!(ready(&steps, &[Succeeded, Pending, Pending, Running]), [1]);
        assert_eq!(ready(&steps, &[Succeeded, Succeeded, Pending, Running]), [2]);
    }

    #[test]
    fn a_longer_name_is_not_a_mention() {
        assert!(mentions("steps.ab.out", "ab") && mentions("x + steps['a-b'].out", "a-b"));
        assert!(!mentions("steps.abc.out", "ab") && !mentions("steps.a.out", "ab"));
    }

    #[test]
    fn steps_with_a_file_in_common_do_not_run_at_once() {
        let writes = |name: &str| Step {
            name: name.into(),
            outputs: vec![Output { name: "o".into(), value_from_path: Some("/out/o".into()), ..Output::default() }],
            ..Step::default()
        };
        assert_eq!(ready(&[writes("a"), writes("b")], &[StepState::Pending; 2]), [0]);
    }

    #[test]
    fn a_circle_is_shown_as_it_goes() {
        assert_eq!(
            cycle(&[step("a", &["c"]), step("b", &["a"]), step("c", &["b"]), step("d", &["a"])]).unwrap().len(),
            4
        );
        assert_eq!(cycle(&[step("a", &[]), step("b", &["a"])]), None);
    }
}
