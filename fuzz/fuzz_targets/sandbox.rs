//! Reads a sandbox, looks for its faults, plans its changes, and makes its forks.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use sluice::api::Sandbox;
use sluice::controller::fork::{self, Owner};
use sluice::controller::kept::KeptService;
use sluice::plan::runs::{self, Change, Side};
use sluice::plan::{changes, check, kinds::SANDBOX};
use sluice_fuzz::{PLUGINS, objects};

fuzz_target!(|data: &[u8]| {
    let Ok(new) = serde_json::from_slice::<Value>(data) else { return };
    for fault in check::sandbox(&new, &PLUGINS) {
        drop(fault.to_string());
    }
    let (old, other) = objects();
    for (old, after) in [(&old, &new), (&new, &other)] {
        drop(changes::change(&SANDBOX, Some(old), Some(after)));
        for side in [Side::Pre, Side::Post] {
            for change in [Change::Create { new: after }, Change::Update { old, new: after }, Change::Delete { old }] {
                match runs::plan(change, side, &PLUGINS) {
                    Ok(planned) => drop(planned),
                    Err(error) => drop(error.to_string()),
                }
            }
        }
    }
    let Ok(sandbox) = serde_json::from_value::<Sandbox>(new) else { return };
    forks(&sandbox);
});

fn forks(sandbox: &Sandbox) {
    let baseline = json!({
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web", "team": "cart"}},
            "spec": {"containers": [{"name": "main", "image": "i", "env": [{"name": "A", "value": "1"}]}, {"name": "side"}]}},
    });
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    let Ok(service) = serde_json::from_str::<KeptService>(&service.to_string()) else { return };
    let owner = Owner { name: "feature-x", uid: "6f1c", namespace: "shop", routing_key: "7kq2", outputs: "out" };
    for fork in &sandbox.spec.forks {
        let key = |resource: &str, key: &str| (key.len() > 1).then(|| format!("{resource}.{key}"));
        match fork::objects(owner, fork, baseline.clone(), std::slice::from_ref(&service), &key) {
            Ok(made) => {
                // Whatever is patched, the baseline's Services must not lead to the fork.
                assert_ne!(made[0]["spec"]["template"]["metadata"]["labels"]["app"], "web");
                assert_eq!(made[0]["metadata"]["namespace"], "shop");
            }
            Err(error) => drop(error.to_string()),
        }
    }
}
