//! Whether the name of a sandbox that is to be created is free, and one that is to be changed still there.

use super::admit::{Admission, Judged, busy};
use super::review::{Answer, Request};
use super::waits;
use crate::api::{GROUP, TargetRef};
use crate::engine::life::Stored;
use crate::plan::{message, runs};
use std::time::Duration;
use tokio::time::Instant;

/// How often a held create looks whether its name has become free.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Admission {
    /// A create of what is there already fails anyway: no phase runs for it. One under the name of a sandbox that is
    /// gone waits until that one's last phases have run.
    pub(super) async fn refuse_existing(&self, request: &Request, held: bool, deadline: Instant) -> Judged<()> {
        let name = request.object["metadata"]["name"].as_str().unwrap_or(&request.name);
        let named =
            TargetRef { namespace: request.namespace.clone(), name: name.to_owned(), ..runs::target(&request.object) };
        let look = async || tokio::try_join!(self.engine.uid_of(&named), self.engine.has_record(&named));
        loop {
            match tokio::time::timeout_at(deadline, look()).await {
                Ok(Ok((None, false))) => return Ok(()),
                Ok(Ok((Some(_), _))) => {
                    return Err(Answer::refusal(
                        409,
                        "AlreadyExists",
                        format!("sandboxes.{GROUP} {name:?} already exists"),
                        None,
                    ));
                }
                Ok(Ok((None, true))) => {}
                Ok(Err(error)) => return Err(Answer::broken(message::with_causes(&error))),
                Err(_) => return Err(busy("the API server did not say in time whether the sandbox exists")),
            }
            if !held || self.holder.is_stopping() || Instant::now() + LOOK_AGAIN >= deadline {
                return Err(self.name_is_taken(&request.namespace, name, held));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// A change of what was deleted or changed while the request was on its way is none any more. The API server, or its
    /// client, asks again with what is stored by then.
    pub(super) async fn refuse_outdated(&self, target: &TargetRef, stored: &Stored, deadline: Instant) -> Judged<()> {
        match tokio::time::timeout_at(deadline, self.engine.stored_now(target)).await {
            Ok(Ok(Some(live))) if stored.is_still(&live) => Ok(()),
            Ok(Ok(Some(live))) if live.uid == stored.uid => {
                let (name, shown, now) = (&target.name, stored.generation, live.generation);
                Err(busy(&format!(
                    "sandbox {name:?} was changed meanwhile: the request shows generation {shown}, and {now} is stored"
                )))
            }
            Ok(Ok(_)) => Err(Answer::refusal(
                404,
                "NotFound",
                format!("sandboxes.{GROUP} {:?} not found: it was deleted meanwhile", target.name),
                None,
            )),
            Ok(Err(error)) => Err(Answer::broken(message::with_causes(&error))),
            Err(_) => Err(busy("the API server did not say in time whether the sandbox exists")),
        }
    }

    /// Told to come again like one whose own phase runs, so that one command covers the whole of the one that does.
    fn name_is_taken(&self, namespace: &str, name: &str, held: bool) -> Answer {
        let last = self.engine.index.of_name(namespace, name).into_iter().rev().find(|run| run.state.is_open());
        let gap = waits::gap_until(&self.engine.index, last.as_deref(), held);
        let why = format!("the last phases of the sandbox that was called {name:?} before are still running");
        Answer::later(format!("{why}; make the same change again"), gap)
    }
}
