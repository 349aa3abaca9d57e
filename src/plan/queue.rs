//! Whose turn it is: which runs that wait may begin their steps, so that none overwhelms the cluster or starves another.

use std::collections::HashMap;

/// How many runs may be at work at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In the whole of Sluice.
    pub all: usize,
    /// With a plugin that runs in one namespace; none for no limit of its own.
    pub runner_namespace: Option<usize>,
    /// For the sandboxes of one namespace; none for its [`share`] of all.
    pub namespace: Option<usize>,
}

/// What the sandboxes of one namespace may have of room for `most`: half of it. A run that is at work is never stopped
/// for another, so what is left must be free before the others come.
pub const fn share(most: usize) -> usize {
    most.div_ceil(2)
}

/// Runs that are kept: how many, and their bytes as JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub runs: usize,
    pub bytes: usize,
}

impl Kept {
    /// Of ended runs, what stays as history of the sandboxes of one namespace that were never stored or are gone.
    pub const IN_NAMESPACE: Self = Self { runs: 500, bytes: 8 << 20 };
    /// The same of all namespaces.
    pub const IN_ALL: Self = Self { runs: 4_000, bytes: 64 << 20 };

    pub const fn add(&mut self, bytes: usize) {
        self.runs += 1;
        self.bytes += bytes;
    }

    pub const fn remove(&mut self, bytes: usize) {
        self.runs -= 1;
        self.bytes -= bytes;
    }

    pub const fn is_past(self, most: Self) -> bool {
        self.runs > most.runs || self.bytes > most.bytes
    }

    /// Whether the cleaning up of what was refused in a namespace is so far behind, at twice what stays, that no other
    /// sandbox may begin to be created there.
    pub const fn is_behind(self) -> bool {
        let most = Self { runs: 2 * Self::IN_NAMESPACE.runs, bytes: 2 * Self::IN_NAMESPACE.bytes };
        self.is_past(most)
    }
}

/// A plugin that a run works with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Use {
    /// Its name, without a version.
    pub plugin: String,
    /// Where it runs.
    pub namespace: String,
    /// How many runs may work with it at once, where it says so.
    pub most: Option<usize>,
}

/// An open run.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub name: &'a str,
    /// The namespace of its target, whose users wait for it.
    pub namespace: &'a str,
    /// When it was written, in seconds.
    pub written: i64,
    pub uses: &'a [Use],
    pub is_at_work: bool,
}

/// The runs that wait and whose turn it is, in that order: the namespace with the fewest runs at work comes first, and of
/// one namespace the run that was written first. A run that must wait for its plugin keeps none of another back, and no
/// namespace gets more than its share of anything that is bounded, though nobody else waits.
pub fn turns<'a>(open: &[Candidate<'a>], limits: &Limits) -> Vec<&'a str> {
    let mut at_work = AtWork::default();
    open.iter().filter(|run| run.is_at_work).for_each(|run| at_work.add(run));
    let mut waiting: Vec<_> = open.iter().filter(|run| !run.is_at_work).collect();
    waiting.sort_unstable_by_key(|run| (run.written, run.name));
    let mut turns = Vec::new();
    while at_work.all < limits.all {
        let fits = waiting.iter().enumerate().filter(|(_, run)| at_work.has_room(run, limits));
        let Some((next, _)) = fits.min_by_key(|(_, run)| at_work.of_namespace(run.namespace)) else { break };
        let run = waiting.remove(next);
        at_work.add(run);
        turns.push(run.name);
    }
    turns
}

#[derive(Default)]
struct AtWork<'a> {
    all: usize,
    namespaces: HashMap<&'a str, usize>,
    plugins: Counts<'a>,
    runner_namespaces: Counts<'a>,
}

/// How many runs work with something, by its name: of all namespaces, and of each.
#[derive(Default)]
struct Counts<'a> {
    of_all: HashMap<&'a str, usize>,
    of_namespace: HashMap<(&'a str, &'a str), usize>,
}

impl<'a> Counts<'a> {
    fn add(&mut self, what: &'a str, namespace: &'a str) {
        *self.of_all.entry(what).or_default() += 1;
        *self.of_namespace.entry((what, namespace)).or_default() += 1;
    }

    fn has_room(&self, what: &str, namespace: &str, most: Option<usize>) -> bool {
        let Some(most) = most else { return true };
        let all = self.of_all.get(what).copied().unwrap_or_default();
        let own = self.of_namespace.get(&(what, namespace)).copied().unwrap_or_default();
        all < most && own < share(most)
    }
}

impl<'a> AtWork<'a> {
    fn add(&mut self, run: &Candidate<'a>) {
        self.all += 1;
        *self.namespaces.entry(run.namespace).or_default() += 1;
        for plugin in distinct(run.uses, |one| &one.plugin) {
            self.plugins.add(plugin, run.namespace);
        }
        for namespace in distinct(run.uses, |one| &one.namespace) {
            self.runner_namespaces.add(namespace, run.namespace);
        }
    }

    fn of_namespace(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).copied().unwrap_or_default()
    }

    fn has_room(&self, run: &Candidate<'_>, limits: &Limits) -> bool {
        let own = limits.namespace.unwrap_or(share(limits.all));
        self.of_namespace(run.namespace) < own
            && run.uses.iter().all(|one| {
                self.plugins.has_room(&one.plugin, run.namespace, one.most)
                    && self.runner_namespaces.has_room(&one.namespace, run.namespace, limits.runner_namespace)
            })
    }
}

