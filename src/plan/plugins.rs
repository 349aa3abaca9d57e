//! The plugins that are known, and which of them a sandbox's `plugin` field means.

use super::room;
use crate::api::{Input, Output, ResourcePlugin, ResourcePluginSpec, Step, Workflow};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use semver::Version;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What all plugins together may take in memory, in bytes, as [`weight`] tells: every replica holds them all.
pub const MOST_BYTES: usize = 32 * 1024 * 1024;

/// The version that a plugin without one counts as.
const UNVERSIONED: Version = Version::new(0, 0, 0);

/// Why a `plugin` field names no plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("there is no ResourcePlugin {wanted:?}{}: apply the plugin first, or name one that exists", alternatives(.known))]
    Unknown { wanted: String, known: Vec<String> },
    #[error(
        "ResourcePlugin {name:?} is left out, because all plugins together would take more than {} MiB: delete those, and versions, that no sandbox uses",
        MOST_BYTES / (1024 * 1024)
    )]
    LeftOut { name: String },
    #[error("{version:?} is not a semantic version: write for example 1.2.0, or latest")]
    Version { version: String },
}

impl ResolveError {
    /// Whether the field means this plugin, though it cannot be used.
    pub fn is_of(&self, plugin: &str) -> bool {
        matches!(self, Self::LeftOut { name } if name == plugin)
    }
}

fn alternatives(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!(" (there is {})", known.join(", ")) }
}

/// Every `ResourcePlugin` of the cluster, by name: the oldest ones, as far as there is room for them, so that no plugin
/// that comes costs another its place, and each replica leaves out the same.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    by_name: BTreeMap<String, Held>,
    /// What those take together.
    bytes: usize,
    left_out: BTreeMap<String, LeftOut>,
}

#[derive(Clone, Debug)]
struct Held {
    spec: Arc<ResourcePluginSpec>,
    about: LeftOut,
    /// As the API server counts; none where it is not from there.
    version: Option<u64>,
}

/// What is known of a plugin that there is no room for.
#[derive(Clone, Debug)]
struct LeftOut {
    created: Option<Timestamp>,
    bytes: usize,
}

/// A plugin that a `plugin` field was found to mean.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The name of the `ResourcePlugin`, its version included.
    pub name: String,
    pub spec: Arc<ResourcePluginSpec>,
}

impl Plugins {
    pub fn new(plugins: impl IntoIterator<Item = (String, ResourcePluginSpec)>) -> Self {
        let mut all = Self::default();
        for (name, spec) in plugins {
            all.insert(ResourcePlugin::new(&name, spec));
        }
        all
    }

    /// Takes in a plugin as it was read; what is older than what is known is passed over. Returns the names of those for
    /// which there is no room any more, perhaps its own.
    pub fn insert(&mut self, plugin: ResourcePlugin) -> Vec<String> {
        let (name, metadata) = (plugin.name_any(), plugin.metadata);
        let version = metadata.resource_version.and_then(|version| version.parse::<u64>().ok());
        if self.by_name.get(&name).is_some_and(|known| version.is_some() && known.version > version) {
            return Vec::new();
        }
        let created = metadata.creation_timestamp.map(|time| time.0);
        let about = LeftOut { created, bytes: weight(&plugin.spec) };
        let was_left_out = self.left_out.contains_key(&name);
        self.remove(&name);
        let mut left_out = Vec::new();
        // All that are younger than one that is left out are left out, whichever came first.
        if self.oldest_left_out().is_some_and(|oldest| oldest < (about.created, &name)) {
            self.left_out.insert(name.clone(), about);
            left_out.push(name.clone());
        } else {
            self.bytes += about.bytes;
            self.by_name.insert(name.clone(), Held { spec: Arc::new(plugin.spec), about, version });
        }
        while self.bytes > MOST_BYTES {
            let youngest = self.by_name.iter().max_by_key(|(name, held)| (held.about.created, *name));
            let Some(youngest) = youngest.map(|(name, _)| name.clone()) else { break };
            if let Some(held) = self.by_name.remove(&youngest) {
                self.bytes -= held.about.bytes;
                self.left_out.insert(youngest.clone(), held.about);
                left_out.push(youngest);
            }
        }
        left_out.retain(|gone| !was_left_out || *gone != name);
        left_out
    }

    pub fn remove(&mut self, name: &str) {
        self.left_out.remove(name);
        if let Some(held) = self.by_name.remove(name) {
            self.bytes -= held.about.bytes;
        }
    }

    /// Whether one that was left out would find room now, if it were read again.
    pub fn has_room_again(&self) -> bool {
        let oldest = self.left_out.iter().min_by_key(|(name, left_out)| (left_out.created, *name));
        oldest.is_some_and(|(_, left_out)| self.bytes + left_out.bytes <= MOST_BYTES)
    }

    /// Why a plugin cannot be stored as `spec`: all together, those that are left out too, would take too much. One that
    /// becomes smaller always can.
    pub fn too_much(&self, name: &str, spec: &ResourcePluginSpec) -> Option<String> {
        let all = self.by_name.iter().map(|(name, held)| (name, &held.about)).chain(&self.left_out);
        let (mut total, mut before) = (0, 0);
        for (known, about) in all {
            total += about.bytes;
            before += if known == name { about.bytes } else { 0 };
        }
        let bytes = weight(spec);
        let would_be = total - before + bytes;
        (would_be > MOST_BYTES && bytes > before).then(|| {
            format!(
                "spec: with this plugin, which takes {}, all plugins together would take {} of memory, and {} is the most: delete plugins, and versions of them, that no sandbox uses, or make this one smaller",
                shown(bytes), shown(would_be), shown(MOST_BYTES)
            )
        })
    }

