//! Pure rules: what a change runs, in which order, under which key, and how long a request may wait for it.
//!
//! Nothing here knows a client, a clock or a task: every input is an argument, every time too.

pub mod bounds;
pub mod changes;
pub mod check;
pub mod cost;
pub mod expression;
pub mod http;
pub mod key;
pub mod kinds;
pub mod message;
pub mod order;
pub mod overlay;
pub mod patch;
pub mod plugins;
pub mod pod;
pub mod queue;
pub mod references;
pub mod room;
pub mod runs;
pub mod scope;
pub mod seal;
pub mod shown;
pub mod strategic;
pub mod template;
pub mod timing;
pub mod undo;
pub mod warm;
pub mod yaml;

#[cfg(test)]
mod specimen;