fn distinct<'a>(uses: &'a [Use], of: impl Fn(&'a Use) -> &'a String) -> Vec<&'a str> {
    let mut names: Vec<&str> = uses.iter().map(|one| of(one).as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// `NAMESPACE/NAME[*] PLUGIN…`: `*` is at work, `PLUGIN:2` may be used by two at once; each runs in `in-PLUGIN`.
    fn turns_of(runs: &[&str], all: usize, runner_namespace: Option<usize>) -> Vec<String> {
        turns_with(runs, all, runner_namespace, Some(all))
    }

    fn turns_with(runs: &[&str], all: usize, runner_namespace: Option<usize>, namespace: Option<usize>) -> Vec<String> {
        let uses = |words: &str| -> Vec<Use> {
            let one = |word: &str| {
                let (plugin, most) = word.split_once(':').map_or((word, None), |(p, m)| (p, m.parse().ok()));
                Use { plugin: plugin.into(), namespace: format!("in-{plugin}"), most }
            };
            words.split_whitespace().map(one).collect()
        };
        let parsed: Vec<_> = runs
            .iter()
            .map(|run| {
                let (name, plugins) = run.split_once(' ').unwrap_or((run, ""));
                (name.trim_end_matches('*'), name.ends_with('*'), uses(plugins))
            })
            .collect();
        let candidates: Vec<Candidate<'_>> = parsed
            .iter()
            .enumerate()
            .map(|(index, (name, is_at_work, uses))| Candidate {
                name,
                namespace: name.split('/').next().unwrap(),
                written: index as i64,
                uses,
                is_at_work: *is_at_work,
            })
            .collect();
        turns(&candidates, &Limits { all, runner_namespace, namespace }).into_iter().map(str::to_owned).collect()
    }

    #[rstest]
    #[case::first_come(&["a/1", "a/2", "a/3"], 2, &["a/1", "a/2"])]
    #[case::each_namespace_in_turn(&["a/1", "a/2", "a/3", "b/1"], 2, &["a/1", "b/1"])]
    #[case::who_has_less_is_first(&["a/1*", "a/2*", "a/3", "b/1*", "b/2"], 4, &["b/2"])]
    #[case::no_room(&["a/1*", "b/1"], 1, &[])]
    #[case::a_plugin_s_limit(&["a/1* db:1", "a/2 db:1", "a/3 queue", "b/1 db:1"], 9, &["a/3"])]
    #[case::of_all_plugins(&["a/1* db:1", "a/2 queue db:1", "a/3 queue:1", "a/4 queue:1"], 9, &["a/3"])]
    fn a_turn_is_fair(#[case] runs: &[&str], #[case] all: usize, #[case] expected: &[&str]) {
        assert_eq!(turns_of(runs, all, None), expected);
    }

    #[test]
    fn a_runner_namespace_has_a_limit_of_its_own() {
        assert_eq!(turns_of(&["a/1* db", "a/2 db", "b/1 queue", "b/2 queue"], 9, Some(1)), ["b/1"]);
    }

    #[rstest]
    #[case::half_of_all(&["a/1*", "a/2*", "a/3"], 4, None, &[])]
    #[case::the_other_half_is_there(&["a/1*", "a/2*", "a/3", "b/1"], 4, None, &["b/1"])]
    #[case::though_it_asks_for_all_at_once(&["a/1", "a/2", "a/3", "a/4"], 4, None, &["a/1", "a/2"])]
    #[case::one_at_least(&["a/1", "a/2"], 1, None, &["a/1"])]
    #[case::of_a_plugin_too(&["a/1* db:4", "a/2* db:4", "a/3 db:4", "b/1 db:4"], 99, None, &["b/1"])]
    #[case::of_a_plugin_that_works_for_one(&["a/1 db:1", "b/1 db:1"], 99, None, &["a/1"])]
    #[case::as_the_admin_says(&["a/1*", "a/2*", "a/3"], 4, Some(3), &["a/3"])]
    fn t10_no_namespace_gets_more_than_its_share(
        #[case] runs: &[&str],
        #[case] all: usize,
        #[case] namespace: Option<usize>,
        #[case] expected: &[&str],
    ) {
        assert_eq!(turns_with(runs, all, None, namespace), expected);
    }

    #[rstest]
    #[case::little(1, 1000, false)]
    #[case::as_much_as_stays(40, 400_000, false)]
    #[case::too_much(42, 400_000, true)]
    #[case::small_and_many(1001, 10, true)]
    fn t10_a_namespace_where_much_was_refused_waits_until_it_is_cleaned_up(
        #[case] runs: usize,
        #[case] size: usize,
        #[case] expected: bool,
    ) {
        let mut kept = Kept::default();
        (0..runs).for_each(|_| kept.add(size));
        assert_eq!(kept.is_behind(), expected);
        kept.remove(size);
        assert!(!kept.is_behind());
    }

    #[test]
    fn t10_no_namespace_gets_more_than_its_share_of_a_runner_namespace() {
        let runs = ["a/1* db", "a/2 db", "b/1 db"];
        assert_eq!(turns_with(&runs, 99, Some(2), None), ["b/1"]);
    }

    #[test]
    fn a_thousand_of_one_user_do_not_starve_one_of_another() {
        let mut runs: Vec<String> = (0..63).map(|n| format!("many/{n}*")).collect();
        runs.extend((63..1000).map(|n| format!("many/{n}")));
        runs.push("few/1".into());
        let runs: Vec<&str> = runs.iter().map(String::as_str).collect();
        assert_eq!(turns_of(&runs, 64, None), ["few/1"]);
    }
}
