//! One reconcile of an object at a time: its own and that of its record both write the record, and what one of them is
//! about to begin must not come after what the other has made of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OwnedMutexGuard;

/// Who is at work at which object, by UID.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits until nobody else is at work at this object, and is until the guard is dropped.
    pub async fn take(&self, uid: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry(uid.to_owned()).or_default().clone()
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn of_one_object_one_at_a_time_and_nothing_is_kept() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        let _other = turns.take("b").await;
        assert!(tokio::time::timeout(std::time::Duration::from_millis(10), turns.take("a")).await.is_err());
        drop(first);
        let _again = turns.take("a").await;
        assert_eq!(turns.0.lock().unwrap().len(), 2);
    }
}
