//! The plugins that are known, and which of them a sandbox's `plugin` field means.

use crate::api::{ResourcePlugin, ResourcePluginSpec};
use kube::ResourceExt;
use semver::Version;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The version that a plugin without one counts as.
const UNVERSIONED: Version = Version::new(0, 0, 0);

/// Why a `plugin` field names no plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("there is no ResourcePlugin {wanted:?}{}: apply the plugin first, or name one that exists", alternatives(.known))]
    Unknown { wanted: String, known: Vec<String> },
    #[error("{version:?} is not a semantic version: write for example 1.2.0, or latest")]
    Version { version: String },
}

fn alternatives(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!(" (there is {})", known.join(", ")) }
}

/// Every `ResourcePlugin` of the cluster, by name.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    by_name: BTreeMap<String, Arc<ResourcePluginSpec>>,
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
        Self { by_name: plugins.into_iter().map(|(name, spec)| (name, Arc::new(spec))).collect() }
    }

    pub fn insert(&mut self, plugin: ResourcePlugin) {
        self.by_name.insert(plugin.name_any(), Arc::new(plugin.spec));
    }

    pub fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Every plugin by its name, its version included.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Arc<ResourcePluginSpec>)> {
        self.by_name.iter()
    }

    /// The plugin that `reference` (`NAME`, `NAME@VERSION` or `NAME@latest`) means. `latest` is what `@latest` was
    /// found to stand for earlier; it stays that.
    pub fn resolve(&self, reference: &str, latest: Option<&str>) -> Result<Resolved, ResolveError> {
        let (base, version) = reference.split_once('@').map_or((reference, None), |(b, v)| (b, Some(v)));
        let name = match version {
            None => base.to_owned(),
            Some("latest") => match latest {
                Some(name) if base_name(name) == base => name.to_owned(),
                _ => return self.newest(base).ok_or_else(|| self.unknown(reference)),
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
            Some(spec) => Ok(Resolved { name, spec: spec.clone() }),
            None => Err(self.unknown(&name)),
        }
    }

    fn newest(&self, base: &str) -> Option<Resolved> {
        self.of_base(base)
            .max_by(|(a, _), (b, _)| a.cmp(b))
            .map(|(_, (name, spec))| Resolved { name: name.clone(), spec: spec.clone() })
    }

    fn of_base<'a>(
        &'a self,
        base: &'a str,
    ) -> impl Iterator<Item = (Version, (&'a String, &'a Arc<ResourcePluginSpec>))> {
        self.by_name.iter().filter(move |(name, _)| base_name(name) == base).filter_map(|(name, spec)| {
            let version = match name.split_once('.') {
                None => UNVERSIONED,
                Some((_, version)) => Version::parse(version).ok()?,
            };
            Some((version, (name, spec)))
        })
    }

    fn unknown(&self, wanted: &str) -> ResolveError {
        let base = wanted.split_once('@').map_or(wanted, |(base, _)| base);
        let known = self.of_base(base_name(base)).map(|(_, (name, _))| name.clone()).collect();
        ResolveError::Unknown { wanted: wanted.to_owned(), known }
    }
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
mod tests {
    use super::*;
    use rstest::rstest;

    fn plugins() -> Plugins {
        Plugins::new(["db", "db.1.2.0", "db.1.10.0", "queue"].map(|n| (n.to_owned(), ResourcePluginSpec::default())))
    }

    #[rstest]
    #[case("db", None, "db")]
    #[case("db@1.2.0", None, "db.1.2.0")]
    #[case("db@v1.2", None, "db.1.2.0")]
    #[case("db@0.0.0", None, "db")]
    #[case("db@latest", None, "db.1.10.0")]
    #[case("db@latest", Some("db.1.2.0"), "db.1.2.0")]
    #[case("db@latest", Some("queue"), "db.1.10.0")]
    #[case("queue@latest", None, "queue")]
    fn a_reference_means_a_plugin(#[case] reference: &str, #[case] latest: Option<&str>, #[case] name: &str) {
        assert_eq!(plugins().resolve(reference, latest).unwrap().name, name);
    }

    #[rstest]
    #[case(
        "db@2.0.0",
        "there is no ResourcePlugin \"db.2.0.0\" (there is db, db.1.10.0, db.1.2.0): apply the plugin first, or name one that exists"
    )]
    #[case("cache", "there is no ResourcePlugin \"cache\": apply the plugin first, or name one that exists")]
    #[case("db@one", "\"one\" is not a semantic version: write for example 1.2.0, or latest")]
    fn a_reference_to_nothing_says_what_there_is(#[case] reference: &str, #[case] message: &str) {
        assert_eq!(plugins().resolve(reference, None).unwrap_err().to_string(), message);
    }
}
