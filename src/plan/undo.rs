//! What undoes a pre-phase whose change was never stored.

use super::{key, runs};
use crate::api::{Phase, PhaseRunSpec, PhaseRunStatus, RunResource, RunState, SandboxResource, StepState, StepStatus};
use serde_json::Value;

/// The run that undoes `run`, or none where nothing was begun that could be undone. `live` is the target as it is
/// stored now.
///
/// A plugin's own `abandoned` workflow comes first. Without it, a pre-create is undone by the plugin's post-delete
/// workflow and by deleting what was applied; a pre-update is run again towards what is stored; and a pre-delete has
/// nothing to undo: the object stays and stays usable. A resource that the live object has is never deleted: another
/// change made it that object's own.
pub fn undo(name: &str, run: &PhaseRunSpec, steps: &[StepStatus], live: Option<&Value>) -> Option<PhaseRunSpec> {
    let declared = live.and_then(|live| runs::declared(live).ok()).unwrap_or_default();
    let asked = runs::declared(&run.object).unwrap_or_default();
    // The same name with another plugin is another resource: that one stays, and this one goes.
    let is_same =
        |declared: &SandboxResource| asked.iter().all(|a| a.name != declared.name || a.plugin == declared.plugin);
    let named = |resource: &RunResource| declared.iter().find(|d| d.name == resource.name);
    let lives = |resource: &RunResource| named(resource).filter(|declared| is_same(declared));
    let shared = |undo: RunResource| RunResource { shares_name: named(&undo).is_some(), ..undo };
    let makes = |resource: &RunResource, name: &str| !resource.steps.iter().any(|s| s.name == name && s.read_only);
    let begun = |resource: &&RunResource| {
        let mut of_it = steps.iter().filter(|s| s.resource == resource.name && makes(resource, &s.step));
        of_it.any(|s| !matches!(s.state, StepState::Pending | StepState::Skipped))
    };
    let begun: Vec<_> = run.resources.iter().filter(begun).collect();
    let undone = |undo: &dyn Fn(&RunResource) -> Option<RunResource>| {
        begun.iter().filter_map(|r| own_way(run.phase, r, lives(r).is_some()).or_else(|| undo(r))).collect::<Vec<_>>()
    };
    let (phase, resources, object, old_object) = match run.phase {
        Phase::PreCreate => {
            let resources = undone(&|r| if lives(r).is_none() { leaving(r) } else { None });
            (Phase::PostDelete, resources.into_iter().map(shared).collect(), run.object.clone(), None)
        }
        Phase::PreUpdate => {
            let towards = |r: &RunResource| lives(r).map(|d| RunResource { params: d.params.clone(), ..r.clone() });
            (Phase::PreUpdate, undone(&towards), runs::snapshot(live?), Some(run.object.clone()))
        }
        Phase::PreDelete => (Phase::PreDelete, undone(&|_| None), runs::snapshot(live?), None),
        Phase::PostCreate | Phase::PostUpdate | Phase::PostDelete => return None,
    };
    if resources.is_empty() {
        return None;
    }
    Some(PhaseRunSpec {
        phase,
        target: run.target.clone(),
        key: key::of_undo(name),
        attempt: 1,
        requested_by: None,
        routing_key: run.routing_key.clone(),
        compensates: Some(name.to_owned()),
        timeout_seconds: run.timeout_seconds,
        resources,
        object,
        old_object,
    })
}

/// The runs whose outputs nobody needs once `run` has ended like this: they may be secrets, so they do not wait until
/// the run is history. `ignored` is a failure that lets the change through.
pub fn useless_outputs(name: &str, run: &PhaseRunSpec, status: &PhaseRunStatus, ignored: bool) -> Vec<String> {
    match (&run.compensates, status.state, run.phase) {
        // A pre-update that was run again has left what counts now.
        (Some(undone), RunState::Succeeded, Phase::PreUpdate) => vec![undone.clone()],
        (Some(undone), RunState::Succeeded, _) => vec![undone.clone(), name.to_owned()],
        (None, RunState::Failed, Phase::PreCreate | Phase::PreUpdate)
            if status.compensated_by.is_none() && !ignored =>
        {
            vec![name.to_owned()]
        }
        _ => Vec::new(),
    }
}

