//! The faults of a plugin's expressions and templates: what does not parse, what reads or calls what is not there, and
//! what a trial shows to be of the wrong type.

use super::specimen::response;
use super::trial::{Item, Setting, Trial, Wanted};
use super::{Fault, outputs};
use crate::api::{Apply, Delete, Http, ResourcePluginSpec, Step, Workflow};
use crate::plan::expression::{Expression, Type};
use crate::plan::kinds::SANDBOX;
use crate::plan::scope::{ScopeError, check_name};
use crate::plan::template::Template;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The item of a `forEach` that gives it no name.
const ITEM: &str = "item";
/// What a `wait` sees.
const OBJECT: &str = "object";
/// What an `http` step gets.
const RESPONSE: &str = "response";

/// Adds the faults of the expressions of `step`, which stands at `field`.
pub(super) fn step(
    spec: &ResourcePluginSpec,
    workflow: Workflow,
    step: &Step,
    field: &str,
    trial: &mut Trial,
    faults: &mut Vec<Fault>,
) {
    let mut checker = Checker { spec, workflow, step, when: None, item: None, trial, faults };
    let names = SANDBOX.names();
    if let Some(when) = &step.when {
        let found = checker.wanted(&format!("{field}.when"), when, &names, Wanted::Condition);
        checker.when = found.map(|(when, _)| when);
    }
    for (index, input) in step.inputs.iter().enumerate() {
        if let Some(value) = &input.value {
            checker.expression(&format!("{field}.inputs[{index}].value"), value, &names);
        }
    }
    if let Some(Apply { for_each, as_, manifests }) = &step.apply {
        let field = format!("{field}.apply");
        checker.each(&field, (for_each.as_deref(), as_.as_deref()), "manifests", manifests, &names);
    }
    if let Some(Delete { for_each, as_, objects }) = &step.delete {
        let objects: Vec<_> = objects.iter().map(|object| json!(object)).collect();
        checker.each(&format!("{field}.delete"), (for_each.as_deref(), as_.as_deref()), "objects", &objects, &names);
    }
    if let Some(wait) = &step.wait {
        checker.template(&format!("{field}.wait.object"), &json!(wait.object), &names);
        checker.wanted(&format!("{field}.wait.until"), &wait.until, &with(&names, OBJECT), Wanted::Condition);
    }
    if let Some(http) = &step.http {
        checker.http(&format!("{field}.http"), http, &names);
    }
    let seen = if step.wait.is_some() { OBJECT } else { RESPONSE };
    checker.item = step.http.as_ref().map(|_| Item { name: RESPONSE.to_owned(), kind: response(), list: None });
    for (index, output) in step.outputs.iter().enumerate() {
        if let Some(value) = &output.value {
            checker.expression(&format!("{field}.outputs[{index}].value"), value, &with(&names, seen));
        }
    }
}

fn with<'a>(names: &[&'a str], more: &'a str) -> Vec<&'a str> {
    names.iter().copied().chain([more]).collect()
}

struct Checker<'a> {
    spec: &'a ResourcePluginSpec,
    workflow: Workflow,
    step: &'a Step,
    /// The step's `when`, once it is known to be right.
    when: Option<Expression>,
    /// What is seen beside the variables of every expression, where something is known of it.
    item: Option<Item>,
    trial: &'a mut Trial,
    faults: &'a mut Vec<Fault>,
}

