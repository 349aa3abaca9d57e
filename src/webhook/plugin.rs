//! The validating webhook of plugins: what a schema cannot say of them, and what a sandbox still needs.

use super::admit::{WARNING_LIMIT, listed};
use super::pages::{Stored, pages, record_pages};
use super::review::{Answer, Operation, Request};
use crate::api::{Phase, PhaseRun, ResourcePluginSpec, Workflow};
use crate::engine::Engine;
use crate::plan::check::{self, Fault};
use crate::plan::http::Allowed;
use crate::plan::plugins::{Plugins, is_versioned};
use crate::plan::{message, overlay, timing};
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

/// As many sandboxes are named in a refusal.
const NAMED: usize = 5;

/// What the admission of plugins needs.
pub struct PluginAdmission {
    pub engine: Arc<Engine>,
    pub plugins: Arc<RwLock<Plugins>>,
    pub allowed: RunnerLimits,
}

/// Where plugins may run, and as whom they may not.
#[derive(Clone, Debug, Default)]
pub struct RunnerLimits {
    /// Sluice's own namespace, where a plugin runs only if the admin has said so.
    pub own_namespace: String,
    /// Where a plugin runs that names no namespace.
    pub default_namespace: String,
    pub namespaces: BTreeSet<String>,
    /// Sluice's own service account: a plugin must not act as Sluice.
    pub own_service_account: Option<String>,
    /// Secrets of Sluice's own namespace that hold its certificate and the token of its webhooks.
    pub own_secrets: Vec<String>,
}

impl PluginAdmission {
    /// Answers a review of a plugin.
    pub async fn plugin(&self, request: &Request) -> Answer {
        match request.operation {
            Operation::Create | Operation::Update => self.check(request).await,
            Operation::Delete => self.refuse_used(request).await,
            Operation::Other => Answer::allow(),
        }
    }

    async fn check(&self, request: &Request) -> Answer {
        let name = request.object["metadata"]["name"].as_str().unwrap_or(&request.name);
        let (old, new) = (&request.old_object["spec"], &request.object["spec"]);
        if request.operation == Operation::Update && old == new {
            return Answer::allow();
        }
        if request.operation == Operation::Update && is_versioned(name) {
            return Answer::deny(format!(
                "spec: {name:?} is a version, and the spec of a version never changes: apply it as a new one, with another metadata.name"
            ));
        }
        let spec: ResourcePluginSpec = match serde::Deserialize::deserialize(new) {
            Ok(spec) => spec,
            Err(error) => return Answer::deny(message::cut(&format!("spec: {error}"), message::DENIAL_LIMIT)),
        };
        let mut faults = self.allowed.faults(&spec);
        faults.extend(uncallable(&spec, self.engine.callable()));
        let too_much = self.plugins.read().unwrap_or_else(PoisonError::into_inner).too_much(name, &spec);
        if let Some(fault) = too_much {
            return Answer::deny(fault);
        }
        // A plugin may have hundreds of expressions, and each takes a while to parse.
        let name = name.to_owned();
        let mut warnings = check::warnings(&spec, timing::covered(timing::LONGEST_HOLD));
        let found = match tokio::task::spawn_blocking(move || check::examine(&name, &spec)).await {
            Ok(found) => found,
            Err(error) => return Answer::broken(format!("the plugin could not be checked: {error}")),
        };
        faults.extend(found.faults);
        if !faults.is_empty() {
            return Answer::deny(listed(&faults));
        }
        warnings.extend(found.warnings.within_time().await);
        Answer::warn(warnings.iter().map(|warning| message::cut(warning, WARNING_LIMIT)).collect())
    }

    async fn refuse_used(&self, request: &Request) -> Answer {
        let name = request.old_object["metadata"]["name"].as_str().unwrap_or(&request.name).to_owned();
        match self.users(&name).await {
            Ok(users) if users.is_empty() => Answer::allow(),
            Ok(users) => Answer::forbid(format!(
                "resourceplugin {name:?} is used by {}: delete {} first, or take the resource out of {}",
                users.join(", "),
                if users.len() == 1 { "it" } else { "them" },
                if users.len() == 1 { "it" } else { "them" },
            )),
            Err(error) => Answer::broken(format!("who uses resourceplugin {name:?} could not be found out: {error}")),
        }
    }

