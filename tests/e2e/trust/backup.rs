//! What a restore from a backup brings back is not acted on.

use crate::cluster::{SLUICE, Space, apply, eventually, get, kubectl, kubectl_file, list, witnesses};
use serde_json::{Value, json};
use std::time::Duration;

/// An object as a backup keeps it and a restore creates it: without a status and what the API server gives.
fn backed_up(object: &Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().remove("status");
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences"] {
        metadata.remove(field);
    }
    object
}

/// The same, as if it had been backed up the day before.
fn of_yesterday(object: &Value) -> Value {
    let mut object = backed_up(object);
    object["metadata"]["annotations"]["sluice.dev/written-at"] = json!("2020-01-01T00:00:00Z");
    object
}

/// Creates objects as who may: the chart's policies let nobody but Sluice itself do it.
fn restore(objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    kubectl_file(&["create", "--as", &format!("system:serviceaccount:{SLUICE}:sluice")], &list).ok();
}

fn records(space: &Space) -> Vec<Value> {
    list(&["sandboxrecords", "-l", &format!("sluice.dev/namespace={}", space.namespace)])
}

/// The witnesses of phases that are there.
fn witnesses_of(space: &Space) -> Vec<String> {
    let maps = list(&["-n", &space.namespace, "configmaps"]);
    let names = maps.iter().map(|map| map["metadata"]["name"].as_str().unwrap().to_owned());
    names.filter(|name| name != "kube-root-ca.crt").collect()
}

/// A sandbox that has lived and is gone, as a backup had it while it lived: its runs and its record.
fn lived(space: &Space, manifest: &str) -> (Vec<Value>, Vec<Value>) {
    apply(manifest).ok();
    space.settle("x");
    let kept = eventually(Duration::from_secs(30), "the record is written", || {
        let records = records(space);
        (records.len() == 1).then_some(records)
    });
    let runs = space.runs("x");
    assert!(runs.len() >= 2, "{runs:#?}");
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    eventually(Duration::from_secs(60), "its last phase has run", || records(space).is_empty().then_some(()));
    kubectl(&["delete", "phaseruns", "-l", &format!("sluice.dev/namespace={}", space.namespace)]).ok();
    kubectl(&["-n", &space.namespace, "delete", "configmaps", "--all"]).ok();
    (runs, kept)
}

#[test]
fn t16_runs_and_records_of_a_backup_do_nothing_and_a_restored_sandbox_runs_its_phases_once() {
    let space = Space::new("restored");
    let plugin = space.plugin("witness", &witnesses());
    let manifest = space.sandbox("x", &format!("  description: first\n  resources: [{{name: r, plugin: {plugin}}}]"));
    let (runs, records_kept) = lived(&space, &manifest);
    for kept in runs.iter().chain(&records_kept) {
        assert_eq!(kept["metadata"]["labels"]["velero.io/exclude-from-backup"], "true", "{kept}");
    }

    // Within a moment of their writing, and as on another day.
    for at_once in [true, false] {
        let as_kept = |object| if at_once { backed_up(object) } else { of_yesterday(object) };
        let objects: Vec<Value> = runs.iter().chain(&records_kept).map(as_kept).collect();
        restore(&objects);
        eventually(Duration::from_secs(60), "the record says that it is inert", || {
            records(&space).iter().all(|r| !r["metadata"]["annotations"]["sluice.dev/inert"].is_null()).then_some(())
        });
        eventually(Duration::from_secs(60), "the runs are inert or taken back", || {
            space.runs("x").iter().all(|run| run["status"]["state"] == "Inert").then_some(())
        });
        std::thread::sleep(Duration::from_secs(3));
        assert!(witnesses_of(&space).is_empty(), "{:?}", witnesses_of(&space));
        if at_once {
            kubectl(&[
                "delete",
                "sandboxrecords,phaseruns",
                "-l",
                &format!("sluice.dev/namespace={}", space.namespace),
            ])
            .ok();
        }
    }
    assert!(!space.runs("x").is_empty(), "they are shown as what they are");

    // They stand in nobody's way, though the change has the names of its runs.
    let made = apply(&manifest).ok();
    assert!(made.took < Duration::from_secs(30), "{:?}", made.took);
    let uid = space.settle("x")["metadata"]["uid"].clone();
    let of_phase = |phase: &str| {
        let runs = space.runs("x");
        runs.iter().filter(|run| run["spec"]["phase"] == phase && run["status"]["state"] != "Inert").count()
    };
    assert_eq!((of_phase("PreCreate"), of_phase("PostCreate"), of_phase("PostDelete")), (1, 1, 0));
    assert_eq!(witnesses_of(&space), ["post-create-x", "pre-create-x"]);
    let own = get(&["sandboxrecord", uid.as_str().unwrap()]).unwrap();
    assert!(own["metadata"]["annotations"]["sluice.dev/inert"].is_null(), "{own}");
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    space.settled_run("x", "PostDelete", "Succeeded");
}
