//! WATCH: what becomes of the objects that a selector shows, in order, from a version on.

use super::World;
use super::ask::Ask;
use super::read;
use super::refusal::Refusal;
use super::select::Selector;
use super::store::{Change, at_version};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::watch as signal;

/// How often a quiet watch is told the version.
const BOOKMARKS: Duration = Duration::from_secs(60);

struct Watcher {
    world: World,
    ask: Ask,
    selector: Selector,
    /// All up to here was told.
    told: u64,
    waiting: VecDeque<Value>,
    news: signal::Receiver<u64>,
    breaks: signal::Receiver<u64>,
    end: BoxFuture<'static, ()>,
    bookmark: BoxFuture<'static, ()>,
    over: bool,
}

impl World {
    pub(super) fn watch(&self, ask: &Ask) -> Result<impl Stream<Item = Bytes> + Send + 'static + use<>, Refusal> {
        let told = read::version_of(ask.option("resourceVersion"))?;
        let ask = ask.clone();
        let selector = read::selector(&ask)?;
        let initial = ask.option("sendInitialEvents") == "true";
        let mut watcher = Watcher {
            selector,
            told,
            waiting: VecDeque::new(),
            news: self.0.news.subscribe(),
            breaks: self.0.breaks.subscribe(),
            end: match ask.timeout() {
                Some(timeout) => self.0.clock.sleep(timeout),
                None => Box::pin(std::future::pending()),
            },
            bookmark: self.bookmark(&ask),
            world: self.clone(),
            over: false,
            ask,
        };
        if told == 0 || initial {
            watcher.begin(initial);
        }
        Ok(stream::unfold(watcher, |mut watcher| async move { watcher.next().await.map(|event| (event, watcher)) })
            .map(|event| Bytes::from(format!("{event}\n"))))
    }

    fn bookmark(&self, ask: &Ask) -> BoxFuture<'static, ()> {
        if ask.option("allowWatchBookmarks") == "true" {
            self.0.clock.sleep(BOOKMARKS)
        } else {
            Box::pin(std::future::pending())
        }
    }
}

impl Watcher {
    /// Tells what is there already.
    fn begin(&mut self, bookmark: bool) {
        let world = self.world.clone();
        let store = world.store();
        self.told = store.version();
        let kind = self.ask.kind.id();
        for (_, object) in store.of_kind(&kind, &self.ask.namespace) {
            if self.selector.matches(object) {
                self.waiting.push_back(self.event("ADDED", object));
            }
        }
        if bookmark {
            self.waiting.push_back(self.bookmark_event(true));
        }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            self.catch_up();
            if !self.waiting.is_empty() {
                continue;
            }
            tokio::select! {
                biased;
                _ = self.breaks.changed() => self.over = true,
                changed = self.news.changed() => self.over = changed.is_err(),
                () = &mut self.end => self.over = true,
                () = &mut self.bookmark => {
                    self.bookmark = self.world.bookmark(&self.ask);
                    self.waiting.push_back(self.bookmark_event(false));
                }
            }
        }
    }

    /// Takes up what was written since.
    fn catch_up(&mut self) {
        self.news.mark_unchanged();
        let world = self.world.clone();
        let store = world.store();
        if self.told < store.compacted() {
            let oldest = store.compacted();
            let refusal = Refusal::gone(format!("too old resource version: {} ({oldest})", self.told));
            self.waiting.push_back(json!({"type": "ERROR", "object": refusal.body()}));
            self.over = true;
            return;
        }
        let kind = self.ask.kind.id();
        for change in store.since(self.told) {
            let here = self.ask.namespace.is_empty() || change.key.namespace == self.ask.namespace;
            if change.key.kind == kind && here {
                self.waiting.extend(self.told_of(change));
            }
        }
        self.told = store.version().max(self.told);
    }

    /// What a change looks like through the selector: what leaves it is deleted, what enters it is added.
    fn told_of(&self, change: &Change) -> Option<Value> {
        let seen =
            |object: &Option<std::sync::Arc<Value>>| object.clone().filter(|object| self.selector.matches(object));
        match (seen(&change.before), seen(&change.after)) {
            (None, Some(after)) => Some(self.event("ADDED", &after)),
            (Some(_), Some(after)) => Some(self.event("MODIFIED", &after)),
            (Some(before), None) => Some(self.event("DELETED", &at_version(&before, change.version))),
            (None, None) => None,
        }
    }

    fn event(&self, kind: &str, object: &Value) -> Value {
        let object = if self.ask.metadata_only { read::metadata_of(object) } else { read::shown(&self.ask, object) };
        json!({"type": kind, "object": object})
    }

    fn bookmark_event(&self, initial: bool) -> Value {
        let mut object = json!({"kind": self.ask.kind.kind, "apiVersion": self.ask.api_version(),
            "metadata": {"resourceVersion": self.told.to_string()}});
        if self.ask.metadata_only {
            object = read::metadata_of(&object);
        }
        if initial {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        json!({"type": "BOOKMARK", "object": object})
    }
}
