//! What this replica knows of every run: a summary of each, fed by a watch and by this replica's own writes.
//!
//! Tens of thousands of ended runs fit in memory because the snapshots and workflows stay in the API server.

pub use super::entry::{RunEntry, uses};
use super::life;
use crate::api::{PhaseRun, RunState, TargetRef};
use crate::plan::key;
use crate::plan::queue::Kept;
use std::borrow::Borrow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;

#[derive(Default)]
struct Entries {
    by_name: HashSet<Named>,
    by_key: BTreeMap<(Arc<str>, u32), Arc<RunEntry>>,
    by_target: HashMap<(String, String), Vec<Arc<RunEntry>>>,
    open: HashSet<String>,
    /// Those that the watch has shown: every run that was written before one of them is known too.
    watched: HashSet<String>,
    /// The UIDs of runs that were deleted last: several watches and reads tell of a run, and one that is late must not
    /// bring it back.
    gone: VecDeque<String>,
    /// Runs that are not of this cluster, by name. Nothing else is known of them, so nothing is ever done for them.
    inert: BTreeMap<String, Arc<RunEntry>>,
    /// What there is of creates that are not stored, by namespace.
    unstored: HashMap<String, Kept>,
    /// How long work of a kind took when it was done last.
    took: HashMap<u64, VecDeque<Duration>>,
}

/// How many deleted runs are remembered: more than are deleted while news is on its way.
const GONE_KEPT: usize = 256;

/// How many times are remembered for work of a kind, and for how many kinds.
const TIMES_KEPT: usize = 5;
const KINDS_KEPT: usize = 4096;

/// Every run that is known, and a way to wait for news of them.
pub struct RunIndex {
    entries: RwLock<Entries>,
    changed: watch::Sender<u64>,
}

impl Default for RunIndex {
    fn default() -> Self {
        Self { entries: RwLock::default(), changed: watch::channel(0).0 }
    }
}

impl RunIndex {
    /// Takes in a run as it was read. What is older than what is known is passed over.
    pub fn observe(&self, run: &PhaseRun) -> Arc<RunEntry> {
        self.observe_entry(RunEntry::from(run))
    }

    /// [`Self::observe`], of what is kept of a run.
    pub fn observe_entry(&self, entry: RunEntry) -> Arc<RunEntry> {
        let entry = {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            if entries.gone.contains(&entry.id) {
                return Arc::new(entry);
            }
            if entry.is_inert {
                let entry = Arc::new(entry);
                entries.inert.insert(entry.name.clone(), entry.clone());
                return entry;
            }
            entries.inert.remove(&entry.name);
            // Several watches tell the same.
            if let Some(Named(known)) = entries.by_name.get(entry.name.as_str())
                && (known.version > entry.version || **known == entry)
            {
                return known.clone();
            }
            let (entry, known) = entries.put(entry);
            if entry.state.is_open() {
                entries.open.insert(entry.name.clone());
            } else {
                entries.open.remove(&entry.name);
            }
            if entry.executor.is_some() {
                entries.watched.remove(&entry.name);
            }
            let has_ended = known.is_none_or(|known| known.state.is_open()) && !entry.state.is_open();
            if let Some(took) = entry.took().filter(|_| has_ended && entry.state != RunState::Failed) {
                entries.remember(entry.work, took);
            }
            entry
        };
        self.changed.send_modify(|n| *n += 1);
        entry
    }

    /// Takes in a run as the watch shows it, so in the order in which runs were written.
    pub fn observe_watched(&self, run: RunEntry) {
        let (name, id) = (run.name.clone(), run.id.clone());
        let known = self.observe_entry(run);
        // Late news of one that was taken back says nothing of another of that name.
        if id == known.id {
            self.mark_watched([name]);
        }
    }

    /// Takes in that the watch has shown a run's deletion.
    pub fn forget_watched(&self, run: &RunEntry) {
        self.forget_inert(&run.name, Some(&run.id));
        if self.get(&run.name).is_some_and(|known| run.id == known.id) {
            self.forget(&run.name);
        }
    }

