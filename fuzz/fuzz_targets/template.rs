//! Parses a template, checks it and fills it in.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use sluice::plan::kinds::SANDBOX;
use sluice::plan::template::{MAX_RENDERED, Template, TemplateError};
use sluice_fuzz::{SCOPE, forgive_the_library, to_the_end};

fuzz_target!(init: forgive_the_library(), |data: &[u8]| {
    // A manifest, or else a string alone.
    let value = match (serde_json::from_slice(data), std::str::from_utf8(data)) {
        (Ok(value), _) => value,
        (Err(_), Ok(text)) => Value::String(text.to_owned()),
        (Err(_), Err(_)) => return,
    };
    let template = match Template::parse_at("manifests[0]", &value) {
        Ok(template) => template,
        Err(error) => return told(&error),
    };
    if let Err(error) = template.check(&SANDBOX.names()) {
        told(&error);
    }
    match to_the_end(template.render_bounded(&SCOPE)) {
        Ok(rendered) => assert!(rendered.to_string().len() <= MAX_RENDERED, "more was rendered than is allowed"),
        Err(error) => told(&error),
    }
});

fn told(error: &TemplateError) {
    let (path, message) = error.parts();
    assert!(error.to_string().ends_with(&message) && error.to_string().starts_with(path));
}
