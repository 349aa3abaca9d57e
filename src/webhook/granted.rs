//! Whether a user has a right, asked of the API server: so many questions at once, and a grant is remembered for a moment.

use super::review::UserInfo;
use super::rights::Right;
use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// How long a granted right counts without being asked for again.
const GRANTED_FOR: Duration = Duration::from_secs(10);
/// More answers than this are not remembered: the oldest is forgotten first.
const REMEMBERED: usize = 4096;
/// How many of a change's rights are asked for at once, and how many of all changes of one namespace.
const IN_NAMESPACE: usize = 8;
/// How many are asked for at once in all: the API server takes questions from others too.
const AT_ONCE: usize = 32;

/// Why a right could not be established.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not say what {user} may do")]
pub struct RightsError {
    user: String,
    source: Box<kube::Error>,
}

/// Asks the API server, and remembers for a moment what it granted.
pub struct Rights {
    client: Client,
    granted: Mutex<Granted>,
    lanes: Lanes,
}

impl Rights {
    pub fn new(client: Client) -> Self {
        Self { client, granted: Mutex::default(), lanes: Lanes::new(AT_ONCE, IN_NAMESPACE) }
    }

    /// The first of `rights` that `user` lacks, for a change in `namespace`. Takes as long as it takes until it is its
    /// turn: whoever calls says how long that may be.
    pub async fn lacks<'a>(
        &self,
        namespace: &str,
        user: &UserInfo,
        rights: &'a [Right],
    ) -> Result<Option<&'a Right>, RightsError> {
        let ask = |right| async move { (right, self.has(namespace, user, right).await) };
        let all: Vec<_> = rights.iter().map(ask).collect();
        let mut asked = stream::iter(all).buffered(IN_NAMESPACE);
        while let Some((right, has)) = asked.next().await {
            if !has? {
                return Ok(Some(right));
            }
        }
        Ok(None)
    }

    async fn has(&self, namespace: &str, user: &UserInfo, right: &Right) -> Result<bool, RightsError> {
        let question = Question::of(user, right);
        if self.is_granted(&question) {
            return Ok(true);
        }
        let _turn = self.lanes.turn(namespace).await;
        // Others may have asked the same meanwhile.
        if self.is_granted(&question) {
            return Ok(true);
        }
        let answer = Api::<SubjectAccessReview>::all(self.client.clone())
            .create(&PostParams::default(), &review(user, right))
            .await
            .map_err(|source| RightsError { user: user.username.clone(), source: Box::new(source) })?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        if allowed {
            self.granted.lock().unwrap_or_else(PoisonError::into_inner).insert(question, Instant::now());
        }
        Ok(allowed)
    }

    fn is_granted(&self, question: &Question) -> bool {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner).holds(question, Instant::now())
    }
}

fn review(user: &UserInfo, right: &Right) -> SubjectAccessReview {
    SubjectAccessReview {
        metadata: ObjectMeta::default(),
        spec: SubjectAccessReviewSpec {
            user: Some(user.username.clone()),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(right.verb.to_owned()),
                group: Some(right.group.to_owned()),
                resource: Some(right.resource.to_owned()),
                namespace: right.namespace.clone(),
                name: right.name.clone(),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        status: None,
    }
}

/// Who asked for what, as a hash: a user may have thousands of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Question([u8; 32]);

impl Question {
    /// That of a right for a user, whichever field asks for it.
    fn of(user: &UserInfo, right: &Right) -> Self {
        let asked = (user, right.verb, right.group, right.resource, &right.namespace, &right.name);
        let mut hash = Hashing(Sha256::new());
        // Neither a user nor a right has anything that JSON cannot say, and a hash takes all that is written.
        if serde_json::to_writer(&mut hash, &asked).is_err() {
            hash.0.update(rand::random::<[u8; 32]>());
        }
        Self(hash.0.finalize().into())
    }
}

struct Hashing(Sha256);

impl io::Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What was granted, for as long as it counts.
#[derive(Debug, Default)]
struct Granted {
    at: HashMap<Question, Instant>,
    /// In the order in which they were granted; one that was granted again is in it twice.
    order: VecDeque<(Question, Instant)>,
}

impl Granted {
    fn holds(&self, question: &Question, now: Instant) -> bool {
        self.at.get(question).is_some_and(|at| now.duration_since(*at) < GRANTED_FOR)
    }

    fn insert(&mut self, question: Question, now: Instant) {
        self.order.push_back((question, now));
        self.at.insert(question, now);
        while let Some((oldest, at)) = self.order.front().copied() {
            if now.duration_since(at) < GRANTED_FOR && self.order.len() <= REMEMBERED {
                break;
            }
            self.order.pop_front();
            if self.at.get(&oldest) == Some(&at) {
                self.at.remove(&oldest);
            }
        }
    }
}

/// Turns: so many at once in all, and fewer in each namespace, so that none keeps the others waiting.
struct Lanes {
    all: Arc<Semaphore>,
    each: usize,
    of_namespace: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// One turn, until it is dropped.
struct Turn<'a> {
    lanes: &'a Lanes,
    namespace: &'a str,
    permits: Vec<OwnedSemaphorePermit>,
}

impl Lanes {
    fn new(all: usize, each: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), each, of_namespace: Mutex::default() }
    }

    async fn turn<'a>(&'a self, namespace: &'a str) -> Turn<'a> {
        let lane = {
            let mut lanes = self.of_namespace.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.entry(namespace.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.each))).clone()
        };
        let mut turn = Turn { lanes: self, namespace, permits: Vec::with_capacity(2) };
        // Its own namespace's first: who waits for that keeps no place of all.
        for semaphore in [lane, self.all.clone()] {
            // They are never closed.
            turn.permits.extend(semaphore.acquire_owned().await.ok());
        }
        turn
    }
}

impl Drop for Turn<'_> {
    /// Also of one that was given up while it waited.
    fn drop(&mut self) {
        self.permits.clear();
        let mut lanes = self.lanes.of_namespace.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits for a lane, or has a turn in it, has a part in it.
        if lanes.get(self.namespace).is_some_and(|lane| Arc::strong_count(lane) == 1) {
            lanes.remove(self.namespace);
        }
    }
}

#[cfg(test)]
#[path = "granted_tests.rs"]
mod tests;
