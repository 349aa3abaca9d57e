//! An API server in memory, behind a real `kube::Client`.
//!
//! The crate `kube-fake-client` (0.3) was looked at and does not fit: its UIDs are random and its times the system's,
//! so that no seed repeats a history, and it has no watches, no admission and no rules in CEL. It is made for kube 4, and
//! we have kube 5.
//!
//! The rules are those of the real API server; where the world knows less, it says so here rather than pretend:
//! it checks the fields of custom kinds against their schemas, but of built-in kinds only the metadata; it fills in
//! the defaults of built-in kinds that `defaults` names; it knows no RBAC (SubjectAccessReviews are answered by
//! a hook), no quotas, no versions that differ in their fields, no graceful deletion of pods, no admission policies in
//! CEL, and no YAML or protobuf bodies other than YAML in an apply. A definition that is deleted takes its objects along
//! at once. The tables have not been compared with a real API server yet.
//!
//! Nothing in it reads a clock or a random number of the system: [`Clock`] and [`Ids`] are given, and all maps are
//! ordered. Nothing moves by itself either: controllers move when [`World::settle`] and the [`drivers`] are called.

mod access;
pub mod admission;
mod answer;
mod apply;
mod ask;
mod builtin;
mod collect;
mod crds;
mod create;
mod defaults;
mod delete;
mod discovery;
pub mod drivers;
mod fields;
mod kinds;
mod managed;
mod meta;
mod namespaces;
mod patch;
mod prepare;
mod read;
mod refusal;
mod scale;
mod schema;
mod select;
mod service;
mod shape;
mod sources;
mod store;
mod strategic;
mod structural;
mod update;
mod validate;
mod watch;
mod write;

pub use access::Access;
pub use ask::User;
pub use refusal::Refusal;
pub use service::Service;
pub use sources::{Clock, HandClock, Ids, SeededIds};

use admission::Hooks;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::Store;
use tokio::sync::watch as signal;

/// The world: clones are the same world.
#[derive(Clone)]
pub struct World(Arc<Shared>);

struct Shared {
    store: Mutex<Store>,
    hooks: Hooks,
    access: Mutex<Arc<dyn Access>>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    /// The newest version, for those who watch.
    news: signal::Sender<u64>,
    /// Grows when all watches are to break.
    breaks: signal::Sender<u64>,
}

impl World {
    /// A world with the built-in kinds and the namespaces of a new cluster.
    pub fn new(clock: Arc<dyn Clock>, ids: Arc<dyn Ids>) -> Self {
        let world = Self(Arc::new(Shared {
            store: Mutex::new(Store::new(builtin::kinds())),
            hooks: Hooks::default(),
            access: Mutex::new(Arc::new(access::Everything)),
            clock,
            ids,
            news: signal::Sender::new(1),
            breaks: signal::Sender::new(0),
        }));
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            world.found(name);
        }
        world
    }

    /// A client of this world that asks as the cluster's owner.
    pub fn client(&self) -> kube::Client {
        self.client_as(User::admin())
    }

    /// A client that asks as `user`; `default` is its namespace. To be called within a tokio runtime.
    pub fn client_as(&self, user: User) -> kube::Client {
        kube::Client::new(self.service(user), "default")
    }

    /// What is behind [`World::client_as`]: to put faults in between.
    pub fn service(&self, user: User) -> Service {
        Service::new(self.clone(), user)
    }

    /// The admission webhooks that are called in-process.
    pub fn hooks(&self) -> &Hooks {
        &self.0.hooks
    }

    /// Who answers SubjectAccessReviews; everything is allowed before this was called.
    pub fn set_access(&self, access: Arc<dyn Access>) {
        *self.0.access.lock().unwrap_or_else(PoisonError::into_inner) = access;
    }

    /// The resourceVersion of the last write.
    pub fn version(&self) -> u64 {
        self.store().version()
    }

    /// Forgets the history up to `version`: who watches from before gets 410.
    pub fn compact(&self, version: u64) {
        self.store().compact(version);
    }

    /// Ends all watches that are open, as a restart of the API server does.
    pub fn break_watches(&self) {
        self.0.breaks.send_modify(|breaks| *breaks += 1);
    }

    /// The time of the clock, as `metadata` shows it.
    fn stamp(&self) -> String {
        sources::stamp(self.0.clock.now())
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who watch that something was written. To be called without the lock.
    fn tell(&self) {
        let version = self.store().version();
        self.0.news.send_replace(version);
    }
}
