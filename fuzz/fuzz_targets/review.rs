//! Reads an AdmissionReview and does what its admission does before the API server is asked.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::api::ResourcePluginSpec;
use sluice::plan::runs::{self, Change, Side};
use sluice::plan::seal::Sealer;
use sluice::plan::{check, message};
use sluice::webhook::review::{Answer, Operation, Request, Review, timeout};
use sluice::webhook::{admit, mutate, rights};
use sluice_fuzz::{PLUGINS, forgive_the_library};

fuzz_target!(init: forgive_the_library(), |data: &[u8]| {
    let Ok(review) = serde_json::from_slice::<Review>(data) else { return };
    let Some(request) = review.request else { return };
    let _ = timeout(&request.name);
    let answer = match request.resource.resource.as_str() {
        "resourceplugins" => plugin(&request),
        _ => sandbox(&request),
    };
    let answer = answer.into_review(&request.uid);
    assert_eq!(answer["response"]["uid"], request.uid.as_str());
    let said = answer["response"]["status"]["message"].as_str().unwrap_or_default();
    assert!(said.len() <= message::DENIAL_LIMIT, "a denial of {} bytes", said.len());
});

fn sandbox(request: &Request) -> Answer {
    let (old, new) = (&request.old_object, &request.object);
    let sealer = Sealer::new([7; 32]);
    drop(mutate::sandbox(request, &PLUGINS, &sealer).into_review(&request.uid));
    let change = match request.operation {
        Operation::Create => Change::Create { new },
        Operation::Update => Change::Update { old, new },
        Operation::Delete => Change::Delete { old },
        Operation::Other => return Answer::allow(),
    };
    let seen = sealer.holds(&request.namespace, old);
    let plugin_of = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    let mut needed = rights::needed(&request.namespace, old, new, seen, plugin_of);
    needed.extend(rights::needed_to_skip(old, new));
    needed.extend(rights::needed_to_own(old, new, |_| true));
    for right in needed {
        drop(right.refusal(&request.user_info.username));
    }
    drop(runs::unpinned(new));
    let faults = check::sandbox(new, &PLUGINS);
    if !faults.is_empty() {
        return Answer::deny(admit::listed(&faults));
    }
    match (runs::plan(change, Side::Pre, &PLUGINS), runs::plan(change, Side::Post, &PLUGINS)) {
        (Ok(pre), Ok(_)) => Answer::warn(pre.iter().map(|run| run.key.clone()).collect()),
        (Err(error), _) | (_, Err(error)) => Answer::deny(message::cut(&error.to_string(), message::DENIAL_LIMIT)),
    }
}

fn plugin(request: &Request) -> Answer {
    let name = request.object["metadata"]["name"].as_str().unwrap_or(&request.name);
    let spec: ResourcePluginSpec = match serde_json::from_value(request.object["spec"].clone()) {
        Ok(spec) => spec,
        Err(error) => return Answer::deny(message::cut(&format!("spec: {error}"), message::DENIAL_LIMIT)),
    };
    let faults = check::plugin(name, &spec);
    if faults.is_empty() { Answer::allow() } else { Answer::deny(admit::listed(&faults)) }
}