    /// Notes that the watch has shown these, and all that were written before them.
    pub fn mark_watched(&self, names: impl IntoIterator<Item = String>) {
        {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            let Entries { by_name, watched, .. } = &mut *entries;
            // Whoever began one waits for this until it is begun, and nobody afterwards.
            let waits = |name: &String| by_name.get(name.as_str()).is_some_and(|run| run.0.executor.is_none());
            watched.extend(names.into_iter().filter(waits));
        }
        self.changed.send_modify(|n| *n += 1);
    }

    /// Waits until the watch has shown this run, which was written and not begun, so that every run is known that was
    /// written before it; or until it is another's or gone.
    pub async fn until_watched(&self, name: &str) {
        let mut changes = self.changes();
        let waits = || {
            let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
            entries.by_name.get(name).is_some_and(|run| run.0.executor.is_none()) && !entries.watched.contains(name)
        };
        while waits() {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// How long work of this kind usually takes: the median of the last times that it succeeded.
    pub fn usually_takes(&self, work: u64) -> Option<Duration> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut times: Vec<_> = entries.took.get(&work)?.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }

    /// Forgets a run that was deleted.
    pub fn forget(&self, name: &str) {
        if let Some(entry) = self.take_out(name).filter(|entry| !entry.id.is_empty()) {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            entries.gone.push_front(entry.id.clone());
            entries.gone.truncate(GONE_KEPT);
        }
    }

    /// What there is of creates in a namespace that are not stored: at work, on their way, or refused.
    pub fn unstored(&self, namespace: &str) -> Kept {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.unstored.get(namespace).copied().unwrap_or_default()
    }

    /// The runs that are not of this cluster.
    pub fn inert(&self) -> Vec<Arc<RunEntry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).inert.values().cloned().collect()
    }

    /// Forgets a run that is not of this cluster and was deleted.
    pub fn forget_inert(&self, name: &str, uid: Option<&str>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.inert.get(name).is_some_and(|known| uid.is_none_or(|uid| uid == known.id)) {
            entries.inert.remove(name);
        }
    }

    fn take_out(&self, name: &str) -> Option<Arc<RunEntry>> {
        let entry = {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            entries.watched.remove(name);
            entries.open.remove(name);
            entries.take(name)?
        };
        self.changed.send_modify(|n| *n += 1);
        Some(entry)
    }

    /// Forgets every run that a fresh list no longer has.
    pub fn retain(&self, listed: &BTreeSet<String>) {
        let gone: Vec<String> = {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            entries.inert.retain(|name, _| listed.contains(name));
            entries.by_name.iter().map(|run| &run.0.name).filter(|name| !listed.contains(*name)).cloned().collect()
        };
        // One of them may have been written after the list, and come by the watch.
        gone.iter().for_each(|name| drop(self.take_out(name)));
    }

    pub fn get(&self, name: &str) -> Option<Arc<RunEntry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).by_name.get(name).map(|run| run.0.clone())
    }

    /// The newest attempt of a key.
    pub fn latest(&self, key: &str) -> Option<Arc<RunEntry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let key: Arc<str> = key.into();
        let attempts = (key.clone(), 0)..=(key, u32::MAX);
        entries.by_key.range(attempts).next_back().map(|(_, run)| run.clone())
    }

    /// The newest attempt to undo a run.
    pub fn undo_of(&self, run: &str) -> Option<Arc<RunEntry>> {
        self.latest(&key::of_undo(run))
    }

    /// Every run of a target's name, oldest first, of whatever UID.
    pub fn of_name(&self, namespace: &str, name: &str) -> Vec<Arc<RunEntry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let runs = entries.by_target.get(&(namespace.to_owned(), name.to_owned()));
        let mut runs = runs.cloned().unwrap_or_default();
        runs.sort_by_key(|run| (run.started_at.or(run.created_at), run.attempt));
        runs
    }

    /// Every run of one object, oldest first; those of creates that were never stored are not of it.
    pub fn of_target(&self, target: &TargetRef) -> Vec<Arc<RunEntry>> {
        let mut runs = self.of_name(&target.namespace, &target.name);
        runs.retain(|run| target.uid.as_deref().is_some_and(|uid| run.may_be_of(uid)));
        runs
    }

    /// Whether nothing will be done for a run any more. What a failure did may be undone, or be given up to be.
    pub fn is_settled(&self, run: &RunEntry) -> bool {
        let undo = || self.undo_of(&run.name).filter(|undo| !life::undo_is_due(undo));
        // An abandoned run still notes that it is undone.
        let notes = |undo: &RunEntry| run.state == RunState::Abandoned && undo.state == RunState::Succeeded;
        run.is_over() || (run.owes_undo() && undo().is_some_and(|undo| !notes(&undo)))
    }

    /// Every run for which something is still to be done.
    pub fn unsettled(&self) -> Vec<Arc<RunEntry>> {
        let mut runs = self.filter(|run| !run.is_over());
        runs.retain(|run| !self.is_settled(run));
        runs
    }

    /// Every run whose steps have not all ended.
    pub fn open(&self) -> Vec<Arc<RunEntry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.open.iter().filter_map(|name| Some(entries.by_name.get(name.as_str())?.0.clone())).collect()
    }

    /// Every run that matches.
    pub fn filter(&self, matches: impl Fn(&RunEntry) -> bool) -> Vec<Arc<RunEntry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.by_name.iter().map(|run| &run.0).filter(|entry| matches(entry)).cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Has whoever follows the runs look again, because of something else that what becomes of them hangs on.
    pub fn nudge(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    /// Tells of every change of any run.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Waits until `done` finds what it looks for in the newest entry of `name`. Ends only with that.
    pub async fn wait_for<T>(&self, name: &str, done: impl Fn(Option<&RunEntry>) -> Option<T>) -> T {
        let mut changes = self.changes();
        loop {
            if let Some(found) = done(self.get(name).as_deref()) {
                return found;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Entries {
    /// Takes in a run; also returns what was known of it.
    fn put(&mut self, mut entry: RunEntry) -> (Arc<RunEntry>, Option<Arc<RunEntry>>) {
        let known = self.take(&entry.name);
        let of_target = self.by_target.entry(place(&entry)).or_default();
        if let Some(other) = of_target.last().or(known.as_ref()) {
            entry.share_with(other);
        }
        let entry = Arc::new(entry);
        of_target.push(entry.clone());
        if entry.is_of_unstored_create() {
            self.unstored.entry(entry.target.namespace.clone()).or_default().add(entry.size);
        }
        self.by_key.insert((entry.key.clone(), entry.attempt), entry.clone());
        self.by_name.insert(Named(entry.clone()));
        (entry, known)
    }

    fn take(&mut self, name: &str) -> Option<Arc<RunEntry>> {
        let Named(entry) = self.by_name.take(name)?;
        self.by_key.remove(&(entry.key.clone(), entry.attempt));
        if let Entry::Occupied(mut runs) = self.by_target.entry(place(&entry)) {
            runs.get_mut().retain(|run| run.name != name);
            if runs.get().is_empty() {
                runs.remove();
            }
        }
        if entry.is_of_unstored_create()
            && let Entry::Occupied(mut kept) = self.unstored.entry(entry.target.namespace.clone())
        {
            kept.get_mut().remove(entry.size);
            if *kept.get() == Kept::default() {
                kept.remove();
            }
        }
        Some(entry)
    }

    fn remember(&mut self, work: u64, took: Duration) {
        if self.took.len() >= KINDS_KEPT && !self.took.contains_key(&work) {
            self.took.clear();
        }
        let times = self.took.entry(work).or_default();
        times.push_back(took);
        if times.len() > TIMES_KEPT {
            times.pop_front();
        }
    }
}

/// A run that is found by its name.
struct Named(Arc<RunEntry>);

impl Borrow<str> for Named {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As its name alone is hashed, by which it is found.
        Borrow::<str>::borrow(self).hash(state);
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Named {}

/// Namespace and name of a run's target.
fn place(run: &RunEntry) -> (String, String) {
    (run.target.namespace.clone(), run.target.name.clone())
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