    fn oldest_left_out(&self) -> Option<(Option<Timestamp>, &String)> {
        self.left_out.iter().map(|(name, left_out)| (left_out.created, name)).min()
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Every plugin by its name, its version included.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Arc<ResourcePluginSpec>)> {
        self.by_name.iter().map(|(name, held)| (name, &held.spec))
    }

    /// The names of the plugins that `reference` may mean, to be looked for where none of them is known; only those that
    /// are not left out.
    pub fn sought(&self, reference: &str, latest: Option<&str>) -> Vec<String> {
        let (base, version) = reference.split_once('@').map_or((reference, None), |(b, v)| (b, Some(v)));
        let mut names = match version {
            None => vec![base.to_owned()],
            Some("latest") => vec![latest.filter(|name| base_name(name) == base).unwrap_or(base).to_owned()],
            Some(version) => match canonical(version) {
                Some(version) if version == UNVERSIONED => vec![format!("{base}.{version}"), base.to_owned()],
                Some(version) => vec![format!("{base}.{version}")],
                None => Vec::new(),
            },
        };
        names.retain(|name| !self.left_out.contains_key(name));
        names
    }

    /// The plugin that `reference` (`NAME`, `NAME@VERSION` or `NAME@latest`) means. `latest` is what `@latest` was
    /// found to stand for earlier; it stays that.
    pub fn resolve(&self, reference: &str, latest: Option<&str>) -> Result<Resolved, ResolveError> {
        let (base, version) = reference.split_once('@').map_or((reference, None), |(b, v)| (b, Some(v)));
        let name = match version {
            None => base.to_owned(),
            Some("latest") => match latest {
                Some(name) if base_name(name) == base => name.to_owned(),
                _ => self.newest(base).ok_or_else(|| self.unknown(reference))?,
            },
            Some(version) => {
                let version =
                    canonical(version).ok_or_else(|| ResolveError::Version { version: version.to_owned() })?;
                let versioned = format!("{base}.{version}");
                if version == UNVERSIONED && !self.by_name.contains_key(&versioned) {
                    base.to_owned()
                } else {
                    versioned
                }
            }
        };
        match self.by_name.get(&name) {
            Some(held) => Ok(Resolved { name, spec: held.spec.clone() }),
            None if self.left_out.contains_key(&name) => Err(ResolveError::LeftOut { name }),
            None => Err(self.unknown(&name)),
        }
    }

    fn newest(&self, base: &str) -> Option<String> {
        self.of_base(base).max().map(|(_, name)| name.clone())
    }

    /// Versions and names, those included that are left out.
    fn of_base<'a>(&'a self, base: &'a str) -> impl Iterator<Item = (Version, &'a String)> {
        let all = self.by_name.keys().chain(self.left_out.keys());
        all.filter(move |name| base_name(name) == base).filter_map(|name| {
            let version = match name.split_once('.') {
                None => UNVERSIONED,
                Some((_, version)) => Version::parse(version).ok()?,
            };
            Some((version, name))
        })
    }

    fn unknown(&self, wanted: &str) -> ResolveError {
        let base = wanted.split_once('@').map_or(wanted, |(base, _)| base);
        let known = self.of_base(base_name(base)).map(|(_, name)| name.clone()).collect();
        ResolveError::Unknown { wanted: wanted.to_owned(), known }
    }
}

/// What a plugin takes in memory, in bytes and about: its text as JSON, and the room of the lists in it that are mostly
/// empty.
pub fn weight(spec: &ResourcePluginSpec) -> usize {
    let steps = Workflow::ALL.into_iter().flat_map(|workflow| spec.steps(workflow));
    let of_step = |step: &Step| {
        size_of::<Step>() + step.inputs.len() * size_of::<Input>() + step.outputs.len() * size_of::<Output>()
    };
    let lists: usize = steps.map(of_step).sum();
    size_of::<ResourcePluginSpec>() + lists + room::size(spec)
}

fn shown(bytes: usize) -> String {
    let tenths = bytes.saturating_mul(10).div_ceil(1024 * 1024);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// The name without its version: `branch-db` of `branch-db.1.2.0`.
pub fn base_name(name: &str) -> &str {
    name.split_once('.').map_or(name, |(base, _)| base)
}

/// Whether a plugin's name carries a version, so that its spec never changes.
pub fn is_versioned(name: &str) -> bool {
    name.contains('.')
}

/// `v1.0` and `1` mean 1.0.0, as in Signadot's files.
pub fn canonical(version: &str) -> Option<Version> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let end = version.find(['-', '+']).unwrap_or(version.len());
    let (core, rest) = version.split_at(end);
    let zeros = match core.matches('.').count() {
        0 => ".0.0",
        1 => ".0",
        _ => "",
    };
    Version::parse(&format!("{core}{zeros}{rest}")).ok()
}

#[cfg(test)]
#[path = "plugins_tests.rs"]
mod tests;
