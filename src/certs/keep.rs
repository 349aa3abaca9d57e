//! The leader's task that takes each next step of the certificate's life and writes it into the Secret.

use crate::plan::message::with_causes;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;

use super::rotate::{Action, Registration, complete, next, perform};
use super::state::State;
use super::store::{SecretStore, StoreError, Written, read_state};

/// Dates come nearer without an event.
const LOOK: Duration = Duration::from_secs(60);
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Takes every step as it comes due. Run it on the leader only.
///
/// `known` is [`super::Serving::known`]: the last state that could be served, from which a deleted Secret is mended.
pub async fn keep_rotated(
    store: SecretStore,
    mut known: watch::Receiver<Arc<State>>,
    mut registration: watch::Receiver<Registration>,
) -> Infallible {
    let mut remembered: Arc<State> = known.borrow_and_update().clone();
    let mut retry = FIRST_RETRY;
    loop {
        let seen = registration.borrow_and_update().clone();
        let pause = match step(&store, &remembered, &seen).await {
            Ok(Step::NothingDue) => {
                retry = FIRST_RETRY;
                LOOK
            }
            Ok(Step::Taken(action)) => {
                tracing::info!(secret = store.name, ?action, "serving certificate: next step taken");
                FIRST_RETRY
            }
            Ok(Step::Overtaken) => FIRST_RETRY,
            Err(error) => {
                tracing::warn!(secret = store.name, error = with_causes(&error), "cannot rotate");
                retry = (retry * 2).min(LOOK);
                retry
            }
        };
        until_due(pause, &mut registration, &mut known).await;
        remembered = known.borrow_and_update().clone();
    }
}

/// Waits for the time of the next look, or for news that may make a step due sooner.
pub(super) async fn until_due<T>(
    pause: Duration,
    registration: &mut watch::Receiver<Registration>,
    known: &mut watch::Receiver<T>,
) {
    // Whoever feeds these may be gone at shutdown; time alone then wakes us.
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        Ok(()) = registration.changed() => {}
        Ok(()) = known.changed() => {}
    }
}

enum Step {
    NothingDue,
    Taken(Action),
    /// Somebody else wrote the Secret in between.
    Overtaken,
}

/// Looks at the Secret once and writes what is due.
async fn step(store: &SecretStore, remembered: &State, seen: &Registration) -> Result<Step, StoreError> {
    let now = Timestamp::now();
    let secret = store.read().await?;
    let read = read_state(secret.as_ref());
    let state = complete(&read, Some(remembered), &store.names, now);
    let action = next(&state, seen, &store.names, now);
    let mended = read.leaf != state.leaf || read.bundle_pem() != state.bundle_pem();
    if action == Action::Keep && !mended {
        return Ok(Step::NothingDue);
    }
    let state = perform(action, &state, seen, &store.names, now)?;
    match store.write(secret, state.data()).await? {
        Written::Yes => Ok(Step::Taken(action)),
        Written::Lost => Ok(Step::Overtaken),
    }
}
