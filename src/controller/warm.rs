//! Keeps pods ready for the plugins that ask for it, each used once.
//!
//! A run takes one by itself; the watch of those that wait tells, and another is made at once. How many there are to
//! be is `plan::warm`'s to say.

use super::Context;
use crate::api::{API_VERSION, ResourcePlugin, ResourcePluginSpec, TargetRef, Workflow, labels};
use crate::engine::pod_template::{self, TemplateError};
use crate::engine::warm::{age, label};
use crate::engine::{PodSettings, is_status};
use crate::plan::message::with_causes;
use crate::plan::pod::{self, PodState};
use crate::plan::runs::warm_folders;
use crate::plan::warm::{self, LIFE_SECONDS, Standing, Waiting, Wanted};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Looked at this often even without news: time alone makes pods old.
const LOOK: Duration = Duration::from_secs(300);
/// The pause after a first pod that could not be made, or broke; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// A plugin that keeps pods ready.
struct Keeping {
    /// The name of the plugin.
    plugin: String,
    wanted: Wanted,
    template: PodTemplateSpec,
}

/// What went wrong with the pods of one template.
#[derive(Default)]
struct Trouble {
    failures: u32,
    again_at: Option<Instant>,
    told: BTreeSet<String>,
}

/// Keeps the pods for as long as the future is polled. `plugins` tells of every change of a plugin.
pub async fn keep(context: Arc<Context>, mut plugins: watch::Receiver<bool>) {
    let mut changes = context.engine.warm.changes();
    let mut troubles: BTreeMap<Wanted, Trouble> = BTreeMap::new();
    loop {
        changes.mark_unchanged();
        plugins.mark_unchanged();
        let again_in = reconcile(&context, &mut troubles).await;
        tokio::select! {
            _ = changes.changed() => {}
            _ = plugins.changed() => {}
            () = tokio::time::sleep(again_in) => {}
        }
    }
}

/// Makes and deletes what is to be; tells after which time to look again.
async fn reconcile(context: &Context, troubles: &mut BTreeMap<Wanted, Trouble>) -> Duration {
    let mut keeping = keepings(context, troubles).await;
    // Where it is not known yet what waits, nothing is missing; the first list is news.
    keeping.retain(|keeping| context.engine.warm.is_synced(&keeping.wanted.namespace));
    let wanted: Vec<Wanted> = keeping.iter().map(|keeping| keeping.wanted.clone()).collect();
    troubles.retain(|of, _| of.template.is_empty() || wanted.contains(of));
    let pods = context.engine.warm.all();
    let waiting: Vec<Waiting> = pods.iter().map(|pod| waiting(pod, Timestamp::now())).collect();
    for (pod, keeping) in pods.iter().flat_map(|pod| Some((pod, keeping.iter().find(|k| is_of(pod, k))?))) {
        let trouble = troubles.entry(keeping.wanted.clone()).or_default();
        match pod::state(pod) {
            PodState::Broken(reason) if pod.metadata.deletion_timestamp.is_none() => {
                tell(context, trouble, &keeping.plugin, &reason).await;
                trouble.fail(Instant::now());
            }
            PodState::Starting(Some(reason)) => tell(context, trouble, &keeping.plugin, &reason).await,
            PodState::Running => trouble.mend(Instant::now()),
            _ => {}
        }
    }
    let plan = warm::plan(&wanted, &waiting);
    for pod in plan.delete.iter().map(|index| &pods[*index]) {
        delete(context, pod).await;
    }
    let mut again_in = LOOK;
    for (keeping, missing) in keeping.iter().zip(plan.create) {
        let trouble = troubles.entry(keeping.wanted.clone()).or_default();
        if missing > 0
            && let Some(left) = trouble.left(Instant::now())
        {
            again_in = again_in.min(left);
            continue;
        }
        for _ in 0..missing {
            if let Err(error) = create(context, keeping).await {
                let reason =
                    format!("none can be made in namespace {}: {}", keeping.wanted.namespace, with_causes(&error));
                tell(context, trouble, &keeping.plugin, &reason).await;
                trouble.fail(Instant::now());
                again_in = again_in.min(trouble.left(Instant::now()).unwrap_or_default());
                break;
            }
        }
    }
    again_in
}

