//! Where runs wait for their turn, and changes for room to begin one. What is open in all replicas is known from the
//! watch, so none has to be asked.

use super::index::{RunEntry, RunIndex};
use crate::api::TargetRef;
use crate::plan::queue::{Candidate, Limits, Use, turns};
use k8s_openapi::jiff::Timestamp;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// News that come together are looked at together.
const GATHER: Duration = Duration::from_millis(20);
/// For so long room is kept for a change of another namespace whose client was told to come again.
const REMEMBERED: Duration = Duration::from_secs(30);

/// What this process knows beside what the index tells of all open runs.
pub struct Queue {
    limits: Limits,
    known: Mutex<Known>,
    left: watch::Sender<()>,
}

#[derive(Default)]
struct Known {
    /// The runs of this process that are at work.
    at_work: HashSet<String>,
    /// The changes that may write a run down, and are at it.
    granted: HashMap<String, Asked>,
    /// The changes that were told to come again, by key.
    waiting: HashMap<String, Asked>,
}

struct Asked {
    namespace: String,
    uses: Vec<Use>,
    at: Instant,
}

/// A run's place among those at work; free again when it is dropped.
pub struct Place<'a> {
    queue: &'a Queue,
    name: String,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queue.known().at_work.remove(&self.name);
        self.queue.left.send_replace(());
    }
}

/// Leave to write a run down. It holds the room until it is dropped: from then on the run itself is known.
pub struct Grant<'a> {
    queue: &'a Queue,
    key: String,
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        self.queue.known().granted.remove(&self.key);
    }
}

impl Queue {
    pub fn new(limits: Limits) -> Self {
        Self { limits, known: Mutex::default(), left: watch::channel(()).0 }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, name: &str) -> Place<'_> {
        Place { queue: self, name: name.to_owned() }
    }

    /// Whether a new sandbox must wait until what was refused in its namespace is cleaned up, so that what is stored of it
    /// stays bounded however fast it comes. What is stored already may always be changed and deleted.
    pub fn is_behind(index: &RunIndex, target: &TargetRef) -> bool {
        target.uid.is_none() && index.unstored(&target.namespace).is_behind()
    }

    /// Leave for a change to begin a run, if there is room that is nobody's before it: the runs that wait for their turn,
    /// and the changes of other namespaces that were told to come again and have fewer runs at work.
    pub fn grant(&self, index: &RunIndex, key: &str, namespace: &str, uses: Vec<Use>) -> Option<Grant<'_>> {
        let open = index.open();
        let mut known = self.known();
        known.waiting.retain(|_, asked| asked.at.elapsed() < REMEMBERED);
        let asked = Asked { namespace: namespace.to_owned(), uses, at: Instant::now() };
        let own = Candidate { name: key, namespace, written: i64::MAX, uses: &asked.uses, is_at_work: false };
        let others = known.waiting.iter().filter(|(other, asked)| *other != key && asked.namespace != namespace);
        let mut candidates = known.candidates(&open);
        candidates.extend(others.map(|(key, asked)| asked.candidate(key, false)));
        candidates.push(own);
        let has_room = turns(&candidates, &self.limits).contains(&key);
        drop(candidates);
        if has_room {
            known.waiting.remove(key);
            known.granted.insert(key.to_owned(), asked);
        } else {
            known.waiting.insert(key.to_owned(), asked);
        }
        has_room.then(|| Grant { queue: self, key: key.to_owned() })
    }

    /// The place of a run that was at work before, in this process or another.
    pub fn go_on(&self, name: &str) -> Place<'_> {
        self.known().at_work.insert(name.to_owned());
        self.place(name)
    }

    /// The place of a run that begins, if it is its turn.
    pub fn enter(&self, index: &RunIndex, name: &str) -> Option<Place<'_>> {
        let open = index.open();
        let mut known = self.known();
        // One that is not known any more is nobody's to wait for; whoever executes it finds out.
        let has_turn =
            open.iter().all(|run| run.name != name) || turns(&known.candidates(&open), &self.limits).contains(&name);
        if has_turn {
            known.at_work.insert(name.to_owned());
        }
        has_turn.then(|| self.place(name))
    }

    /// Waits until it is the run's turn.
    pub async fn wait(&self, index: &RunIndex, name: &str) -> Place<'_> {
        let (mut changes, mut left) = (index.changes(), self.left.subscribe());
        loop {
            if let Some(place) = self.enter(index, name) {
                return place;
            }
            tokio::select! {
                _ = changes.changed() => {}
                _ = left.changed() => {}
            }
            tokio::time::sleep(GATHER).await;
        }
    }
}

