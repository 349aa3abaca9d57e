//! Looks for plugins that a change needs and the watch has not shown yet: by name, and each name once a second at most.

use crate::api::ResourcePlugin;
use crate::plan::message::with_causes;
use crate::plan::plugins::{MOST_BYTES, Plugins};
use crate::plan::runs::{self, Change};
use kube::{Api, Client};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// One name is not asked for again before this is over.
const AGAIN: Duration = Duration::from_secs(1);
/// For each name that is asked for, so much later the next one; so many may come at once.
const PACE: Duration = Duration::from_millis(50);
const BURST: u32 = 40;
/// So many names are looked for, for one change that is not a deletion.
const MOST_NAMES: usize = 8;
/// As many names are remembered.
const REMEMBERED: usize = 1024;
/// For so long a plugin may come by the watch whose version nobody knows.
const BY_WATCH: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(50);

/// Why it is not known whether there is a plugin.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("the API server did not say whether there is a ResourcePlugin {name:?}")]
    Api { name: String, source: Box<kube::Error> },
    #[error("there was no time to look for ResourcePlugin {name:?}")]
    Late { name: String },
    #[error("more plugins than are looked for at a time came a moment ago")]
    Many,
}

/// When a name was asked for last. Whoever asks holds it.
type Turn = Arc<tokio::sync::Mutex<Option<Instant>>>;

/// Looks for plugins by name, for the whole process.
pub struct Finder {
    plugins: Arc<RwLock<Plugins>>,
    api: Api<ResourcePlugin>,
    turns: Mutex<HashMap<String, Turn>>,
    /// When the next name may be asked for, if none came at once.
    next: Mutex<Instant>,
}

/// A plugin that a change names.
struct Named {
    reference: String,
    latest: Option<String>,
}

impl Finder {
    pub fn new(client: Client, plugins: Arc<RwLock<Plugins>>) -> Self {
        Self { plugins, api: Api::all(client), turns: Mutex::default(), next: Mutex::new(Instant::now()) }
    }

