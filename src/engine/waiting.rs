//! Requests that wait in this process for the end of a run: that it ended well and that they are let through is one
//! write then, not two.

use super::life::Admission;
use crate::engine::index::RunEntry;
use k8s_openapi::jiff::Timestamp;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Who must be answered sooner than this may be answered before the write is done.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// All of them, by the name of the run.
#[derive(Default)]
pub struct Waiting {
    requests: Mutex<HashMap<String, Vec<Arc<Request>>>>,
}

struct Request {
    uid: String,
    generation: i64,
    until: Instant,
    let_through: Mutex<Option<Timestamp>>,
}

/// A request's place among those that wait for a run. Whoever drops it waits no longer.
pub struct Place<'a> {
    waiting: &'a Waiting,
    run: String,
    request: Arc<Request>,
}

impl Waiting {
    /// Waits for a run until `until`, to be let through with an object of this UID and generation.
    pub fn enter(&self, run: &str, uid: &str, generation: i64, until: Instant) -> Place<'_> {
        let (uid, let_through) = (uid.to_owned(), Mutex::default());
        let request = Arc::new(Request { uid, generation, until, let_through });
        self.requests().entry(run.to_owned()).or_default().push(request.clone());
        Place { waiting: self, run: run.to_owned(), request }
    }

    /// Whom the end of a run lets through, once that is written down.
    pub(super) fn let_through(&self, run: &str, at: Timestamp) -> Vec<Admission> {
        let mut admissions = Vec::new();
        let soon = Instant::now() + WRITTEN_WITHIN;
        for request in self.requests().get(run).into_iter().flatten().filter(|request| request.until > soon) {
            *request.let_through.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
            admissions.push(Admission { uid: request.uid.clone(), generation: request.generation, at: Some(at) });
        }
        admissions
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<Request>>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    /// Whether it was written down with the end of this run that the request is let through.
    pub fn is_let_through(&self, run: &RunEntry) -> bool {
        let at = *self.request.let_through.lock().unwrap_or_else(PoisonError::into_inner);
        let is_own = |uid: &str, generation| uid == self.request.uid && generation == self.request.generation;
        run.name == self.run
            && at.is_some()
            && run.admissions().any(|a| is_own(&a.uid, a.generation) && a.at.as_ref().map(|at| at.0) == at)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut requests = self.waiting.requests();
        if let Some(of_run) = requests.get_mut(&self.run) {
            of_run.retain(|request| !Arc::ptr_eq(request, &self.request));
            if of_run.is_empty() {
                requests.remove(&self.run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Admitted;

    const RUN: &str = "pre-create-0123456789abcdef-1";

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(9)
    }

    fn ended(admissions: &[Admission]) -> RunEntry {
        let admitted = admissions.first().map(Admitted::from);
        RunEntry {
            name: RUN.into(),
            admitted,
            also_admitted: admissions.iter().skip(1).map(Admitted::from).collect(),
            ..RunEntry::default()
        }
    }

    #[test]
    fn all_who_wait_are_let_through_but_who_must_be_answered_at_once() {
        let waiting = Waiting::default();
        let now = super::super::execute::now().0;
        let (a, b) = (waiting.enter(RUN, "a", 1, later()), waiting.enter(RUN, "b", 1, later()));
        let soon = waiting.enter(RUN, "soon", 1, Instant::now() + WRITTEN_WITHIN / 2);
        let run = ended(&waiting.let_through(RUN, now));
        assert_eq!([&a, &b, &soon].map(|place| place.is_let_through(&run)), [true, true, false]);
    }

    #[test]
    fn nobody_is_let_through_by_what_was_not_written_or_was_for_an_earlier_request() {
        let waiting = Waiting::default();
        let now = super::super::execute::now().0;
        let place = waiting.enter(RUN, "a", 1, later());
        let earlier = Admission { uid: "a".into(), generation: 1, at: Some(now - Duration::from_secs(5)) };
        let before = ended(std::slice::from_ref(&earlier));
        assert!(!place.is_let_through(&before), "it has not ended");
        waiting.let_through(RUN, now);
        assert!(!place.is_let_through(&before), "the write was lost");
        assert!(!place.is_let_through(&RunEntry { name: "another".into(), ..ended(&[earlier]) }));
    }

    #[test]
    fn who_has_gone_is_let_through_no_more() {
        let waiting = Waiting::default();
        drop(waiting.enter(RUN, "a", 1, later()));
        assert!(waiting.let_through(RUN, Timestamp::now()).is_empty());
        assert!(waiting.requests().is_empty());
    }
}