    /// Some of those that use a plugin: sandboxes that are there or on their way, and gone ones whose last phases are
    /// still owed.
    async fn users(&self, plugin: &str) -> Result<Vec<String>, kube::Error> {
        let client = self.engine.client();
        let phases: Api<PhaseRun> = Api::all(client.clone());
        let mut users = BTreeSet::new();
        let mut stored = pages(client.clone()).boxed();
        while users.len() < NAMED
            && let Some(sandbox) = stored.try_next().await?
        {
            if self.uses(&sandbox, plugin) {
                users.insert(sandbox.shown());
            }
        }
        let mut recorded = record_pages(client.clone()).boxed();
        while users.len() < NAMED
            && let Some(sandbox) = recorded.try_next().await?
        {
            let user = sandbox.shown();
            if !users.contains(&user) && self.uses(&sandbox, plugin) {
                users.insert(format!("{user} (deleted, but its last phases are still to run)"));
            }
        }
        for open in self.engine.index.unsettled() {
            let user = format!("sandbox {}", open.target);
            if users.len() >= NAMED || users.contains(&user) {
                continue;
            }
            let run = phases.get_opt(&open.name).await?;
            if run.is_some_and(|run| self.uses(&Stored::of(&run.spec.object), plugin)) {
                users.insert(format!("{user} (a change of it is under way in phaserun {})", open.name));
            }
        }
        Ok(users.into_iter().collect())
    }

    fn uses(&self, sandbox: &Stored, plugin: &str) -> bool {
        let plugins = self.plugins.read().unwrap_or_else(PoisonError::into_inner);
        sandbox.plugins().any(|(reference, latest)| {
            plugins.resolve(reference, latest).map_or_else(|error| error.is_of(plugin), |found| found.name == plugin)
        })
    }
}

/// The calls of a plugin whose targets are written out and that nobody may call.
fn uncallable(spec: &ResourcePluginSpec, allowed: &Allowed) -> Vec<Fault> {
    let of_workflow = |workflow: Workflow| {
        let (field, steps) = spec.workflow_field(workflow);
        let calls = steps.iter().enumerate().filter_map(|(index, step)| Some((index, step.http.as_ref()?)));
        calls.filter_map(move |(index, http)| {
            let message = allowed.check_template(&http.url).err()?;
            Some(Fault { field: format!("spec.{field}[{index}].http.url"), message })
        })
    };
    Workflow::ALL.into_iter().flat_map(of_workflow).collect()
}

impl RunnerLimits {
    fn faults(&self, spec: &ResourcePluginSpec) -> Vec<Fault> {
        let mut faults = Vec::new();
        let namespace = spec.runner.namespace.as_deref().unwrap_or(&self.default_namespace);
        if !self.namespaces.contains(namespace) {
            let known: Vec<_> = self.namespaces.iter().map(String::as_str).collect();
            faults.push(Fault {
                field: "spec.runner.namespace".to_owned(),
                message: if namespace == self.own_namespace {
                    format!(
                        "{namespace:?} is Sluice's own, where no plugin runs: leave the field out, or name one of {}; a cluster admin may allow it with runners.allowOwnNamespace in the chart's values",
                        known.join(", ")
                    )
                } else {
                    format!(
                        "plugins may not run in {namespace:?}, only in {}: a cluster admin adds it to runnerNamespaces in the chart's values",
                        known.join(", ")
                    )
                },
            });
        }
        if namespace == self.own_namespace
            && spec.runner.service_account_name.is_some()
            && spec.runner.service_account_name == self.own_service_account
        {
            faults.push(Fault {
                field: "spec.runner.serviceAccountName".to_owned(),
                message: "is Sluice's own, which no plugin may act as: make one for the plugin, with the rights that it needs".to_owned(),
            });
        }
        // An overlay that cannot be read is a fault that is told elsewhere.
        if namespace == self.own_namespace
            && let Ok(Some(overlay)) = overlay::overlay(&spec.runner)
        {
            faults.extend(self.overlay_faults(&overlay));
        }
        faults
    }

    /// In Sluice's own namespace a pod could be given what is Sluice's.
    fn overlay_faults(&self, overlay: &Value) -> Vec<Fault> {
        let fault = |message: String| Fault { field: "spec.runner.podTemplateOverlay".to_owned(), message };
        let account =
            overlay::service_account(overlay).filter(|name| self.own_service_account.as_deref() == Some(name));
        let account = account.map(|name| {
            fault(format!(
                "spec.serviceAccountName: {name:?} is Sluice's own, which no plugin may act as: make one for the plugin, with the rights that it needs"
            ))
        });
        let secrets = overlay::secrets(overlay).into_iter().filter(|name| self.is_own_secret(name)).map(|name| {
            fault(format!(
                "refers to the Secret {name:?}, which is Sluice's own: name another, or run the plugin in another namespace"
            ))
        });
        account.into_iter().chain(secrets).collect()
    }

