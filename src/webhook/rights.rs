//! What a sandbox's author must be allowed to do: a Sandbox gives nobody a right that they lack.

use crate::api::labels;
use crate::plan::references;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;

/// More rights are not asked for in one change.
const MOST_RIGHTS: usize = 256;

/// A right that a change needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Right {
    pub verb: &'static str,
    pub group: &'static str,
    pub resource: &'static str,
    pub namespace: Option<String>,
    pub name: Option<String>,
    /// The field that asks for it.
    pub field: String,
    /// What else can be done.
    pub hint: &'static str,
}

/// The rights that a change needs: `use` of each plugin whose resource is new or changed; where a fork is new or changed,
/// the creation of workloads and of Services, to read the workload and what the fork's customizations name, and `use` of
/// each plugin whose outputs they name; and where `ttl` comes or changes, the deletion of the sandbox.
///
/// `seen` tells whether an admission has seen the forks of `old` as they are: else all of the new ones are asked for.
pub fn needed(
    namespace: &str,
    old: &Value,
    new: &Value,
    seen: bool,
    plugin_of: impl Fn(&str) -> Option<String>,
) -> Vec<Right> {
    let mut rights = Vec::new();
    for (index, resource) in added(old, new, "resources") {
        if let Some(plugin) = resource["name"].as_str().and_then(&plugin_of) {
            rights.push(to_use(plugin, format!("spec.resources[{index}].plugin")));
        }
    }
    let forks = added(if seen { old } else { &Value::Null }, new, "forks");
    // Thousands of variables may name the outputs of few resources.
    let mut named = BTreeSet::new();
    for (index, fork) in forks {
        let field = format!("spec.forks[{index}]");
        let outputs =
            resources_of(fork).filter(|(_, resource)| named.insert(*resource)).filter_map(|(at, resource)| {
                let field = format!("{field}.customizations.env[{at}].valueFrom.resource");
                Some(to_use(plugin_of(resource)?, field))
            });
        for right in of_fork(namespace, &field, fork).into_iter().chain(outputs) {
            if !rights.iter().any(|known| known.is_same(&right)) {
                rights.push(right);
            }
        }
    }
    rights.extend(needed_to_expire(old, new));
    rights
}

/// The right to use a plugin, for which `field` asks.
fn to_use(plugin: String, field: String) -> Right {
    Right {
        verb: "use",
        group: crate::api::GROUP,
        resource: "resourceplugins",
        namespace: None,
        name: Some(plugin),
        field,
        hint: "",
    }
}

/// The resources whose outputs a fork shows, each with the place of the variable that names it.
fn resources_of(fork: &Value) -> impl Iterator<Item = (usize, &str)> {
    let env = fork["customizations"]["env"].as_array().into_iter().flatten().enumerate();
    env.filter_map(|(at, env)| Some((at, env["valueFrom"]["resource"]["name"].as_str()?)))
}

/// The right to delete a sandbox, where an update has it deleted by itself, or at another time.
fn needed_to_expire(old: &Value, new: &Value) -> Option<Right> {
    let [before, after] = [old, new].map(|object| &object["spec"]["ttl"]);
    // Who creates a sandbox decides how long it is there.
    if old.is_null() || after.is_null() || after == before {
        return None;
    }
    Some(of_sandbox("delete", new, "spec.ttl".to_owned(), "; or leave spec.ttl as it was"))
}

/// The rights that one fork needs, which stands at `field`.
fn of_fork(namespace: &str, field: &str, fork: &Value) -> Vec<Right> {
    let right = |verb, group, resource, name: Option<&str>, at: &str| Right {
        verb,
        group,
        resource,
        namespace: Some(namespace.to_owned()),
        name: name.map(str::to_owned),
        field: format!("{field}.{at}"),
        hint: "",
    };
    let workload = fork["forkOf"]["name"].as_str();
    let mut rights = vec![
        right("create", "apps", "deployments", None, "forkOf"),
        right("create", "", "services", None, "forkOf"),
        // A fork shows what its baseline is made of to whoever chooses the fork's image.
        right("get", "apps", "deployments", workload, "forkOf.name"),
    ];
    let named = references::named(fork);
    rights.extend(named.iter().map(|((kind, name), at)| right("get", "", kind.resource(), Some(name), at)));
    rights
}