    /// Looks for the plugins that `change` names and that are not known; where all are, reads them anew, for one may have
    /// changed. Ends with the first that is not there, unless something is deleted: each resource then gets its chance.
    pub async fn find(&self, change: Change<'_>, deadline: Instant) -> Result<(), FindError> {
        let deletes = matches!(change, Change::Delete { .. });
        let named = named(change);
        let unknown: Vec<&Named> = named.iter().filter(|named| !self.is_known(named)).collect();
        if unknown.is_empty() && !deletes {
            for name in named.iter().flat_map(|named| self.sought(named)).take(MOST_NAMES) {
                self.once(&name, deadline, self.read(&name)).await?;
            }
            return Ok(());
        }
        let mut asked = 0;
        for named in unknown {
            for name in self.sought(named) {
                if asked == MOST_NAMES && !deletes {
                    return Err(FindError::Many);
                }
                asked += 1;
                self.once(&name, deadline, self.read(&name)).await?;
            }
            if !self.is_known(named) && named.reference.ends_with("@latest") && named.latest.is_none() && !deletes {
                self.once(&named.reference, deadline, self.come_by_watch(named)).await?;
            }
            if !self.is_known(named) && !deletes {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether all plugins are known that a change names.
    pub fn knows_all(&self, change: Change<'_>) -> bool {
        named(change).iter().all(|named| self.is_known(named))
    }

    /// Asks for a name, unless that is done by somebody else since this was called; not too often, and never twice at once.
    async fn once(
        &self,
        name: &str,
        deadline: Instant,
        ask: impl Future<Output = Result<(), kube::Error>>,
    ) -> Result<(), FindError> {
        let late = || FindError::Late { name: name.to_owned() };
        let called = Instant::now();
        let turn = self.turn(name).ok_or_else(late)?;
        let mut last = timeout_at(deadline, turn.lock()).await.map_err(|_| late())?;
        let mut at = called;
        if let Some(last) = *last {
            if last >= called {
                return Ok(());
            }
            at = at.max(last + AGAIN);
        }
        if at >= deadline {
            return Err(late());
        }
        sleep_until(at).await;
        sleep_until(self.slot(deadline).ok_or_else(late)?).await;
        let began = Instant::now();
        match timeout_at(deadline, ask).await {
            Ok(Ok(())) => {
                *last = Some(began);
                Ok(())
            }
            Ok(Err(source)) => Err(FindError::Api { name: name.to_owned(), source: Box::new(source) }),
            Err(_) => Err(late()),
        }
    }

    fn turn(&self, name: &str) -> Option<Turn> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.len() >= REMEMBERED && !turns.contains_key(name) {
            let now = Instant::now();
            turns.retain(|_, turn| {
                let last = turn.try_lock().map(|last| *last);
                Arc::strong_count(turn) > 1 || last.is_ok_and(|last| last.is_some_and(|last| now < last + AGAIN))
            });
        }
        (turns.len() < REMEMBERED || turns.contains_key(name))
            .then(|| turns.entry(name.to_owned()).or_default().clone())
    }

    /// The moment at which one more may ask; none where that is too late.
    fn slot(&self, deadline: Instant) -> Option<Instant> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let paced = (*next).max(now.checked_sub(PACE * BURST).unwrap_or(now));
        let slot = (paced + PACE).max(now);
        if slot >= deadline {
            return None;
        }
        *next = paced + PACE;
        Some(slot)
    }

    async fn read(&self, name: &str) -> Result<(), kube::Error> {
        if let Some(plugin) = self.api.get_opt(name).await? {
            let left_out = self.plugins.write().unwrap_or_else(PoisonError::into_inner).insert(plugin);
            warn_left_out(&left_out);
        }
        Ok(())
    }

    /// No name can be asked for where any version will do.
    async fn come_by_watch(&self, named: &Named) -> Result<(), kube::Error> {
        let until = Instant::now() + BY_WATCH;
        while !self.is_known(named) && Instant::now() < until {
            sleep(LOOK).await;
        }
        Ok(())
    }

    fn is_known(&self, named: &Named) -> bool {
        let plugins = self.plugins.read().unwrap_or_else(PoisonError::into_inner);
        plugins.resolve(&named.reference, named.latest.as_deref()).is_ok()
    }

    fn sought(&self, named: &Named) -> Vec<String> {
        let plugins = self.plugins.read().unwrap_or_else(PoisonError::into_inner);
        plugins.sought(&named.reference, named.latest.as_deref())
    }
}

/// The plugins that a change names, in the order of its resources, each once.
fn named(change: Change<'_>) -> Vec<Named> {
    let objects = match change {
        Change::Create { new } => [Some(new), None],
        Change::Update { old, new } => [Some(new), Some(old)],
        Change::Delete { old } => [Some(old), None],
    };
    let mut seen = BTreeSet::new();
    let mut named = Vec::new();
    for object in objects.into_iter().flatten() {
        let latest = runs::latest(object);
        for resource in runs::declared_each(object).into_iter().filter_map(Result::ok) {
            let latest = latest.get(&resource.name).cloned();
            if seen.insert((resource.plugin.clone(), latest.clone())) {
                named.push(Named { reference: resource.plugin, latest });
            }
        }
    }
    named
}

/// Tells which plugins are not used because all together would take too much.
pub fn warn_left_out(plugins: &[String]) {
    for plugin in plugins {
        tracing::warn!(
            plugin,
            most_mib = MOST_BYTES / (1024 * 1024),
            "the plugin is left out: all plugins together would take too much memory; delete those that no sandbox uses"
        );
    }
}

/// As a warning of the log, for what goes on all the same.
pub(super) fn go_on(error: &FindError) {
    tracing::warn!(error = with_causes(error), "a deletion goes on though not all of its plugins could be looked for");
}

#[cfg(test)]
#[path = "find_tests.rs"]
pub(super) mod tests;
