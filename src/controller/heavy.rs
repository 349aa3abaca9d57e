//! How many large objects are reconciled at once.
//!
//! A sandbox of a hundred KiB can take ten MiB of memory, and a reconcile has it, its record's snapshots and what is made of
//! them several times. Thirty-two of these side by side would end the leader. Small ones take their turn as ever.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So many times its object a reconcile has: the object, its snapshots in the record, and those in the runs that it plans.
const COPIES: usize = 8;
/// What a reconcile may take that waits for nobody, in bytes: a sandbox of about twenty forks.
const SMALL: usize = MIB;
/// What all others may take at once, in bytes.
const LARGE: usize = 64 * MIB;
/// So many wait for room in turn, and for so long; others are tried again after [`NO_ROOM`]. More would keep the reconciles
/// of small ones from being begun.
const MOST_WAITING: usize = 8;
const PATIENCE: Duration = Duration::from_secs(10);
const MIB: usize = 1024 * 1024;

/// The pause before a large object that found no room is tried again.
pub const NO_ROOM: Duration = Duration::from_secs(1);

/// What the reconciles of large objects have in memory; a permit is a KiB.
pub struct Heavy {
    room: Arc<Semaphore>,
    waiting: Semaphore,
    /// Those with a large object at work or waiting: one each, so that none takes the room of all.
    namespaces: Arc<Mutex<BTreeSet<String>>>,
}

impl Default for Heavy {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(LARGE / 1024));
        Self { room, waiting: Semaphore::new(MOST_WAITING), namespaces: Arc::default() }
    }
}

/// Room for one reconcile, until it is dropped; a small one needs none.
pub struct Place(#[expect(dead_code, reason = "it is held")] Option<(OwnedSemaphorePermit, OfNamespace)>);

struct OfNamespace {
    name: String,
    namespaces: Arc<Mutex<BTreeSet<String>>>,
}

impl Drop for OfNamespace {
    fn drop(&mut self) {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

impl Heavy {
    /// Room for the reconcile of an object of so many bytes in a namespace; none where there is none at the moment. The
    /// largest get all there is, in their turn.
    pub async fn place(&self, namespace: &str, weight: usize) -> Option<Place> {
        let bytes = weight.saturating_mul(COPIES).min(LARGE);
        if bytes <= SMALL {
            return Some(Place(None));
        }
        let of_namespace = self.of_namespace(namespace)?;
        let _waits = self.waiting.try_acquire().ok()?;
        let permits = u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
        let room = tokio::time::timeout(PATIENCE, self.room.clone().acquire_many_owned(permits)).await.ok()?.ok()?;
        Some(Place(Some((room, of_namespace))))
    }

    fn of_namespace(&self, name: &str) -> Option<OfNamespace> {
        let is_first = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        is_first.then(|| OfNamespace { name: name.to_owned(), namespaces: self.namespaces.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn t05_few_large_objects_are_reconciled_at_once_and_small_ones_always() {
        let heavy = Heavy::default();
        let at_once = |namespace: &str, weight: usize| heavy.place(namespace, weight).now_or_never();
        let largest = at_once("a", usize::MAX).flatten();
        assert!(largest.is_some() && at_once("b", 200 * 1024).is_none(), "it waits");
        let small: Vec<_> = (0..1_000).map(|_| at_once("a", 100 * 1024).flatten()).collect();
        assert!(small.iter().all(Option::is_some));
        drop(largest);
        let large: Vec<_> = ["a", "b", "c"].into_iter().filter_map(|name| at_once(name, 3 * MIB).flatten()).collect();
        assert_eq!(large.len(), 2, "of 24 MiB each");
        assert!(at_once("d", MIB).flatten().is_some());
    }

    #[tokio::test]
    async fn t05_no_namespace_keeps_the_large_objects_of_others_waiting() {
        let heavy = Arc::new(Heavy::default());
        let busy = heavy.place("busy", usize::MAX).await;
        assert!(busy.is_some() && heavy.place("busy", usize::MAX).await.is_none(), "one at a time");
        // Whoever waits is next, however often the busy one comes.
        let waits = tokio::spawn({
            let heavy = heavy.clone();
            async move { heavy.place("waits", usize::MAX).await }
        });
        tokio::task::yield_now().await;
        drop(busy);
        assert!(heavy.place("busy", usize::MAX).now_or_never().is_none());
        assert!(waits.await.unwrap().is_some());
        assert!(heavy.place("busy", usize::MAX).await.is_some(), "what gave up waiting left nothing behind");
    }
}