    /// Whether a Secret of Sluice's namespace has this name, or is one that a run's outputs are kept in.
    fn is_own_secret(&self, name: &str) -> bool {
        let of_run = |phase: Phase| name.strip_prefix(phase.slug()).is_some_and(|rest| rest.starts_with('-'));
        self.own_secrets.iter().any(|own| own == name) || Phase::ALL.into_iter().any(of_run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Runner;
    use rstest::rstest;

    #[test]
    fn a_plugin_runs_where_the_admin_says_and_never_as_sluice() {
        let limits = RunnerLimits {
            own_namespace: "sluice-system".into(),
            default_namespace: "sluice-system".into(),
            namespaces: ["sluice-system".to_owned()].into(),
            own_service_account: Some("sluice".into()),
            own_secrets: vec!["sluice-tls".into()],
        };
        let faults = |namespace: Option<&str>, account: Option<&str>| {
            limits.faults(&ResourcePluginSpec {
                runner: Runner {
                    namespace: namespace.map(str::to_owned),
                    service_account_name: account.map(str::to_owned),
                    ..Runner::default()
                },
                ..ResourcePluginSpec::default()
            })
        };
        assert_eq!(faults(None, Some("editor")), []);
        assert_eq!(faults(Some("kube-system"), None)[0].field, "spec.runner.namespace");
        assert_eq!(faults(None, Some("sluice"))[0].field, "spec.runner.serviceAccountName");
    }

    #[test]
    fn sluices_own_namespace_runs_no_plugin_unless_the_admin_says_so() {
        let limits = RunnerLimits {
            own_namespace: "sluice-system".into(),
            default_namespace: "sluice-runners".into(),
            namespaces: ["sluice-runners".to_owned()].into(),
            ..RunnerLimits::default()
        };
        let faults = |namespace: Option<&str>| {
            let runner = Runner { namespace: namespace.map(str::to_owned), ..Runner::default() };
            limits.faults(&ResourcePluginSpec { runner, ..ResourcePluginSpec::default() })
        };
        assert_eq!((faults(None), faults(Some("sluice-runners"))), (vec![], vec![]));
        let fault = faults(Some("sluice-system")).remove(0);
        assert_eq!(fault.field, "spec.runner.namespace");
        assert!(fault.message.contains("runners.allowOwnNamespace"), "{}", fault.message);
    }

    #[rstest]
    #[case("spec: {serviceAccountName: sluice}", "spec.serviceAccountName: \"sluice\" is Sluice's own")]
    #[case("spec: {serviceAccount: sluice}", "spec.serviceAccountName: \"sluice\" is Sluice's own")]
    #[case("spec: {volumes: [{name: a, secret: {secretName: sluice-tls}}]}", "refers to the Secret \"sluice-tls\"")]
    #[case(
        "spec: {containers: [{name: main, envFrom: [{secretRef: {name: pre-create-0123456789abcdef-1}}]}]}",
        "refers to the Secret \"pre-create-0123456789abcdef-1\""
    )]
    fn an_overlay_gives_a_pod_nothing_of_sluices_own(#[case] overlay: &str, #[case] fault: &str) {
        let limits = RunnerLimits {
            own_namespace: "sluice-system".into(),
            default_namespace: "sluice-runners".into(),
            namespaces: ["sluice-system".to_owned(), "plugins".to_owned()].into(),
            own_service_account: Some("sluice".into()),
            own_secrets: vec!["sluice-tls".into()],
        };
        let faults = |namespace: &str| {
            let (namespace, pod_template_overlay) = (Some(namespace.to_owned()), Some(overlay.to_owned()));
            let runner = Runner { namespace, pod_template_overlay, ..Runner::default() };
            limits.faults(&ResourcePluginSpec { runner, ..ResourcePluginSpec::default() })
        };
        assert!(faults("sluice-system")[0].message.starts_with(fault), "{:?}", faults("sluice-system"));
        assert_eq!(faults("plugins"), []);
    }
}
