//! Parses an expression, checks it and evaluates it under the limit of time that steps give it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::plan::expression::Expression;
use sluice::plan::kinds::SANDBOX;
use sluice_fuzz::{SCOPE, forgive_the_library, to_the_end};

fuzz_target!(init: forgive_the_library(), |data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let expression = match Expression::parse(source) {
        Ok(expression) => expression,
        Err(error) => return drop(error.to_string()),
    };
    if let Err(error) = expression.check(&SANDBOX.names()) {
        drop(error.to_string());
    }
    // What goes on after its time was up is waited for too.
    if let Err(error) = to_the_end(expression.evaluate_bounded(&SCOPE)) {
        drop(error.to_string());
    }
});
