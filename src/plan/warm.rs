//! How many pods wait for runs, and which of them go.

/// How long a pod that waits may live, in seconds: where Sluice is gone, nothing is left of it after a day.
pub const LIFE_SECONDS: i64 = 86_400;
/// After so many seconds another takes its place, so that there is always time enough for a run.
const FRESH_SECONDS: i64 = LIFE_SECONDS / 2;

/// The pods that a plugin wants to be ready.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// The plugin's label value.
    pub plugin: String,
    pub namespace: String,
    /// The hash of the template.
    pub template: String,
    pub count: usize,
}

/// A pod that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub plugin: String,
    pub namespace: String,
    pub template: String,
    pub standing: Standing,
    pub age_seconds: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    Ready,
    Starting,
    Broken,
    /// It is being deleted.
    Going,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How many pods are to be made for each of those that are wanted.
    pub create: Vec<usize>,
    /// The pods that go.
    pub delete: Vec<usize>,
}

/// What is to be done so that the pods are there that are wanted, and no others.
pub fn plan(wanted: &[Wanted], pods: &[Waiting]) -> Plan {
    let is_of = |pod: &Waiting, wanted: &Wanted| {
        (&pod.plugin, &pod.namespace, &pod.template) == (&wanted.plugin, &wanted.namespace, &wanted.template)
    };
    let mut plan = Plan::default();
    for (index, pod) in pods.iter().enumerate() {
        let unwanted = !wanted.iter().any(|wanted| is_of(pod, wanted));
        if pod.standing != Standing::Going && (unwanted || pod.standing == Standing::Broken) {
            plan.delete.push(index);
        }
    }
    for wanted in wanted {
        let usable = |pod: &Waiting| matches!(pod.standing, Standing::Ready | Standing::Starting);
        let own = (0..pods.len()).filter(|index| is_of(&pods[*index], wanted) && usable(&pods[*index]));
        let (mut fresh, old): (Vec<_>, Vec<_>) = own.partition(|index| pods[*index].age_seconds < FRESH_SECONDS);
        // What is ready longest stays.
        fresh.sort_by_key(|index| (pods[*index].standing, -pods[*index].age_seconds));
        let ready = fresh.iter().filter(|index| pods[**index].standing == Standing::Ready).count();
        if ready >= wanted.count {
            plan.delete.extend(old);
        }
        plan.delete.extend(fresh.iter().skip(wanted.count));
        plan.create.push(wanted.count.saturating_sub(fresh.len()));
    }
    plan.delete.sort_unstable();
    plan
}

#[cfg(test)]
mod tests {
    use super::Standing::{Broken, Going, Ready, Starting};
    use super::*;

    fn wanted(template: &str, count: usize) -> Wanted {
        Wanted { plugin: "p".into(), namespace: "n".into(), template: template.into(), count }
    }

    fn pod(template: &str, standing: Standing, age_seconds: i64) -> Waiting {
        Waiting { plugin: "p".into(), namespace: "n".into(), template: template.into(), standing, age_seconds }
    }

    fn planned(wanted: &[Wanted], pods: &[Waiting]) -> (Vec<usize>, Vec<usize>) {
        let plan = plan(wanted, pods);
        (plan.create, plan.delete)
    }

    #[test]
    fn what_is_missing_is_made_and_what_starts_counts() {
        assert_eq!(planned(&[wanted("a", 3)], &[]), (vec![3], vec![]));
        assert_eq!(planned(&[wanted("a", 3)], &[pod("a", Ready, 5), pod("a", Starting, 0)]), (vec![1], vec![]));
    }

    #[test]
    fn what_goes_or_is_broken_does_not_count() {
        let pods = [pod("a", Going, 5), pod("a", Broken, 5), pod("a", Ready, 5)];
        assert_eq!(planned(&[wanted("a", 2)], &pods), (vec![1], vec![1]));
    }

    #[test]
    fn pods_of_another_template_namespace_or_plugin_go() {
        let elsewhere = Waiting { namespace: "m".into(), ..pod("a", Ready, 5) };
        let of_another = Waiting { plugin: "q".into(), ..pod("a", Ready, 5) };
        let pods = [pod("old", Ready, 5), elsewhere, of_another, pod("old", Going, 5)];
        assert_eq!(planned(&[wanted("a", 1)], &pods), (vec![1], vec![0, 1, 2]));
        assert_eq!(planned(&[], &[pod("a", Ready, 5)]), (vec![], vec![0]));
    }

    #[test]
    fn of_too_many_those_stay_that_are_ready() {
        let pods = [pod("a", Starting, 1), pod("a", Ready, 5), pod("a", Ready, 9)];
        assert_eq!(planned(&[wanted("a", 2)], &pods), (vec![0], vec![0]));
        assert_eq!(planned(&[wanted("a", 1)], &pods), (vec![0], vec![0, 1]));
    }

    #[test]
    fn an_old_pod_waits_until_another_has_taken_its_place() {
        let old = pod("a", Ready, FRESH_SECONDS);
        assert_eq!(planned(&[wanted("a", 1)], std::slice::from_ref(&old)), (vec![1], vec![]));
        assert_eq!(planned(&[wanted("a", 1)], &[old.clone(), pod("a", Starting, 1)]), (vec![0], vec![]));
        assert_eq!(planned(&[wanted("a", 1)], &[old, pod("a", Ready, 1)]), (vec![0], vec![0]));
    }
}
