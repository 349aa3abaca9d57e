//! Reads a plugin and looks for its faults, as its admission does.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use sluice::api::{Phase, ResourcePluginSpec};
use sluice::plan::{check, order};
use sluice_fuzz::forgive_the_library;

fuzz_target!(init: forgive_the_library(), |data: &[u8]| {
    let Ok(plugin) = serde_json::from_slice::<Value>(data) else { return };
    let name = plugin["metadata"]["name"].as_str().unwrap_or("p");
    let Ok(spec) = serde_json::from_value::<ResourcePluginSpec>(plugin["spec"].clone()) else { return };
    let faults = check::plugin(name, &spec);
    for fault in &faults {
        drop(fault.to_string());
    }
    for phase in Phase::ALL {
        let steps = spec.workflow(phase);
        drop((order::cycle(steps), spec.settings(phase)));
    }
    let again = serde_json::to_value(&spec).expect("a spec is JSON");
    let again: ResourcePluginSpec = serde_json::from_value(again).expect("what is written can be read");
    assert_eq!(spec, again);
});