impl Known {
    fn candidates<'a>(&'a self, open: &'a [Arc<RunEntry>]) -> Vec<Candidate<'a>> {
        let run = |run: &'a Arc<RunEntry>| Candidate {
            name: &run.name,
            namespace: &run.target.namespace,
            written: run.created_at.map_or(0, Timestamp::as_second),
            uses: &run.uses,
            is_at_work: run.started_at.is_some() || self.at_work.contains(&run.name),
        };
        let granted = self.granted.iter().map(|(key, asked)| asked.candidate(key, true));
        open.iter().map(run).chain(granted).collect()
    }
}

impl Asked {
    fn candidate<'a>(&'a self, key: &'a str, is_at_work: bool) -> Candidate<'a> {
        Candidate { name: key, namespace: &self.namespace, written: i64::MAX, uses: &self.uses, is_at_work }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{PhaseRun, PhaseRunSpec};

    fn queue(all: usize) -> Queue {
        Queue::new(Limits { all, runner_namespace: None, namespace: Some(all) })
    }

    fn written(index: &RunIndex, name: &str, namespace: &str) {
        let target = TargetRef { namespace: namespace.into(), name: name.into(), ..TargetRef::default() };
        let spec: PhaseRunSpec = serde_json::from_value(serde_json::json!({
            "phase": "PreCreate", "target": target, "key": name, "attempt": 1, "timeoutSeconds": 1, "resources": [], "object": {}
        }))
        .unwrap();
        index.observe(&PhaseRun::new(name, spec));
    }

    #[test]
    fn room_is_held_from_the_grant_to_the_end_of_the_run() {
        let (index, queue) = (RunIndex::default(), queue(1));
        let grant = queue.grant(&index, "k1", "a", Vec::new()).unwrap();
        assert!(queue.grant(&index, "k2", "a", Vec::new()).is_none(), "while the run is written");
        written(&index, "r1", "a");
        drop(grant);
        assert!(queue.grant(&index, "k2", "a", Vec::new()).is_none(), "while it waits for its turn, which is next");
        let place = queue.enter(&index, "r1").unwrap();
        assert!(queue.grant(&index, "k2", "a", Vec::new()).is_none(), "while it is at work");
        drop(place);
        index.forget("r1");
        assert!(queue.grant(&index, "k2", "a", Vec::new()).is_some());
    }

    #[test]
    fn t10_a_create_waits_where_too_much_was_refused_and_nothing_else_does() {
        let index = RunIndex::default();
        let target = |namespace: &str, uid: Option<&str>| TargetRef {
            namespace: namespace.into(),
            uid: uid.map(str::to_owned),
            ..TargetRef::default()
        };
        for n in 0..1000 {
            written(&index, &format!("r{n}"), "many");
        }
        assert!(!Queue::is_behind(&index, &target("many", None)));
        written(&index, "r1000", "many");
        assert!(Queue::is_behind(&index, &target("many", None)));
        assert!(!Queue::is_behind(&index, &target("many", Some("u"))), "what is stored is never stuck");
        assert!(!Queue::is_behind(&index, &target("few", None)), "others are not in its way");
    }

    #[test]
    fn a_client_of_another_namespace_that_comes_again_finds_its_room() {
        let (index, queue) = (RunIndex::default(), queue(2));
        for name in ["r1", "r2"] {
            written(&index, name, "many");
        }
        let (first, _second) = (queue.enter(&index, "r1").unwrap(), queue.enter(&index, "r2").unwrap());
        assert!(queue.grant(&index, "k3", "many", Vec::new()).is_none());
        assert!(queue.grant(&index, "k4", "few", Vec::new()).is_none());
        drop(first);
        index.forget("r1");
        assert!(queue.grant(&index, "k3", "many", Vec::new()).is_none(), "the room is kept for the other");
        assert!(queue.grant(&index, "k4", "few", Vec::new()).is_some());
    }
}
