//! How many large objects are reconciled at once.
//!
//! A sandbox of a hundred KiB can take ten MiB of memory, and a reconcile has it, its record's snapshots and what is made of
//! them several times. Thirty-two of these side by side would end the leader. Small ones take their turn as ever.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So many times its object a reconcile has: the object, its snapshots in the record, and those in the runs that it plans.
const COPIES: usize = 8;
/// What a reconcile may take that waits for nobody, in bytes: a sandbox of about twenty forks.
const SMALL: usize = MIB;
/// What all others may take at once, in bytes.
const LARGE: usize = 64 * MIB;
const MIB: usize = 1024 * 1024;

/// The pause before a large object that found no room is tried again. It does not wait in place: that would keep the
/// reconciles of small ones from being begun.
pub const NO_ROOM: Duration = Duration::from_secs(1);

/// What the reconciles of large objects have in memory; a permit is a KiB.
pub struct Heavy(Arc<Semaphore>);

impl Default for Heavy {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGE / 1024)))
    }
}

/// Room for one reconcile, until it is dropped; a small one needs none.
pub struct Place(#[expect(dead_code, reason = "it is held")] Option<OwnedSemaphorePermit>);

impl Heavy {
    /// Room for the reconcile of an object of so many bytes; none where there is none at the moment. The largest get all
    /// there is.
    pub fn place(&self, weight: usize) -> Option<Place> {
        let bytes = weight.saturating_mul(COPIES).min(LARGE);
        if bytes <= SMALL {
            return Some(Place(None));
        }
        let permits = u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
        self.0.clone().try_acquire_many_owned(permits).ok().map(|permit| Place(Some(permit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t05_few_large_objects_are_reconciled_at_once_and_small_ones_always() {
        let heavy = Heavy::default();
        let largest = heavy.place(usize::MAX);
        assert!(largest.is_some() && heavy.place(200 * 1024).is_none());
        let small: Vec<_> = (0..1_000).map(|_| heavy.place(100 * 1024)).collect();
        assert!(small.iter().all(Option::is_some));
        drop(largest);
        let large: Vec<_> = (0..32).filter_map(|_| heavy.place(3 * MIB)).collect();
        assert_eq!(large.len(), 2, "of 24 MiB each");
        assert!(heavy.place(MIB).is_some());
    }
}