impl Checker<'_> {
    /// What is done once for each item of a list.
    fn each(
        &mut self,
        field: &str,
        (list, item): (Option<&str>, Option<&str>),
        part: &str,
        objects: &[Value],
        names: &[&str],
    ) {
        let mut names = names.to_vec();
        if let Some(list) = list {
            let list = self.wanted(&format!("{field}.forEach"), list, &names, Wanted::List);
            let item = item.unwrap_or(ITEM);
            if let Err(error) = item_name(item, &names) {
                self.faults.push(Fault::new(format!("{field}.as"), error.to_string()));
            }
            names.push(item);
            self.item = list.map(|(list, kind)| Item { name: item.to_owned(), kind: item_of(&kind), list: Some(list) });
        }
        for (index, object) in objects.iter().enumerate() {
            self.template(&format!("{field}.{part}[{index}]"), object, &names);
        }
        self.item = None;
    }

    fn http(&mut self, field: &str, http: &Http, names: &[&str]) {
        self.template(&format!("{field}.url"), &json!(http.url), names);
        for (index, header) in http.headers.iter().enumerate() {
            if let Some(value) = &header.value {
                self.template(&format!("{field}.headers[{index}].value"), &json!(value), names);
            }
        }
        if let Some(json) = &http.json {
            self.template(&format!("{field}.json"), json, names);
        }
        if let Some(body) = &http.body {
            self.template(&format!("{field}.body"), &json!(body), names);
        }
    }

    fn template(&mut self, field: &str, value: &Value, names: &[&str]) {
        match Template::parse_at(field, value) {
            Ok(template) => {
                for (place, expression) in template.expressions() {
                    self.parsed(place, expression, names, Wanted::Anything);
                }
            }
            Err(error) => {
                let (place, message) = error.parts();
                self.faults.push(Fault::new(place, message));
            }
        }
    }

    fn expression(&mut self, field: &str, source: &str, names: &[&str]) {
        self.wanted(field, source, names, Wanted::Anything);
    }

    /// The expression and the type of what it gives, where nothing is wrong with it.
    fn wanted(&mut self, field: &str, source: &str, names: &[&str], wanted: Wanted) -> Option<(Expression, Type)> {
        match Expression::parse(source) {
            Ok(expression) => self.parsed(field, &expression, names, wanted).map(|kind| (expression, kind)),
            Err(error) => {
                self.faults.push(Fault::new(field, error.to_string()));
                None
            }
        }
    }

    fn parsed(&mut self, field: &str, expression: &Expression, names: &[&str], wanted: Wanted) -> Option<Type> {
        let before = self.faults.len();
        if let Err(error) = expression.check(names) {
            self.faults.push(Fault::new(field, error.to_string()));
        }
        self.outputs(field, expression);
        if self.faults.len() > before {
            return None;
        }
        let at = Setting { field, workflow: self.workflow, when: self.when.as_ref(), item: self.item.as_ref() };
        match self.trial.expression(at, expression, wanted) {
            Ok(kind) => Some(kind),
            Err(fault) => {
                self.faults.push(fault);
                None
            }
        }
    }

    fn outputs(&mut self, field: &str, expression: &Expression) {
        let mut wrong = BTreeSet::new();
        for path in expression.reads("steps") {
            let (Some(step), output) = (path.first(), path.get(1)) else { continue };
            let read = outputs::readable(self.spec, self.workflow, self.step, step, output.map(String::as_str));
            // What is wrong with `steps.a` is said once, not for `steps.a.b` too.
            if let Err(message) = read
                && wrong.insert(step)
            {
                let path = path.iter().take(2).map(String::as_str).collect::<Vec<_>>().join(".");
                self.faults.push(Fault::new(field, format!("reads steps.{path}: {message}")));
            }
        }
    }
}

/// The item of a list of this type, which is given as JSON.
fn item_of(list: &Type) -> Type {
    match list.as_json() {
        Type::List(item) => item.as_ref().clone(),
        Type::Nullable(list) => item_of(&list),
        _ => Type::Any,
    }
}

