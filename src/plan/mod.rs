//! Pure: from a change to what it runs. No client, no clock.

pub mod changes;
pub mod expression;
pub mod kinds;
pub mod scope;
pub mod template;

#[cfg(test)]
mod specimen;