impl Trouble {
    /// Another pod broke. Those that break while none is made count as one.
    fn fail(&mut self, now: Instant) {
        if self.left(now).is_none() {
            self.again_at = Some(now + LONGEST_PAUSE.min(FIRST_PAUSE * 2_u32.pow(self.failures.min(8))));
            self.failures += 1;
        }
    }

    /// A pod runs. What broke a moment ago still waits for its time.
    fn mend(&mut self, now: Instant) {
        if self.left(now).is_none() {
            (self.failures, self.again_at) = (0, None);
        }
    }

    /// How long no pod is to be made.
    fn left(&self, now: Instant) -> Option<Duration> {
        self.again_at.map(|at| at.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }
}

/// The plugins that keep pods ready. What is wrong with the template of one is told.
async fn keepings(context: &Context, troubles: &mut BTreeMap<Wanted, Trouble>) -> Vec<Keeping> {
    let all: Vec<_> = {
        let plugins = context.plugins.read().unwrap_or_else(PoisonError::into_inner);
        plugins.iter().map(|(name, spec)| (name.clone(), spec.clone())).collect()
    };
    let mut keeping = Vec::new();
    for (name, spec) in all {
        match self::keeping(&name, &spec, context.engine.pod_settings()) {
            Some(Ok(found)) => keeping.push(found),
            Some(Err(error)) => {
                let none = Wanted { plugin: name.clone(), namespace: String::new(), template: String::new(), count: 0 };
                tell(context, troubles.entry(none).or_default(), &name, &error.to_string()).await;
            }
            None => {}
        }
    }
    keeping
}

fn keeping(name: &str, spec: &ResourcePluginSpec, settings: &PodSettings) -> Option<Result<Keeping, TemplateError>> {
    let folders = warm_folders(spec)?;
    let has_script = |workflow| spec.steps(workflow).iter().any(|step| step.script.is_some());
    if spec.runner.image.is_none() || !Workflow::ALL.into_iter().any(has_script) {
        return None;
    }
    Some(pod_template::template(settings, &spec.runner, &folders).map(|template| Keeping {
        plugin: name.to_owned(),
        wanted: Wanted {
            plugin: labels::value(name),
            namespace: pod_template::namespace(&spec.runner, settings).to_owned(),
            template: pod_template::hash(&template),
            count: spec.runner.warm.unwrap_or_default() as usize,
        },
        template,
    }))
}

fn waiting(pod: &Pod, now: Timestamp) -> Waiting {
    let text = |name| label(pod, name).unwrap_or_default().to_owned();
    Waiting {
        plugin: text(labels::WARM_OF),
        namespace: pod.namespace().unwrap_or_default(),
        template: text(labels::WARM_TEMPLATE),
        standing: match pod::state(pod) {
            _ if pod.metadata.deletion_timestamp.is_some() => Standing::Going,
            PodState::Running => Standing::Ready,
            PodState::Starting(_) => Standing::Starting,
            PodState::Broken(_) => Standing::Broken,
        },
        age_seconds: age(pod, now),
    }
}

fn is_of(pod: &Pod, keeping: &Keeping) -> bool {
    let wanted = &keeping.wanted;
    label(pod, labels::WARM_OF) == Some(&wanted.plugin)
        && label(pod, labels::WARM_TEMPLATE) == Some(&wanted.template)
        && pod.metadata.namespace.as_ref() == Some(&wanted.namespace)
}

async fn create(context: &Context, keeping: &Keeping) -> Result<(), kube::Error> {
    let wanted = &keeping.wanted;
    let own = [
        (labels::WARM_OF.to_owned(), wanted.plugin.clone()),
        (labels::WARM_TEMPLATE.to_owned(), wanted.template.clone()),
    ];
    let mut pod = pod_template::marked("", &wanted.namespace, keeping.template.clone(), own.into());
    pod.metadata.name = None;
    pod.metadata.generate_name = Some(format!("warm-{}-", labels::name(&keeping.plugin, 40).replace('.', "-")));
    if let Some(spec) = &mut pod.spec {
        spec.active_deadline_seconds = Some(LIFE_SECONDS);
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &wanted.namespace);
    let made = pods.create(&PostParams::default(), &pod).await?;
    context.engine.warm.observe(made);
    Ok(())
}

/// Deletes a pod that nobody has taken.
async fn delete(context: &Context, pod: &Pod) {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
    let unchanged = Preconditions { uid: pod.uid(), resource_version: pod.resource_version() };
    let params = DeleteParams { preconditions: Some(unchanged), ..DeleteParams::default().grace_period(1) };
    match pods.delete(&pod.name_any(), &params).await {
        Ok(_) => context.engine.warm.forget(pod),
        Err(error) if is_status(&error, 404) => context.engine.warm.forget(pod),
        // A run has it now, or there is other news of it on the way.
        Err(error) if is_status(&error, 409) => {}
        Err(error) => {
            tracing::warn!(pod = %pod.name_any(), error = with_causes(&error), "a pod that waits for nobody stays for now");
        }
    }
}

/// Tells once what stands in the way of a plugin's pods.
async fn tell(context: &Context, trouble: &mut Trouble, plugin: &str, reason: &str) {
    let kind = reason.split(':').next().unwrap_or_default().to_owned();
    if !trouble.told.insert(kind) {
        return;
    }
    tracing::warn!(plugin, reason, "no pod of the plugin is ready");
    let plugins: Api<ResourcePlugin> = Api::all(context.client.clone());
    let Ok(Some(found)) = plugins.get_metadata_opt(plugin).await else { return };
    let about = TargetRef {
        api_version: API_VERSION.to_owned(),
        kind: "ResourcePlugin".to_owned(),
        namespace: String::new(),
        name: plugin.to_owned(),
        uid: found.metadata.uid,
    };
    let note = format!("No pod of the plugin is ready: {reason}. Its scripts get pods made when they are needed.");
    context.recorder.warning(&about, "WarmPodFailed", "KeepReady", &note).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> PodSettings {
        PodSettings { runner_namespace: "sluice".into(), agent_image: "sluice:1".into(), image_pull_policy: None }
    }

    fn kept(yaml: &str) -> Option<Wanted> {
        let spec: ResourcePluginSpec = serde_saphyr::from_str(yaml).unwrap();
        keeping("db.1.0.0", &spec, &settings()).map(|kept| kept.unwrap().wanted)
    }

    #[test]
    fn only_a_plugin_with_scripts_that_asks_for_it_keeps_pods() {
        let script = "preCreate: [{name: a, script: '#!'}]";
        let wanted = kept(&format!("{{runner: {{image: i, warm: 2}}, {script}}}")).unwrap();
        assert_eq!((wanted.plugin.as_str(), wanted.namespace.as_str(), wanted.count), ("db.1.0.0", "sluice", 2));
        assert_eq!(kept(&format!("{{runner: {{image: i, warm: 0}}, {script}}}")), None);
        assert_eq!(kept(&format!("{{runner: {{image: i}}, {script}}}")), None);
        assert_eq!(kept("{runner: {image: i, warm: 2}, preCreate: [{name: a, apply: {manifests: []}}]}"), None);
    }

    #[test]
    fn a_pod_is_of_the_template_that_its_run_asks_for() {
        let yaml = "{runner: {image: i, warm: 2}, preCreate: [{name: a, script: '#!', outputs: [{name: o, valueFromPath: /a/o}]}],
            postDelete: [{name: b, script: '#!', outputs: [{name: o, valueFromPath: /b/o}]}]}";
        let spec: ResourcePluginSpec = serde_saphyr::from_str(yaml).unwrap();
        let sandbox = serde_json::json!({"metadata": {"name": "x", "namespace": "n"}, "spec": {"resources": [{"name": "r", "plugin": "p"}]}});
        let plugins = crate::plan::plugins::Plugins::new([("p".to_owned(), spec.clone())]);
        let change = crate::plan::runs::Change::Create { new: &sandbox };
        let runs = crate::plan::runs::plan(change, crate::plan::runs::Side::Pre, &plugins).unwrap();
        let resource = &runs[0].resources[0];
        let of_run = pod_template::hash(&pod_template::of_resource(&settings(), resource, None).unwrap());
        assert_eq!(keeping("p", &spec, &settings()).unwrap().unwrap().wanted.template, of_run);
    }

    #[test]
    fn what_breaks_again_and_again_is_tried_less_and_less() {
        let mut trouble = Trouble::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            trouble.fail(now);
            trouble.fail(now);
            let left = trouble.left(now).unwrap();
            pauses.push(left.as_secs());
            trouble.mend(now);
            now += left;
        }
        assert_eq!(pauses[..4], [2, 4, 8, 16]);
        assert_eq!(pauses[9], 300);
        trouble.mend(now);
        assert_eq!((trouble.failures, trouble.left(now)), (0, None));
    }
}