fn item_name(name: &str, taken: &[&str]) -> Result<(), ScopeError> {
    check_name(name)?;
    if taken.contains(&name) {
        return Err(ScopeError::TakenName { name: name.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::plugin;
    use rstest::rstest;

    fn faults(steps: &str) -> Vec<String> {
        let spec = format!("runner: {{image: i, serviceAccountName: s}}\n{steps}");
        plugin("p", &serde_saphyr::from_str(&spec).unwrap()).iter().map(ToString::to_string).collect()
    }

    /// A manifest whose only string of interest is this one, under a `forEach`.
    fn template(text: &str) -> String {
        format!(
            "preCreate: [{{name: a, apply: {{forEach: sandbox.spec.forks, as: fork, manifests: [{{apiVersion: v1, kind: X, metadata: {{name: m}}, data: {{a: {text}}}}}]}}}}]"
        )
    }

    #[rstest]
    #[case("a +", "spec.preCreate[0].when: line 1, column 4: ")]
    #[case(
        "sandox.spec",
        "spec.preCreate[0].when: line 1, column 1: there is no variable `sandox` here; there are `sandbox`, "
    )]
    #[case("foo(params)", "spec.preCreate[0].when: line 1, column 1: there is no function `foo`")]
    #[case("' '", "spec.preCreate[0].when: the expression is empty")]
    #[case(
        "steps.b.port == \"1\"",
        "spec.preCreate[0].when: reads steps.b.port: no step \"b\" has an output \"port\" (there is b.host)"
    )]
    #[case(
        "steps[\"c\"].x == \"1\"",
        "spec.preCreate[0].when: reads steps.c: no step \"c\" has outputs (there is b.host)"
    )]
    #[case("steps.?d.?o.hasValue()", "spec.preCreate[0].when: reads steps.d: d is an output of a later phase")]
    fn a_condition_that_cannot_work_is_a_fault(#[case] when: &str, #[case] fault: &str) {
        let found = faults(&format!(
            "preCreate:
- name: a
  script: '#!'
  when: {when}
- {{name: b, script: '#!', outputs: [{{name: host, valueFromPath: /o/h}}]}}
postCreate: [{{name: d, script: '#!', outputs: [{{name: o, valueFromPath: /o/h}}]}}]"
        ));
        assert!(matches!(found.as_slice(), [one] if one.starts_with(fault)), "{found:#?}");
    }

    #[rstest]
    #[case("'${fork.forkOf.name}'", None)]
    #[case("'$${literal'", None)]
    #[case(
        "'x-${fork'",
        Some("spec.preCreate[0].apply.manifests[0].data.a: `${fork` opens an expression that is never closed")
    )]
    #[case("'${fork.}'", Some("spec.preCreate[0].apply.manifests[0].data.a: line 1, column 6: "))]
    #[case(
        "'${item.name}'",
        Some("spec.preCreate[0].apply.manifests[0].data.a: line 1, column 1: there is no variable `item` here")
    )]
    #[case("'${steps.map(s, steps[s])}'", None)]
    #[case("'${[\"x\"].map(steps, steps.size())}'", None)]
    fn a_template_sees_the_item_under_its_name(#[case] text: &str, #[case] fault: Option<&str>) {
        let found = faults(&template(text));
        match fault {
            None => assert_eq!(found, [""; 0]),
            Some(fault) => assert!(matches!(found.as_slice(), [one] if one.starts_with(fault)), "{found:#?}"),
        }
    }

    #[rstest]
    #[case("sandbox", "`sandbox` already has a meaning in expressions: choose another name")]
    #[case("namespace", "`namespace` cannot name a value in expressions")]
    fn an_item_has_a_name_of_its_own(#[case] name: &str, #[case] fault: &str) {
        let found = faults(&template("''").replace("as: fork", &format!("as: {name}")));
        assert!(found[0].starts_with(&format!("spec.preCreate[0].apply.as: {fault}")), "{found:#?}");
    }

    #[test]
    fn the_list_of_a_for_each_and_the_value_of_an_input_are_checked_too() {
        let found = faults(
            "preCreate:
- {name: a, script: '#!', inputs: [{name: x, value: params.}]}
- {name: b, apply: {forEach: item, manifests: [{apiVersion: v1, kind: X, metadata: {name: m}}]}}",
        );
        assert!(found[0].starts_with("spec.preCreate[0].inputs[0].value: line 1, column 8: "), "{found:#?}");
        assert!(found[1].starts_with("spec.preCreate[1].apply.forEach: line 1, column 1: there is no variable `item`"));
    }
}