/// Why so many rights are not asked for.
pub fn too_many(rights: &[Right]) -> Option<String> {
    (rights.len() > MOST_RIGHTS).then(|| {
        format!(
            "spec: this change needs {} rights, for its plugins, its workloads, and the ConfigMaps and Secrets that its forks name, and at most {MOST_RIGHTS} are asked for at a time: make fewer changes at once",
            rights.len()
        )
    })
}

/// The items of a list of the spec that were not in it before, with their places.
fn added<'a>(old: &'a Value, new: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    let [before, after] = [old, new].map(|object| object["spec"][field].as_array().map_or(&[][..], Vec::as_slice));
    // Mostly an item is where it was.
    let was_there = move |(index, item): &(usize, &Value)| before.get(*index) == Some(*item) || before.contains(item);
    after.iter().enumerate().filter(move |item| !was_there(item))
}

/// The right to skip the pre-delete of a sandbox, where a change newly asks for that.
pub fn needed_to_skip(old: &Value, new: &Value) -> Option<Right> {
    let reason = |object: &Value| object["metadata"]["annotations"][labels::SKIP_PRE_DELETE].clone();
    if reason(new).is_null() || reason(new) == reason(old) {
        return None;
    }
    Some(of_sandbox("skip", new, format!("metadata.annotations[{}]", labels::SKIP_PRE_DELETE), ""))
}

/// The right to skip the pre-delete of a sandbox, where a change lets its owners do so: when an owner is gone the
/// cluster's own cleaning up deletes the sandbox, and is let past a pre-delete that fails.
///
/// `has_pre_delete` tells of a resource of `new` whether its plugin has a pre-delete, or is not known.
pub fn needed_to_own(old: &Value, new: &Value, has_pre_delete: impl Fn(&Value) -> bool) -> Option<Right> {
    let owners = owners(new);
    let resources = new["spec"]["resources"].as_array().map_or(&[][..], Vec::as_slice);
    if owners.is_empty() || resources.is_empty() {
        return None;
    }
    let before = self::owners(old);
    let comes = owners.iter().position(|owner| !before.contains(owner));
    let field = match comes {
        Some(index) if resources.iter().any(&has_pre_delete) => format!("metadata.ownerReferences[{index}]"),
        Some(_) => return None,
        None => {
            let (index, _) = added(old, new, "resources").find(|(_, resource)| has_pre_delete(resource))?;
            format!("spec.resources[{index}]")
        }
    };
    let hint = "; or leave metadata.ownerReferences away: a sandbox that has a pre-delete and an owner is deleted with the owner, also when its pre-delete fails";
    Some(of_sandbox("skip", new, field, hint))
}

/// What tells the owners of an object apart: whether one is in charge, or waits, changes nothing about who goes with it.
fn owners(object: &Value) -> Vec<[&Value; 4]> {
    let references = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    references.map(|owner| ["apiVersion", "kind", "name", "uid"].map(|field| &owner[field])).collect()
}

fn of_sandbox(verb: &'static str, sandbox: &Value, field: String, hint: &'static str) -> Right {
    Right {
        verb,
        group: crate::api::GROUP,
        resource: "sandboxes",
        namespace: sandbox["metadata"]["namespace"].as_str().map(str::to_owned),
        name: sandbox["metadata"]["name"].as_str().map(str::to_owned),
        field,
        hint,
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{} {}{dot}{}", self.verb, self.resource, self.group)?;
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace:?}"),
            None => Ok(()),
        }
    }
}

impl Right {
    /// Whether it is the same right, whichever field asks for it.
    fn is_same(&self, other: &Self) -> bool {
        let of = |right: &Self| (right.verb, right.group, right.resource);
        of(self) == of(other) && self.name == other.name && self.namespace == other.namespace
    }

    /// What to tell a user that lacks it.
    pub fn refusal(&self, user: &str) -> String {
        format!(
            "{}: {user:?} may not {self}; ask a cluster admin for a role with verb \"{}\" on it{}",
            self.field, self.verb, self.hint
        )
    }
}

#[cfg(test)]
#[path = "rights_tests.rs"]
mod tests;