/// The plugin's own way to undo its part of `phase`, where it has one. What a create applied goes too, unless it is
/// another object's own by now (`is_lived_in`).
fn own_way(phase: Phase, resource: &RunResource, is_lived_in: bool) -> Option<RunResource> {
    let creates = phase == Phase::PreCreate;
    if resource.abandoned.is_empty() || (creates && is_lived_in) {
        return None;
    }
    Some(RunResource {
        steps: resource.abandoned.clone(),
        undoes: Some(phase),
        delete_applied: creates && resource.steps.iter().any(|step| step.apply.is_some()),
        undo: Vec::new(),
        abandoned: Vec::new(),
        ..resource.clone()
    })
}

fn leaving(resource: &RunResource) -> Option<RunResource> {
    let delete_applied = resource.steps.iter().any(|step| step.apply.is_some());
    if resource.undo.is_empty() && !delete_applied {
        return None;
    }
    let steps = resource.undo.clone();
    Some(RunResource { steps, undo: Vec::new(), abandoned: Vec::new(), delete_applied, ..resource.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Apply, Step, TargetRef};
    use rstest::rstest;
    use serde_json::json;

    fn run(phase: Phase, steps: Vec<Step>, undo: Vec<Step>) -> PhaseRunSpec {
        PhaseRunSpec {
            phase,
            target: TargetRef::default(),
            key: "k".into(),
            attempt: 2,
            requested_by: Some("alice".into()),
            routing_key: Some("r".into()),
            compensates: None,
            timeout_seconds: 9,
            resources: vec![RunResource { name: "db".into(), steps, undo, ..RunResource::default() }],
            object: json!({"spec": {"new": true}}),
            old_object: None,
        }
    }

    fn live() -> Value {
        json!({"spec": {"resources": [{"name": "db", "plugin": "p", "params": {"size": "old"}}]}})
    }

    fn script(name: &str) -> Step {
        Step { name: name.into(), script: Some("#!/bin/sh\n".into()), ..Step::default() }
    }

    fn ended(state: StepState) -> Vec<StepStatus> {
        vec![StepStatus { resource: "db".into(), step: "s".into(), state, ..StepStatus::default() }]
    }

    #[rstest]
    #[case::the_check_alone(StepState::Failed, StepState::Pending, false)]
    #[case::what_comes_after_it(StepState::Succeeded, StepState::Failed, true)]
    #[case::after_it_and_still_running(StepState::Succeeded, StepState::Running, true)]
    #[case::nothing_after_it(StepState::Succeeded, StepState::Skipped, false)]
    fn t07_what_only_looks_is_no_reason_to_undo(
        #[case] check: StepState,
        #[case] make: StepState,
        #[case] undone: bool,
    ) {
        let steps = vec![Step { read_only: true, ..script("check") }, script("make")];
        let run = run(Phase::PreCreate, steps, vec![script("drop")]);
        let status = |step: &str, state| StepStatus { step: step.into(), ..ended(state).remove(0) };
        let seen = [status("check", check), status("make", make)];
        assert_eq!(undo("r-1", &run, &seen, None).is_some(), undone);
    }

    #[test]
    fn a_pre_create_is_undone_by_post_delete() {
        let run = run(Phase::PreCreate, vec![script("s")], vec![script("drop")]);
        let undone = undo("r-1", &run, &ended(StepState::Failed), None).unwrap();
        assert_eq!((undone.phase, undone.compensates.as_deref()), (Phase::PostDelete, Some("r-1")));
        assert_eq!(undone.resources[0].steps, [script("drop")]);
    }

    #[test]
    fn what_a_living_object_has_is_never_deleted() {
        let run = run(Phase::PreCreate, vec![script("s")], vec![script("drop")]);
        assert_eq!(undo("r-1", &run, &ended(StepState::Succeeded), Some(&live())), None);
    }

    #[test]
    fn the_pre_create_of_another_plugin_under_a_living_name_is_undone_and_the_living_one_spared() {
        let mut run = run(Phase::PreCreate, vec![script("s")], vec![script("drop")]);
        run.object = json!({"spec": {"resources": [{"name": "db", "plugin": "p@2.0.0"}]}});
        let undone = undo("r-1", &run, &ended(StepState::Failed), Some(&live())).unwrap();
        assert!(undone.resources[0].shares_name);
        assert_eq!(undone.resources[0].steps, [script("drop")]);
    }

    #[test]
    fn applied_objects_are_deleted_though_there_is_no_workflow() {
        let apply = Step { name: "s".into(), apply: Some(Apply::default()), ..Step::default() };
        let run = run(Phase::PreCreate, vec![apply], vec![]);
        assert!(undo("r-1", &run, &ended(StepState::Succeeded), None).unwrap().resources[0].delete_applied);
    }

    #[test]
    fn outputs_are_kept_as_long_as_what_undoes_the_run_may_read_them() {
        let failed = run(Phase::PreCreate, vec![script("s")], vec![script("drop")]);
        let ended = |state| PhaseRunStatus { state, ..PhaseRunStatus::default() };
        let promised = PhaseRunStatus { compensated_by: Some("u-1".into()), ..ended(RunState::Failed) };
        assert!(useless_outputs("r-1", &failed, &promised, false).is_empty());
        assert!(useless_outputs("r-1", &failed, &ended(RunState::Failed), true).is_empty());
        assert!(useless_outputs("r-1", &failed, &ended(RunState::Succeeded), false).is_empty());
        assert_eq!(useless_outputs("r-1", &failed, &ended(RunState::Failed), false), ["r-1"]);

        let undoing = |phase| PhaseRunSpec { compensates: Some("r-1".into()), ..run(phase, vec![], vec![]) };
        let outputs = |phase, state| useless_outputs("u-1", &undoing(phase), &ended(state), false);
        assert_eq!(outputs(Phase::PostDelete, RunState::Succeeded), ["r-1", "u-1"]);
        assert_eq!(outputs(Phase::PreUpdate, RunState::Succeeded), ["r-1"]);
        assert!(outputs(Phase::PostDelete, RunState::Failed).is_empty());
    }

    #[test]
    fn what_never_began_is_not_undone() {
        let run = run(Phase::PreCreate, vec![script("s")], vec![script("drop")]);
        assert_eq!(undo("r-1", &run, &ended(StepState::Skipped), None), None);
        assert_eq!(undo("r-1", &run, &[], None), None);
    }

    #[test]
    fn a_pre_update_runs_again_towards_what_is_stored() {
        let run = run(Phase::PreUpdate, vec![script("s")], vec![]);
        let undone = undo("r-1", &run, &ended(StepState::Succeeded), Some(&live())).unwrap();
        assert_eq!(undone.object, live());
        assert_eq!(undone.resources[0].params["size"], "old");
        assert_eq!(undo("r-1", &run, &ended(StepState::Succeeded), None), None);
    }

    #[test]
    fn a_pre_delete_has_nothing_to_undo() {
        let run = run(Phase::PreDelete, vec![script("s")], vec![]);
        assert_eq!(undo("r-1", &run, &ended(StepState::Succeeded), Some(&live())), None);
    }

    #[test]
    fn a_plugins_own_way_to_undo_comes_first_and_is_told_the_phase() {
        let with = |phase| {
            let mut run = run(phase, vec![script("s")], vec![script("drop")]);
            run.resources[0].abandoned = vec![script("own")];
            run
        };
        let undone = |phase, live: Option<&Value>| undo("r-1", &with(phase), &ended(StepState::Succeeded), live);
        let create = undone(Phase::PreCreate, None).unwrap();
        assert_eq!((create.phase, create.resources[0].undoes), (Phase::PostDelete, Some(Phase::PreCreate)));
        assert_eq!(create.resources[0].steps, [script("own")]);
        assert_eq!(undone(Phase::PreCreate, Some(&live())), None, "it is another object's own by now");
        for phase in [Phase::PreUpdate, Phase::PreDelete] {
            let undone = undone(phase, Some(&live())).unwrap();
            assert_eq!((undone.phase, undone.resources[0].undoes), (phase, Some(phase)));
            assert_eq!(undone.resources[0].steps, [script("own")]);
        }
    }
}
