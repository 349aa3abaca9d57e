//! What is wrong with a plugin or a sandbox that its schema cannot say.
//!
//! Pure, as all of `plan`. A fault names the field, what is there, and what would be right.

mod expressions;
mod image;
mod limits;
mod outputs;
mod plugin;
mod sandbox;
mod shadows;
mod specimen;
mod trial;

#[cfg(test)]
mod trial_properties;
#[cfg(test)]
mod trial_tests;

pub use outputs::output_key;
pub use plugin::{Findings, examine, plugin};
pub use sandbox::sandbox;
pub use trial::Warnings;

use crate::api::ResourcePluginSpec;
use std::fmt;
use std::time::Duration;

/// What is to be said of a plugin that is no fault. `covered` is how long one command of a client waits at most.
pub fn warnings(spec: &ResourcePluginSpec, covered: Duration) -> Vec<String> {
    let mut warnings = limits::of_limits(spec, covered);
    warnings.extend(shadows::of_environment(spec));
    warnings
}

/// One fault: where it is, what it is and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub field: String,
    pub message: String,
}

impl Fault {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

#[cfg(test)]
mod tests {
    use crate::api::ResourcePlugin;

    #[test]
    fn every_plugin_of_the_page_about_steps_is_right() {
        let page = include_str!("../../../docs/steps.md");
        let blocks: Vec<&str> = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert_eq!(blocks.len(), 5);
        for block in blocks {
            let plugin: ResourcePlugin = serde_saphyr::from_str(block).unwrap();
            assert_eq!(super::plugin(plugin.metadata.name.as_deref().unwrap(), &plugin.spec), [], "{block}");
        }
    }
}
