//! Which spec each generation of a sandbox was seen stored with: what tells an update that was stored from one that
//! lost its turn to another, also when a third has followed.

use super::kept::KeptSandbox;
use kube::ResourceExt;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// How many generations of an object are remembered: many more than pass within the time that a change is undecided.
const KEPT: usize = 16;

/// What the watch has shown of every sandbox that there is.
#[derive(Default)]
pub struct Sightings(Mutex<HashMap<String, BTreeMap<i64, String>>>);

impl Sightings {
    /// Takes in an object as the watch shows it.
    pub fn see(&self, object: &KeptSandbox) {
        let (Some(uid), Some(generation)) = (object.uid(), object.metadata.generation) else { return };
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let generations = seen.entry(uid).or_default();
        generations.entry(generation).or_insert_with(|| object.spec_hash.clone());
        while generations.len() > KEPT {
            generations.pop_first();
        }
    }

    /// The specs' hashes by generation.
    pub fn of(&self, uid: &str) -> BTreeMap<i64, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned().unwrap_or_default()
    }

    /// Forgets every object but these.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| is_there(uid));
    }
}
